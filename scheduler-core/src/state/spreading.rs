//! The domains over which pods of one signature are spread, and how many there are in each:
//! Kubernetes' `PodTopologySpread`.
//!
//! Which nodes have a domain follows from nodes alone and is kept until one changes; how many
//! pods each domain has is added up again when a count has moved.

use super::State;
use super::cell::ExtraUse;
use super::pod_counts::CountRow;
use super::rows::{SpecKey, SpecRow};
use crate::fit;
use crate::model::{Node, Spread};
use rustc_hash::FxHashMap;
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
#[derive(Debug, Default)]
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
    /// Brings the domains of a signature up to date.
    pub(crate) fn refresh_domains(&mut self, key: SpecKey) {
        let known = self.specs.get_mut(key).filter(|row| row.is_spread());
        let Some(known) = known.and_then(|row| Some(row.asks.as_mut()?.domains.take())) else {
            return;
        };
        let row = self.specs.get(key);
        let domains = row.and_then(|row| self.brought_up_to_date(row, known));
        if let Some(row) = self.specs.get_mut(key)
            && let Some(asks) = &mut row.asks
        {
            asks.domains = domains;
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
            asks.domains = Some(domains);
        }
        Cow::Owned(row)
    }

    /// `None`: those of the row are up to date.
    fn domains_now(&self, row: &SpecRow) -> Option<Box<Domains>> {
        let asks = row.asks.as_ref()?;
        let known = asks
            .domains
            .as_ref()
            .filter(|known| known.at == self.nodes_changed);
        let changed = |at: usize| self.spread_changed(row, at);
        let is_fresh = |(at, one): (usize, &Spreading)| one.changed == Some(changed(at));
        if known.is_some_and(|known| known.of.iter().enumerate().all(is_fresh)) {
            return None;
        }
        self.brought_up_to_date(row, known.cloned())
    }

    fn spread_changed(&self, row: &SpecRow, at: usize) -> u64 {
        let key = row.asks.as_ref().and_then(|asks| asks.spread.get(at));
        let count = key.and_then(|key| self.pod_counts.get(*key));
        count.map_or(0, |count| count.changed)
    }

    fn brought_up_to_date(
        &self,
        row: &SpecRow,
        known: Option<Box<Domains>>,
    ) -> Option<Box<Domains>> {
        let (asks, others) = (row.asks.as_ref()?, row.spec.others.as_ref()?);
        let known = known.filter(|known| known.at == self.nodes_changed);
        let mut domains = known.unwrap_or_else(|| Box::new(self.eligible(row)));
        let counts = asks.spread.iter().map(|key| self.pod_counts.get(*key));
        for ((one, spread), count) in domains.of.iter_mut().zip(&others.rules.spread).zip(counts) {
            if one.changed != Some(count.map_or(0, |row| row.changed)) {
                one.count(count, spread);
            }
        }
        Some(domains)
    }

    /// The nodes that have domains: those with the keys of all required constraints, where
    /// asked for within the pod's own node rules and without taints that it does not tolerate.
    fn eligible(&self, row: &SpecRow) -> Domains {
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
        Domains {
            at: self.nodes_changed,
            of: of.into_iter().map(spreading).collect(),
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
    fn count(&mut self, row: Option<&CountRow>, spread: &Spread) {
        let Some(row) = row else {
            self.changed = Some(0);
            return;
        };
        let moved = self.changed.and_then(|changed| row.moved_since(changed));
        match moved {
            Some(moved) => {
                for node in moved {
                    self.count_node(node, row.domains.get(node));
                }
            }
            None => {
                self.of_node.clear();
                self.pods.fill(Pods::default());
                for (node, used) in &row.domains {
                    self.count_node(node, Some(used));
                }
            }
        }
        let enough = self.pods.len() >= spread.min_domains.unwrap_or(1) as usize;
        let fewest = |of: fn(&Pods) -> u128| {
            let pods = self.pods.iter().filter(|_| enough).map(of);
            pods.min().unwrap_or(0)
        };
        self.fewest = Pods {
            now: fewest(|pods| pods.now),
            later: fewest(|pods| pods.later),
        };
        self.changed = Some(row.changed);
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
    pub(super) fn is_spread(&self) -> bool {
        let others = self.spec.others.as_ref();
        others.is_some_and(|others| !others.rules.spread.is_empty())
    }
}
