//! The pods that hold whole GPUs by the extended resource `nvidia.com/gpu`.
//!
//! Pure: nodes, pods and the use of memory → a [`Fleet`].

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use proto::names::resource::GPU;
use std::collections::BTreeMap;

/// A share is a whole number of these, so that a little more use needs no other request.
const STEP_MIB: u64 = 512;

/// The most MiB of one card that a pod used, by namespace and name.
pub(super) type Used = BTreeMap<(String, String), u64>;

/// What a cluster has, and who holds it.
#[derive(Clone, Debug, Default)]
pub(super) struct Fleet {
    /// Nodes with GPUs.
    pub(super) nodes: u64,
    /// GPUs of these nodes, each once where it is time-sliced.
    pub(super) gpus: u64,
    /// GPUs that pods hold, in the units of the resource.
    pub(super) held: u64,
    /// Nodes on which one GPU is several units of the resource.
    pub(super) time_sliced: u64,
    pub(super) holders: Vec<Holder>,
}

/// A pod that holds GPUs.
#[derive(Clone, Debug, Default)]
pub(super) struct Holder {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) node: String,
    pub(super) gpus: u64,
    /// Unknown without the labels of NVIDIA's feature discovery.
    pub(super) product: Option<String>,
    /// The memory of one GPU.
    pub(super) card_mib: Option<u64>,
    /// The most that it used of one GPU.
    pub(super) used_mib: Option<u64>,
    /// True if its node hands out each GPU more than once.
    pub(super) time_sliced: bool,
}

impl Holder {
    /// Returns the share that the pod could have in place of its GPU: what it used and so many per
    /// cent more. `None`: it holds several GPUs, used more than half of one, or its use is unknown.
    pub(super) fn share(&self, headroom: u64) -> Option<u64> {
        let (used, card) = (self.used_mib?, self.card_mib?);
        if self.gpus != 1 || self.time_sliced || used > card / 2 {
            return None;
        }
        let wanted = used.saturating_mul(100 + headroom).div_ceil(100).max(1);
        Some(wanted.next_multiple_of(STEP_MIB).min(card))
    }
}

/// What a node says of its GPUs.
struct OfNode {
    gpus: u64,
    replicas: u64,
    product: Option<String>,
    card_mib: Option<u64>,
}

impl OfNode {
    /// `None`: it has no GPUs that the resource counts.
    fn of(node: &Node) -> Option<Self> {
        let status = node.status.as_ref()?;
        let units: u64 = status.capacity.as_ref()?.get(GPU)?.0.parse().ok()?;
        let number = |key: &str| node.labels().get(key)?.parse::<u64>().ok();
        let replicas = number("nvidia.com/gpu.replicas").unwrap_or(1).max(1);
        (units > 0).then(|| Self {
            gpus: number("nvidia.com/gpu.count").unwrap_or(units / replicas),
            replicas,
            product: node.labels().get("nvidia.com/gpu.product").cloned(),
            card_mib: number("nvidia.com/gpu.memory"),
        })
    }
}

/// Returns true for a pod that has not ended.
pub(super) fn is_live(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
}

/// The GPUs of a pod: the sum of its containers, or the largest init container if that is more.
fn gpus(pod: &Pod) -> u64 {
    let Some(spec) = &pod.spec else { return 0 };
    let of = |container: &k8s_openapi::api::core::v1::Container| {
        let limits = container.resources.as_ref()?.limits.as_ref()?;
        limits.get(GPU)?.0.parse::<u64>().ok()
    };
    let sum: u64 = spec.containers.iter().filter_map(of).sum();
    let init = spec.init_containers.iter().flatten().filter_map(of).max();
    sum.max(init.unwrap_or(0))
}

impl Fleet {
    /// `used`: `None` where it is not known of any pod.
    pub(super) fn of(nodes: &[Node], pods: &[Pod], used: Option<&Used>) -> Self {
        let nodes: BTreeMap<String, OfNode> = nodes
            .iter()
            .filter_map(|node| Some((node.name_any(), OfNode::of(node)?)))
            .collect();
        let mut fleet = Self {
            nodes: nodes.len() as u64,
            gpus: nodes.values().map(|node| node.gpus).sum(),
            time_sliced: nodes.values().filter(|node| node.replicas > 1).count() as u64,
            ..Self::default()
        };
        for pod in pods.iter().filter(|pod| is_live(pod)) {
            let gpus = gpus(pod);
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            let Some(node) = node.filter(|_| gpus > 0) else {
                continue;
            };
            let of = nodes.get(&node);
            let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
            let key = (namespace.clone(), name.clone());
            fleet.held += gpus;
            fleet.holders.push(Holder {
                namespace,
                pod: name,
                node,
                gpus,
                product: of.and_then(|of| of.product.clone()),
                card_mib: of.and_then(|of| of.card_mib),
                used_mib: used.and_then(|used| used.get(&key).copied()),
                time_sliced: of.is_some_and(|of| of.replicas > 1),
            });
        }
        fleet
    }
}
