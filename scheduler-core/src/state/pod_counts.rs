//! How many pods stand in which domain, of those that other pods' rules speak of.
//!
//! Each selector that a rule of a known pod has is counted once per topology key
//! ([`Counted`]): pods that it matches, and, for anti-affinity, pods that have it. Counts are
//! cells: they move with the pods ([`State::transition`]) and are undone with them. Which pods
//! a selector matches is found out when the selector, the pod or its namespace comes or
//! changes. In a cluster without such rules there is nothing to count and nothing is done.
//!
//! A pod is kept away by the anti-affinity of others too. The terms that speak of it stand in
//! its request signature ([`super::rows::Others::avoided_by`]), so that two pods of one
//! signature always get the same answers; the signature is made anew when such a term comes
//! into the cluster or leaves it ([`State::settle_terms`]).

use super::State;
use super::cell::{Cell, ExtraUse};
use super::pod_index::PodIndex;
use super::rows::{NodeKey, PodAsks, Spec, TaskKey};
use super::transition::As;
use crate::model::{Labels, PodSelector, PodTerm};
use slotmap::SlotMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

slotmap::new_key_type! {
    /// A selector whose pods are counted.
    pub(crate) struct CountKey;
}

/// What is counted, and in which domains.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Counted {
    pub who: Who,
    /// `None`: each node is its own domain, by its name.
    pub topology_key: Option<Arc<str>>,
}

/// Which pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    /// Those that all of these match.
    Matched(Vec<PodSelector>),
    /// Those that have this in their required anti-affinity.
    Avoiding(PodSelector),
}

impl Who {
    fn selectors(&self) -> &[PodSelector] {
        match self {
            Self::Matched(all) => all,
            Self::Avoiding(one) => std::slice::from_ref(one),
        }
    }
}

/// One of them.
#[derive(Debug)]
pub(crate) struct CountRow {
    pub what: Counted,
    /// Request signatures that name it.
    users: u32,
    /// Domains with such pods.
    pub domains: BTreeMap<Arc<str>, ExtraUse>,
    /// Another one whenever a count of it has moved; only rises, also on the way back.
    pub changed: u64,
    /// The domains that moved last, each with [`Self::changed`] after it.
    moves: VecDeque<(u64, Arc<str>)>,
}

impl CountRow {
    /// Domains that may have moved since. `None`: that is too long ago.
    pub(crate) fn moved_since(&self, changed: u64) -> Option<impl Iterator<Item = &Arc<str>>> {
        let (first, _) = self.moves.front()?;
        let later = self.moves.iter().rev();
        let later = later.take_while(move |(at, _)| *at > changed);
        (*first <= changed).then(|| later.map(|(_, domain)| domain))
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct PodCounts {
    rows: SlotMap<CountKey, CountRow>,
    keys: BTreeMap<Counted, CountKey>,
    pub(crate) index: PodIndex,
    /// Anti-affinity that came or went: whom it speaks of is to be told.
    pub(super) terms_moved: Vec<PodSelector>,
    /// What is known of namespaces.
    pub namespaces: BTreeMap<Arc<str>, Labels>,
    version: u64,
}

impl PodCounts {
    pub(crate) fn get(&self, key: CountKey) -> Option<&CountRow> {
        self.rows.get(key)
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = (CountKey, &CountRow)> {
        self.rows.iter()
    }

    /// Another number whenever a count has moved.
    pub(crate) fn version(&self) -> u64 {
        self.version
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
}

impl State {
    /// The domain of a node. `None`: it has none.
    pub(crate) fn domain(&self, node: NodeKey, what: &Counted) -> Option<Arc<str>> {
        let node = self.nodes.get(node)?.node.as_ref()?;
        match &what.topology_key {
            Some(key) => node.labels.get(key).cloned(),
            None => Some(node.name.shared()),
        }
    }

    /// What a request signature asks of others is counted from now on.
    pub(super) fn count_for(&mut self, spec: &Spec) -> Option<Box<PodAsks>> {
        let others = spec.others.as_ref()?;
        let rules = &others.rules;
        let matched = |selectors: Vec<PodSelector>, key: &Arc<str>| Counted {
            who: Who::Matched(selectors),
            topology_key: Some(Arc::clone(key)),
        };
        let avoiding = |term: &PodTerm| Counted {
            who: Who::Avoiding(term.pods.clone()),
            topology_key: Some(Arc::clone(&term.topology_key)),
        };
        let one = |term: &PodTerm| matched(vec![term.pods.clone()], &term.topology_key);
        let all: Vec<PodSelector> = rules
            .affinity
            .iter()
            .map(|term| term.pods.clone())
            .collect();
        let affinity = rules.affinity.iter();
        let affinity: Vec<_> = affinity
            .map(|term| matched(all.clone(), &term.topology_key))
            .collect();
        let spread = rules.spread.iter().map(|spread| Counted {
            who: Who::Matched(vec![spread.term.pods.clone()]),
            topology_key: None,
        });
        let spread: Vec<_> = spread.collect();
        let preferred: Vec<_> = rules
            .preferred
            .iter()
            .map(|one| &one.term)
            .map(one)
            .collect();
        // A pod is one of those who avoid others once, however often it says so.
        let avoids: BTreeSet<Counted> = rules.anti_affinity.iter().map(avoiding).collect();
        let mut keys = |counted: Vec<Counted>| -> Box<[CountKey]> {
            let keys = counted.into_iter().map(|one| self.count_one(one));
            keys.collect()
        };
        Some(Box::new(PodAsks {
            affinity: keys(affinity),
            anti_affinity: keys(rules.anti_affinity.iter().map(one).collect()),
            avoided_by: keys(others.avoided_by.iter().map(avoiding).collect()),
            avoids: keys(avoids.into_iter().collect()),
            preferred: keys(preferred),
            spread: keys(spread),
            domains: None,
        }))
    }

    /// A request signature is gone.
    pub(super) fn count_no_more(&mut self, asks: &PodAsks) {
        for key in asks.all() {
            let Some(row) = self.pod_counts.rows.get_mut(key) else {
                continue;
            };
            row.users = row.users.saturating_sub(1);
            if row.users > 0 {
                continue;
            }
            let Some(row) = self.pod_counts.rows.remove(key) else {
                continue;
            };
            let counts = &mut self.pod_counts;
            counts.keys.remove(&row.what);
            if let Some(first) = row.what.who.selectors().first() {
                counts.index.file(key, first, false);
            }
            if let Who::Avoiding(selector) = row.what.who {
                counts.terms_moved.push(selector);
            }
        }
    }

    fn count_one(&mut self, what: Counted) -> CountKey {
        let known = self.pod_counts.keys.get(&what).copied();
        if let Some((key, row)) =
            known.and_then(|key| Some((key, self.pod_counts.rows.get_mut(key)?)))
        {
            row.users += 1;
            return key;
        }
        let counts = &mut self.pod_counts;
        let key = counts.rows.insert(CountRow {
            what: what.clone(),
            users: 1,
            domains: BTreeMap::new(),
            changed: 0,
            moves: VecDeque::new(),
        });
        counts.keys.insert(what.clone(), key);
        // Of whom the first selector does not speak, all of them do not.
        if let Some(first) = what.who.selectors().first() {
            counts.index.file(key, first, true);
        }
        match what.who {
            // Nobody has it yet.
            Who::Avoiding(selector) => counts.terms_moved.push(selector),
            Who::Matched(selectors) => self.count_matched(key, &selectors),
        }
        key
    }

    /// Counts the pods that are there already.
    fn count_matched(&mut self, key: CountKey, selectors: &[PodSelector]) {
        let Some(first) = selectors.first() else {
            return;
        };
        for task in self.reached_by(first) {
            let Some(row) = self.tasks.get(task) else {
                continue;
            };
            if !self.all_take(selectors, &row.namespace, &row.labels) {
                continue;
            }
            let counts = &self.pod_counts;
            let known = row.counted_in.iter().flat_map(|keys| keys.iter().copied());
            let known = known.filter(|key| counts.rows.contains_key(*key));
            let keys: Vec<CountKey> = known.chain([key]).collect();
            if let Some(row) = self.tasks.get_mut(task) {
                row.counted_in = Some(Arc::new(keys));
            }
            let Some(cell) = self.task_cells.get(task).cloned() else {
                continue;
            };
            for (node, how) in cell.taken() {
                self.move_count(key, node, how, true);
            }
        }
    }

    /// One pod more, or one less, in a domain.
    fn move_count(&mut self, key: CountKey, node: NodeKey, how: As, comes: bool) -> bool {
        let Some(row) = self.pod_counts.rows.get(key) else {
            return true;
        };
        let Some(domain) = self.domain(node, &row.what) else {
            return true;
        };
        let mut used = row.domains.get(&domain).copied().unwrap_or_default();
        let mut right = true;
        let mut add = |sum: &mut u128| {
            let after = if comes {
                sum.checked_add(1)
            } else {
                sum.checked_sub(1)
            };
            right &= after.is_some();
            *sum = after.unwrap_or(*sum);
        };
        match how {
            As::Taken => add(&mut used.used),
            As::Leaving => {
                add(&mut used.used);
                add(&mut used.releasing);
            }
            As::Promised => add(&mut used.promised),
        }
        self.set(Cell::Count(key, domain, used));
        right
    }

    /// A pod comes to a node or leaves it. `false`: more left than came.
    pub(super) fn move_counts(
        &mut self,
        task: TaskKey,
        node: NodeKey,
        how: As,
        comes: bool,
    ) -> bool {
        if self.pod_counts.is_empty() {
            return true;
        }
        let Some(row) = self.tasks.get(task) else {
            return true;
        };
        let counted_in = row.counted_in.clone();
        let asks = self.specs.get(row.spec).and_then(|spec| spec.asks.as_ref());
        let avoids: Vec<CountKey> = asks.map_or(Vec::new(), |asks| asks.avoids.to_vec());
        let mut right = true;
        for key in counted_in
            .iter()
            .flat_map(|keys| keys.iter())
            .chain(&avoids)
        {
            right &= self.move_count(*key, node, how, comes);
        }
        right
    }

    /// All pods of a node, out of its domains or into them: its labels are about to change, or
    /// have changed.
    pub(crate) fn count_node(&mut self, node: NodeKey, comes: bool) {
        if self.pod_counts.is_empty() {
            return;
        }
        let tasks = self.on_node.get(node).cloned().unwrap_or_default();
        for task in tasks {
            let cell = self.cell(task);
            for (at, how) in cell.taken() {
                if at == node && !self.move_counts(task, at, how, comes) {
                    self.contradicts("more pods were to leave a domain than it had");
                }
            }
        }
    }
}
