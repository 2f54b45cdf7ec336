//! Rows by their names.

use super::table::{Table, slot_of};
use hashbrown::HashTable;
use slotmap::Key;
use std::hash::{BuildHasher, Hash, RandomState};
use std::marker::PhantomData;

/// Keys of rows, found by a name or UID that is in the row: the index has the slot alone, and no
/// copy of the name.
///
/// Never walked: its order is chance. Tenants choose names, so the hash is seeded.
#[derive(Clone, Debug)]
pub(crate) struct Names<K> {
    slots: HashTable<u32>,
    seed: RandomState,
    keys: PhantomData<fn(K)>,
}

impl<K> Default for Names<K> {
    fn default() -> Self {
        Self {
            slots: HashTable::new(),
            seed: RandomState::new(),
            keys: PhantomData,
        }
    }
}

/// A row with a name that no other has.
pub(crate) trait Named {
    type Name: ?Sized + Hash + PartialEq;

    fn name(&self) -> &Self::Name;
}

impl<K: Key> Names<K> {
    pub(crate) fn get<R: Named>(&self, name: &R::Name, rows: &Table<K, R>) -> Option<K> {
        let hash = self.seed.hash_one(name);
        let name_at = |slot: u32| Some(rows.get(rows.key_at(slot)?)?.name());
        let is_it = |slot: &u32| name_at(*slot) == Some(name);
        rows.key_at(*self.slots.find(hash, is_it)?)
    }

    /// No other row has its name. The row is there already.
    pub(crate) fn insert<R: Named>(&mut self, key: K, rows: &Table<K, R>) {
        let hash = |slot: &u32| {
            let row = rows.key_at(*slot).and_then(|key| rows.get(key));
            row.map_or(0, |row| self.seed.hash_one(row.name()))
        };
        let slot = slot_of(key);
        self.slots.insert_unique(hash(&slot), slot, hash);
    }

    /// Before or after the row goes.
    pub(crate) fn remove(&mut self, name: &(impl Hash + ?Sized), key: K) {
        let hash = self.seed.hash_one(name);
        let slot = slot_of(key);
        if let Ok(entry) = self.slots.find_entry(hash, |known| *known == slot) {
            entry.remove();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}
