//! Metrics about requested nodes.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Group {
    nodepool: String,
    group: String,
}

/// Of all shards.
#[derive(Debug)]
pub struct ScaleUpMeters {
    nodes: Family<Group, Gauge>,
    failures: Counter,
    /// Groups that have a value, by node pool.
    shown: Mutex<BTreeMap<String, Vec<Group>>>,
}

impl ScaleUpMeters {
    /// New ones, in this registry.
    pub fn registered(registry: &mut Registry) -> Self {
        let meters = Self {
            nodes: Family::default(),
            failures: Counter::default(),
            shown: Mutex::default(),
        };
        let registry = registry.sub_registry_with_prefix("aliquot_scheduler");
        registry.register(
            "scale_up_nodes",
            "Nodes requested from autoscalers, by node pool and group of nodes",
            meters.nodes.clone(),
        );
        registry.register(
            "scale_up_failures",
            "Placeholder pods that could not be written",
            meters.failures.clone(),
        );
        meters
    }

    pub(super) fn failed(&self) {
        self.failures.inc();
    }

    /// Sets the number of requested nodes of each group; other groups are removed.
    pub(super) fn asked<'a>(&self, nodepool: &str, groups: impl Iterator<Item = &'a str>) {
        let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
        for group in groups {
            *counts.entry(group).or_default() += 1;
        }
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = shown.entry(nodepool.to_owned()).or_default();
        for old in shown.drain(..) {
            if !counts.contains_key(old.group.as_str()) {
                self.nodes.remove(&old);
            }
        }
        for (group, count) in counts {
            let group = Group {
                nodepool: nodepool.to_owned(),
                group: group.to_owned(),
            };
            self.nodes.get_or_create(&group).set(count);
            shown.push(group);
        }
    }
}
