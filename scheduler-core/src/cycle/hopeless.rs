//! Searches that cannot find anything, known without a search.
//!
//! A set of victims is allowed for a reclaim only if whoever of it really leaves is of a
//! queue that may lose something to ours at all; the rest of it has to find a place
//! elsewhere. Moving gives no whole GPU to anybody: as many are free after it as before.
//! So a pod that wants more whole GPUs than are free or leaving anywhere, and than those
//! queues hold together, has no such set. (Where cards are shared, moving may free whole
//! ones, and nothing is said here.)
//!
//! Where nobody may lose anything, and everybody who is taken has to find a place, [`repack`]
//! says whether there can be places at all.
//!
//! This only skips work: with [`crate::Config::verify`] the search is made all the same, and
//! room that it finds is a violation.

use super::ceiling::Whom;
use super::{Cycle, repack};
use crate::shares::{Three, plus, within};
use crate::state::rows::{JobKey, QueueKey, SpecKey};
use crate::units::NanoGpu;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// What queues could lose, while nothing has moved.
#[derive(Debug, Default)]
pub(super) struct Outlook {
    /// [`crate::state::State::settled`] at that time.
    at: Option<u64>,
    /// By parent, of all its children.
    below: FxHashMap<Option<QueueKey>, Losable>,
    /// Moving may free whole GPUs, or jobs stand in queues that have no place of their own.
    says_nothing: bool,
    /// Answers by queue, request of the first pod, and what the whole job wants.
    answers: FxHashMap<(QueueKey, SpecKey, Three), bool>,
}

/// Nano-GPU held by siblings that may lose something: to whoever is within its quota, and
/// to anybody.
#[derive(Clone, Copy, Debug, Default)]
struct Losable {
    to_deserving: u128,
    to_all: u128,
}

impl Cycle<'_> {
    /// False: no victims of other queues can make room for this job, whoever they are.
    /// `wanted`: by all of it that waits.
    pub(super) fn may_find_by_reclaim(&mut self, job: JobKey, wanted: Three) -> bool {
        self.look_out();
        let (Some(spec), Some(queue)) = (
            self.known(job).first,
            self.state.jobs.get(job).and_then(|row| row.queue),
        ) else {
            return false;
        };
        let key = (queue, spec, wanted);
        if let Some(answer) = self.outlook.answers.get(&key) {
            return *answer;
        }
        let answer = self.may_reclaim_for(queue, spec, wanted);
        self.outlook.answers.insert(key, answer);
        answer
    }

    fn may_reclaim_for(&mut self, queue: QueueKey, spec: SpecKey, wanted: Three) -> bool {
        let Some(row) = self.state.specs.get(spec) else {
            return true;
        };
        let only_whole = !row.shares && row.mig_nano == 0;
        let wants = if only_whole { row.whole } else { 0 };
        // Of the first pod alone, which has to come in before the others are tried.
        let mut first = row.request();
        first[0] += self
            .shares
            .gpu_of_memory(row.share_mib, self.shares.smallest_card);
        if !self.outlook.says_nothing && wants > 0 {
            let one = u128::from(NanoGpu::ONE.0);
            let free = u128::try_from(self.state.rooms.whole).unwrap_or(0) * one;
            if u128::from(wants) * one > free + self.losable_to(queue, first) {
                return false;
            }
        }
        let losers: Arc<[QueueKey]> = self.losers(queue, wanted).collect();
        if losers.is_empty() || !self.could_sit(spec, Whom::Of(Arc::clone(&losers))) {
            return false;
        }
        let any = |theirs: &QueueKey| self.really_loses(queue, first, *theirs);
        if losers.iter().any(any) {
            return true;
        }
        // All of them would only be moved.
        let jobs: Vec<JobKey> = losers
            .iter()
            .filter_map(|queue| self.state.standing.get(queue))
            .flat_map(|by_priority| by_priority.values())
            .flatten()
            .copied()
            .take(repack::MOST + 1)
            .collect();
        if jobs.len() > repack::MOST {
            return true;
        }
        let movers = self.movers(&jobs);
        self.could_be_arranged(spec, &movers, &mut FxHashMap::default())
    }

    /// At most so many nano-GPU can be lost by other queues to one that wants so much.
    fn losable_to(&self, queue: QueueKey, wanted: [u128; 3]) -> u128 {
        let chain = self.chain_of(queue);
        let mut sum = 0;
        for (level, ours) in chain.iter().enumerate() {
            let parent = chain.get(level + 1).copied();
            let Some(share) = self.shares.of.get(*ours) else {
                continue;
            };
            let has = self.state.queue_use.get(*ours).copied().unwrap_or_default();
            let losable = self.outlook.below.get(&parent).copied().unwrap_or_default();
            let own = self.losable(*ours);
            sum += if within(plus(has.allocated, wanted), share.quota) {
                losable.to_deserving - own.to_deserving
            } else {
                losable.to_all - own.to_all
            };
        }
        sum
    }

    /// What of this queue.
    fn losable(&self, queue: QueueKey) -> Losable {
        let (Some(share), Some(used)) =
            (self.shares.of.get(queue), self.state.queue_use.get(queue))
        else {
            return Losable::default();
        };
        let has = used.allocated;
        let above_share = !within(has, share.allocatable());
        let above_quota = !within(has, share.quota);
        let held = |may: bool| if may { has[0] } else { 0 };
        Losable {
            // By priority it may lose all of it.
            to_deserving: held(above_share || above_quota || self.config.queue_priority_in_quota),
            to_all: held(above_share),
        }
    }

    fn look_out(&mut self) {
        self.state.refresh_rooms();
        let at = Some(self.state.settled);
        if self.outlook.at == at {
            return;
        }
        let mut outlook = Outlook {
            at,
            ..Outlook::default()
        };
        outlook.says_nothing = self.state.uneven > 0
            || !self.state.rooms.sharing.is_empty()
            || self.state.standing.keys().any(|queue| {
                self.state
                    .queues
                    .get(*queue)
                    .is_none_or(|row| !row.children.is_empty())
            });
        if !outlook.says_nothing {
            for (queue, row) in &self.state.queues {
                if row.chain.is_empty() {
                    continue;
                }
                let own = self.losable(queue);
                let all = outlook.below.entry(row.chain.get(1).copied()).or_default();
                all.to_deserving += own.to_deserving;
                all.to_all += own.to_all;
            }
        }
        self.outlook = outlook;
    }
}
