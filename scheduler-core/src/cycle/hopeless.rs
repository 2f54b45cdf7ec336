//! Searches that cannot find anything, known without a search.
//!
//! A set of victims is allowed for a reclaim only if whoever of it really leaves is of a
//! queue that may lose something to ours at all; the rest of it has to find a place
//! elsewhere. Moving gives no whole GPU to anybody: as many are free after it as before.
//! So a pod that wants more whole GPUs than are free or leaving anywhere, and than those
//! queues hold together, has no such set. (Where cards are shared, moving may free whole
//! ones, and nothing is said here.)
//!
//! This only skips work: debug builds run the search all the same and compare.

use super::Cycle;
use crate::shares::{plus, within};
use crate::state::rows::{JobKey, QueueKey, SpecKey};
use crate::units::NanoGpu;
use rustc_hash::FxHashMap;

/// What queues could lose, while nothing has moved.
#[derive(Debug, Default)]
pub(super) struct Outlook {
    /// [`crate::state::State::touched`] at that time.
    at: Option<u64>,
    /// By parent, of all its children.
    below: FxHashMap<Option<QueueKey>, Losable>,
    /// Moving may free whole GPUs, or jobs stand in queues that have no place of their own.
    says_nothing: bool,
    /// Answers by queue and request.
    answers: FxHashMap<(QueueKey, SpecKey), bool>,
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
    pub(super) fn may_find_by_reclaim(&mut self, job: JobKey) -> bool {
        self.look_out();
        if self.outlook.says_nothing {
            return true;
        }
        let tasks = self.next_tasks(job);
        let (Some(first), Some(queue)) = (
            tasks.first().copied(),
            self.state.jobs.get(job).and_then(|row| row.queue),
        ) else {
            return true;
        };
        let Some(spec) = self.state.tasks.get(first).map(|row| row.spec) else {
            return true;
        };
        if let Some(answer) = self.outlook.answers.get(&(queue, spec)) {
            return *answer;
        }
        let wants = self.state.specs.get(spec).map_or(0, |spec| {
            let only_whole = !spec.shares && spec.mig_nano == 0;
            if only_whole { spec.whole } else { 0 }
        });
        let free = u128::try_from(self.state.rooms.whole).unwrap_or(0) * u128::from(NanoGpu::ONE.0);
        let wanted = self
            .shares
            .wanted(self.state, &[first], self.shares.smallest_card);
        let answer = wants == 0
            || u128::from(wants) * u128::from(NanoGpu::ONE.0)
                <= free + self.losable_to(queue, wanted);
        self.outlook.answers.insert((queue, spec), answer);
        answer
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
            to_deserving: held(above_share || above_quota),
            to_all: held(above_share),
        }
    }

    fn look_out(&mut self) {
        self.state.refresh_rooms();
        let at = Some(self.state.touched);
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
