//! Whole GPUs that reclaim may free: what is free or leaving, plus what the queues hold from which
//! this one may reclaim, must be as much as the first pod wants.
//!
//! Reclaim accepts a set of victims only if every pod that really leaves is of such a queue; all
//! others must have a place elsewhere, and moving a pod frees no whole GPU. Where cards are shared,
//! moving may free whole ones: then the answer is *perhaps*.

use crate::cycle::Cycle;
use crate::cycle::relax::memory::{Cached, Losable, LosableBelow, Reclaimable};
use crate::cycle::relax::victim_filter::VictimFilter;
use crate::cycle::relax::{Asked, Relaxation};
use crate::product_quota;
use crate::shares::{QueueAmounts, plus, within};
use crate::state::keys::QueueKey;
use crate::units::NanoGpu;

impl Relaxation for Losable {
    fn name(&self) -> &'static str {
        "losable GPUs"
    }

    fn admits(&mut self, cycle: &Cycle, asked: &Asked) -> bool {
        let VictimFilter::LosersTo(queue, _) = asked.query.filter else {
            return true;
        };
        let Some(row) = cycle.state.specs.get(asked.query.first) else {
            return true;
        };
        if row.whole == 0 || row.shares || row.mig_nano > 0 {
            return true;
        }
        let current = |known: &Cached<_>| known.is_current(cycle.state);
        let known = self.below.take().filter(current);
        let known = known.unwrap_or_else(|| Cached::of(cycle.state, cycle.losable_below()));
        let Some(below) = &self.below.insert(known).value else {
            return true;
        };
        let one = u128::from(NanoGpu::ONE.0);
        let free = u128::try_from(cycle.state.caches.rooms.whole).unwrap_or(0) * one;
        let wanted = cycle.shares.wanted_by(row, cycle.shares.smallest_card);
        let losable = cycle.losable_to(below, queue, wanted);
        u128::from(row.whole) * one <= free + losable
    }
}

impl Cycle<'_> {
    /// Upper bound of the nano-GPUs that other queues can lose to one with this demand.
    fn losable_to(&self, below: &LosableBelow, queue: QueueKey, wanted: QueueAmounts) -> u128 {
        let chain = self.chain_of(queue);
        let mut sum = 0;
        for (level, ours) in chain.iter().enumerate() {
            let Some(share) = self.shares.of.get(*ours) else {
                continue;
            };
            let has = self
                .state
                .cells
                .queues
                .get(*ours)
                .copied()
                .unwrap_or_default();
            let parent = chain.get(level + 1).copied();
            let all = below.get(&parent).copied().unwrap_or_default();
            let own = self.reclaimable(*ours);
            sum += if within(plus(has.allocated, wanted), share.quota) {
                all.to_deserving - own.to_deserving
            } else {
                all.to_all - own.to_all
            };
        }
        sum
    }

    /// What of this queue.
    fn reclaimable(&self, queue: QueueKey) -> Reclaimable {
        let (Some(share), Some(used)) = (
            self.shares.of.get(queue),
            self.state.cells.queues.get(queue),
        ) else {
            return Reclaimable::default();
        };
        let has = used.allocated;
        let above_share = !within(has, share.allocatable());
        let above_quota = !within(has, share.quota);
        let above_product = product_quota::is_above_some(self.state, queue);
        let held = |may: bool| if may { has[0] } else { 0 };
        Reclaimable {
            // By priority it may lose all of it.
            to_deserving: held(
                above_share || above_quota || above_product || self.config.queue_priority_in_quota,
            ),
            to_all: held(above_share || above_product),
        }
    }

    fn losable_below(&self) -> Option<LosableBelow> {
        let is_inner = |queue: &QueueKey| {
            let row = self.state.queues.get(*queue);
            row.is_none_or(|row| !row.children.is_empty())
        };
        if self.state.cells.overallocated > 0
            || !self.state.caches.rooms.sharing.is_empty()
            || self.state.victim_queues().any(|queue| is_inner(&queue))
        {
            return None;
        }
        let mut below = LosableBelow::default();
        for (queue, row) in &self.state.queues {
            if row.chain.is_empty() {
                continue;
            }
            let own = self.reclaimable(queue);
            let all = below.entry(row.chain.get(1).copied()).or_default();
            all.to_deserving += own.to_deserving;
            all.to_all += own.to_all;
        }
        Some(below)
    }
}
