//! Rows by key, and a change of one.

use std::borrow::Borrow;
use std::collections::BTreeMap;

/// The rows of one kind.
#[derive(Debug)]
pub(super) struct RowStore<V, K = String> {
    rows: BTreeMap<K, V>,
}

impl<V, K> Default for RowStore<V, K> {
    fn default() -> Self {
        Self {
            rows: BTreeMap::new(),
        }
    }
}

/// A change of one row.
#[derive(Clone, Debug)]
pub(super) enum Change<V, K = String> {
    /// The row is there, as it is now.
    Put(K, V),
    /// The row is gone.
    Drop(K),
}

impl<V, K> Change<V, K> {
    /// The same, with another row.
    pub(super) fn map<W>(self, of: impl FnOnce(V) -> W) -> Change<W, K> {
        match self {
            Self::Put(key, row) => Change::Put(key, of(row)),
            Self::Drop(key) => Change::Drop(key),
        }
    }
}

impl<V, K: Ord> RowStore<V, K> {
    pub(super) fn change(&mut self, change: Change<V, K>) {
        match change {
            Change::Put(key, row) => {
                self.rows.insert(key, row);
            }
            Change::Drop(key) => {
                self.rows.remove(&key);
            }
        }
    }

    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.rows.get(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.rows.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }
}
