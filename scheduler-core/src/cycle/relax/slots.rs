//! Whole GPUs alone: where all pods want the same number of them, the nodes must have that number
//! free as often as there are pods, on nodes whose own rules let such pods in.

use crate::cycle::Cycle;
use crate::cycle::relax::Relaxation;
use crate::cycle::relax::memory::Slots;
use crate::cycle::scenario::SlotsDemand;
use crate::cycle::search::VictimSet;
use crate::state::keys::{NodeKey, TaskKey};
use crate::state::node_set::NodeSet;
use std::collections::BTreeMap;

impl Relaxation for Slots {
    fn name(&self) -> &'static str {
        "slots"
    }

    fn admits_set(&mut self, cycle: &Cycle, set: &VictimSet) -> bool {
        let Some(SlotsDemand { pods, wanted }) = set.demand.slots else {
            return true;
        };
        let (state, search) = (&*cycle.state, set.search);
        let mut freed: BTreeMap<NodeKey, i64> = BTreeMap::new();
        for task in set.scenario.units().flat_map(|unit| &unit.tasks) {
            let cell = state.cell(*task);
            let Some(node) = cell.node.filter(|node| cycle.is_in(&search.open, *node)) else {
                continue;
            };
            // A share may be the last on its card.
            let cards = match cell.holds().len() {
                0 => state
                    .tasks
                    .get(*task)
                    .and_then(|row| state.specs.get(row.spec))
                    .map_or(0, |spec| spec.gpus() as usize),
                holds => holds,
            };
            *freed.entry(node).or_default() += i64::try_from(cards).unwrap_or(i64::MAX);
        }
        let more: i64 = freed
            .iter()
            .map(|(node, freed)| {
                let has = state.caches.rooms.of(*node).whole;
                let before = if cycle.is_in(&search.feasible, *node) {
                    has.max(0) / wanted
                } else {
                    0
                };
                (has + freed).max(0) / wanted - before
            })
            .sum();
        search.slots + more >= pods
    }
}

impl Cycle<'_> {
    /// For how many pods like the first these nodes have whole GPUs; 0 where it wants none.
    pub(in super::super) fn slots(
        &self,
        tasks: &[TaskKey],
        feasible: &NodeSet,
        open: &NodeSet,
    ) -> i64 {
        let first = tasks.get(..1).unwrap_or_default();
        let Some(SlotsDemand { wanted, .. }) = self.slots_demand(first) else {
            return 0;
        };
        let rooms = &self.state.caches.rooms;
        let both = feasible.iter().filter(|rank| open.contains(*rank));
        both.filter_map(|rank| rooms.node(rank))
            .map(|node| rooms.of(node).whole.max(0) / wanted)
            .sum()
    }

    pub(in super::super) fn slots_demand(&self, tasks: &[TaskKey]) -> Option<SlotsDemand> {
        let mut wanted = None;
        for task in tasks {
            let spec = self.state.specs.get(self.state.tasks.get(*task)?.spec)?;
            let same = wanted.is_none_or(|wanted| wanted == spec.whole);
            if spec.whole == 0 || spec.shares || spec.mig_nano > 0 || !same {
                return None;
            }
            wanted = Some(spec.whole);
        }
        Some(SlotsDemand {
            pods: i64::try_from(tasks.len()).unwrap_or(i64::MAX),
            wanted: i64::from(wanted?),
        })
    }

    fn is_in(&self, set: &NodeSet, node: NodeKey) -> bool {
        let rank = self.state.caches.rooms.rank(node);
        rank.is_some_and(|rank| set.contains(rank))
    }
}
