//! What a search needs to know about other pods, computed once before nodes are visited: the domains
//! over which a pod is spread, the domains that other pods' anti-affinity closes to it, the weight
//! that other pods' preferences give each domain, and where the pods of uncounted selectors are.
//! kube-scheduler's plugins do the same in `PreFilter`.

use crate::model::Node;

use crate::model::PodSelector;
use crate::state::State;
use crate::state::counted::{CountKey, Who};
use crate::state::domains::{Closed, ClosedDomains, DomainPreferences, Domains, Sums};
use crate::state::keys::SpecKey;
use crate::state::pod_counts::{ByDomain, CountRow};
use crate::state::pod_index::{Register, TermsVersion};
use crate::state::spec::TermSubject;
use crate::state::spec_row::{PodAsks, SpecRow};
use crate::state::spreading::{Eligible, Pods, Spreading};
use crate::state::task_cell::TaskCell;
use crate::state::way::Way;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl State {
    /// Something else whenever what was found out may be wrong.
    fn domains_at(&self) -> [u64; 3] {
        let [version, moved] = self.cells.pod_counts.changed();
        [version, moved, self.changes.nodes]
    }

    fn needs_domains(&self, row: &SpecRow) -> bool {
        let Some((asks, others)) = row.asks.as_deref().zip(row.spec.others.as_deref()) else {
            return false;
        };
        others.subject.is_some() || row.is_spread() || self.asks_uncounted(asks)
    }

    /// It asks about pods that are not counted.
    pub(crate) fn asks_uncounted(&self, asks: &PodAsks) -> bool {
        let is_counted = |key| {
            self.cells
                .pod_counts
                .get(key)
                .is_none_or(CountRow::is_counted)
        };
        !self.cells.pod_counts.all_are_counted() && !asks.asked().all(is_counted)
    }

    /// Where the pods of a selector are.
    pub(crate) fn pods_by_domain<'a>(
        &'a self,
        asks: &'a PodAsks,
        key: CountKey,
    ) -> Option<&'a ByDomain> {
        let row = self.cells.pod_counts.get(key)?;
        if row.is_counted() {
            return Some(&row.domains);
        }
        asks.domains.as_ref()?.summed.get(&key)
    }

    /// Finds out what a search for a signature needs, unless it is known. Returns how many
    /// pods, terms and domains it looked at.
    pub(crate) fn refresh_domains(&mut self, key: SpecKey) -> u64 {
        let Some(row) = self.specs.get(key).filter(|row| self.needs_domains(row)) else {
            return 0;
        };
        let domains = row.asks.as_ref().and_then(|asks| asks.domains.as_ref());
        if domains.is_some_and(|known| known.at == Some(self.domains_at())) {
            return 0;
        }
        let domains = |row: &mut SpecRow| row.asks.as_mut()?.domains.take();
        // What is closed to one of thousands of signatures is as large as the cluster.
        let last = self
            .caches
            .searched
            .replace(key)
            .filter(|last| *last != key);
        if let Some(row) = last.and_then(|last| self.specs.get_mut(last))
            && let Some(asks) = &mut row.asks
            && let Some(domains) = &mut asks.domains
        {
            domains.forget();
        }
        let known = self.specs.get_mut(key).and_then(domains);
        let found = self
            .specs
            .get(key)
            .map(|row| self.brought_up_to_date(row, known));
        let (domains, looks) = found.unwrap_or_default();
        if let Some(row) = self.specs.get_mut(key)
            && let Some(asks) = &mut row.asks
        {
            asks.domains = Some(domains);
        }
        looks
    }

    /// The row with what a search needs, to ask many nodes about it.
    pub(crate) fn with_domains<'a>(&self, row: &'a SpecRow) -> Cow<'a, SpecRow> {
        if !self.needs_domains(row) {
            return Cow::Borrowed(row);
        }
        let known = row.asks.as_ref().and_then(|asks| asks.domains.as_ref());
        if known.is_some_and(|known| known.at == Some(self.domains_at())) {
            return Cow::Borrowed(row);
        }
        let (domains, _) = self.brought_up_to_date(row, known.cloned());
        let mut row = row.clone();
        if let Some(asks) = &mut row.asks {
            asks.domains = Some(domains);
        }
        Cow::Owned(row)
    }

    fn brought_up_to_date(
        &self,
        row: &SpecRow,
        known: Option<Box<Domains>>,
    ) -> (Box<Domains>, u64) {
        let at = self.domains_at();
        let mut domains = known.unwrap_or_default();
        let mut looks = 0;
        let Some((asks, others)) = row.asks.as_deref().zip(row.spec.others.as_deref()) else {
            return (domains, looks);
        };
        if domains.nodes != Some(self.changes.nodes) {
            domains.spread = self.spread_over(row);
            domains.nodes = Some(self.changes.nodes);
        }
        // They have moved, or all would be up to date.
        domains.summed.clear();
        if self.asks_uncounted(asks) {
            for key in asks.asked() {
                let row = self
                    .cells
                    .pod_counts
                    .get(key)
                    .filter(|row| !row.is_counted());
                if let Some(row) = row {
                    let summed = self.summed(row, &mut looks);
                    domains.summed.insert(key, summed);
                }
            }
        }
        let spread = domains.spread.iter_mut().zip(&others.rules.spread);
        for ((one, spread), key) in spread.zip(&asks.spread) {
            if let Some(pods) = domains.summed.get(key) {
                one.count(pods, spread);
            } else if let Some(row) = self.cells.pod_counts.get(*key) {
                one.count_moves(row, spread);
            }
        }
        domains.closed = others.subject.as_ref().map(|subject| {
            let changed = self.closed_changed(subject);
            let known = domains.closed.take();
            known
                .filter(|known| known.changed == changed)
                .unwrap_or_else(|| self.closed_to(subject, changed, &mut looks))
        });
        domains.worth = others.subject.as_ref().map(|subject| {
            let changed = self.worth_changed(subject);
            let known = domains.worth.take();
            known
                .filter(|known| known.changed == changed)
                .unwrap_or_else(|| self.worth_to(subject, changed, &mut looks))
        });
        domains.at = Some(at);
        (domains, looks)
    }

    /// The pods of a selector that is not counted, by domain.
    fn summed(&self, row: &CountRow, looks: &mut u64) -> ByDomain {
        let mut pods = ByDomain::new();
        let Who::Matched(selectors) = &row.what.who else {
            return pods;
        };
        let wrong = std::cell::Cell::new(false);
        let way = Way {
            comes: true,
            wrong: &wrong,
        };
        for task in self.matched(selectors, looks) {
            let cell = self.cells.tasks.get(task);
            for (node, how) in cell.into_iter().flat_map(TaskCell::taken) {
                if let Some(domain) = self.domain(node, &row.what) {
                    pods.entry(domain).or_default().add(1, how, way);
                }
            }
        }
        pods
    }

    /// Another one whenever what is closed to such a pod may be something else.
    pub(crate) fn closed_changed(&self, subject: &TermSubject) -> TermsVersion {
        let avoided = &self.cells.pod_counts.index.avoided;
        avoided.version(&subject.namespace, subject.labels.iter())
    }

    /// Another one whenever what preferences of others say to such a pod may be something else.
    fn worth_changed(&self, subject: &TermSubject) -> TermsVersion {
        let preferred = &self.cells.pod_counts.index.preferred;
        preferred.version(&subject.namespace, subject.labels.iter())
    }

    /// The terms of that register which speak of such a pod and that pods with a place have, each
    /// with its topology key. `looks`: how many terms and domains there were.
    fn applicable_terms<'a>(
        &'a self,
        register: &'a Register,
        subject: &'a TermSubject,
        looks: &mut u64,
    ) -> Vec<(&'a Arc<str>, &'a CountRow)> {
        let namespace = self.cells.pod_counts.namespaces.get(&subject.namespace);
        let label = |key: &str| subject.labels.get(key).map(|value| &**value);
        let near = register.near(&subject.namespace, subject.labels.iter());
        // A term that names the namespace and looks at its labels as well is of two scopes.
        let keys: BTreeSet<CountKey> = near.flat_map(|scoped| &scoped.keys).copied().collect();
        let rows = keys.into_iter().filter_map(|key| {
            *looks += 1;
            let row = self.cells.pod_counts.get(key)?;
            let speaks = |pods: &PodSelector| {
                pods.takes_namespace(&subject.namespace, namespace) && pods.takes_labels(label)
            };
            if row.domains.is_empty() || !row.what.who.selectors().iter().all(speaks) {
                return None;
            }
            *looks += row.domains.len() as u64 / 4;
            Some((row.what.topology_key.as_ref()?, row))
        });
        rows.collect()
    }

    /// Adds up the preferences of all pods that have a place.
    fn worth_to(
        &self,
        subject: &TermSubject,
        changed: TermsVersion,
        looks: &mut u64,
    ) -> DomainPreferences {
        let mut worth = BTreeMap::<&Arc<str>, Sums>::new();
        let preferred = &self.cells.pod_counts.index.preferred;
        for (topology, row) in self.applicable_terms(preferred, subject, looks) {
            let Who::Preferring(_, weight) = row.what.who else {
                continue;
            };
            let domains = worth.entry(topology).or_default();
            for (domain, used) in &row.domains {
                let sum = domains.entry(Arc::clone(domain)).or_default();
                *sum = sum.saturating_add(used.pods().saturating_mul(i64::from(weight)));
            }
        }
        for domains in worth.values_mut() {
            domains.retain(|_, sum| *sum != 0);
        }
        worth.retain(|_, domains| !domains.is_empty());
        let of = worth.into_iter();
        DomainPreferences {
            changed,
            of: of.map(|(key, sums)| (Arc::clone(key), sums)).collect(),
        }
    }

    /// Adds up the anti-affinity of all pods that have a place.
    fn closed_to(&self, subject: &TermSubject, changed: TermsVersion, looks: &mut u64) -> Closed {
        let mut closed = BTreeMap::<&Arc<str>, ClosedDomains>::new();
        let avoided = &self.cells.pod_counts.index.avoided;
        for (topology, row) in self.applicable_terms(avoided, subject, looks) {
            let domains = closed.entry(topology).or_default();
            for (domain, used) in &row.domains {
                let stays = domains.entry(Arc::clone(domain)).or_default();
                *stays |= used.stays();
            }
        }
        let of = closed.into_iter();
        Closed {
            changed,
            of: of
                .map(|(key, domains)| (Arc::clone(key), domains))
                .collect(),
        }
    }

    /// The nodes that have domains: those with the keys of all required constraints, where
    /// asked for within the pod's own node rules and without taints that it does not tolerate.
    pub(super) fn spread_over(&self, row: &SpecRow) -> Vec<Spreading> {
        let spec = &row.spec;
        let rules = spec.others.as_ref().map(|others| &others.rules);
        let spreads = rules.map_or(&[][..], |rules| rules.spread.as_slice());
        let mut of: Vec<Eligible> = spreads.iter().map(|_| Eligible::default()).collect();
        for (name, key) in &self.names.nodes {
            let Some(node) = self.nodes.get(*key).and_then(|row| row.node.as_ref()) else {
                continue;
            };
            let has = |key: &Arc<str>| node.labels.contains_key(key);
            let mut required = spreads.iter().filter(|spread| spread.required);
            if !required.all(|spread| has(&spread.term.topology_key)) {
                continue;
            }
            for (spread, one) in spreads.iter().zip(&mut of) {
                let admitted = (!spread.honors_affinity || spec.rules.admit(node))
                    && (!spread.honors_taints || node.barring_taint(&spec.tolerations).is_none());
                let domain = node.labels.get(&spread.term.topology_key);
                if let Some(domain) = domain.filter(|_| admitted) {
                    let next = one.domains.len();
                    let at = *one.domains.entry(Arc::clone(domain)).or_insert(next);
                    one.nodes.insert(name.shared(), at);
                }
            }
        }
        let spreading = |nodes: Eligible| Spreading {
            pods: vec![Pods::default(); nodes.domains.len()],
            nodes: Arc::new(nodes),
            ..Spreading::default()
        };
        of.into_iter().map(spreading).collect()
    }

    /// By how many pods the node's domain would have more than the one with the fewest, were
    /// another one of the signature there, by constraint. `None`: the node has no such label.
    pub(crate) fn skews(&self, row: &SpecRow, node: &Node) -> Vec<Option<Pods>> {
        let row = self.with_domains(row);
        let (Some(asks), Some(others)) = (&row.asks, &row.spec.others) else {
            return Vec::new();
        };
        let of = asks.domains.iter().flat_map(|domains| &domains.spread);
        let all = of.zip(&others.rules.spread).zip(&others.counts_itself);
        let skew = |((one, spread), itself): ((&Spreading, &crate::model::Spread), &bool)| {
            let domain = node.labels.get(&spread.term.topology_key)?;
            let at = one.nodes.domains.get(domain);
            let pods = at
                .and_then(|at| one.pods.get(*at))
                .copied()
                .unwrap_or_default();
            let itself = u128::from(*itself);
            Some(Pods {
                now: (pods.now + itself).saturating_sub(one.fewest.now),
                later: (pods.later + itself).saturating_sub(one.fewest.later),
            })
        };
        all.map(skew).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::core::Core;
    use crate::state::task_cell::Status;
    use crate::text;

    /// Pods that are not counted are looked up again after a trial was undone: else a pod that was
    /// placed in it would be believed to stand there.
    #[test]
    fn what_a_trial_has_found_out_is_not_believed_after_it() {
        let mut core = Core::new(Config {
            most_counted: 0,
            ..Config::default()
        });
        let world = "queue q\nnode a cpu=10 pods=10 label.zone=a\n\
                     pod p queue=q cpu=1 label.app=x\n  near zone ns=default labels=\"app in x\"\n";
        for event in text::read(world).unwrap() {
            core.apply(event);
        }
        let state = core.state_for_tests();
        let (task, node) = (
            state.tasks_by_uid()[0],
            *state.names.nodes.values().next().unwrap(),
        );
        let spec = state.tasks.get(task).unwrap().spec;
        let near = |state: &mut crate::state::State| {
            state.refresh_domains(spec);
            let asks = state.specs.get(spec).unwrap().asks.as_ref().unwrap();
            state.pods_by_domain(asks, asks.affinity[0]).unwrap().len()
        };
        assert_eq!(near(state), 0);
        let mark = state.mark();
        let mut cell = state.cell(task);
        (cell.status, cell.node) = (Status::Bound, Some(node));
        state.transition(task, cell);
        assert_eq!(near(state), 1);
        state.rollback(mark);
        assert_eq!(near(state), 0);
    }
}
