//! Values by key and time: one slot for each of the most recent periods. Pure.
//!
//! Its size is bounded by its keys: `slots` values each, independent of its age. A key that has
//! nothing left in any slot is forgotten.

use scheduler_core::units::{Duration, Time};
use std::borrow::Borrow;
use std::collections::BTreeMap;

/// See the module. `V::default()` is a slot without a value.
#[derive(Clone, Debug)]
pub struct Ring<K, V> {
    period: Duration,
    slots: usize,
    /// The last slot, counted from 1970; those before it are there as far as the ring reaches.
    newest: u64,
    rows: BTreeMap<K, Box<[V]>>,
}

impl<K: Ord, V: Copy + Default + PartialEq> Ring<K, V> {
    /// Empty. `period` and `slots` are at least 1.
    pub fn new(period: Duration, slots: usize) -> Self {
        Self {
            period: Duration(period.0.max(1)),
            slots: slots.max(1),
            newest: 0,
            rows: BTreeMap::new(),
        }
    }

    /// The slot of this moment.
    pub fn slot(&self, at: Time) -> u64 {
        at.0 / self.period.0
    }

    /// When a slot begins.
    pub fn begin(&self, slot: u64) -> Time {
        Time(slot.saturating_mul(self.period.0))
    }

    /// The first slot that it reaches back to.
    pub fn oldest(&self) -> u64 {
        self.newest.saturating_sub(self.slots as u64 - 1)
    }

    /// The last slot.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Advances to this slot: the slots after the last one are empty, and those older than the
    /// length of the ring are dropped. A past slot changes nothing.
    pub fn advance(&mut self, slot: u64) {
        let steps = slot.saturating_sub(self.newest);
        if steps == 0 {
            return;
        }
        let first = slot.saturating_sub(steps.min(self.slots as u64) - 1);
        let places: Vec<usize> = (first..=slot).map(|slot| self.place(slot)).collect();
        self.newest = slot;
        self.rows.retain(|_, row| {
            for place in &places {
                if let Some(value) = row.get_mut(*place) {
                    *value = V::default();
                }
            }
            row.iter().any(|value| *value != V::default())
        });
    }

    /// Keeps a value, in a slot that the ring reaches.
    pub fn put(&mut self, key: K, slot: u64, value: V) {
        if slot > self.newest || slot < self.oldest() {
            return;
        }
        let (slots, place) = (self.slots, self.place(slot));
        if value == V::default() && !self.rows.contains_key(&key) {
            return;
        }
        let row = self
            .rows
            .entry(key)
            .or_insert_with(|| vec![V::default(); slots].into_boxed_slice());
        if let Some(kept) = row.get_mut(place) {
            *kept = value;
        }
    }

    /// What a slot has.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q, slot: u64) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let reached = (self.oldest()..=self.newest).contains(&slot);
        self.rows
            .get(key)
            .filter(|_| reached)
            .and_then(|row| row.get(self.place(slot)).copied())
    }

    /// Keys that have something.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.rows.keys()
    }

    /// What its values take, in bytes.
    pub fn bytes(&self) -> usize {
        self.rows.len() * self.slots * size_of::<V>()
    }

    #[expect(clippy::cast_possible_truncation, reason = "less than `slots`")]
    fn place(&self, slot: u64) -> usize {
        (slot % self.slots as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_the_last_slots_and_forgets_who_has_none() {
        let mut ring: Ring<&str, u8> = Ring::new(Duration(10), 3);
        for (at, key) in [(100, "a"), (110, "b"), (120, "a")] {
            let slot = ring.slot(Time(at));
            ring.advance(slot);
            ring.put(key, slot, u8::try_from(at).unwrap());
        }
        let all = |ring: &Ring<&str, u8>, key: &str| {
            (9..15).map(|slot| ring.get(key, slot)).collect::<Vec<_>>()
        };
        assert_eq!(
            all(&ring, "a"),
            [None, Some(100), Some(0), Some(120), None, None]
        );
        assert_eq!((ring.oldest(), ring.newest(), ring.bytes()), (10, 12, 6));
        ring.advance(14);
        assert_eq!(
            all(&ring, "a"),
            [None, None, None, Some(120), Some(0), Some(0)]
        );
        assert_eq!(all(&ring, "b"), [None; 6], "its only value is too old");
        ring.put("a", 11, 9);
        ring.put("a", 15, 9);
        assert_eq!(ring.keys().count(), 1);
        ring.advance(1_000_000_000_000);
        assert_eq!(ring.bytes(), 0);
        ring.advance(5);
        assert_eq!(ring.newest(), 1_000_000_000_000, "time goes on");
    }
}
