//! A set of nodes as bits, by rank: a node's place in the order of names.
//!
//! Iteration is in order of name, membership is one test, and a copy is one bit a node. Ranks
//! are those of [`super::room::Rooms`]; they hold for one decision, since nodes come and go
//! between decisions only.

const BITS: u32 = u64::BITS;

/// Nodes by rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeSet {
    words: Vec<u64>,
    len: usize,
}

impl NodeSet {
    /// The first `count` ranks.
    pub(crate) fn first(count: usize) -> Self {
        let ranks = u32::try_from(count).unwrap_or(u32::MAX);
        (0..ranks).collect()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// There is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn contains(&self, rank: u32) -> bool {
        let word = self.words.get((rank / BITS) as usize);
        word.is_some_and(|word| word >> (rank % BITS) & 1 == 1)
    }

    /// False where it was in already.
    pub(crate) fn insert(&mut self, rank: u32) -> bool {
        let at = (rank / BITS) as usize;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        let bit = 1 << (rank % BITS);
        let is_new = self.words[at] & bit == 0;
        self.words[at] |= bit;
        self.len += usize::from(is_new);
        is_new
    }

    pub(crate) fn remove(&mut self, rank: u32) {
        let bit = 1 << (rank % BITS);
        if let Some(word) = self.words.get_mut((rank / BITS) as usize)
            && *word & bit != 0
        {
            *word &= !bit;
            self.len -= 1;
        }
    }

    pub(crate) fn remove_all(&mut self, others: &Self) {
        for rank in others.iter() {
            self.remove(rank);
        }
    }

    /// In order of name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.words).flat_map(|(at, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < BITS).then(|| at * BITS + bit)
            })
        })
    }
}

impl FromIterator<u32> for NodeSet {
    fn from_iter<T: IntoIterator<Item = u32>>(ranks: T) -> Self {
        let mut set = Self::default();
        set.extend(ranks);
        set
    }
}

impl Extend<u32> for NodeSet {
    fn extend<T: IntoIterator<Item = u32>>(&mut self, ranks: T) {
        for rank in ranks {
            self.insert(rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn it_holds_what_an_ordered_set_holds() {
        let ranks = [0, 63, 64, 65, 200, 64, 7];
        let mut set: NodeSet = ranks.into_iter().collect();
        let mut model: BTreeSet<u32> = ranks.into_iter().collect();
        for gone in [64, 1, 200, 200, 1000] {
            set.remove(gone);
            model.remove(&gone);
        }
        assert!(!set.insert(63) && set.insert(128) && model.insert(128));
        assert_eq!(
            set.iter().collect::<Vec<_>>(),
            model.iter().copied().collect::<Vec<_>>()
        );
        assert_eq!(set.len(), model.len());
        let in_set = |rank: &u32| set.contains(*rank);
        assert!((0..300).all(|rank| in_set(&rank) == model.contains(&rank)));
        assert!(NodeSet::first(0).is_empty());
        assert_eq!(NodeSet::first(130).len(), 130);
    }
}
