//! NVIDIA's GPU Operator and its GPU fractioning, beside which an agent may run.
//!
//! The operator has two modes. With a `ClusterPolicy` it runs a device plugin on the nodes whose
//! label [`DEVICE_PLUGIN`] is `true`, with a `GPUCluster` a DRA driver where [`DRA_DRIVER`] is. In
//! both it sets the label of its mode to `true` where it is missing, and keeps another value.

use super::seen::{GRANT, GUARD, Seen};
use crate::doctor::finding::Finding;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::ResourceExt;
use kube::core::DynamicObject;
use proto::names::{guard, node_label};

/// Where the operator's device plugin runs.
const DEVICE_PLUGIN: &str = "nvidia.com/gpu.deploy.device-plugin";
/// Where the operator's DRA driver runs.
const DRA_DRIVER: &str = "nvidia.com/gpu.deploy.dra-driver";
/// Node conditions of NVIDIA's GPU fractioning, of its newer and its older name.
const FRACTIONING: [&str; 2] = [
    "gpu-fractioning.nvidia.com/Ready",
    "gpu-sharing.nvidia.com/Ready",
];

/// A mode of the operator.
struct Mode {
    /// Its object, such as `ClusterPolicy cluster-policy`.
    object: String,
    /// What serves the GPUs in it.
    server: &'static str,
    /// The label of the nodes on which that runs.
    label: &'static str,
}

fn modes(seen: &Seen) -> Option<Vec<Mode>> {
    let (policies, clusters) = (seen.cluster_policies.as_ref()?, seen.gpu_clusters.as_ref()?);
    let of = |kind: &'static str, server, label| {
        move |object: &DynamicObject| Mode {
            object: format!("{kind} {}", object.name_any()),
            server,
            label,
        }
    };
    let policies = policies.iter().filter(|object| in_use(object));
    let clusters = clusters.iter().filter(|object| in_use(object));
    Some(
        policies
            .map(of("ClusterPolicy", "device plugin", DEVICE_PLUGIN))
            .chain(clusters.map(of("GPUCluster", "DRA driver", DRA_DRIVER)))
            .collect(),
    )
}

/// The operator serves one object of a kind, and marks the others as ignored.
fn in_use(object: &DynamicObject) -> bool {
    object.data["status"]["state"] != "ignored"
}

/// The operator's modes, and what is left to do beside each.
pub(super) fn findings(seen: &Seen) -> Vec<Finding> {
    let check = "GPU Operator";
    let Some(modes) = modes(seen) else {
        return vec![Finding::unknown(
            check,
            "ClusterPolicies and GPUClusters cannot be listed",
            GRANT,
        )];
    };
    let mut findings = Vec::new();
    if modes.is_empty() {
        findings.push(Finding::fine(check, "none"));
    }
    for mode in &modes {
        findings.push(Finding::fine(
            check,
            format!(
                "{}: a node is handed over with {}=false and {}=true",
                mode.object,
                mode.label,
                node_label::AGENT
            ),
        ));
        for node in seen.nodes.iter().flatten().filter(|node| is_ours(node)) {
            if node
                .labels()
                .get(mode.label)
                .is_some_and(|value| value == "true")
            {
                findings.push(Finding::broken(
                    check,
                    format!(
                        "its {} still serves the GPUs of {}, so no agent starts there",
                        mode.server,
                        node.name_any()
                    ),
                    format!(
                        "drain the node, then kubectl label node {} {}=false --overwrite",
                        node.name_any(),
                        mode.label
                    ),
                ));
            }
        }
    }
    findings.extend(exemption(seen, check));
    findings
}

/// The operator's namespaces, which the guard has to leave alone.
fn exemption(seen: &Seen, check: &'static str) -> Option<Finding> {
    let objects = seen.cluster_policies.iter().chain(&seen.gpu_clusters);
    let home = objects
        .flatten()
        .find_map(|object| object.data["status"]["namespace"].as_str())?;
    let namespaces = seen.namespaces.as_ref()?;
    let exempt = |namespace: &Namespace| {
        namespace.labels().get(guard::LABEL).map(String::as_str) == Some(guard::EXEMPT)
    };
    let there = namespaces.iter().find(|one| one.name_any() == home)?;
    let mut policies = seen.policies.iter().flatten();
    let guarded = policies.any(|policy| GUARD.contains(&policy.name_any().as_str()));
    (guarded && !exempt(there)).then(|| {
        Finding::warning(
            check,
            format!("the guard does not exempt {home}, where the operator's pods are"),
            format!(
                "kubectl label namespace {home} {}={}",
                guard::LABEL,
                guard::EXEMPT
            ),
        )
    })
}

/// Whether the admin has handed this node over.
pub(super) fn is_ours(node: &Node) -> bool {
    let label = node.labels().get(node_label::AGENT);
    label.is_some_and(|value| value == "true")
}

/// Nodes that both NVIDIA's GPU fractioning and an agent serve.
pub(super) fn fractioning(seen: &Seen) -> Vec<Finding> {
    let agents = seen.gpu_nodes.iter().flatten();
    let agents: Vec<String> = agents.map(ResourceExt::name_any).collect();
    let ready = |node: &&Node| {
        let conditions = node
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|condition| {
            condition.status == "True" && FRACTIONING.contains(&condition.type_.as_str())
        })
    };
    let nodes = seen.nodes.iter().flatten();
    nodes
        .filter(ready)
        .map(ResourceExt::name_any)
        .filter(|name| agents.contains(name))
        .map(|name| {
            Finding::broken(
                "GPU fractioning",
                format!("NVIDIA's daemons serve {name} too, and change the containers of shares"),
                "recreate the GpuFractioningConfig with a nodeSelector that leaves this node out \
                 (docs/migration.md)",
            )
        })
        .collect()
}
