//! The domains over which pods of one signature are spread, and how many there are in each:
//! Kubernetes' `PodTopologySpread`.
//!
//! Which nodes have a domain follows from nodes alone and is kept until one changes; how many
//! pods each domain has is added up again when a count has moved.

use super::State;
use super::cell::ExtraUse;
use super::pod_counts::CountRow;
use super::pod_domains::ByDomain;
use super::rows::SpecRow;
use crate::fit;
use crate::model::{Node, Spread};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Of one constraint.
#[derive(Clone, Debug, Default)]
pub(super) struct Spreading {
    nodes: Arc<Eligible>,
    /// [`super::pod_counts::CountRow::changed`] when pods were counted last.
    changed: Option<u64>,
    /// Of each eligible node with any, by its name.
    of_node: FxHashMap<Arc<str>, Pods>,
    /// Of each domain, in the order of [`Eligible::domains`].
    pods: Vec<Pods>,
    /// In the domain with the fewest.
    fewest: Pods,
}

/// Nodes that have a domain.
#[derive(Clone, Debug, Default)]
struct Eligible {
    /// Which domain, by the node's name.
    nodes: FxHashMap<Arc<str>, usize>,
    /// Where each stands.
    domains: BTreeMap<Arc<str>, usize>,
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
    /// The nodes that have domains: those with the keys of all required constraints, where
    /// asked for within the pod's own node rules and without taints that it does not tolerate.
    pub(super) fn spread_over(&self, row: &SpecRow) -> Vec<Spreading> {
        let spec = &row.spec;
        let rules = spec.others.as_ref().map(|others| &others.rules);
        let spreads = rules.map_or(&[][..], |rules| rules.spread.as_slice());
        let mut of: Vec<Eligible> = spreads.iter().map(|_| Eligible::default()).collect();
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

impl Spreading {
    /// Adds up what has moved since the last time.
    pub(super) fn count_moves(&mut self, row: &CountRow, spread: &Spread) {
        if self.changed == Some(row.changed) {
            return;
        }
        let moved = self.changed.and_then(|changed| row.moved_since(changed));
        match moved {
            Some(moved) => {
                for node in moved {
                    self.count_node(node, row.domains.get(node));
                }
                self.find_fewest(spread);
            }
            None => self.count(&row.domains, spread),
        }
        self.changed = Some(row.changed);
    }

    /// Adds up all of them.
    pub(super) fn count(&mut self, pods: &ByDomain, spread: &Spread) {
        self.changed = None;
        self.of_node.clear();
        self.pods.fill(Pods::default());
        for (node, used) in pods {
            self.count_node(node, Some(used));
        }
        self.find_fewest(spread);
    }

    fn find_fewest(&mut self, spread: &Spread) {
        let enough = self.pods.len() >= spread.min_domains.unwrap_or(1) as usize;
        let fewest = |of: fn(&Pods) -> u128| {
            let pods = self.pods.iter().filter(|_| enough).map(of);
            pods.min().unwrap_or(0)
        };
        self.fewest = Pods {
            now: fewest(|pods| pods.now),
            later: fewest(|pods| pods.later),
        };
    }

    fn count_node(&mut self, node: &Arc<str>, used: Option<&ExtraUse>) {
        let at = self.nodes.nodes.get(node);
        let Some(pods) = at.and_then(|at| self.pods.get_mut(*at)) else {
            return;
        };
        let new = used.map_or(Pods::default(), |used| {
            let now = used.used.saturating_sub(used.releasing);
            let later = now + used.promised;
            Pods { now, later }
        });
        let old = self
            .of_node
            .insert(Arc::clone(node), new)
            .unwrap_or_default();
        pods.now = (pods.now + new.now).saturating_sub(old.now);
        pods.later = (pods.later + new.later).saturating_sub(old.later);
    }
}

impl SpecRow {
    /// It has a constraint of spread, required or preferred.
    pub(crate) fn is_spread(&self) -> bool {
        let others = self.spec.others.as_ref();
        others.is_some_and(|others| !others.rules.spread.is_empty())
    }
}
