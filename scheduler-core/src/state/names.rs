//! Rows by their names.

use hashbrown::HashTable;
use std::hash::{BuildHasher, RandomState};

/// Keys of rows, found by a name that is in the row: the index has no copy of it.
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
    fn name_of(&self, key: K) -> Option<&str>;
}

impl<K: Copy + PartialEq> Names<K> {
    pub(crate) fn get(&self, name: &str, rows: &impl NamedRow<K>) -> Option<K> {
        let hash = self.seed.hash_one(name);
        let is_it = |key: &K| rows.name_of(*key) == Some(name);
        self.keys.find(hash, is_it).copied()
    }

    /// No other row has that name. The row is there already.
    pub(crate) fn insert(&mut self, name: &str, key: K, rows: &impl NamedRow<K>) {
        let hash = |key: &K| self.seed.hash_one(rows.name_of(*key).unwrap_or_default());
        let at = self.seed.hash_one(name);
        self.keys.insert_unique(at, key, hash);
    }

    /// Before or after the row goes.
    pub(crate) fn remove(&mut self, name: &str, key: K) {
        let hash = self.seed.hash_one(name);
        if let Ok(entry) = self.keys.find_entry(hash, |known| *known == key) {
            entry.remove();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }
}
