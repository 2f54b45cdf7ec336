//! Rows by key; after a new listing, rows that it did not name are removed.

use std::borrow::Borrow;
use std::collections::BTreeMap;

/// See above.
#[derive(Debug)]
pub(super) struct RowStore<V, K = String> {
    /// `true`: a listing that is under way has not named it yet.
    rows: BTreeMap<K, (V, bool)>,
}

impl<V, K> Default for RowStore<V, K> {
    fn default() -> Self {
        Self {
            rows: BTreeMap::new(),
        }
    }
}

/// A change of one row, or of the listing.
#[derive(Clone, Debug)]
pub(super) enum Change<V, K = String> {
    /// All names are new.
    Begin,
    /// There, as it is now.
    Put(K, V),
    /// Gone.
    Drop(K),
    /// That was everything.
    End,
}

impl<V, K> Change<V, K> {
    /// The same, with another row.
    pub(super) fn map<W>(self, of: impl FnOnce(V) -> W) -> Change<W, K> {
        match self {
            Self::Begin => Change::Begin,
            Self::Put(key, row) => Change::Put(key, of(row)),
            Self::Drop(key) => Change::Drop(key),
            Self::End => Change::End,
        }
    }
}

impl<V, K: Ord> RowStore<V, K> {
    pub(super) fn change(&mut self, change: Change<V, K>) {
        match change {
            Change::Begin => self
                .rows
                .values_mut()
                .for_each(|(_, unnamed)| *unnamed = true),
            Change::Put(key, row) => {
                self.rows.insert(key, (row, false));
            }
            Change::Drop(key) => {
                self.rows.remove(&key);
            }
            Change::End => self.rows.retain(|_, (_, unnamed)| !*unnamed),
        }
    }

    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.rows.get(key).map(|(row, _)| row)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.rows.iter().map(|(key, (row, _))| (key, row))
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_new_listing_does_not_name_is_gone() {
        let mut rows = RowStore::default();
        for key in ["a", "b", "c"] {
            rows.change(Change::Put(key.to_owned(), 1));
        }
        rows.change(Change::Drop("c".to_owned()));
        rows.change(Change::Begin);
        rows.change(Change::Put("b".to_owned(), 2));
        assert_eq!(rows.len(), 2, "nothing goes before the listing is whole");
        rows.change(Change::End);
        assert_eq!(rows.iter().collect::<Vec<_>>(), [(&"b".to_owned(), &2)]);
    }
}
