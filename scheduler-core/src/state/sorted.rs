//! Keys in an order, which may be that of something in their rows.

use std::cmp::Ordering;

/// What a B-tree of keys is, as a list of lists: most of these have few keys, and a node of a
/// B-tree has room for eleven, of which half is unused when they come in order.
///
/// `order` says where the wanted one is, by one that is there: as a binary search asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sorted<K> {
    /// None of them empty.
    chunks: Vec<Vec<K>>,
}

/// Keys of one chunk: to make room for one more costs little.
const CHUNK: usize = 256;

impl<K> Default for Sorted<K> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<K: Copy> Sorted<K> {
    /// The chunk and the place in it that the wanted one has, or would have.
    fn at(&self, order: impl Fn(&K) -> Ordering) -> (usize, Result<usize, usize>) {
        let chunk = self.chunks.partition_point(|keys| {
            let last = keys.last();
            last.is_some_and(|last| order(last) == Ordering::Less)
        });
        match self.chunks.get(chunk) {
            Some(keys) => (chunk, keys.binary_search_by(order)),
            // Behind all of them.
            None => (
                chunk.saturating_sub(1),
                Err(self.chunks.last().map_or(0, Vec::len)),
            ),
        }
    }

    pub(crate) fn find_by(&self, order: impl Fn(&K) -> Ordering) -> Option<K> {
        let (chunk, at) = self.at(order);
        self.chunks.get(chunk)?.get(at.ok()?).copied()
    }

    /// Does nothing where one is there in its place.
    pub(crate) fn insert_by(&mut self, key: K, order: impl Fn(&K) -> Ordering) {
        let (mut chunk, Err(mut at)) = self.at(order) else {
            return;
        };
        match self.chunks.get_mut(chunk) {
            Some(keys) if keys.len() == CHUNK => {
                // Keys that come in order leave full chunks behind.
                let from = if at == CHUNK { CHUNK } else { CHUNK / 2 };
                let rest = keys.split_off(from);
                keys.shrink_to_fit();
                self.chunks.insert(chunk + 1, rest);
                if at >= from {
                    (chunk, at) = (chunk + 1, at - from);
                }
            }
            Some(_) => {}
            None => {
                self.chunks.reserve_exact(1);
                self.chunks.push(Vec::new());
            }
        }
        if let Some(keys) = self.chunks.get_mut(chunk) {
            // Less than doubling: there are as many of these as nodes.
            if keys.len() == keys.capacity() {
                keys.reserve_exact((keys.len() / 4).max(4));
            }
            keys.insert(at, key);
        }
    }

    pub(crate) fn remove_by(&mut self, order: impl Fn(&K) -> Ordering) {
        let (chunk, Ok(at)) = self.at(order) else {
            return;
        };
        let Some(keys) = self.chunks.get_mut(chunk) else {
            return;
        };
        keys.remove(at);
        let left = keys.len();
        if left == 0 {
            self.chunks.remove(chunk);
            return;
        }
        // Few keys are no reason for a chunk.
        let next = self.chunks.get(chunk + 1).map_or(CHUNK, Vec::len);
        if left + next <= CHUNK / 2 {
            let next = self.chunks.remove(chunk + 1);
            if let Some(keys) = self.chunks.get_mut(chunk) {
                keys.extend(next);
            }
        } else if let Some(keys) = self.chunks.get_mut(chunk)
            && keys.capacity() > left * 2 + 8
        {
            keys.shrink_to_fit();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.chunks.iter().map(Vec::len).sum()
    }

    pub(crate) fn iter(&self) -> std::iter::Flatten<std::slice::Iter<'_, Vec<K>>> {
        self.chunks.iter().flatten()
    }
}

impl<K: Copy + Ord> Sorted<K> {
    pub(crate) fn insert(&mut self, key: K) {
        self.insert_by(key, |known| known.cmp(&key));
    }

    pub(crate) fn remove(&mut self, key: K) {
        self.remove_by(|known| known.cmp(&key));
    }

    pub(crate) fn contains(&self, key: K) -> bool {
        self.find_by(|known| known.cmp(&key)).is_some()
    }
}

impl<'a, K: Copy> IntoIterator for &'a Sorted<K> {
    type Item = &'a K;
    type IntoIter = std::iter::Flatten<std::slice::Iter<'a, Vec<K>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn check(sorted: &Sorted<u32>, known: &BTreeSet<u32>) {
        assert!(sorted.iter().eq(known.iter()));
        assert_eq!(sorted.len(), known.len());
        assert_eq!(sorted.is_empty(), known.is_empty());
        let sizes = sorted.chunks.iter().map(Vec::len);
        assert!(sizes.clone().all(|size| (1..=CHUNK).contains(&size)));
    }

    #[test]
    fn keys_in_order_fill_chunks() {
        let mut sorted = Sorted::default();
        (0..10_000_u32).for_each(|key| sorted.insert(key));
        check(&sorted, &(0..10_000).collect());
        assert_eq!(sorted.chunks.len(), 10_000_usize.div_ceil(CHUNK));
        (0..9_999).for_each(|key| sorted.remove(key));
        check(&sorted, &BTreeSet::from([9_999]));
    }

    proptest! {
        /// Many come, some go, most go.
        #[test]
        fn it_is_a_b_tree(
            come in proptest::collection::vec(0_u32..3000, 0..2000),
            some in proptest::collection::vec(0_u32..3000, 0..1000),
            more in proptest::collection::vec(0_u32..3000, 0..1000),
            gone in proptest::collection::vec(0_u32..3000, 0..4000),
        ) {
            let (mut sorted, mut known) = (Sorted::default(), BTreeSet::new());
            for (keys, comes) in [(come, true), (some, false), (more, true), (gone, false)] {
                for key in keys {
                    if comes {
                        sorted.insert(key);
                        known.insert(key);
                    } else {
                        sorted.remove(key);
                        known.remove(&key);
                    }
                    prop_assert_eq!(sorted.contains(key), known.contains(&key));
                }
                check(&sorted, &known);
            }
        }
    }
}
