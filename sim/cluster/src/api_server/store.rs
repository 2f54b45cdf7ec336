//! What the cluster knows: objects, one revision counter, and the log that watches read.
//!
//! In: whole objects that the verbs have checked. Out: objects, and changes since a
//! revision. Pure: time and identities come in as values. Never decides whether a
//! write is allowed.

use super::error::ApiError;
use super::object::{metadata, name, namespace};
use super::resource::{Collection, Resource, of_definition};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Changes that watches can still ask for; older ones are 410.
const LOG_LENGTH: usize = 16 * 1024;

/// Where an object is in its collection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// Empty for cluster-scoped objects.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn of(object: &Value) -> Self {
        Self {
            namespace: namespace(object).to_owned(),
            name: name(object).to_owned(),
        }
    }
}

/// One write. A watch with a selector needs both sides of it.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) revision: u64,
    pub(crate) collection: Collection,
    pub(crate) before: Option<Arc<Value>>,
    /// The object after the write; for a deletion its last state with the new revision.
    pub(crate) object: Arc<Value>,
    pub(crate) deleted: bool,
}

/// Everything.
#[derive(Debug)]
pub(crate) struct Store {
    revision: u64,
    /// Changes up to here are forgotten.
    forgotten: u64,
    objects: BTreeMap<Collection, BTreeMap<Key, Arc<Value>>>,
    log: VecDeque<Change>,
    /// Per object what each manager applied last.
    applied: BTreeMap<(Collection, Key), BTreeMap<String, Value>>,
    identities: Identities,
}

impl Store {
    /// Empty. Runs from one seed give the same identities in the same order.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            revision: 1,
            forgotten: 1,
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            applied: BTreeMap::new(),
            identities: Identities(seed),
        }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn get(&self, collection: &Collection, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(collection)?.get(key)
    }

    /// In name order, all namespaces where `namespace` is `None`.
    pub(crate) fn list(
        &self,
        collection: &Collection,
        namespace: Option<&str>,
    ) -> impl Iterator<Item = &Arc<Value>> {
        self.objects
            .get(collection)
            .into_iter()
            .flatten()
            .filter(move |(key, _)| namespace.is_none_or(|wanted| key.namespace == wanted))
            .map(|(_, object)| object)
    }

    /// Everything in a namespace.
    pub(crate) fn keys_in(&self, namespace: &str) -> Vec<(Collection, Key)> {
        self.objects
            .iter()
            .flat_map(|(collection, objects)| objects.keys().map(move |key| (collection, key)))
            .filter(|(_, key)| key.namespace == namespace)
            .map(|(collection, key)| (collection.clone(), key.clone()))
            .collect()
    }

    /// Writes an object as it is, with the next revision.
    pub(crate) fn put(&mut self, collection: &Collection, mut object: Value) -> Arc<Value> {
        self.revision += 1;
        metadata(&mut object).insert("resourceVersion".into(), json!(self.revision.to_string()));
        let key = Key::of(&object);
        let object = Arc::new(object);
        let before = self
            .objects
            .entry(collection.clone())
            .or_default()
            .insert(key, object.clone());
        self.record(collection, before, object.clone(), false);
        object
    }

    /// Takes an object out; answers its last state with the revision of the deletion.
    pub(crate) fn remove(&mut self, collection: &Collection, key: &Key) -> Option<Arc<Value>> {
        let before = self.objects.get_mut(collection)?.remove(key)?;
        self.applied.remove(&(collection.clone(), key.clone()));
        self.revision += 1;
        let mut last = (*before).clone();
        metadata(&mut last).insert("resourceVersion".into(), json!(self.revision.to_string()));
        let last = Arc::new(last);
        self.record(collection, Some(before), last.clone(), true);
        Some(last)
    }

    fn record(
        &mut self,
        collection: &Collection,
        before: Option<Arc<Value>>,
        object: Arc<Value>,
        deleted: bool,
    ) {
        if self.log.len() == LOG_LENGTH
            && let Some(oldest) = self.log.pop_front()
        {
            self.forgotten = oldest.revision;
        }
        self.log.push_back(Change {
            revision: self.revision,
            collection: collection.clone(),
            before,
            object,
            deleted,
        });
    }

    /// What happened to a collection after a revision.
    ///
    /// # Errors
    /// 410 where that is no longer known.
    pub(crate) fn since(
        &self,
        collection: &Collection,
        revision: u64,
    ) -> Result<Vec<Change>, ApiError> {
        if revision < self.forgotten {
            return Err(ApiError::expired(revision, self.forgotten));
        }
        let start = self
            .log
            .partition_point(|change| change.revision <= revision);
        Ok(self
            .log
            .range(start..)
            .filter(|change| change.collection == *collection)
            .cloned()
            .collect())
    }

    /// Forgets the past, as a compaction does.
    pub(crate) fn compact(&mut self) {
        self.revision += 1;
        self.forgotten = self.revision;
        self.log.clear();
    }

    /// What managers applied to an object, by their names.
    pub(crate) fn applied(&self, collection: &Collection, key: &Key) -> BTreeMap<String, Value> {
        self.applied
            .get(&(collection.clone(), key.clone()))
            .cloned()
            .unwrap_or_default()
    }

    pub(crate) fn set_applied(
        &mut self,
        collection: &Collection,
        key: &Key,
        manager: &str,
        configuration: Value,
    ) {
        self.applied
            .entry((collection.clone(), key.clone()))
            .or_default()
            .insert(manager.to_owned(), configuration);
    }

    /// The resources that definitions added.
    pub(crate) fn custom_resources(&self) -> Vec<Resource> {
        let definitions = Collection::new("apiextensions.k8s.io", "customresourcedefinitions");
        self.list(&definitions, None)
            .flat_map(|definition| of_definition(definition))
            .collect()
    }

    /// A fresh UID.
    pub(crate) fn uid(&mut self) -> String {
        let (high, low) = (self.identities.next(), self.identities.next());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | ((low >> 48) & 0x3fff),
            low & 0xffff_ffff_ffff,
        )
    }

    /// Five characters for `generateName`.
    pub(crate) fn suffix(&mut self) -> String {
        const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut bits = self.identities.next();
        (0..5)
            .map(|_| {
                let index = usize::try_from(bits % 27).expect("below 27");
                bits /= 27;
                char::from(ALPHABET[index])
            })
            .collect()
    }

    /// A bearer token that cannot be guessed by accident.
    pub(crate) fn token(&mut self) -> String {
        format!(
            "sim.{:016x}{:016x}",
            self.identities.next(),
            self.identities.next()
        )
    }
}

/// splitmix64.
#[derive(Debug)]
struct Identities(u64);

impl Identities {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "ns"}})
    }

    #[test]
    fn every_write_has_its_own_revision_and_the_log_tells_both_sides() {
        let pods = Collection::new("", "pods");
        let mut store = Store::new(1);
        let start = store.revision();
        store.put(&pods, pod("a"));
        store.put(&pods, pod("a"));
        store.remove(&pods, &Key::of(&pod("a")));
        let changes = store.since(&pods, start).unwrap();
        let told: Vec<_> = changes
            .iter()
            .map(|c| (c.revision - start, c.before.is_some(), c.deleted))
            .collect();
        assert_eq!(told, [(1, false, false), (2, true, false), (3, true, true)]);
        assert!(
            store
                .since(&Collection::new("", "nodes"), start)
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn a_compacted_past_is_gone() {
        let pods = Collection::new("", "pods");
        let mut store = Store::new(1);
        store.put(&pods, pod("a"));
        let seen = store.revision();
        store.compact();
        assert_eq!(store.since(&pods, seen).unwrap_err().code, 410);
        assert!(store.since(&pods, store.revision()).unwrap().is_empty());
    }

    #[test]
    fn uids_are_of_the_real_shape_and_differ() {
        let mut store = Store::new(7);
        let (a, b) = (store.uid(), store.uid());
        assert_ne!(a, b);
        assert_eq!(a.len(), 36);
        assert_eq!(&a[14..15], "4");
        assert_eq!(Store::new(7).uid(), a);
    }
}
