//! Whom selectors speak of, and what follows for the pods: where they are counted, and by whom
//! they are avoided.

use super::State;
use super::pod_counts::{CountKey, Who};
use super::rows::{Others, Spec, TaskKey, TaskRow};
use super::texts::PodLabels;
use crate::model::{Labels, PodSelector, PodTerm};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Whether all of these speak of a pod of that namespace with those labels.
fn all_take(
    selectors: &[PodSelector],
    namespaces: &BTreeMap<Arc<str>, Labels>,
    namespace: &str,
    labels: &PodLabels,
) -> bool {
    let of_namespace = namespaces.get(namespace);
    selectors.iter().all(|one| {
        one.takes_namespace(namespace, of_namespace) && one.takes_labels(|key| labels.get(key))
    })
}

impl State {
    /// Whether all of these speak of such a pod.
    pub(crate) fn all_take(
        &self,
        selectors: &[PodSelector],
        namespace: &str,
        labels: &PodLabels,
    ) -> bool {
        all_take(selectors, &self.pod_counts.namespaces, namespace, labels)
    }

    /// The counted selectors that match a pod.
    pub(crate) fn counted_in(&self, row: &TaskRow) -> Option<Arc<Vec<CountKey>>> {
        let counts = &self.pod_counts;
        let near = counts.index.near(&row.namespace, &row.labels).into_iter();
        let matching = near.filter(|key| {
            let what = counts.get(*key).map(|row| &row.what.who);
            matches!(what, Some(Who::Matched(all)) if self.all_take(all, &row.namespace, &row.labels))
        });
        let keys: Vec<CountKey> = matching.collect();
        (!keys.is_empty()).then(|| Arc::new(keys))
    }

    /// The anti-affinity terms of pods that speak of such a pod, its own among them.
    pub(crate) fn avoided_by(
        &self,
        namespace: &Arc<str>,
        labels: &PodLabels,
        own: &[PodTerm],
    ) -> Vec<PodTerm> {
        let counts = &self.pod_counts;
        let near = counts.index.near(namespace, labels).into_iter();
        let known = near.filter_map(|key| {
            let what = &counts.get(key)?.what;
            let Who::Avoiding(pods) = &what.who else {
                return None;
            };
            Some(PodTerm {
                pods: pods.clone(),
                topology_key: what.topology_key.clone()?,
            })
        });
        let speaks =
            |term: &PodTerm| self.all_take(std::slice::from_ref(&term.pods), namespace, labels);
        let all: BTreeSet<PodTerm> = known.chain(own.iter().cloned()).filter(speaks).collect();
        all.into_iter().collect()
    }

    /// A namespace's labels. `None`: it is gone.
    pub(crate) fn namespace(&mut self, name: &Arc<str>, labels: Option<Labels>) {
        let known = self.pod_counts.namespaces.get(name);
        if known == labels.as_ref() {
            return;
        }
        // Only selectors of namespaces by labels look at them.
        let index = &self.pod_counts.index;
        let members = if index.is_wide() {
            index.members(name)
        } else {
            Vec::new()
        };
        let lifted: Vec<_> = members.into_iter().map(|task| self.lift(task)).collect();
        match labels {
            Some(labels) => drop(self.pod_counts.namespaces.insert(Arc::clone(name), labels)),
            None => drop(self.pod_counts.namespaces.remove(name)),
        }
        for lifted in lifted {
            self.recount(lifted.task);
            self.put_back(lifted);
        }
        self.loosen();
    }

    /// What a pod's place has to do with other pods', as they are now.
    pub(crate) fn others_now(&self, row: &TaskRow) -> Option<Arc<Others>> {
        let known = self.specs.get(row.spec)?.spec.others.as_deref();
        let rules = known.map(|known| known.rules.clone()).unwrap_or_default();
        let avoided_by = if row.ours {
            self.avoided_by(&row.namespace, &row.labels, &rules.anti_affinity)
        } else {
            Vec::new()
        };
        Others::of(self, &row.namespace, &row.labels, rules, avoided_by)
    }

    /// Whom a detached pod matches and what it asks of others, as they are now.
    fn recount(&mut self, task: TaskKey) {
        let Some(row) = self.tasks.get(task) else {
            return;
        };
        let (old, counted_in, others) = (row.spec, self.counted_in(row), self.others_now(row));
        let spec = self.specs.get(old).map(|row| Arc::clone(&row.spec));
        if let Some(row) = self.tasks.get_mut(task) {
            row.counted_in = counted_in;
        }
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

    /// Anti-affinity came into the cluster or left it with the last event: those of whom it
    /// speaks ask about it from now on, or no more.
    pub(crate) fn settle_terms(&mut self) {
        while !self.pod_counts.terms_moved.is_empty() {
            let moved = std::mem::take(&mut self.pod_counts.terms_moved);
            let mut tasks = BTreeSet::new();
            for selector in moved.into_iter().collect::<BTreeSet<_>>() {
                let reached = self.reached_by(&selector);
                let one = std::slice::from_ref(&selector);
                tasks.extend(reached.into_iter().filter(|task| {
                    let row = self.tasks.get(*task).filter(|row| row.ours);
                    row.is_some_and(|row| self.all_take(one, &row.namespace, &row.labels))
                }));
            }
            for task in tasks {
                let asks_otherwise = self.tasks.get(task).is_some_and(|row| {
                    let spec = self.specs.get(row.spec).map(|row| &row.spec);
                    spec.is_some_and(|spec| spec.others != self.others_now(row))
                });
                if asks_otherwise {
                    let lifted = self.lift(task);
                    self.recount(task);
                    self.put_back(lifted);
                    self.stir();
                }
            }
        }
    }
}
