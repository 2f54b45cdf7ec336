//! The best node for a pod among all of them, from the index of what they have to give.
//!
//! Nodes are looked at in the order of [`crate::score`], so that the first that will do
//! now is the best: for shares first those whose shared cards may take it, then by whole
//! GPUs left, the fewest first; for pods without GPUs those without GPUs, then by CPU
//! left. A place that is not free yet counts only where none is. Only for `binpack`, and
//! where nothing else (a topology, a nominated node, a refusal, a preference, a taint that prefers
//! other pods) ranks nodes; else
//! [`super::place`] looks at each.

use super::Cycle;
use super::place::Way;
use crate::config::Placement;
use crate::fit::{self, Seat};
use crate::model::{Amount, Ask};
use crate::reason::Why;
use crate::state::node_set::NodeSet;
use crate::state::room::Room;
use crate::state::rows::{NodeKey, SpecKey, SpecRow, TaskKey};
use crate::units::NanoGpu;
use std::sync::Arc;

/// What was found, and how many nodes were looked at.
pub(super) struct Found {
    pub best: Option<(NodeKey, Seat)>,
    pub looked_at: u64,
}

impl Cycle<'_> {
    /// The index is in the order in which nodes are ranked for such a pod.
    pub(super) fn is_sorted_for(&self, spec: &SpecRow) -> bool {
        let packs = if spec.wants_gpus() {
            self.config.gpu_placement == Placement::Binpack
                && (!spec.shares || self.config.cards() == Placement::Binpack)
        } else {
            self.config.cpu_placement == Placement::Binpack
        };
        let others = spec.spec.others.as_ref();
        packs
            && !self
                .config
                .without
                .iter()
                .any(|plugin| plugin.ranks_nodes())
            && spec.spec.rules.nominated.is_none()
            && spec.spec.rules.preferred.is_empty()
            && self.state.soft_nodes == 0
            && !others.is_some_and(|others| others.prefers())
    }
}

/// Looks for it. `among`: only there; `None`: anywhere. `over`: why a
/// queue would not have it where it fits.
pub(super) fn best(
    cycle: &mut Cycle,
    task: TaskKey,
    spec: SpecKey,
    way: Way,
    among: Option<&NodeSet>,
    over: &mut Option<Arc<Why>>,
) -> Found {
    cycle.state.refresh_rooms();
    let cycle = &*cycle;
    let mut search = Search {
        cycle,
        task,
        way,
        among,
        over,
        looked_at: 0,
        later: None,
    };
    let best = cycle.state.specs.get(spec).and_then(|spec| {
        if spec.wants_gpus() {
            search.with_gpus(spec)
        } else {
            search.without(spec)
        }
    });
    Found {
        best: best.or(search.later),
        looked_at: search.looked_at,
    }
}

struct Search<'a, 'b> {
    cycle: &'a Cycle<'b>,
    task: TaskKey,
    way: Way,
    among: Option<&'a NodeSet>,
    over: &'a mut Option<Arc<Why>>,
    looked_at: u64,
    /// The best place that is not free yet.
    later: Option<(NodeKey, Seat)>,
}

impl Search<'_, '_> {
    /// The node of that rank, if it is one of those.
    fn node(&self, rank: u32) -> Option<NodeKey> {
        let rooms = &self.cycle.state.rooms;
        match self.among {
            Some(nodes) if !nodes.contains(rank) => None,
            _ => rooms.node(rank),
        }
    }

    /// `Some`: it may sit there now. Else, where it may later, that is remembered.
    fn look(
        &mut self,
        spec: &SpecRow,
        key: NodeKey,
        wanted: impl Fn(&Seat) -> bool,
    ) -> Option<(NodeKey, Seat)> {
        self.looked_at += 1;
        let promise = self.way == Way::Promise;
        let cycle = self.cycle;
        let seat = fit::node(cycle.state, spec, key, cycle.config, promise).ok()?;
        if !wanted(&seat) || !seat.allocatable && self.later.is_some() {
            return None;
        }
        if let Some(why) = cycle.over_capacity_there(self.task, &seat) {
            *self.over = Some(why);
            return None;
        }
        if seat.allocatable {
            return Some((key, seat));
        }
        self.later = Some((key, seat));
        None
    }

    fn with_gpus(&mut self, spec: &SpecRow) -> Option<(NodeKey, Seat)> {
        let rooms = &self.cycle.state.rooms;
        if spec.shares {
            for (_, rank) in &rooms.sharing {
                let Some(key) = self.node(*rank) else {
                    continue;
                };
                if !may_join(spec, &rooms.of(key)) {
                    continue;
                }
                let found = self.look(spec, key, |seat| seat.joins);
                if found.is_some() {
                    return found;
                }
            }
            // To join a card later goes before opening one now.
            if self.later.is_some() {
                return None;
            }
        }
        let least = if spec.shares || spec.whole == 0 {
            i64::MIN
        } else {
            i64::from(spec.whole)
        };
        // Where nothing is free now, the first place that will be is the best.
        let only_later =
            !spec.shares && spec.whole > 0 && rooms.by_now.range((least, 0)..).next().is_none();
        for (whole, rank) in rooms.by_whole.range((least, 0)..) {
            if only_later && self.later.is_some() {
                break;
            }
            let Some(key) = self.node(*rank) else {
                continue;
            };
            // A share opens a whole GPU, or a card that is none.
            let opens = *whole > 0 || rooms.of(key).odd;
            if spec.shares && !opens {
                continue;
            }
            let found = self.look(spec, key, |seat| !seat.joins);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn without(&mut self, spec: &SpecRow) -> Option<(NodeKey, Seat)> {
        let rooms = &self.cycle.state.rooms;
        let least = i128::from(spec.spec.cpu.0);
        for has_gpus in [false, true] {
            // What asks for nothing fits where less than nothing is left.
            let from = if least == 0 { i128::MIN } else { least };
            for (_, _, rank) in rooms
                .by_cpu
                .range((has_gpus, from, 0)..=(has_gpus, i128::MAX, u32::MAX))
            {
                let Some(key) = self.node(*rank) else {
                    continue;
                };
                let found = self.look(spec, key, |_| true);
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }
}

/// Some share of the pod may be worth little enough to join a shared card of the node.
fn may_join(spec: &SpecRow, room: &Room) -> bool {
    let Some(most) = room.shared else {
        return false;
    };
    spec.spec.gpus.iter().any(|ask| match &ask.ask {
        Ask::Share(share) => match share.amount {
            Amount::Memory(mib) => mib.0 <= most,
            Amount::Fraction(part) => {
                let least =
                    u128::from(part.0) * u128::from(room.smallest) / u128::from(NanoGpu::ONE.0);
                least <= u128::from(most)
            }
        },
        Ask::Whole(_) => false,
    })
}
