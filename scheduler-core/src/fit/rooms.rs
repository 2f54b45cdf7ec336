//! Brings the index of free capacity ([`Rooms`]) up to date with the nodes that have changed.

use crate::state::State;
use crate::state::keys::{CardKey, NodeKey};
use crate::state::room::{CachedRoom, CardsFree, Room, Rooms};
use crate::state::rows::NodeRow;
use crate::units::Time;

impl State {
    /// Brings the index up to date with every node that was touched.
    pub(crate) fn refresh_rooms(&mut self) {
        if self.caches.rooms.names_changed {
            self.caches.rooms = Rooms::default();
            let keys: Vec<NodeKey> = self.names.nodes.values().copied().collect();
            for (rank, key) in (0..).zip(&keys) {
                let known = self.look_at_room(*key, None);
                self.caches.rooms.rank.insert(*key, rank);
                self.caches.rooms.put(rank, None, &known.room);
                self.caches.rooms.at.insert(*key, known);
            }
            self.caches.rooms.by_rank = keys;
            return;
        }
        let mut dirty = std::mem::take(&mut self.caches.rooms.dirty);
        dirty.sort_unstable();
        dirty.dedup();
        for key in dirty.drain(..) {
            let Some(rank) = self.caches.rooms.rank.get(key).copied() else {
                continue;
            };
            let generation = self.nodes.get(key).map_or(0, |row| row.generation);
            if self.caches.rooms.as_of(key, generation).is_some() {
                continue;
            }
            let known = self.caches.rooms.at.get(key);
            let old = known.map(|known| known.room).unwrap_or_default();
            let new = self.look_at_room(key, known);
            // A pause that has ended is over from the next decision on.
            let is_due = |pause: &(Time, CardKey)| pause.0 <= self.now;
            debug_assert!(
                self.pauses.cards.first().is_some_and(is_due)
                    || new.cards == self.look_at_room(key, None).cards,
                "what the cards of a node have free is out of date"
            );
            if old != new.room {
                self.caches.rooms.put(rank, Some(&old), &new.room);
            }
            self.caches.rooms.at.insert(key, new);
        }
        // Its memory serves the next time.
        self.caches.rooms.dirty = dirty;
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
        let used = self.cells.nodes.get(key).copied().unwrap_or_default();
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
