//! The jobs and pods that a [`VictimFilter`] permits as victims.

use crate::cycle::Cycle;
use crate::cycle::relax::victim_filter::{PermittedVictims, VictimFilter};
use crate::state::keys::{JobKey, QueueKey};
use crate::state::spec_row::SpecRow;

impl Cycle<'_> {
    /// Jobs with placed pods that the filter lets go, but not this one; at most that many, in any
    /// order.
    pub(in super::super) fn permitted_jobs(
        &self,
        filter: VictimFilter,
        besides: Option<JobKey>,
        most: usize,
    ) -> Vec<JobKey> {
        let mut jobs = self.standing_jobs(filter, besides, most);
        let idle = self.state.idle_jobs().filter(|(queue, _)| match filter {
            VictimFilter::Movable => false,
            VictimFilter::LosersTo(ours, wanted) => self.may_lose_to(ours, wanted, *queue),
            VictimFilter::Below(ours, _) => *queue == ours,
        });
        for (_, job) in idle {
            if !jobs.contains(&job) {
                jobs.push(job);
            }
        }
        jobs
    }

    /// Returns the jobs that the filter lets go even while they work.
    fn standing_jobs(
        &self,
        filter: VictimFilter,
        besides: Option<JobKey>,
        most: usize,
    ) -> Vec<JobKey> {
        let placed = |queue: QueueKey| self.state.index.standing.get(&queue).into_iter();
        match filter {
            VictimFilter::Movable => self.movable(besides, most),
            VictimFilter::LosersTo(queue, wanted) => self
                .losers(queue, wanted)
                .flat_map(placed)
                .flat_map(|by_priority| by_priority.values())
                .flatten()
                .copied()
                .take(most)
                .collect(),
            VictimFilter::Below(queue, priority) => placed(queue)
                .flat_map(|by_priority| by_priority.range(..priority))
                .flat_map(|(_, jobs)| jobs)
                .copied()
                .take(most)
                .collect(),
        }
    }

    /// Every pod that leaves must have a place again: always when pods are moved, and where none of
    /// the queues may really lose anything to this first pod.
    pub(super) fn everyone_stays(&self, filter: VictimFilter, first: &SpecRow) -> bool {
        match filter {
            VictimFilter::Movable => true,
            VictimFilter::LosersTo(queue, wanted) => {
                let first = self.shares.wanted_by(first, self.shares.smallest_card);
                let mut losers = self.losers(queue, wanted);
                !losers.any(|theirs| self.really_loses(queue, first, theirs))
            }
            VictimFilter::Below(..) => false,
        }
    }

    pub(super) fn permitted_victims(&self, filter: VictimFilter) -> PermittedVictims {
        match filter {
            VictimFilter::Movable => PermittedVictims::All,
            VictimFilter::LosersTo(queue, wanted) => {
                PermittedVictims::Of(self.losers(queue, wanted).collect())
            }
            VictimFilter::Below(queue, priority) => PermittedVictims::Below(queue, priority),
        }
    }
}
