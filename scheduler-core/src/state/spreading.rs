//! The domains over which pods of one signature are spread, and how many there are in each:
//! Kubernetes' `PodTopologySpread`.
//!
//! Which nodes have a domain follows from nodes alone and is kept until one changes; how many
//! pods each domain has is added up again when a count has moved.

use crate::model::Spread;
use crate::state::extra_use::ExtraUse;
use crate::state::pod_counts::{ByDomain, CountRow};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Of one constraint.
#[derive(Clone, Debug, Default)]
pub(super) struct Spreading {
    pub(super) nodes: Arc<Eligible>,
    /// [`super::pod_counts::CountRow::changed`] when pods were counted last.
    pub(super) changed: Option<u64>,
    /// Of each eligible node with any, by its name.
    pub(super) of_node: FxHashMap<Arc<str>, Pods>,
    /// Of each domain, in the order of [`Eligible::domains`].
    pub(super) pods: Vec<Pods>,
    /// In the domain with the fewest.
    pub(super) fewest: Pods,
}

/// Nodes that have a domain.
#[derive(Clone, Debug, Default)]
pub(super) struct Eligible {
    /// Which domain, by the node's name.
    pub(super) nodes: FxHashMap<Arc<str>, usize>,
    /// Where each stands.
    pub(super) domains: BTreeMap<Arc<str>, usize>,
}

/// Those that leave are not counted, as in Kubernetes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pods {
    /// As it is.
    pub now: u128,
    /// With those that are promised a place.
    pub later: u128,
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
