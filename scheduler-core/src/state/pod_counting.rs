//! Keeps [`PodCounts`](super::pod_counts::PodCounts) in line with request signatures, pods and nodes.

use crate::model::{PodSelector, PodTerm};
use crate::state::State;
use crate::state::cell::Cell;
use crate::state::counted::{CountKey, Counted, Who};
use crate::state::keys::{NodeKey, TaskKey};
use crate::state::pod_counts::CountRow;
use crate::state::pod_index::Scope;
use crate::state::rows::TaskRow;
use crate::state::spec::Spec;
use crate::state::spec_row::PodAsks;
use crate::state::way::{As, Way};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

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
        // A pod is one of those who avoid others once, however often it says so. Of what it
        // prefers each term counts.
        let mut terms: BTreeSet<Counted> = rules.anti_affinity.iter().map(avoiding).collect();
        let mut weights = BTreeMap::<&PodTerm, i32>::new();
        for one in &rules.preferred {
            let weight = weights.entry(&one.term).or_default();
            *weight = weight.saturating_add(one.weight);
        }
        terms.extend(weights.into_iter().map(|(term, weight)| Counted {
            who: Who::Preferring(term.pods.clone(), weight),
            topology_key: Some(Arc::clone(&term.topology_key)),
        }));
        let asked = |counted: Vec<Counted>| if others.ours { counted } else { Vec::new() };
        let mut keys = |counted: Vec<Counted>| -> Box<[CountKey]> {
            let keys = counted.into_iter().map(|one| self.count_one(one));
            keys.collect()
        };
        Some(Box::new(PodAsks {
            affinity: keys(asked(affinity)),
            anti_affinity: keys(asked(rules.anti_affinity.iter().map(one).collect())),
            preferred: keys(asked(preferred)),
            spread: keys(asked(spread)),
            terms: keys(terms.into_iter().collect()),
            domains: None,
        }))
    }

    /// A request signature is gone.
    pub(super) fn count_no_more(&mut self, asks: &PodAsks) {
        for key in asks.all() {
            let Some(row) = self.cells.pod_counts.rows.get_mut(key) else {
                continue;
            };
            row.users = row.users.saturating_sub(1);
            if row.users > 0 {
                continue;
            }
            let Some(row) = self.cells.pod_counts.rows.remove(key) else {
                continue;
            };
            let counts = &mut self.cells.pod_counts;
            counts.keys.remove(&row.what);
            counts.members -= row.members.unwrap_or(0).min(counts.members);
            counts.uncounted -= usize::from(!row.is_counted()).min(counts.uncounted);
            match (row.what.who, row.members) {
                (Who::Matched(selectors), Some(_)) => {
                    if let Some(first) = selectors.first() {
                        counts.index.matched.leave(key, first);
                    }
                }
                (Who::Matched(_), None) => {}
                (who, _) => {
                    let selector = who.selectors().first();
                    let left = counts.index.register_of(&who).zip(selector);
                    if let Some((left, selector)) = left
                        && let Some(looks) = left.leave(key, selector)
                    {
                        counts.looked_at.push((selector.clone(), looks));
                    }
                }
            }
        }
    }

    fn count_one(&mut self, what: Counted) -> CountKey {
        let known = self.cells.pod_counts.keys.get(&what).copied();
        if let Some((key, row)) =
            known.and_then(|key| Some((key, self.cells.pod_counts.rows.get_mut(key)?)))
        {
            row.users += 1;
            return key;
        }
        let counts = &mut self.cells.pod_counts;
        // A pod that the first selector does not match is not matched by all of them.
        let first = what.who.selectors().first().cloned().unwrap_or_default();
        let key = counts.rows.insert(CountRow {
            what: what.clone(),
            users: 1,
            scopes: Scope::of(&first),
            members: Some(0),
            domains: BTreeMap::new(),
            changed: 0,
            moves: VecDeque::new(),
        });
        counts.keys.insert(what.clone(), key);
        match what.who {
            Who::Matched(selectors) => {
                counts.index.matched.enter(key, &first, counts.version);
                self.index_for(&first);
                self.count_matched(key, &selectors);
            }
            // No pod has it yet.
            who => {
                counts.version += 1;
                let version = counts.version;
                let entered = counts.index.register_of(&who);
                if let Some(looks) = entered.and_then(|entered| entered.enter(key, &first, version))
                {
                    counts.looked_at.push((first, looks));
                }
            }
        }
        key
    }

    /// The pods that all of these match. `looks`: how many were examined.
    pub(super) fn matched(&self, selectors: &[PodSelector], looks: &mut u64) -> Vec<TaskKey> {
        let reached = selectors
            .first()
            .map(|first| self.cells.pod_counts.reached_by(first));
        let reached = reached.unwrap_or_default();
        *looks += reached.len() as u64;
        let matched = reached.into_iter().filter(|task| {
            let row = self.tasks.get(*task);
            row.is_some_and(|row| {
                self.cells
                    .pod_counts
                    .all_take(selectors, &row.facts.namespace, &row.labels)
            })
        });
        matched.collect()
    }

    /// Some selector may match the pod.
    pub(crate) fn may_be_matched(&self, row: &TaskRow) -> bool {
        let mut keys = row.counted_in.iter().flat_map(|keys| keys.iter());
        !self.cells.pod_counts.all_are_counted()
            || keys.any(|key| self.cells.pod_counts.get(*key).is_some())
    }

    /// Counts the pods that are there already, unless there are too many.
    fn count_matched(&mut self, key: CountKey, selectors: &[PodSelector]) {
        let matched = self.matched(selectors, &mut 0);
        let counts = &self.cells.pod_counts;
        let sum = counts.members.saturating_add(matched.len() as u64);
        if sum > counts.most_members {
            self.count_no_longer(key);
            return;
        }
        let wrong = std::cell::Cell::new(false);
        let way = Way {
            comes: true,
            wrong: &wrong,
        };
        self.add_members(key, matched.len() as u64);
        for task in matched {
            self.count_in(task, key);
            let Some(cell) = self.cells.tasks.get(task).cloned() else {
                continue;
            };
            for (node, how) in cell.taken() {
                self.move_count(key, node, how, way);
            }
        }
    }

    /// From now on the pods are searched where the count is needed.
    fn count_no_longer(&mut self, key: CountKey) {
        let counts = &mut self.cells.pod_counts;
        let Some(row) = counts.rows.get_mut(key) else {
            return;
        };
        let (Some(members), Who::Matched(selectors)) = (row.members.take(), &row.what.who) else {
            return;
        };
        counts.members -= members.min(counts.members);
        counts.uncounted += 1;
        counts.version += 1;
        row.changed = counts.version;
        row.domains.clear();
        row.moves.clear();
        if let Some(first) = selectors.first() {
            counts.index.matched.leave(key, first);
        }
    }

    fn add_members(&mut self, key: CountKey, count: u64) {
        let counts = &mut self.cells.pod_counts;
        let row = counts.rows.get_mut(key);
        if let Some(members) = row.and_then(|row| row.members.as_mut()) {
            *members += count;
            counts.members += count;
        }
    }

    /// The pod is one more that the selector matches.
    fn count_in(&mut self, task: TaskKey, key: CountKey) {
        let counts = &self.cells.pod_counts;
        let Some(row) = self.tasks.get_mut(task) else {
            return;
        };
        let keys = Arc::make_mut(row.counted_in.get_or_insert_default());
        // Before it grows: without those of rows that are gone.
        if keys.len() == keys.capacity() {
            keys.retain(|key| counts.get(*key).is_some_and(CountRow::is_counted));
        }
        keys.push(key);
    }

    /// Which selectors match the pod. Where they are too many of all pods, those that match the
    /// most are counted no longer. Not of a pod that has a place.
    pub(crate) fn set_counted_in(&mut self, task: TaskKey, keys: Option<Arc<Vec<CountKey>>>) {
        let Some(row) = self.tasks.get_mut(task) else {
            return;
        };
        let old = std::mem::replace(&mut row.counted_in, keys.clone());
        for key in keys.iter().flat_map(|keys| keys.iter()) {
            self.add_members(*key, 1);
        }
        let counts = &mut self.cells.pod_counts;
        for key in old.iter().flat_map(|keys| keys.iter()) {
            let row = counts.rows.get_mut(*key);
            if let Some(members) = row.and_then(|row| row.members.as_mut()) {
                *members = members.saturating_sub(1);
                counts.members = counts.members.saturating_sub(1);
            }
        }
        while self.cells.pod_counts.members > self.cells.pod_counts.most_members {
            let rows = self.cells.pod_counts.rows.iter();
            let matched = rows.filter(|(_, row)| matches!(row.what.who, Who::Matched(_)));
            let largest = matched.max_by_key(|(_, row)| row.members);
            let Some((key, _)) = largest.filter(|(_, row)| row.members > Some(0)) else {
                self.contradicts("more pods are matched than the selectors match");
                return;
            };
            self.count_no_longer(key);
        }
    }

    /// One pod more, or one less, in a domain.
    fn move_count(&mut self, key: CountKey, node: NodeKey, how: As, way: Way) {
        let row = self.cells.pod_counts.rows.get(key);
        let Some(row) = row.filter(|row| row.is_counted()) else {
            return;
        };
        let Some(domain) = self.domain(node, &row.what) else {
            return;
        };
        let mut used = row.domains.get(&domain).copied().unwrap_or_default();
        used.add(1, how, way);
        self.set(Cell::Count(key, domain, used));
    }

    /// A pod comes to a node or leaves it.
    pub(super) fn move_counts(&mut self, task: TaskKey, node: NodeKey, how: As, way: Way) {
        if self.cells.pod_counts.is_empty() {
            return;
        }
        let Some(row) = self.tasks.get(task) else {
            return;
        };
        let counted_in = row.counted_in.clone();
        let asks = self.specs.get(row.spec).and_then(|spec| spec.asks.as_ref());
        let terms: Vec<CountKey> = asks.map_or(Vec::new(), |asks| asks.terms.to_vec());
        let matched = counted_in.iter().flat_map(|keys| keys.iter());
        for key in matched.chain(&terms) {
            self.move_count(*key, node, how, way);
        }
    }

    /// All pods of a node, out of its domains or into them: its labels are about to change, or
    /// have changed.
    pub(crate) fn count_node(&mut self, node: NodeKey, comes: bool) {
        if self.cells.pod_counts.is_empty() {
            return;
        }
        let wrong = std::cell::Cell::new(false);
        let way = Way {
            comes,
            wrong: &wrong,
        };
        let tasks = self.index.on_node.get(node).cloned().unwrap_or_default();
        for task in tasks.iter().copied() {
            let cell = self.cell(task);
            for (at, how) in cell.taken().filter(|(at, _)| *at == node) {
                self.move_counts(task, at, how, way);
            }
        }
        if wrong.get() {
            self.contradicts("more pods were to leave a domain than it had");
        }
    }
}
