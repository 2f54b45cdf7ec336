//! Rows, and the keys by which they are known.

use super::column::Column;
use slotmap::{Key, KeyData};
use std::fmt;

/// What a [`slotmap::SlotMap`] is, in chunks: the rows stand in it, and it grows without copying.
///
/// A slot map is one vector, which keeps up to twice the room that it needs: large rows would have
/// to be boxed, with a pointer and a version for each place that no row has.
/// It gives the same keys as a slot map.
pub(crate) struct Table<K, V> {
    rows: Column<K, V>,
    /// Slots without a row, the one to be used next at the end.
    free: Vec<u32>,
    /// Slots that have, or had, a row. The first slot has none: a null key is of that one.
    slots: u32,
}

fn key_of<K: Key>(slot: u32, version: u32) -> K {
    K::from(KeyData::from_ffi(
        (u64::from(version) << 32) | u64::from(slot),
    ))
}

/// Which of the slots of a table the key's row is, or was, in.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the lower half is the slot"
)]
pub(super) fn slot_of<K: Key>(key: K) -> u32 {
    key.data().as_ffi() as u32
}

impl<K: Key, V> Table<K, V> {
    /// A new key for that row.
    pub(crate) fn insert(&mut self, row: V) -> K {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots
        });
        let version = match self.rows.last_version(slot) {
            0 => 1,
            // Odd ones only, as a slot map has them. It never comes to 0.
            last => last.wrapping_add(2),
        };
        let key = key_of(slot, version);
        self.rows.insert(key, row);
        key
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        let row = self.rows.remove(key)?;
        self.free.push(slot_of(key));
        Some(row)
    }

    /// The key of the row in that slot. `None`: there was never one. Where the row is gone, it was
    /// that one's.
    pub(crate) fn key_at(&self, slot: u32) -> Option<K> {
        let version = self.rows.last_version(slot);
        (version != 0).then(|| key_of(slot, version))
    }

    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.rows.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.rows.get_mut(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() == 0
    }

    /// In no order that means anything.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.rows.iter()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        self.rows.keys()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.rows.iter().map(|(_, row)| row)
    }
}

impl<K, V: Clone> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        Self {
            rows: self.rows.clone(),
            free: self.free.clone(),
            slots: self.slots,
        }
    }
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self {
            rows: Column::default(),
            free: Vec::new(),
            slots: 0,
        }
    }
}

impl<K: Key, V: fmt::Debug> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows.fmt(f)
    }
}

#[cfg(test)]
impl<K: Key, V> std::ops::Index<K> for Table<K, V> {
    type Output = V;

    fn index(&self, key: K) -> &V {
        self.get(key).expect("a row of that key")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slotmap::{DefaultKey, SlotMap};

    /// The same operations on both: rows, keys and their order are the library's.
    #[test]
    fn it_is_a_slot_map() {
        let (mut table, mut known) = (Table::default(), SlotMap::new());
        let mut keys: Vec<DefaultKey> = vec![DefaultKey::null()];
        for turn in 0..20_000_usize {
            // A walk that comes back to old slots and outlives chunks.
            let old = keys[turn * 7919 % keys.len()];
            if turn % 5 < 3 {
                let key = table.insert(turn);
                assert_eq!(key, known.insert(turn));
                keys.push(key);
            } else {
                assert_eq!(table.remove(old), known.remove(old));
            }
            assert_eq!(table.get(old), known.get(old));
            assert_eq!(table.len(), known.len());
        }
        assert!(table.iter().eq(known.iter()));
    }
}
