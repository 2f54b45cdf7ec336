//! Finds the best node for a pod among all nodes, using the index of free capacity.
//!
//! Nodes are visited in the order of [`crate::score`], so the first node that fits now is the best.
//! For shares, nodes whose shared cards may take the share come first, then nodes with the fewest free
//! whole GPUs; for pods without GPUs, nodes without GPUs come first, then nodes with the least free
//! CPU. A node that fits only later counts only if none fits now. The index is used with `binpack`
//! alone, and only where nothing else ranks nodes (a topology, a nominated node, a refusal, a
//! preference, a `PreferNoSchedule` taint); otherwise [`super::place`] visits every node.

use crate::config::Placement;
use crate::cycle::Cycle;
use crate::cycle::plan::Way;
use crate::fit::{self, Assignment};
use crate::model::{Amount, Ask};
use crate::reason::WaitReason;
use crate::state::keys::{NodeKey, SpecKey, TaskKey};
use crate::state::node_set::NodeSet;
use crate::state::products::Product;
use crate::state::room::Room;
use crate::state::spec_row::SpecRow;
use crate::units::NanoGpu;
use slotmap::SecondaryMap;
use std::sync::Arc;

/// The result, and how many nodes were checked.
pub(super) struct BestNode {
    pub best: Option<(NodeKey, Assignment)>,
    pub looked_at: u64,
}

impl Cycle<'_> {
    /// The index is in the order in which nodes are ranked for such a pod, whose domains are up
    /// to date.
    pub(super) fn is_sorted_for(&self, spec: &SpecRow) -> bool {
        let packs = if spec.wants_gpus() {
            self.config.gpu_placement == Placement::Binpack
                && (!spec.shares || self.config.cards() == Placement::Binpack)
        } else {
            self.config.cpu_placement == Placement::Binpack
        };
        let others = spec.spec.others.as_ref();
        let domains = spec.asks.as_ref().and_then(|asks| asks.domains.as_ref());
        packs
            && !self
                .config
                .without
                .iter()
                .any(|plugin| plugin.ranks_nodes())
            && spec.spec.rules.nominated.is_none()
            && spec.spec.rules.preferred.is_empty()
            && self.state.index.soft_nodes == 0
            && !others.is_some_and(|others| others.prefers())
            && domains.is_none_or(|domains| domains.worth().is_none())
    }
}

/// Searches a place. `among`: only there; `None`: anywhere. `over`: why a queue does not allow it
/// where it fits.
pub(super) fn best(
    cycle: &mut Cycle,
    task: TaskKey,
    spec: SpecKey,
    way: Way,
    among: Option<&NodeSet>,
    over: &mut Option<Arc<WaitReason>>,
) -> BestNode {
    cycle.state.refresh_rooms();
    let mut refusals = std::mem::take(&mut cycle.memos.refusals);
    let mut search = NodeSearch {
        cycle,
        task,
        way,
        among,
        over,
        looked_at: 0,
        later: None,
        refused: refusals.of(spec, cycle.state.devices.version, way == Way::Promise),
        refused_products: Vec::new(),
    };
    let best = cycle.state.specs.get(spec).and_then(|spec| {
        if spec.wants_gpus() {
            search.with_gpus(spec)
        } else {
            search.without(spec)
        }
    });
    let best = BestNode {
        best: best.or(search.later),
        looked_at: search.looked_at,
    };
    cycle.memos.refusals = refusals;
    best
}

struct NodeSearch<'a, 'b> {
    cycle: &'a Cycle<'b>,
    task: TaskKey,
    way: Way,
    among: Option<&'a NodeSet>,
    over: &'a mut Option<Arc<WaitReason>>,
    looked_at: u64,
    /// The best place that is not free yet.
    later: Option<(NodeKey, Assignment)>,
    refused: &'a mut SecondaryMap<NodeKey, u64>,
    /// Products of which the pod's queues may have no more.
    refused_products: Vec<Product>,
}

impl NodeSearch<'_, '_> {
    /// The node of that rank, if it is one of those.
    fn node(&self, rank: u32) -> Option<NodeKey> {
        let rooms = &self.cycle.state.caches.rooms;
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
        wanted: impl Fn(&Assignment) -> bool,
    ) -> Option<(NodeKey, Assignment)> {
        self.looked_at += 1;
        let promise = self.way == Way::Promise;
        let cycle = self.cycle;
        // What other pods and volumes allow may change with other nodes.
        let by_itself = spec.spec.others.is_none() && spec.spec.claims.is_empty();
        let remembers = !spec.spec.devices.is_empty() && by_itself;
        let row = cycle.state.nodes.get(key).filter(|_| remembers);
        let generation = row.map(|row| row.generation);
        if generation.is_some() && self.refused.get(key).copied() == generation {
            return None;
        }
        // The pod counts for the same on each node of a product, but for GPU memory.
        let product = cycle.state.product_of(key);
        let product = product.filter(|_| cycle.state.has_product_quotas() && spec.share_mib == 0);
        if product.is_some_and(|product| self.refused_products.contains(product)) {
            return None;
        }
        let Ok(assignment) = fit::node(cycle.state, spec, key, cycle.config, promise) else {
            if let Some(generation) = generation {
                self.refused.insert(key, generation);
            }
            return None;
        };
        if !wanted(&assignment) || !assignment.allocatable && self.later.is_some() {
            return None;
        }
        if let Some(why) = cycle.over_capacity_there(self.task, key, &assignment) {
            *self.over = Some(why);
            self.refused_products.extend(product.cloned());
            return None;
        }
        if assignment.allocatable {
            return Some((key, assignment));
        }
        self.later = Some((key, assignment));
        None
    }

    fn with_gpus(&mut self, spec: &SpecRow) -> Option<(NodeKey, Assignment)> {
        let rooms = &self.cycle.state.caches.rooms;
        if spec.shares {
            for (_, rank) in &rooms.sharing {
                let Some(key) = self.node(*rank) else {
                    continue;
                };
                if !may_join(spec, &rooms.of(key)) {
                    continue;
                }
                let found = self.look(spec, key, |assignment| assignment.joins);
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
            let found = self.look(spec, key, |assignment| !assignment.joins);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn without(&mut self, spec: &SpecRow) -> Option<(NodeKey, Assignment)> {
        let rooms = &self.cycle.state.caches.rooms;
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
