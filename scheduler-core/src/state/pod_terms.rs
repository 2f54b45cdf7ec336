//! Which pods the selectors match, and what follows: where each pod is counted, and which of its labels
//! other pods' terms depend on.

use crate::model::{Labels, PodRules, PodSelector};
use crate::state::State;
use crate::state::counted::{CountKey, Who};
use crate::state::keys::{SpecKey, TaskKey};
use crate::state::pod_index::{ByValue, Scope, Scoped};
use crate::state::pod_labels::PodLabels;
use crate::state::rows::TaskRow;
use crate::state::spec::{PodRelations, Spec, TermSubject};
use crate::state::spec_row::SpecRow;
use std::collections::BTreeSet;
use std::sync::Arc;

impl State {
    /// The counted selectors that match a pod.
    pub(crate) fn counted_in(&self, row: &TaskRow) -> Option<Arc<Vec<CountKey>>> {
        let counts = &self.cells.pod_counts;
        let near = counts
            .index
            .matched
            .near(&row.facts.namespace, row.labels.iter());
        let near: BTreeSet<CountKey> = near.flat_map(|scoped| &scoped.keys).copied().collect();
        let matching = near.into_iter().filter(|key| {
            let what = counts.get(*key).map(|row| &row.what.who);
            matches!(what, Some(Who::Matched(all)) if self.cells.pod_counts.all_take(all, &row.facts.namespace, &row.labels))
        });
        let keys: Vec<CountKey> = matching.collect();
        (!keys.is_empty()).then(|| Arc::new(keys))
    }

    /// What terms of others see in such a pod; `own`: its own terms may speak of it too.
    pub(crate) fn subject(
        &self,
        namespace: &Arc<str>,
        labels: &PodLabels,
        own: &PodRules,
    ) -> Option<TermSubject> {
        let index = &self.cells.pod_counts.index;
        let registers = [&index.avoided, &index.preferred].into_iter();
        let near = registers.flat_map(|register| register.near(namespace, labels.iter()));
        let near: Vec<&Scoped> = near.collect();
        let own: Vec<&PodSelector> = own
            .told()
            .filter(|pods| Scope::may_speak(pods, namespace, labels))
            .collect();
        if near.is_empty() && own.is_empty() {
            return None;
        }
        let is_looked_at = |(key, _): &(&Arc<str>, &Arc<str>)| {
            own.iter().any(|pods| pods.labels_looked_at().contains(key))
                || near.iter().any(|scoped| scoped.looks_at(key))
        };
        let labels = labels.iter().filter(is_looked_at);
        Some(TermSubject {
            namespace: Arc::clone(namespace),
            labels: labels
                .map(|(key, value)| (Arc::clone(key), Arc::clone(value)))
                .collect(),
        })
    }

    /// A namespace's labels. `None`: it is gone.
    pub(crate) fn namespace(&mut self, name: &Arc<str>, labels: Option<Labels>) {
        let known = self.cells.pod_counts.namespaces.get(name);
        if known == labels.as_ref() {
            return;
        }
        let index = &self.cells.pod_counts.index;
        let counts = &self.cells.pod_counts;
        let members = if index.looks_at_namespaces() || !counts.all_are_counted() {
            index.members(name)
        } else {
            Vec::new()
        };
        let lifted: Vec<_> = members.into_iter().map(|task| self.detach(task)).collect();
        match labels {
            Some(labels) => drop(
                self.cells
                    .pod_counts
                    .namespaces
                    .insert(Arc::clone(name), labels),
            ),
            None => drop(self.cells.pod_counts.namespaces.remove(name)),
        }
        for lifted in lifted {
            self.recount(lifted.task);
            self.put_back(lifted);
        }
        self.cells.pod_counts.namespace_changed();
        self.changes.capacity_grew();
    }

    /// What a pod's place has to do with other pods', as they are now.
    pub(crate) fn others_now(&self, row: &TaskRow) -> Option<Arc<PodRelations>> {
        let known = self.specs.get(row.spec)?.spec.others.as_deref();
        let rules = known.map(|known| known.rules.clone()).unwrap_or_default();
        let subject = if row.facts.ours {
            self.subject(&row.facts.namespace, &row.labels, &rules)
        } else {
            None
        };
        let ours = row.facts.ours;
        let (namespace, labels) = (&row.facts.namespace, &row.labels);
        PodRelations::of(rules, subject, ours, |term| {
            self.cells.pod_counts.speaks_of(term, namespace, labels)
        })
    }

    /// Which terms a detached pod matches, and what it asks of others, as they are now.
    fn recount(&mut self, task: TaskKey) {
        let Some(row) = self.tasks.get(task) else {
            return;
        };
        let (old, counted_in, others) = (row.spec, self.counted_in(row), self.others_now(row));
        let spec = self.specs.get(old).map(|row| Arc::clone(&row.spec));
        self.set_counted_in(task, counted_in);
        let Some(spec) = spec.filter(|spec| spec.others != others) else {
            return;
        };
        let new = self.spec(Spec {
            others,
            ..(*spec).clone()
        });
        if let Some(row) = self.tasks.get_mut(task) {
            row.spec = new;
        }
        self.release_spec(old);
    }

    /// Terms came into the cluster or left it with the last event that look at other labels than
    /// what was there: each pod of which they may speak is another subject to them.
    pub(crate) fn settle_subjects(&mut self) {
        while !self.cells.pod_counts.looked_at.is_empty() {
            let moved = std::mem::take(&mut self.cells.pod_counts.looked_at);
            let mut tasks = BTreeSet::new();
            for (selector, looks) in moved {
                self.index_for(&selector);
                let reached = self.cells.pod_counts.in_scope(&selector).into_iter();
                tasks.extend(reached.filter(|task| {
                    let row = self.tasks.get(*task);
                    row.is_some_and(|row| row.facts.ours && looks.concerns(&row.labels))
                }));
            }
            for task in tasks {
                let is_another = self.tasks.get(task).is_some_and(|row| {
                    let spec = self.specs.get(row.spec).map(|row| &row.spec);
                    spec.is_some_and(|spec| spec.others != self.others_now(row))
                });
                if is_another {
                    let lifted = self.detach(task);
                    self.recount(task);
                    self.put_back(lifted);
                    self.changes.wake();
                }
            }
        }
    }

    /// From now on the pods that the selector may speak of are found by the label that it
    /// demands, where it names their namespaces.
    pub(super) fn index_for(&mut self, selector: &PodSelector) {
        let demanded = selector.demanded();
        let Some((key, _)) = demanded.filter(|_| selector.namespace_labels.is_none()) else {
            return;
        };
        for name in &selector.namespaces {
            let label = (Arc::clone(name), Arc::clone(key));
            let Some(members) = self.cells.pod_counts.index.members.get(name) else {
                continue;
            };
            if self.cells.pod_counts.index.by_label.contains_key(&label) {
                continue;
            }
            let mut values = ByValue::new();
            for task in members {
                let row = self.tasks.get(*task);
                let mut labels = row.into_iter().flat_map(|row| row.labels.iter());
                if let Some((_, value)) = labels.find(|(own, _)| *own == key) {
                    values.entry(Arc::clone(value)).or_default().insert(*task);
                }
            }
            self.cells.pod_counts.index.by_label.insert(label, values);
        }
    }

    /// The key of a spec; one more task has it.
    pub(crate) fn spec(&mut self, spec: Spec) -> SpecKey {
        if let Some(key) = self.names.specs.get(&spec) {
            if let Some(row) = self.specs.get_mut(*key) {
                row.users += 1;
            }
            return *key;
        }
        let spec = Arc::new(spec);
        let mut row = SpecRow::new(Arc::clone(&spec));
        row.asks = self.count_for(&spec);
        let key = self.specs.insert(row);
        self.names.specs.insert(spec, key);
        key
    }

    /// One task less has this spec.
    pub(crate) fn release_spec(&mut self, key: SpecKey) {
        if let Some(row) = self.specs.get_mut(key) {
            row.users = row.users.saturating_sub(1);
            if row.users == 0
                && let Some(row) = self.specs.remove(key)
            {
                self.names.specs.remove(&row.spec);
                if row.verdicts.is_some() {
                    self.caches.verdicts.forget(key);
                }
                if let Some(asks) = &row.asks {
                    self.count_no_more(asks);
                }
            }
        }
    }
}
