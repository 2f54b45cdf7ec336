//! A node as Kubernetes has it → the core's.

use super::rules::labels;
use super::scale_down;
use super::world::World;
use crate::watch::Key as _;
use api::quantity;
use k8s_openapi::api::core::v1::{Node as KubeNode, Taint as KubeTaint};
use proto::names::resource;
use scheduler_core::Event;
use scheduler_core::ids::{NodeName, ResourceName};
use scheduler_core::model::{Effect, Node, Taint};
use scheduler_core::units::{Bytes, CpuMilli};
use std::sync::Arc;

/// Conditions that keep pods away: type, the status that is fine, KAI's words for the rest.
const CONDITIONS: [(&str, &str, &str); 5] = [
    ("Ready", "True", "node(s) were not ready"),
    ("MemoryPressure", "False", "node(s) had memory pressure"),
    ("DiskPressure", "False", "node(s) had disk pressure"),
    ("PIDPressure", "False", "node(s) had PID pressure"),
    (
        "NetworkUnavailable",
        "False",
        "node(s) had no network available",
    ),
];

/// Whether the node lists what only an agent has it list.
pub(super) fn lists_ours(node: &KubeNode) -> bool {
    let allocatable = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref());
    [resource::SHARE, resource::MEMORY_MIB, resource::MILLI]
        .iter()
        .any(|name| allocatable.is_some_and(|all| all.contains_key(*name)))
}

/// The node; `managed` when an agent answers for its cards.
pub(super) fn of(node: &KubeNode, managed: bool) -> Node {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let mut out = Node::named(name);
    out.uid = node.metadata.uid.as_deref().unwrap_or_default().into();
    out.labels = labels(node.metadata.labels.as_ref());
    out.managed = managed;
    if let Some(spec) = &node.spec {
        out.unschedulable = spec.unschedulable.unwrap_or(false);
        out.taints = spec.taints.iter().flatten().filter_map(taint).collect();
    }
    let Some(status) = &node.status else {
        return out;
    };
    for (name, amount) in status.allocatable.iter().flatten() {
        match name.as_str() {
            "cpu" => out.cpu = CpuMilli(quantity::milli_down(amount).unwrap_or(0)),
            "memory" => out.memory = Bytes(quantity::down(amount).unwrap_or(0)),
            "pods" => out.pods = quantity::down(amount).unwrap_or(0),
            resource::GPU => {
                let gpus = quantity::down(amount).unwrap_or(0);
                out.gpus = u32::try_from(gpus).unwrap_or(u32::MAX);
            }
            resource::MEMORY_MIB | resource::MILLI => {}
            other => {
                if let Some(amount) = quantity::down(amount) {
                    out.extended.insert(ResourceName::new(other), amount);
                }
            }
        }
    }
    // The kubelet refuses a pod for good that asks for what its node does not list: the
    // tokens count only where the amounts are listed too.
    let lists = |name: &str| {
        let amount = status.allocatable.as_ref().and_then(|all| all.get(name));
        amount
            .and_then(quantity::down)
            .is_some_and(|amount| amount > 0)
    };
    if !lists(resource::MEMORY_MIB) || !lists(resource::MILLI) {
        out.extended.remove(&ResourceName::new(resource::SHARE));
    }
    out.not_ready = status
        .conditions
        .iter()
        .flatten()
        .filter_map(|condition| {
            let (_, fine, words) = CONDITIONS
                .iter()
                .find(|(kind, ..)| *kind == condition.type_)?;
            (condition.status != *fine).then(|| Arc::from(*words))
        })
        .collect();
    let leaves = |taint: &Taint| LEAVING.contains(&&*taint.key);
    if out.taints.iter().any(leaves) {
        out.not_ready.push(Arc::from(WORDS_OF_LEAVING));
    }
    out
}

/// Taints of nodes that an autoscaler is about to remove. A pod that tolerates every taint would be
/// placed there all the same.
const LEAVING: [&str; 2] = ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"];
const WORDS_OF_LEAVING: &str = "node(s) were about to be removed by an autoscaler";

fn taint(taint: &KubeTaint) -> Option<Taint> {
    Some(Taint {
        key: Arc::from(taint.key.as_str()),
        value: Arc::from(taint.value.as_deref().unwrap_or_default()),
        effect: match taint.effect.as_str() {
            "NoSchedule" => Effect::NoSchedule,
            "NoExecute" => Effect::NoExecute,
            "PreferNoSchedule" => Effect::PreferNoSchedule,
            _ => return None,
        },
    })
}

impl World {
    pub(super) fn node_there(&mut self, object: &KubeNode) -> Vec<Event> {
        let name = object.key();
        if lists_ours(object) {
            self.listing.insert(name.clone());
        } else {
            self.listing.remove(&name);
        }
        let mut node = of(object, self.is_managed(&name));
        let mut groups = self.removable.iter();
        node.removable = groups.any(|all| scale_down::is_removable(all, &node, object));
        node.aligns = self.aligning.contains(&name);
        self.storage.csi().limit(&mut node);
        self.mig.limit(&mut node, self.states.get(&name));
        // The kubelet's heartbeat changes nothing here.
        if self.known_nodes.get(&name) == Some(&node) {
            return Vec::new();
        }
        let before = self.known_nodes.insert(name.clone(), node.clone());
        let mut events = vec![Event::Node(node)];
        if before.is_none() {
            // Its agent may have said all before the node's object was there.
            events.extend(self.cards(&name));
        }
        events
    }

    pub(super) fn node_gone(&mut self, name: String) -> Vec<Event> {
        self.known_nodes.remove(&name);
        self.listing.remove(&name);
        // With the node the core forgets its cards; the agent says the same of it once more
        // where it is created again.
        self.told.remove(&name);
        vec![Event::NodeGone(NodeName::from(name))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_node_offers_and_what_keeps_pods_away() {
        let node: KubeNode = serde_json::from_value(json!({
            "metadata": {"name": "n1", "uid": "u1", "labels": {"zone": "a"}},
            "spec": {"taints": [
                {"key": "a", "effect": "NoSchedule"},
                {"key": "b", "effect": "NoSuchEffect"}]},
            "status": {
                "allocatable": {"cpu": "3500m", "memory": "1Ki", "pods": "110", "nvidia.com/gpu": "2",
                    "aliquot.dev/gpu-share": "96", "aliquot.dev/gpu-memory-mib": "96k", "aliquot.dev/gpu-milli": "2k"},
                "conditions": [
                    {"type": "Ready", "status": "Unknown"},
                    {"type": "MemoryPressure", "status": "False"},
                    {"type": "Strange", "status": "True"}]},
        }))
        .unwrap();
        let node = of(&node, true);
        assert_eq!(
            (node.cpu, node.memory, node.pods, node.gpus),
            (CpuMilli(3500), Bytes(1024), 110, 2)
        );
        assert_eq!(node.taints.len(), 1);
        assert_eq!(node.extended.len(), 1, "{:?}", node.extended);
        assert_eq!(node.not_ready.len(), 1);
        assert!(node.managed);
    }

    #[test]
    fn a_node_that_an_autoscaler_removes_takes_no_pod_whatever_it_tolerates() {
        for (key, reasons) in [
            ("ToBeDeletedByClusterAutoscaler", 1),
            ("karpenter.sh/disrupted", 1),
            ("nvidia.com/gpu", 0),
        ] {
            let node = json!({"metadata": {"name": "n"}, "status": {},
                "spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}});
            let node = of(&serde_json::from_value(node).unwrap(), true);
            assert_eq!(node.not_ready.len(), reasons, "{key}");
        }
    }

    #[test]
    fn a_share_is_not_sent_where_the_kubelet_does_not_count_its_amounts_yet() {
        let tokens = |amounts: serde_json::Value| {
            let mut allocatable = json!({"aliquot.dev/gpu-share": "96"});
            json_patch::merge(&mut allocatable, &amounts);
            let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}});
            let node = of(&serde_json::from_value(node).unwrap(), true);
            node.extended.values().sum::<u64>()
        };
        let (mib, milli) = ("aliquot.dev/gpu-memory-mib", "aliquot.dev/gpu-milli");
        assert_eq!(tokens(json!({})), 0);
        assert_eq!(tokens(json!({mib: "96k"})), 0);
        assert_eq!(tokens(json!({mib: "0", milli: "2k"})), 0);
        assert_eq!(tokens(json!({mib: "96k", milli: "2k"})), 96);
    }
}
