//! Which counted selectors may speak of a pod, and of which pods a selector may speak, without
//! a look at all of either.

use super::State;
use super::pod_counts::CountKey;
use super::rows::TaskKey;
use super::texts::PodLabels;
use crate::model::PodSelector;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A namespace, a label's key and its value.
type Anchor = (Arc<str>, Arc<str>, Arc<str>);

/// Pods by the value that one of their labels has.
type ByValue = BTreeMap<Arc<str>, BTreeSet<TaskKey>>;

/// Both ways round.
#[derive(Debug, Default)]
pub(crate) struct PodIndex {
    /// By a namespace that their first selector names, and by a label that it demands with one
    /// value alone.
    anchored: BTreeMap<Anchor, BTreeSet<CountKey>>,
    /// The others by a namespace.
    in_namespace: BTreeMap<Arc<str>, BTreeSet<CountKey>>,
    /// Those that speak of namespaces by their labels.
    wide: BTreeSet<CountKey>,
    /// Pods by namespace.
    members: BTreeMap<Arc<str>, BTreeSet<TaskKey>>,
    /// And by the values of labels that some selector demanded there.
    by_label: BTreeMap<(Arc<str>, Arc<str>), ByValue>,
}

impl PodIndex {
    /// Some selector looks at the labels of namespaces.
    pub(super) fn is_wide(&self) -> bool {
        !self.wide.is_empty()
    }

    pub(super) fn members(&self, namespace: &str) -> Vec<TaskKey> {
        let members = self.members.get(namespace);
        members.into_iter().flatten().copied().collect()
    }

    /// Counted selectors that may speak of such a pod, each once.
    pub(super) fn near(&self, namespace: &Arc<str>, labels: &PodLabels) -> BTreeSet<CountKey> {
        let named = self.in_namespace.get(namespace).into_iter().flatten();
        let mut near: BTreeSet<CountKey> = named.chain(&self.wide).copied().collect();
        for (key, value) in labels.iter().filter(|_| !self.anchored.is_empty()) {
            let anchor = (Arc::clone(namespace), Arc::clone(key), Arc::clone(value));
            near.extend(self.anchored.get(&anchor).into_iter().flatten());
        }
        near
    }

    /// Where a selector is found by the pods of whom it speaks.
    pub(super) fn file(&mut self, key: CountKey, first: &PodSelector, comes: bool) {
        fn put<K: Ord>(
            into: &mut BTreeMap<K, BTreeSet<CountKey>>,
            at: K,
            key: CountKey,
            comes: bool,
        ) {
            if comes {
                into.entry(at).or_default().insert(key);
            } else if let Some(keys) = into.get_mut(&at) {
                keys.remove(&key);
                if keys.is_empty() {
                    into.remove(&at);
                }
            }
        }
        for name in &first.namespaces {
            let name = Arc::clone(name);
            match first.anchor() {
                Some((label, value)) => {
                    let at = (name, Arc::clone(label), Arc::clone(value));
                    put(&mut self.anchored, at, key, comes);
                }
                None => put(&mut self.in_namespace, name, key, comes),
            }
        }
        if first.namespace_labels.is_some() && comes {
            self.wide.insert(key);
        } else {
            self.wide.remove(&key);
        }
    }

    pub(crate) fn join(&mut self, namespace: &Arc<str>, labels: &PodLabels, task: TaskKey) {
        let members = self.members.entry(Arc::clone(namespace)).or_default();
        members.insert(task);
        let known = !self.by_label.is_empty();
        for (key, value) in labels.iter().filter(|_| known) {
            let label = (Arc::clone(namespace), Arc::clone(key));
            if let Some(values) = self.by_label.get_mut(&label) {
                values.entry(Arc::clone(value)).or_default().insert(task);
            }
        }
    }

    pub(crate) fn leave(&mut self, namespace: &Arc<str>, labels: &PodLabels, task: TaskKey) {
        let known = !self.by_label.is_empty();
        for (key, value) in labels.iter().filter(|_| known) {
            let label = (Arc::clone(namespace), Arc::clone(key));
            let values = self.by_label.get_mut(&label);
            if let Some(values) = values
                && let Some(tasks) = values.get_mut(value)
            {
                tasks.remove(&task);
                if tasks.is_empty() {
                    values.remove(value);
                }
            }
        }
        if let Some(members) = self.members.get_mut(namespace) {
            members.remove(&task);
            if members.is_empty() {
                self.members.remove(namespace);
                self.by_label.retain(|(name, _), _| name != namespace);
            }
        }
    }
}

impl State {
    /// Pods of whom the selector may speak.
    pub(super) fn reached_by(&mut self, selector: &PodSelector) -> Vec<TaskKey> {
        if let Some((key, value)) = selector.anchor() {
            let namespaces = selector.namespaces.iter();
            let of = |name| self.with_label(name, key, value);
            return namespaces.flat_map(of).collect();
        }
        let counts = &self.pod_counts;
        let reached = |name: &str| selector.takes_namespace(name, counts.namespaces.get(name));
        let members: Vec<&BTreeSet<TaskKey>> = if selector.namespace_labels.is_none() {
            let names = selector.namespaces.iter();
            names
                .filter_map(|name| counts.index.members.get(name))
                .collect()
        } else {
            let all = counts.index.members.iter();
            all.filter(|(name, _)| reached(name))
                .map(|(_, members)| members)
                .collect()
        };
        members.into_iter().flatten().copied().collect()
    }

    /// Pods of a namespace by one of their labels. That is remembered from the first time on
    /// that a selector demands the label there.
    fn with_label(&mut self, name: &Arc<str>, key: &Arc<str>, value: &Arc<str>) -> Vec<TaskKey> {
        let label = (Arc::clone(name), Arc::clone(key));
        if !self.pod_counts.index.by_label.contains_key(&label) {
            let mut values = ByValue::new();
            let members = self.pod_counts.index.members.get(name);
            for task in members.into_iter().flatten() {
                let row = self.tasks.get(*task);
                let mut labels = row.into_iter().flat_map(|row| row.labels.iter());
                if let Some((_, value)) = labels.find(|(own, _)| *own == key) {
                    values.entry(Arc::clone(value)).or_default().insert(*task);
                }
            }
            if members.is_none() {
                return Vec::new();
            }
            self.pod_counts.index.by_label.insert(label.clone(), values);
        }
        let values = self.pod_counts.index.by_label.get(&label);
        let tasks = values.and_then(|values| values.get(value));
        tasks.into_iter().flatten().copied().collect()
    }
}
