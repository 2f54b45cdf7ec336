//! `NodeResourceTopology` (`topology.node.k8s.io/v1alpha2`): what node feature discovery's
//! topology updater, and others, write of a node's NUMA zones. Read for one thing, the policy of the
//! kubelet's topology manager; zones and what is used of them an agent knows itself, and sooner.
//!
//! The policy is in the attributes `topologyManagerPolicy` and `topologyManagerScope`, by the
//! kubelet's words, or in older objects in the deprecated list `topologyPolicies`, as one word for
//! both. Attributes win.

use crate::gpu_node::{TopologyManager, TopologyPolicy, TopologyScope};
use kube::core::ObjectMeta;
use kube::{CustomResource, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name of the attribute with `topologyManagerPolicy`.
const POLICY: &str = "topologyManagerPolicy";
/// Name of the attribute with `topologyManagerScope`.
const SCOPE: &str = "topologyManagerScope";

/// Only for what it says of the resource: the object has no `spec`.
#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "topology.node.k8s.io",
    version = "v1alpha2",
    kind = "NodeResourceTopology",
    plural = "noderesourcetopologies",
    root = "TopologyDefinition"
)]
pub struct TopologyFields {}

/// The object of one node, which has the node's name.
#[derive(Resource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[resource(inherit = "TopologyDefinition")]
#[serde(rename_all = "camelCase")]
pub struct NodeResourceTopology {
    /// Its name.
    pub metadata: ObjectMeta,
    /// Facts about the node as a whole.
    #[serde(default)]
    pub attributes: Vec<Attribute>,
    /// Before there were attributes.
    #[serde(default)]
    pub topology_policies: Vec<String>,
}

/// A fact about the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Attribute {
    /// Which one.
    #[serde(default)]
    pub name: String,
    /// Its value.
    #[serde(default)]
    pub value: String,
}

impl NodeResourceTopology {
    /// The kubelet's topology manager. `None`: it says nothing of it that is known.
    pub fn topology_manager(&self) -> Option<TopologyManager> {
        let attribute = |name: &str| {
            let one = self.attributes.iter().find(|one| one.name == name);
            one.map(|one| one.value.as_str())
        };
        if let Some(policy) = attribute(POLICY).and_then(policy) {
            let scope = match attribute(SCOPE) {
                Some("pod") => TopologyScope::Pod,
                _ => TopologyScope::Container,
            };
            let scope = Some(scope);
            return Some(TopologyManager { policy, scope });
        }
        self.topology_policies.iter().find_map(|word| older(word))
    }
}

fn policy(word: &str) -> Option<TopologyPolicy> {
    let all = [
        TopologyPolicy::None,
        TopologyPolicy::BestEffort,
        TopologyPolicy::Restricted,
        TopologyPolicy::SingleNumaNode,
    ];
    all.into_iter().find(|policy| policy.as_str() == word)
}

/// A word of `topologyPolicies`, such as `SingleNUMANodePodLevel`.
fn older(word: &str) -> Option<TopologyManager> {
    let (policy, scope) = match word.strip_suffix("PodLevel") {
        Some(policy) => (policy, TopologyScope::Pod),
        None => {
            let policy = word.strip_suffix("ContainerLevel").unwrap_or(word);
            (policy, TopologyScope::Container)
        }
    };
    let policy = match policy {
        "None" => TopologyPolicy::None,
        "BestEffort" => TopologyPolicy::BestEffort,
        "Restricted" => TopologyPolicy::Restricted,
        "SingleNUMANode" => TopologyPolicy::SingleNumaNode,
        _ => return None,
    };
    let scope = Some(scope);
    Some(TopologyManager { policy, scope })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(attributes: &[[&str; 2]], policies: &[&str]) -> Option<(TopologyPolicy, bool)> {
        let attributes: Vec<Value> = attributes
            .iter()
            .map(|[name, value]| json!({"name": name, "value": value}))
            .collect();
        let object: NodeResourceTopology = serde_json::from_value(json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
            "metadata": {"name": "n1"}, "attributes": attributes, "topologyPolicies": policies,
            "zones": [{"name": "node-0", "type": "Node",
                "resources": [{"name": "cpu", "capacity": "4", "allocatable": "3", "available": "1"}]}],
        }))
        .unwrap();
        let manager = object.topology_manager()?;
        Some((manager.policy, manager.scope == Some(TopologyScope::Pod)))
    }

    #[test]
    fn the_policy_is_in_attributes_or_in_the_older_list() {
        let single = "single-numa-node";
        let pod = [[POLICY, single], [SCOPE, "pod"]];
        let (none, refusing) = (TopologyPolicy::None, TopologyPolicy::SingleNumaNode);
        assert_eq!(read(&pod, &["None"]), Some((refusing, true)));
        assert_eq!(read(&[[POLICY, single]], &[]), Some((refusing, false)));
        assert_eq!(read(&[[POLICY, "none"]], &[]), Some((none, false)));
        for (word, expected) in [
            ("SingleNUMANodePodLevel", Some((refusing, true))),
            ("SingleNUMANodeContainerLevel", Some((refusing, false))),
            ("Restricted", Some((TopologyPolicy::Restricted, false))),
            (
                "RestrictedPodLevel",
                Some((TopologyPolicy::Restricted, true)),
            ),
            (
                "BestEffortPodLevel",
                Some((TopologyPolicy::BestEffort, true)),
            ),
            ("None", Some((none, false))),
            ("Other", None),
        ] {
            assert_eq!(read(&[[POLICY, "other"]], &[word]), expected, "{word}");
        }
        assert_eq!(read(&[], &[]), None);
    }

    #[test]
    fn an_object_without_any_of_it_is_read() {
        let object = json!({"apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology", "metadata": {"name": "n1"}});
        let object: NodeResourceTopology = serde_json::from_value(object).unwrap();
        assert_eq!(object.topology_manager(), None);
        assert_eq!(NodeResourceTopology::plural(&()), "noderesourcetopologies");
    }
}
