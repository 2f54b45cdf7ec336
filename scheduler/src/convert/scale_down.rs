//! What may be moved so that an autoscaler removes a node, and which nodes it may remove.

use k8s_openapi::api::core::v1::{Node as KubeNode, Pod as KubePod};
use kube::ResourceExt as _;
use proto::names::scale_down as names;
use scheduler_core::model::Node;
use scheduler_core::scale_up::Groups;
use std::collections::BTreeMap;

/// The node is of a group that an autoscaler resizes, and says nothing against its removal.
pub(super) fn is_removable(groups: &Groups, node: &Node, object: &KubeNode) -> bool {
    let says = |key| is_true(object.annotations(), key);
    groups.have(node) && !says(names::SCALE_DOWN_DISABLED) && !says(names::DO_NOT_DISRUPT)
}

/// A controller makes the pod again, and the pod says nothing against its eviction. What it says to
/// the cluster autoscaler counts where it says nothing to the scheduler.
pub(super) fn is_safe_to_evict(pod: &KubePod) -> bool {
    let said = pod.annotations();
    let own = said
        .get(names::SAFE_TO_EVICT)
        .or_else(|| said.get(names::SAFE_TO_EVICT_AUTOSCALER));
    api::owner::controller(pod).is_some()
        && own.is_none_or(|own| own == "true")
        && !is_true(said, names::DO_NOT_DISRUPT)
}

fn is_true(annotations: &BTreeMap<String, String>, key: &str) -> bool {
    annotations.get(key).is_some_and(|value| value == "true")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_pod_with_a_controller_is_safe_to_evict_unless_it_says_otherwise() {
        let safe = |annotations: Value, owners: Value| {
            let pod = json!({"metadata": {"annotations": annotations, "ownerReferences": owners}});
            is_safe_to_evict(&serde_json::from_value(pod).unwrap())
        };
        let owner = |controller: bool| {
            json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u",
                "controller": controller}])
        };
        let (own, other) = (names::SAFE_TO_EVICT, names::SAFE_TO_EVICT_AUTOSCALER);
        for (annotations, expected) in [
            (json!({}), true),
            (json!({other: "true"}), true),
            (json!({other: "false"}), false),
            // As admission writes a share, and its own word against the other's.
            (json!({other: "false", own: "true"}), true),
            (json!({other: "true", own: "false"}), false),
            (json!({"karpenter.sh/do-not-disrupt": "true"}), false),
            (
                json!({own: "true", "karpenter.sh/do-not-disrupt": "true"}),
                false,
            ),
        ] {
            assert_eq!(
                safe(annotations.clone(), owner(true)),
                expected,
                "{annotations}"
            );
            assert!(!safe(annotations, owner(false)));
        }
        assert!(!safe(json!({}), json!([])));
    }

    #[test]
    fn a_node_of_a_group_is_removable_unless_it_says_otherwise() {
        let groups = Groups {
            keys: vec!["karpenter.sh/nodepool".into()],
            described: vec![[("pool".into(), "l4".into())].into()],
        };
        let removable = |labels: Value, annotations: Value| {
            let node =
                json!({"metadata": {"name": "n", "labels": labels, "annotations": annotations}});
            let object: KubeNode = serde_json::from_value(node).unwrap();
            is_removable(&groups, &super::super::node::of(&object, true), &object)
        };
        assert!(removable(json!({"karpenter.sh/nodepool": "a"}), json!({})));
        assert!(removable(json!({"pool": "l4"}), json!({})));
        assert!(!removable(json!({"pool": "t4"}), json!({})));
        for key in [
            "cluster-autoscaler.kubernetes.io/scale-down-disabled",
            "karpenter.sh/do-not-disrupt",
        ] {
            assert!(
                !removable(json!({"pool": "l4"}), json!({key: "true"})),
                "{key}"
            );
            assert!(
                removable(json!({"pool": "l4"}), json!({key: "false"})),
                "{key}"
            );
        }
    }
}
