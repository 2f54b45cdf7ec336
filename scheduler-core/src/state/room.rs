//! The index of free capacity: nodes in the order in which a pod would visit them, so that placing one
//! pod does not visit every node.
//!
//! Input: changed nodes. Output: what each node has free or being released, and the nodes sorted by it,
//! then by name. It is brought up to date on request ([`State::refresh_rooms`]); between requests it
//! only records changed nodes, so trials and rollbacks cost nothing here. It decides nothing: every
//! node that it returns is checked again with `fit`.

use super::State;
use super::keys::{CardKey, NodeKey};
use super::node_set::NodeSet;
use super::rows::NodeRow;
use crate::fit::free::CardsFree;
use crate::units::Time;
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
struct CachedRoom {
    /// [`super::rows::NodeRow::generation`] at that time.
    generation: u64,
    room: Room,
    /// [`super::rows::NodeRow::facts`] and [`super::rows::NodeRow::parts`] at that time: all that
    /// `cards` depends on.
    cards_of: (u64, u64),
    cards: CardsFree,
}

/// All nodes' rooms, and their orders.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rooms {
    /// Touched since the last time.
    dirty: Vec<NodeKey>,
    /// A node came or went: ranks have to be given again.
    names_changed: bool,
    /// Nodes by name.
    by_rank: Vec<NodeKey>,
    rank: SecondaryMap<NodeKey, u32>,
    at: SecondaryMap<NodeKey, CachedRoom>,
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
    fn put(&mut self, rank: u32, had: Option<&Room>, has: &Room) {
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

impl State {
    /// Brings the index up to date with every node that was touched.
    pub(crate) fn refresh_rooms(&mut self) {
        if self.rooms.names_changed {
            self.rooms = Rooms::default();
            let keys: Vec<NodeKey> = self.node_names.values().copied().collect();
            for (rank, key) in (0..).zip(&keys) {
                let known = self.look_at_room(*key, None);
                self.rooms.rank.insert(*key, rank);
                self.rooms.put(rank, None, &known.room);
                self.rooms.at.insert(*key, known);
            }
            self.rooms.by_rank = keys;
            return;
        }
        let mut dirty = std::mem::take(&mut self.rooms.dirty);
        dirty.sort_unstable();
        dirty.dedup();
        for key in dirty.drain(..) {
            let Some(rank) = self.rooms.rank.get(key).copied() else {
                continue;
            };
            let generation = self.nodes.get(key).map_or(0, |row| row.generation);
            if self.rooms.as_of(key, generation).is_some() {
                continue;
            }
            let known = self.rooms.at.get(key);
            let old = known.map(|known| known.room).unwrap_or_default();
            let new = self.look_at_room(key, known);
            // A pause that has ended is over from the next decision on.
            let is_due = |pause: &(Time, CardKey)| pause.0 <= self.now;
            debug_assert!(
                self.card_pauses.first().is_some_and(is_due)
                    || new.cards == self.look_at_room(key, None).cards,
                "what the cards of a node have free is out of date"
            );
            if old != new.room {
                self.rooms.put(rank, Some(&old), &new.room);
            }
            self.rooms.at.insert(key, new);
        }
        // Its memory serves the next time.
        self.rooms.dirty = dirty;
    }

    /// A node's room. `known`: as it was the last time.
    fn look_at_room(&self, key: NodeKey, known: Option<&CachedRoom>) -> CachedRoom {
        let Some(row) = self.nodes.get(key) else {
            return CachedRoom::default();
        };
        let cards_of = (row.facts, row.parts);
        let known = known.filter(|known| known.cards_of == cards_of);
        let cards = known.map(|known| known.cards);
        let cards = cards.unwrap_or_else(|| CardsFree::of(self, key, row));
        CachedRoom {
            generation: row.generation,
            room: self.room(key, row, &cards),
            cards_of,
            cards,
        }
    }

    fn room(&self, key: NodeKey, row: &NodeRow, cards: &CardsFree) -> Room {
        let Some(node) = &row.node else {
            return Room::default();
        };
        let used = self.node_use.get(key).copied().unwrap_or_default();
        let signed = |amount: u128| i128::try_from(amount).unwrap_or(i128::MAX);
        let count = cards.whole(self, key, row);
        let (nano, mib) = cards.gpus(count);
        Room {
            whole: count.later,
            whole_now: count.now,
            nano,
            mib,
            ready: node.not_ready.is_empty(),
            has_gpus: !row.is_plain(),
            cpu: signed(u128::from(node.cpu.0) + used.releasing.cpu)
                - signed(used.used.cpu + used.promised.cpu),
            shared: cards.shared,
            most: cards.most,
            smallest: cards.smallest.unwrap_or(u64::MAX),
            odd: cards.odd,
        }
    }
}
