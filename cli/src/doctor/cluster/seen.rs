//! What the checks of a cluster look at: lists of its objects.

use crate::connect::Cluster;
use crate::failure::Failure;
use api::{GpuNode, Queue};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy,
};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};

/// The policies of the guard.
pub(super) const GUARD: [&str; 10] = [
    "aliquot-visible-devices",
    "aliquot-runtime-classes",
    "aliquot-host-paths",
    "aliquot-cdi-names",
    "aliquot-requests",
    "aliquot-share-isolation",
    "aliquot-grant",
    "aliquot-exempt-namespaces",
    "aliquot-agent-node",
    "aliquot-agent-gpunode",
];

/// What to do where a list is refused.
pub(super) const GRANT: &str = "grant your account the right to list it";

/// The kind of the operator's mode with a device plugin.
fn cluster_policies() -> ApiResource {
    kind("v1", "ClusterPolicy", "clusterpolicies")
}

/// The kind of the operator's mode with a DRA driver.
fn gpu_clusters() -> ApiResource {
    kind("v1alpha1", "GPUCluster", "gpuclusters")
}

fn kind(version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("nvidia.com", version, kind), plural)
}

/// The listed objects. `None`: no right to read them.
#[derive(Clone, Debug, Default)]
pub(in crate::doctor) struct Seen {
    /// Major and minor, and as the server says it.
    pub(super) version: Option<(u32, u32, String)>,
    /// `None`: the kind is not known there, or may not be read.
    pub(super) gpu_nodes: Option<Vec<GpuNode>>,
    pub(super) queues: Option<Vec<Queue>>,
    pub(super) nodes: Option<Vec<Node>>,
    pub(super) pods: Option<Vec<Pod>>,
    pub(super) webhooks: Option<Vec<MutatingWebhookConfiguration>>,
    pub(super) policies: Option<Vec<ValidatingAdmissionPolicy>>,
    pub(super) namespaces: Option<Vec<Namespace>>,
    /// The GPU Operator's objects; empty where their kinds are not known.
    pub(super) cluster_policies: Option<Vec<DynamicObject>>,
    pub(super) gpu_clusters: Option<Vec<DynamicObject>>,
}

impl Seen {
    /// Lists everything; only a server that does not answer at all is a failure.
    pub(in crate::doctor) async fn look(cluster: &Cluster) -> Result<Self, Failure> {
        let version = cluster
            .client
            .apiserver_version()
            .await
            .map_err(|error| cluster.failure("its version", &error))?;
        let number = |text: &str| {
            let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
            digits.parse::<u32>().ok()
        };
        let version = number(&version.major)
            .zip(number(&version.minor))
            .map(|(major, minor)| (major, minor, version.git_version.clone()));
        let (gpu_nodes, queues, nodes, pods, webhooks, policies, namespaces) = tokio::join!(
            cluster.list_known(),
            cluster.list_known(),
            cluster.list_known(),
            cluster.list_known(),
            cluster.list_known(),
            cluster.list_known(),
            cluster.list_known(),
        );
        let (of_policies, of_clusters) = (cluster_policies(), gpu_clusters());
        let (cluster_policies, gpu_clusters) = tokio::join!(
            cluster.list_any(&of_policies),
            cluster.list_any(&of_clusters),
        );
        Ok(Self {
            version,
            gpu_nodes: gpu_nodes.ok(),
            queues: queues.ok(),
            nodes: nodes.ok(),
            pods: pods.ok(),
            webhooks: webhooks.ok(),
            policies: policies.ok(),
            namespaces: namespaces.ok(),
            cluster_policies: cluster_policies.ok(),
            gpu_clusters: gpu_clusters.ok(),
        })
    }
}
