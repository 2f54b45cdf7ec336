//! How many pods stand in which domain, of those that other pods' rules speak of.
//!
//! Each selector that a rule of a known pod has is counted once per topology key
//! ([`Counted`]): pods that it matches, and, for required anti-affinity and for preferences,
//! pods that have it. Counts are cells: they move with the pods ([`State::transition`](super::State::transition)) and are undone with them. Which pods
//! a selector matches is found out when the selector, the pod or its namespace comes or
//! changes. In a cluster without such rules there is nothing to count and nothing is done.
//!
//! Thousands of selectors that each match every pod would need a billion counts. From
//! [`crate::Config::most_counted`] on a selector is not counted but asked of the pods in each
//! search, as kube-scheduler does ([`super::pod_domains`]).

use crate::model::{Labels, PodSelector, PodTerm};
use crate::state::counted::{CountKey, Counted};
use crate::state::extra_use::ExtraUse;
use crate::state::keys::TaskKey;
use crate::state::pod_index::{LooksAt, PodIndex, Scope};
use crate::state::pod_labels::PodLabels;
use slotmap::SlotMap;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// One of them.
#[derive(Clone, Debug)]
pub(crate) struct CountRow {
    pub what: Counted,
    /// Request signatures that name it.
    pub(super) users: u32,
    /// Which pods it may speak of at most.
    pub(super) scopes: Vec<Scope>,
    /// How many pods it matches. `None`: they are not counted, but asked each time.
    pub(super) members: Option<u64>,
    /// Domains with such pods, where they are counted.
    pub domains: BTreeMap<Arc<str>, ExtraUse>,
    /// Another one whenever a count of it has moved; only rises, also on the way back.
    pub changed: u64,
    /// The domains that moved last, each with [`Self::changed`] after it.
    pub(super) moves: VecDeque<(u64, Arc<str>)>,
}

impl CountRow {
    /// False: who needs it asks the pods.
    pub(crate) fn is_counted(&self) -> bool {
        self.members.is_some()
    }

    /// Domains that may have moved since. `None`: that is too long ago.
    pub(crate) fn moved_since(&self, changed: u64) -> Option<impl Iterator<Item = &Arc<str>>> {
        let (first, _) = self.moves.front()?;
        let later = self.moves.iter().rev();
        let later = later.take_while(move |(at, _)| *at > changed);
        (*first <= changed).then(|| later.map(|(_, domain)| domain))
    }
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodCounts {
    pub(super) rows: SlotMap<CountKey, CountRow>,
    pub(super) keys: BTreeMap<Counted, CountKey>,
    pub(crate) index: PodIndex,
    /// Terms of pods that came or went, and look at other labels than those before them: what
    /// they see in the pods that they may speak of is another thing now.
    pub(super) looked_at: Vec<(PodSelector, LooksAt)>,
    /// What is known of namespaces.
    pub namespaces: BTreeMap<Arc<str>, Labels>,
    /// Of all rows together.
    pub(super) members: u64,
    /// [`crate::Config::most_counted`].
    pub most_members: u64,
    /// Rows that are not counted.
    pub(super) uncounted: usize,
    /// Another one whenever a pod has moved, while some rows are not counted.
    pub(super) moved: u64,
    pub(super) version: u64,
}

impl PodCounts {
    pub(crate) fn get(&self, key: CountKey) -> Option<&CountRow> {
        self.rows.get(key)
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = (CountKey, &CountRow)> {
        self.rows.iter()
    }

    /// A pod stands elsewhere now, or is back where it stood.
    pub(super) fn task_moved(&mut self) {
        if self.uncounted > 0 {
            self.moved += 1;
        }
    }

    /// Every pod that some selector matches says so.
    pub(crate) fn all_are_counted(&self) -> bool {
        self.uncounted == 0
    }

    /// Others whenever a count, or a pod that is not counted everywhere, has moved.
    pub(crate) fn changed(&self) -> [u64; 2] {
        [self.version, self.moved]
    }

    /// The labels of a namespace are others now.
    pub(super) fn namespace_changed(&mut self) {
        self.version += 1;
        self.moved += 1;
        self.index.avoided.namespace_changed(self.version);
        self.index.preferred.namespace_changed(self.version);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The one setter of a count; returns what was there.
    pub(super) fn swap(&mut self, key: CountKey, domain: &Arc<str>, value: ExtraUse) -> ExtraUse {
        /// As many as one decision moves between two looks at them.
        const MOVES: usize = 256;
        self.version += 1;
        let Some(row) = self.rows.get_mut(key) else {
            return ExtraUse::default();
        };
        row.changed = self.version;
        if let Some(register) = self.index.register_of(&row.what.who) {
            register.changed(&row.scopes, self.version);
        }
        // Who is spread looks at each node on its own.
        if row.what.topology_key.is_none() {
            while row.moves.len() >= MOVES {
                row.moves.pop_front();
            }
            row.moves.push_back((self.version, Arc::clone(domain)));
        }
        let old = if value == ExtraUse::default() {
            row.domains.remove(domain)
        } else {
            row.domains.insert(Arc::clone(domain), value)
        };
        old.unwrap_or_default()
    }

    /// Pods of the selector's scopes.
    pub(super) fn in_scope(&self, selector: &PodSelector) -> Vec<TaskKey> {
        if selector.namespace_labels.is_none() {
            return self.reached_by(selector);
        }
        let members = self.index.members.values();
        members.flatten().copied().collect()
    }

    /// Pods that the selector may match.
    pub(super) fn reached_by(&self, selector: &PodSelector) -> Vec<TaskKey> {
        let index = &self.index;
        if selector.namespace_labels.is_none() {
            let of = |name: &Arc<str>| {
                let by_label = selector.demanded().and_then(|(key, value)| {
                    let label = (Arc::clone(name), Arc::clone(key));
                    Some(index.by_label.get(&label)?.get(value))
                });
                by_label.unwrap_or_else(|| index.members.get(name))
            };
            let reached = selector.namespaces.iter().filter_map(of);
            return reached.flatten().copied().collect();
        }
        let namespaces = &self.namespaces;
        let reached = |name: &str| selector.takes_namespace(name, namespaces.get(name));
        let all = index.members.iter().filter(|(name, _)| reached(name));
        all.flat_map(|(_, members)| members).copied().collect()
    }

    /// Whether the term speaks of such a pod.
    pub(crate) fn speaks_of(&self, term: &PodTerm, namespace: &str, labels: &PodLabels) -> bool {
        self.all_take(std::slice::from_ref(&term.pods), namespace, labels)
    }

    /// Whether all of these speak of such a pod.
    pub(crate) fn all_take(
        &self,
        selectors: &[PodSelector],
        namespace: &str,
        labels: &PodLabels,
    ) -> bool {
        let of_namespace = self.namespaces.get(namespace);
        selectors.iter().all(|one| {
            one.takes_namespace(namespace, of_namespace) && one.takes_labels(|key| labels.get(key))
        })
    }
}

/// Pods by domain.
pub(super) type ByDomain = BTreeMap<Arc<str>, ExtraUse>;
