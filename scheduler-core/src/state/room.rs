//! The index of free capacity: nodes in the order in which a pod would visit them, so that placing one
//! pod does not visit every node.
//!
//! Input: changed nodes. Output: what each node has free or being released, and the nodes sorted by it,
//! then by name. It is brought up to date on request ([`State::refresh_rooms`](super::State::refresh_rooms)); between requests it
//! only records changed nodes, so trials and rollbacks cost nothing here. It decides nothing: every
//! node that it returns is checked again with `fit`.

use crate::state::keys::NodeKey;
use crate::state::node_set::NodeSet;
use crate::units::NanoGpu;
use slotmap::SecondaryMap;
use std::collections::BTreeSet;

/// One node's room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// Whole GPUs free or leaving, less promises.
    pub whole: i64,
    /// Of them, free now.
    pub whole_now: i64,
    /// GPUs free or leaving, whole and in parts: nano-GPU and MiB.
    pub nano: u128,
    pub mib: u128,
    /// Nothing keeps the node from taking pods.
    pub ready: bool,
    /// It has GPUs, or offers MIG: pods without GPUs go elsewhere first.
    pub has_gpus: bool,
    /// Millicores free or leaving, less promises.
    pub cpu: i128,
    /// The most that a share may be nominally worth to join one of its shared cards;
    /// `None`: it has none.
    pub shared: Option<u64>,
    /// The most that a share may be nominally worth to be put on one of its cards, joining
    /// or opening it.
    pub most: u64,
    /// The smallest card: what a fraction is worth at least.
    pub smallest: u64,
    /// Some card may be opened for a share and is no whole GPU.
    pub odd: bool,
}

/// A node's room when it was looked at last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CachedRoom {
    /// [`super::rows::NodeRow::generation`] at that time.
    pub(crate) generation: u64,
    pub(crate) room: Room,
    /// [`super::rows::NodeRow::facts`] and [`super::rows::NodeRow::parts`] at that time: all that
    /// `cards` depends on.
    pub(crate) cards_of: (u64, u64),
    pub(crate) cards: CardsFree,
}

/// All nodes' rooms, and their orders.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rooms {
    /// Touched since the last time.
    pub(crate) dirty: Vec<NodeKey>,
    /// A node came or went: ranks have to be given again.
    pub(crate) names_changed: bool,
    /// Nodes by name.
    pub(crate) by_rank: Vec<NodeKey>,
    pub(crate) rank: SecondaryMap<NodeKey, u32>,
    pub(crate) at: SecondaryMap<NodeKey, CachedRoom>,
    /// By whole GPUs, then name.
    pub by_whole: BTreeSet<(i64, u32)>,
    /// By whole GPUs that are free now, where there are any.
    pub by_now: BTreeSet<(i64, u32)>,
    /// Those with shared cards, in the same order.
    pub sharing: BTreeSet<(i64, u32)>,
    /// Without GPUs first, then by millicores, then name.
    pub by_cpu: BTreeSet<(bool, i128, u32)>,
    /// By the largest share that a card of theirs may take, then name.
    pub by_most: BTreeSet<(u64, u32)>,
    /// With GPUs free or leaving, whole or in parts.
    pub some_gpu: NodeSet,
    /// Over all ready nodes.
    pub nano: u128,
    pub mib: u128,
    /// Whole GPUs free or leaving, less promises, over all nodes.
    pub whole: i64,
}

impl Rooms {
    /// The node has changed somehow.
    pub(crate) fn touch(&mut self, key: NodeKey) {
        // The newest is the likeliest to be touched again.
        if self.dirty.last() != Some(&key) {
            self.dirty.push(key);
        }
    }

    /// Nodes came or went.
    pub(crate) fn rename(&mut self) {
        self.names_changed = true;
    }

    /// The node of that rank.
    pub(crate) fn node(&self, rank: u32) -> Option<NodeKey> {
        self.by_rank.get(rank as usize).copied()
    }

    /// The node's place in the order of names.
    pub(crate) fn rank(&self, node: NodeKey) -> Option<u32> {
        self.rank.get(node).copied()
    }

    /// The nodes of a set, in order of name.
    pub(crate) fn nodes(&self, set: &NodeSet) -> impl Iterator<Item = NodeKey> {
        set.iter().filter_map(|rank| self.node(rank))
    }

    /// These nodes as a set.
    pub(crate) fn set(&self, nodes: impl IntoIterator<Item = NodeKey>) -> NodeSet {
        let ranks = nodes.into_iter().filter_map(|node| self.rank(node));
        ranks.collect()
    }

    /// A node's room, as of the last refresh.
    pub(crate) fn of(&self, key: NodeKey) -> Room {
        self.at.get(key).map(|known| known.room).unwrap_or_default()
    }

    /// The same, if it was looked at in that generation.
    pub(crate) fn as_of(&self, key: NodeKey, generation: u64) -> Option<&Room> {
        let known = self.at.get(key)?;
        (known.generation == generation).then_some(&known.room)
    }

    /// The node of that rank has this room, and had that one. Most placements change few of the
    /// numbers by which nodes are sorted.
    pub(crate) fn put(&mut self, rank: u32, had: Option<&Room>, has: &Room) {
        fn replace<K: Ord>(set: &mut BTreeSet<K>, had: Option<K>, has: Option<K>) {
            if had == has {
                return;
            }
            if let Some(had) = had {
                set.remove(&had);
            }
            if let Some(has) = has {
                set.insert(has);
            }
        }
        let by_whole = |room: &Room| (room.whole, rank);
        let by_now = |room: &Room| (room.whole_now > 0).then_some((room.whole_now, rank));
        let sharing = |room: &Room| room.shared.map(|_| (room.whole, rank));
        let by_cpu = |room: &Room| (room.has_gpus, room.cpu, rank);
        let by_most = |room: &Room| (room.most > 0).then_some((room.most, rank));
        replace(&mut self.by_whole, had.map(by_whole), Some(by_whole(has)));
        replace(&mut self.by_now, had.and_then(by_now), by_now(has));
        replace(&mut self.sharing, had.and_then(sharing), sharing(has));
        replace(&mut self.by_cpu, had.map(by_cpu), Some(by_cpu(has)));
        replace(&mut self.by_most, had.and_then(by_most), by_most(has));
        if has.nano > 0 {
            self.some_gpu.insert(rank);
        } else {
            self.some_gpu.remove(rank);
        }
        let had = had.copied().unwrap_or_default();
        self.whole += has.whole.max(0) - had.whole.max(0);
        for (room, comes) in [(&had, false), (has, true)] {
            let (nano, mib) = if room.ready {
                (room.nano, room.mib)
            } else {
                (0, 0)
            };
            if comes {
                self.nano += nano;
                self.mib += mib;
            } else {
                self.nano -= nano;
                self.mib -= mib;
            }
        }
    }
}

/// Whole GPUs of a node, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WholeCount {
    /// Idle ones, less those that this trial has taken.
    pub now: i64,
    /// The same including leaving pods' resources, less promises.
    pub later: i64,
}

/// The part that a node's cards and extended resources have in what it has free. It depends on
/// [`facts`](super::rows::NodeRow::facts) and [`parts`](super::rows::NodeRow::parts).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CardsFree {
    /// Whole GPUs that are idle, and those that will be.
    pub(crate) idle: i64,
    pub(crate) open: i64,
    /// Of shared cards and MIG slices: nano-GPU, and MiB of the cards.
    pub(crate) nano: u128,
    pub(crate) mib: u128,
    /// The most that a card can grant, MiB.
    pub(crate) largest: u128,
    /// See [`crate::state::room::Room`].
    pub shared: Option<u64>,
    pub most: u64,
    pub smallest: Option<u64>,
    pub odd: bool,
}

impl CardsFree {
    /// GPUs, whole and in parts: nano-GPU and MiB.
    pub(crate) fn gpus(&self, whole: WholeCount) -> (u128, u128) {
        let whole = u128::try_from(whole.later).unwrap_or(0);
        let nano = whole * u128::from(NanoGpu::ONE.0);
        (nano + self.nano, whole * self.largest + self.mib)
    }
}
