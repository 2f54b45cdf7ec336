//! A few keys, most often one.

use std::ops::Deref;

/// What a vector of keys is, without memory of its own for one key: the pods of a job.
#[derive(Clone, Debug, Default)]
pub(crate) enum KeyList<K> {
    #[default]
    Empty,
    One(K),
    /// Boxed: most rows have no vector, and should not have room for one.
    #[expect(
        clippy::box_collection,
        reason = "a vector is three words, and this is one"
    )]
    Many(Box<Vec<K>>),
}

impl<K: Copy> KeyList<K> {
    /// At that place, which is not behind the end.
    pub(crate) fn insert(&mut self, at: usize, key: K) {
        match self {
            Self::Empty => *self = Self::One(key),
            Self::One(only) => {
                let both = if at == 0 { [key, *only] } else { [*only, key] };
                *self = Self::Many(Box::new(both.to_vec()));
            }
            Self::Many(keys) => keys.insert(at, key),
        }
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&K) -> bool) {
        match self {
            Self::Empty => {}
            Self::One(only) => {
                if !keep(only) {
                    *self = Self::Empty;
                }
            }
            Self::Many(keys) => {
                keys.retain(keep);
                match keys.as_slice() {
                    [] => *self = Self::Empty,
                    [only] => *self = Self::One(*only),
                    _ => {}
                }
            }
        }
    }
}

impl<K> Deref for KeyList<K> {
    type Target = [K];

    fn deref(&self) -> &[K] {
        match self {
            Self::Empty => &[],
            Self::One(only) => std::slice::from_ref(only),
            Self::Many(keys) => keys,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_vector() {
        let (mut list, mut known) = (KeyList::default(), Vec::new());
        for turn in 0..1000_u32 {
            if turn % 7 < 3 {
                let at = turn as usize * 31 % (known.len() + 1);
                list.insert(at, turn);
                known.insert(at, turn);
            } else {
                list.retain(|key| (key + turn) % 3 != 0);
                known.retain(|key| (key + turn) % 3 != 0);
            }
            assert_eq!(*list, *known);
        }
    }
}
