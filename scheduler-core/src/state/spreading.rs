//! The domains over which pods of one signature are spread, and how many there are in each:
//! Kubernetes' `PodTopologySpread`.
//!
//! Which nodes have a domain follows from nodes alone and is kept until one changes; how many
//! pods each domain has is added up again when a count has moved.

use super::State;
use super::rows::{SpecKey, SpecRow};
use crate::fit;
use crate::model::Node;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Of one signature, by constraint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Domains {
    /// [`State::nodes_changed`] at that time.
    at: u64,
    of: Vec<Spreading>,
}

/// Of one constraint.
#[derive(Clone, Debug, Default)]
struct Spreading {
    /// The domain of each node that has one, by the node's name.
    nodes: BTreeMap<Arc<str>, Arc<str>>,
    /// [`super::pod_counts::CountRow::changed`] when pods were counted last.
    changed: Option<u64>,
    pods: BTreeMap<Arc<str>, Pods>,
    /// In the domain with the fewest.
    fewest: Pods,
}

/// Those that leave are not counted, as in Kubernetes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pods {
    /// As it is.
    pub now: u128,
    /// With those that are promised a place.
    pub later: u128,
}

impl State {
    /// Brings the domains of a signature up to date.
    pub(crate) fn refresh_domains(&mut self, key: SpecKey) {
        let Some(row) = self.specs.get(key).filter(|row| row.is_spread()) else {
            return;
        };
        let Some(domains) = self.domains_now(row) else {
            return;
        };
        if let Some(row) = self.specs.get_mut(key)
            && let Some(asks) = &mut row.asks
        {
            asks.domains = Some(Box::new(domains));
        }
    }

    /// The row with its domains up to date, to ask many nodes about it.
    pub(crate) fn with_domains<'a>(&self, row: &'a SpecRow) -> Cow<'a, SpecRow> {
        let domains = row.is_spread().then(|| self.domains_now(row)).flatten();
        let Some(domains) = domains else {
            return Cow::Borrowed(row);
        };
        let mut row = row.clone();
        if let Some(asks) = &mut row.asks {
            asks.domains = Some(Box::new(domains));
        }
        Cow::Owned(row)
    }

    /// `None`: those of the row are up to date.
    fn domains_now(&self, row: &SpecRow) -> Option<Domains> {
        let (asks, others) = (row.asks.as_ref()?, row.spec.others.as_ref()?);
        let known = asks
            .domains
            .as_deref()
            .filter(|known| known.at == self.nodes_changed);
        let count = |at: usize| {
            asks.spread
                .get(at)
                .and_then(|key| self.pod_counts.get(*key))
        };
        let is_fresh = |(at, one): (usize, &Spreading)| {
            one.changed == Some(count(at).map_or(0, |row| row.changed))
        };
        if known.is_some_and(|known| known.of.iter().enumerate().all(is_fresh)) {
            return None;
        }
        let mut domains = known.cloned().unwrap_or_else(|| self.eligible(row));
        for (at, (one, spread)) in domains.of.iter_mut().zip(&others.rules.spread).enumerate() {
            let row = count(at);
            one.pods.clear();
            let names = one.nodes.values();
            one.pods
                .extend(names.map(|domain| (Arc::clone(domain), Pods::default())));
            for (node, used) in row.map(|row| &row.domains).into_iter().flatten() {
                let pods = one
                    .nodes
                    .get(node)
                    .and_then(|domain| one.pods.get_mut(domain));
                if let Some(pods) = pods {
                    let stay = used.used.saturating_sub(used.releasing);
                    pods.now += stay;
                    pods.later += stay + used.promised;
                }
            }
            let enough = one.pods.len() >= spread.min_domains.unwrap_or(1) as usize;
            let pods = || one.pods.values().filter(|_| enough);
            one.fewest = Pods {
                now: pods().map(|pods| pods.now).min().unwrap_or(0),
                later: pods().map(|pods| pods.later).min().unwrap_or(0),
            };
            one.changed = Some(row.map_or(0, |row| row.changed));
        }
        Some(domains)
    }

    /// The nodes that have domains: those with the keys of all required constraints, where
    /// asked for within the pod's own node rules and without taints that it does not tolerate.
    fn eligible(&self, row: &SpecRow) -> Domains {
        let spec = &row.spec;
        let rules = spec.others.as_ref().map(|others| &others.rules);
        let spreads = rules.map_or(&[][..], |rules| rules.spread.as_slice());
        let mut of = vec![Spreading::default(); spreads.len()];
        for (name, key) in &self.node_names {
            let Some(node) = self.nodes.get(*key).and_then(|row| row.node.as_ref()) else {
                continue;
            };
            let has = |key: &Arc<str>| node.labels.contains_key(key);
            let mut required = spreads.iter().filter(|spread| spread.required);
            if !required.all(|spread| has(&spread.term.topology_key)) {
                continue;
            }
            for (spread, one) in spreads.iter().zip(&mut of) {
                let admitted = (!spread.honors_affinity || fit::selects(&spec.rules, node))
                    && (!spread.honors_taints || fit::taint(node, spec).is_none());
                let domain = node.labels.get(&spread.term.topology_key);
                if let Some(domain) = domain.filter(|_| admitted) {
                    one.nodes.insert(name.shared(), Arc::clone(domain));
                }
            }
        }
        Domains {
            at: self.nodes_changed,
            of,
        }
    }

    /// By how many pods the node's domain would have more than the one with the fewest, were
    /// another one of the signature there, by constraint. `None`: the node has no such label.
    pub(crate) fn skews(&self, row: &SpecRow, node: &Node) -> Vec<Option<Pods>> {
        let row = self.with_domains(row);
        let (Some(asks), Some(others)) = (&row.asks, &row.spec.others) else {
            return Vec::new();
        };
        let of = asks.domains.iter().flat_map(|domains| &domains.of);
        let all = of.zip(&others.rules.spread).zip(&others.counts_itself);
        let skew = |((one, spread), itself): ((&Spreading, &crate::model::Spread), &bool)| {
            let domain = node.labels.get(&spread.term.topology_key)?;
            let pods = one.pods.get(domain).copied().unwrap_or_default();
            let itself = u128::from(*itself);
            Some(Pods {
                now: (pods.now + itself).saturating_sub(one.fewest.now),
                later: (pods.later + itself).saturating_sub(one.fewest.later),
            })
        };
        all.map(skew).collect()
    }
}

impl SpecRow {
    fn is_spread(&self) -> bool {
        let others = self.spec.others.as_ref();
        others.is_some_and(|others| !others.rules.spread.is_empty())
    }
}
