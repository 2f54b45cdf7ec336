//! Rows by their names.

use hashbrown::HashTable;
use std::hash::{BuildHasher, Hash, RandomState};

/// Keys of rows, found by a name or UID that is in the row: the index has no copy of it.
///
/// Never walked: its order is chance. Tenants choose names, so the hash is seeded.
#[derive(Debug)]
pub(crate) struct Names<K> {
    keys: HashTable<K>,
    seed: RandomState,
}

impl<K> Default for Names<K> {
    fn default() -> Self {
        Self {
            keys: HashTable::new(),
            seed: RandomState::new(),
        }
    }
}

/// What a row is called. `None`: there is no such row.
pub(crate) trait NamedRow<K> {
    type Name: Hash + PartialEq;

    fn name_of(&self, key: K) -> Option<&Self::Name>;
}

impl<K: Copy + PartialEq> Names<K> {
    pub(crate) fn get<R: NamedRow<K>>(&self, name: &R::Name, rows: &R) -> Option<K> {
        let hash = self.seed.hash_one(name);
        let is_it = |key: &K| rows.name_of(*key) == Some(name);
        self.keys.find(hash, is_it).copied()
    }

    /// No other row has that name. The row is there already.
    pub(crate) fn insert(&mut self, key: K, rows: &impl NamedRow<K>) {
        let hash = |key: &K| rows.name_of(*key).map_or(0, |name| self.seed.hash_one(name));
        self.keys.insert_unique(hash(&key), key, hash);
    }

    /// Before or after the row goes.
    pub(crate) fn remove(&mut self, name: &impl Hash, key: K) {
        let hash = self.seed.hash_one(name);
        if let Ok(entry) = self.keys.find_entry(hash, |known| *known == key) {
            entry.remove();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }
}
