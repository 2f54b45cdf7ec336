//! The pods that hold whole GPUs by the extended resource `nvidia.com/gpu`.
//!
//! Pure: nodes, pods and the use of memory → a [`Fleet`].

use k8s_openapi::api::core::v1::{Container, Node, Pod};
use kube::ResourceExt as _;
use proto::names::resource::{GPU, MIG_PREFIX};
use std::collections::BTreeMap;

/// A share is a whole number of these, so that a little more use needs no other request.
const STEP_MIB: u64 = 512;

/// The most MiB of one card that a pod used, by namespace and name.
pub(super) type Used = BTreeMap<(String, String), u64>;

/// The namespace of the pods by which a KAI scheduler holds GPUs for its shares.
const RESERVATIONS: &str = "kai-resource-reservation";

/// The GPUs of a cluster, and the pods that hold them.
#[derive(Clone, Debug, Default)]
pub(super) struct Fleet {
    /// Nodes on which a pod gets a GPU of its own.
    pub(super) nodes: u64,
    /// GPUs of these nodes.
    pub(super) gpus: u64,
    /// GPUs of these nodes that pods hold.
    pub(super) held: u64,
    /// Nodes that hand out each GPU to several pods.
    pub(super) sharing: u64,
    /// Nodes whose GPUs are MIG slices.
    pub(super) mig: u64,
    /// Pods with a share already, by KAI's annotations.
    pub(super) shares: u64,
    pub(super) holders: Vec<Holder>,
}

/// A pod that holds GPUs of its own.
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
}

impl Holder {
    /// Returns the share that the pod could have in place of its GPU: what it used and so many per
    /// cent more. `None`: it holds several GPUs, used more than half of one, or its use is unknown.
    pub(super) fn share(&self, headroom: u64) -> Option<u64> {
        let (used, card) = (self.used_mib?, self.card_mib?);
        if self.gpus != 1 || used > card / 2 {
            return None;
        }
        let wanted = used.saturating_mul(100 + headroom).div_ceil(100).max(1);
        Some(wanted.next_multiple_of(STEP_MIB).min(card))
    }
}

/// The way in which a node hands out its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Front {
    /// Each GPU goes to one pod.
    Whole,
    /// Each GPU goes to several pods: time-slicing or MPS of NVIDIA's device plugin, or another plugin.
    Shared,
    /// The GPUs are MIG slices.
    Mig,
}

/// The GPUs of a node, by its capacity and its labels.
struct OfNode {
    gpus: u64,
    front: Front,
    product: Option<String>,
    card_mib: Option<u64>,
}

impl OfNode {
    /// `None`: it has no GPUs that a device plugin counts.
    fn of(node: &Node) -> Option<Self> {
        let capacity = node.status.as_ref()?.capacity.as_ref()?;
        let units = |name: &str| capacity.get(name)?.0.parse::<u64>().ok();
        let number = |key: &str| node.labels().get(key)?.parse::<u64>().ok();
        let product = node.labels().get("nvidia.com/gpu.product").cloned();
        let whole = units(GPU).unwrap_or(0);
        let renamed = units("nvidia.com/gpu.shared").unwrap_or(0);
        let is_some = |name: &str| units(name).is_some_and(|units| units > 0);
        let mut slices = capacity.keys().filter(|name| name.starts_with(MIG_PREFIX));
        let has_slices = slices.any(|name| is_some(name));
        if whole + renamed == 0 && !has_slices {
            return None;
        }
        let gpus = number("nvidia.com/gpu.count").unwrap_or(whole);
        let replicas = number("nvidia.com/gpu.replicas").unwrap_or(1);
        // With MIG's strategy "single" each slice is a GPU of such a product.
        let is_slice = product
            .as_ref()
            .is_some_and(|product| product.contains("-MIG-"));
        let front = if is_slice || has_slices && whole + renamed == 0 {
            Front::Mig
        } else if renamed > 0 || replicas > 1 || whole > gpus {
            Front::Shared
        } else {
            Front::Whole
        };
        Some(Self {
            gpus,
            front,
            product,
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

/// The GPUs that a pod holds at one time: those of its containers and sidecars, or those of an init
/// container and the sidecars before it if these are more.
fn gpus(pod: &Pod) -> u64 {
    let Some(spec) = &pod.spec else { return 0 };
    let of = |container: &Container| {
        let limits = container.resources.as_ref()?.limits.as_ref()?;
        limits.get(GPU)?.0.parse::<u64>().ok()
    };
    let (mut sidecars, mut most) = (0, 0);
    for container in spec.init_containers.iter().flatten() {
        let gpus = of(container).unwrap_or(0);
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars += gpus;
        }
        most = most.max(sidecars + gpus);
    }
    let sum: u64 = spec.containers.iter().filter_map(of).sum();
    most.max(sidecars + sum)
}

impl Fleet {
    /// `used`: `None` where it is not known of any pod.
    pub(super) fn of(nodes: &[Node], pods: &[Pod], used: Option<&Used>) -> Self {
        let nodes: BTreeMap<String, OfNode> = nodes
            .iter()
            .filter_map(|node| Some((node.name_any(), OfNode::of(node)?)))
            .collect();
        let with = |front: Front| nodes.values().filter(move |node| node.front == front);
        let mut fleet = Self {
            nodes: with(Front::Whole).count() as u64,
            gpus: with(Front::Whole).map(|node| node.gpus).sum(),
            sharing: with(Front::Shared).count() as u64,
            mig: with(Front::Mig).count() as u64,
            ..Self::default()
        };
        for pod in pods.iter().filter(|pod| is_live(pod)) {
            let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
            fleet.shares += u64::from(api::guard::requests_share(pod));
            let gpus = gpus(pod);
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            let Some(node) = node.filter(|_| gpus > 0 && namespace != RESERVATIONS) else {
                continue;
            };
            let Some(of) = nodes.get(&node).filter(|of| of.front == Front::Whole) else {
                continue;
            };
            let key = (namespace.clone(), name.clone());
            fleet.held += gpus;
            fleet.holders.push(Holder {
                namespace,
                pod: name,
                node,
                gpus,
                product: of.product.clone(),
                card_mib: of.card_mib,
                used_mib: used.and_then(|used| used.get(&key).copied()),
            });
        }
        fleet
    }
}
