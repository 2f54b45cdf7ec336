//! A value for each of many rows.

use slotmap::{Key, KeyData};
use std::fmt;
use std::marker::PhantomData;

/// Values beside the rows of a [`slotmap::SlotMap`] or a [`super::table::Table`], by the same keys.
///
/// It grows by whole chunks. One vector, as [`slotmap::SecondaryMap`] has it, keeps up to twice
/// the room that it needs, and copies all values when it grows.
pub(crate) struct Column<K, V> {
    chunks: Vec<Chunk<V>>,
    len: usize,
    keys: PhantomData<fn(K)>,
}

/// Values of one chunk: few enough that the last one, half empty, costs nothing.
const CHUNK: usize = 1024;

struct Chunk<V> {
    /// Of the keys that have a value, or had one last; 0: there was none. A slot is used again
    /// under another version.
    versions: Box<[u32; CHUNK]>,
    /// Arrays, so that a place in the chunk needs no check.
    values: Box<[Option<V>; CHUNK]>,
}

impl<V> Chunk<V> {
    fn empty() -> Self {
        Self {
            versions: Box::new([0; CHUNK]),
            values: Box::new([const { None }; CHUNK]),
        }
    }

    /// The value that a key of this version has there.
    fn get(&self, place: usize, version: u32) -> Option<&V> {
        let place = place % CHUNK;
        self.values[place]
            .as_ref()
            .filter(|_| self.versions[place] == version)
    }
}

impl<V: Clone> Clone for Chunk<V> {
    fn clone(&self) -> Self {
        let mut chunk = Self::empty();
        chunk.versions.copy_from_slice(&*self.versions);
        chunk.values.clone_from_slice(&*self.values);
        chunk
    }
}

/// Where a key's value stands: chunk, place in it, version.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a key is a version and a slot, 32 bits each"
)]
fn at<K: Key>(key: K) -> (usize, usize, u32) {
    let bits = key.data().as_ffi();
    let (version, index) = ((bits >> 32) as u32, bits as u32 as usize);
    (index / CHUNK, index % CHUNK, version)
}

impl<K: Key, V> Column<K, V> {
    /// Takes the place of what another version of the key had. Does nothing for a null key.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if key.is_null() {
            return;
        }
        let (chunk, place, version) = at(key);
        if self.chunks.len() <= chunk {
            self.chunks.resize_with(chunk + 1, Chunk::empty);
        }
        let Some(chunk) = self.chunks.get_mut(chunk) else {
            return;
        };
        let place = place % CHUNK;
        self.len += usize::from(chunk.values[place].is_none());
        chunk.versions[place] = version;
        chunk.values[place] = Some(value);
    }

    pub(crate) fn get(&self, key: K) -> Option<&V> {
        let (chunk, place, version) = at(key);
        self.chunks.get(chunk)?.get(place, version)
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let (chunk, place, version) = at(key);
        let chunk = self.chunks.get_mut(chunk)?;
        let place = place % CHUNK;
        chunk.values[place]
            .as_mut()
            .filter(|_| chunk.versions[place] == version)
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        let (chunk, place, version) = at(key);
        let chunk = self.chunks.get_mut(chunk)?;
        chunk.get(place, version)?;
        let value = chunk.values[place % CHUNK].take();
        self.len -= usize::from(value.is_some());
        value
    }

    /// The version of the key that has the slot, or had it last; 0: none had it.
    pub(super) fn last_version(&self, slot: u32) -> u32 {
        let slot = slot as usize;
        let chunk = self.chunks.get(slot / CHUNK);
        chunk.map_or(0, |chunk| chunk.versions[slot % CHUNK])
    }

    pub(crate) fn contains_key(&self, key: K) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// In no order that means anything.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        let chunks = self.chunks.iter().enumerate();
        chunks.flat_map(|(index, chunk)| {
            let slots = chunk.versions.iter().zip(chunk.values.iter()).enumerate();
            slots.filter_map(move |(place, (version, value))| {
                let slot = (index * CHUNK + place) as u64;
                let bits = (u64::from(*version) << 32) | slot;
                Some((K::from(KeyData::from_ffi(bits)), value.as_ref()?))
            })
        })
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        self.iter().map(|(key, _)| key)
    }
}

impl<K, V: Clone> Clone for Column<K, V> {
    fn clone(&self) -> Self {
        Self {
            chunks: self.chunks.clone(),
            len: self.len,
            keys: PhantomData,
        }
    }
}

impl<K, V> Default for Column<K, V> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            len: 0,
            keys: PhantomData,
        }
    }
}

impl<K: Key, V: fmt::Debug> fmt::Debug for Column<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slotmap::{DefaultKey, SecondaryMap, SlotMap};

    /// The same operations on both: what the library's map answers is right.
    #[test]
    fn it_is_a_secondary_map() {
        let (mut rows, mut column) = (SlotMap::new(), Column::default());
        let mut known = SecondaryMap::new();
        let mut keys: Vec<DefaultKey> = vec![DefaultKey::null()];
        for turn in 0..20_000_usize {
            // A walk that comes back to old slots and outlives chunks.
            let old = keys[turn * 7919 % keys.len()];
            match turn % 5 {
                0..=2 => {
                    let key = rows.insert(());
                    keys.push(key);
                    column.insert(key, turn);
                    known.insert(key, turn);
                }
                3 => {
                    rows.remove(old);
                    assert_eq!(column.remove(old), known.remove(old));
                }
                _ => {
                    if let Some(value) = column.get_mut(old) {
                        *value += 1;
                    }
                    if let Some(value) = known.get_mut(old) {
                        *value += 1;
                    }
                }
            }
            assert_eq!(column.get(old), known.get(old));
            assert_eq!(column.len(), known.len());
        }
        let mut listed: Vec<_> = column.iter().map(|(key, value)| (key, *value)).collect();
        let mut wanted: Vec<_> = known.iter().map(|(key, value)| (key, *value)).collect();
        listed.sort_unstable();
        wanted.sort_unstable();
        assert!(column.chunks.len() > 2);
        assert_eq!(listed, wanted);
    }
}
