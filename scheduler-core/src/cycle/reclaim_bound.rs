//! An upper bound for reclaim: rules out searches that cannot succeed.
//!
//! Reclaim accepts a set of victims only if every pod that really leaves belongs to a queue from which
//! the job's queue may reclaim; all other victims must find a place elsewhere. Moving a pod frees no
//! whole GPU. So a pod that needs more whole GPUs than are free or being released, plus what those
//! queues hold, has no acceptable set of victims. (Where cards are shared, moving may free whole
//! ones, and this bound does not apply.)
//!
//! Where no queue may lose anything, all victims must be moved, and [`repack`] tells whether they can
//! be.
//!
//! The bound only saves work: with [`crate::Config::verify`] the search runs anyway, and a result is
//! reported as a violation.

use super::eviction_bound::VictimFilter;
use super::{Cycle, repack};
use crate::shares::{QueueAmounts, plus, within};
use crate::state::rows::{JobKey, QueueKey, SpecKey};
use crate::units::NanoGpu;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// What queues could lose, while nothing has moved.
#[derive(Debug, Default)]
pub(super) struct ReclaimBounds {
    /// [`crate::state::State::settled`] at that time.
    at: Option<u64>,
    /// By parent, of all its children.
    below: FxHashMap<Option<QueueKey>, Reclaimable>,
    /// Moving may free whole GPUs, or jobs are in queues that have no place of their own.
    says_nothing: bool,
    /// Answers by queue, request of the first pod, and what the whole job wants.
    answers: FxHashMap<(QueueKey, SpecKey, QueueAmounts), bool>,
}

/// Nano-GPU held by siblings from which may be reclaimed: by queues within their quota, and
/// by any queue.
#[derive(Clone, Copy, Debug, Default)]
struct Reclaimable {
    to_deserving: u128,
    to_all: u128,
}

impl Cycle<'_> {
    /// False: no set of victims in other queues makes room for this job.
    /// `wanted`: by all of it that waits.
    pub(super) fn may_find_by_reclaim(&mut self, job: JobKey, wanted: QueueAmounts) -> bool {
        self.refresh_reclaim_bounds();
        let (Some(spec), Some(queue)) = (
            self.known(job).first,
            self.state.jobs.get(job).and_then(|row| row.queue),
        ) else {
            return false;
        };
        let key = (queue, spec, wanted);
        if let Some(answer) = self.reclaim_bounds.answers.get(&key) {
            return *answer;
        }
        let answer = self.may_reclaim_for(queue, spec, wanted);
        self.reclaim_bounds.answers.insert(key, answer);
        answer
    }

    fn may_reclaim_for(&mut self, queue: QueueKey, spec: SpecKey, wanted: QueueAmounts) -> bool {
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
        if !self.reclaim_bounds.says_nothing && wants > 0 {
            let one = u128::from(NanoGpu::ONE.0);
            let free = u128::try_from(self.state.rooms.whole).unwrap_or(0) * one;
            if u128::from(wants) * one > free + self.reclaimable_by(queue, first) {
                return false;
            }
        }
        let losers: Arc<[QueueKey]> = self.losers(queue, wanted).collect();
        if losers.is_empty() || !self.could_fit(spec, VictimFilter::Of(Arc::clone(&losers))) {
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
        let movable_pods = self.movable_pods(&jobs);
        self.could_be_arranged(spec, &movable_pods, &mut FxHashMap::default())
    }

    /// Upper bound of the nano-GPUs that other queues can lose to one with this demand.
    fn reclaimable_by(&self, queue: QueueKey, wanted: [u128; 3]) -> u128 {
        let chain = self.chain_of(queue);
        let mut sum = 0;
        for (level, ours) in chain.iter().enumerate() {
            let parent = chain.get(level + 1).copied();
            let Some(share) = self.shares.of.get(*ours) else {
                continue;
            };
            let has = self.state.queue_use.get(*ours).copied().unwrap_or_default();
            let reclaimable = self
                .reclaim_bounds
                .below
                .get(&parent)
                .copied()
                .unwrap_or_default();
            let own = self.reclaimable(*ours);
            sum += if within(plus(has.allocated, wanted), share.quota) {
                reclaimable.to_deserving - own.to_deserving
            } else {
                reclaimable.to_all - own.to_all
            };
        }
        sum
    }

    /// What of this queue.
    fn reclaimable(&self, queue: QueueKey) -> Reclaimable {
        let (Some(share), Some(used)) =
            (self.shares.of.get(queue), self.state.queue_use.get(queue))
        else {
            return Reclaimable::default();
        };
        let has = used.allocated;
        let above_share = !within(has, share.allocatable());
        let above_quota = !within(has, share.quota);
        let held = |may: bool| if may { has[0] } else { 0 };
        Reclaimable {
            // By priority it may lose all of it.
            to_deserving: held(above_share || above_quota || self.config.queue_priority_in_quota),
            to_all: held(above_share),
        }
    }

    fn refresh_reclaim_bounds(&mut self) {
        self.state.refresh_rooms();
        let at = Some(self.state.settled);
        if self.reclaim_bounds.at == at {
            return;
        }
        let mut reclaim_bounds = ReclaimBounds {
            at,
            ..ReclaimBounds::default()
        };
        reclaim_bounds.says_nothing = self.state.overallocated > 0
            || !self.state.rooms.sharing.is_empty()
            || self.state.standing.keys().any(|queue| {
                self.state
                    .queues
                    .get(*queue)
                    .is_none_or(|row| !row.children.is_empty())
            });
        if !reclaim_bounds.says_nothing {
            for (queue, row) in &self.state.queues {
                if row.chain.is_empty() {
                    continue;
                }
                let own = self.reclaimable(queue);
                let all = reclaim_bounds
                    .below
                    .entry(row.chain.get(1).copied())
                    .or_default();
                all.to_deserving += own.to_deserving;
                all.to_all += own.to_all;
            }
        }
        self.reclaim_bounds = reclaim_bounds;
    }
}
