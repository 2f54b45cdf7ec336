//! Nodes and their taints.

use super::Labels;
use crate::ids::{NodeName, NodeUid, ResourceName};
use crate::units::{Bytes, CpuMilli, Mib};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A node as Kubernetes has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`.
    pub name: NodeName,
    /// `metadata.uid`.
    pub uid: NodeUid,
    /// `metadata.labels`.
    pub labels: Labels,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// Why the node takes no pods although schedulable, one short reason each, as KAI
    /// words it (`node(s) were not ready`, memory pressure, ...). Empty: ready.
    pub not_ready: Vec<Arc<str>>,
    /// `status.allocatable` cpu.
    pub cpu: CpuMilli,
    /// `status.allocatable` memory.
    pub memory: Bytes,
    /// `status.allocatable` pods.
    pub pods: u64,
    /// Other `status.allocatable` entries in whole numbers, tokens and MIG profiles too,
    /// ephemeral storage in bytes; *not* `nvidia.com/gpu` and not the opaque amounts.
    pub extended: BTreeMap<ResourceName, u64>,
    /// `nvidia.com/gpu` in allocatable: what the kubelet would admit now. On a managed node the
    /// cards say which ones, and which will follow.
    pub gpus: u32,
    /// True when a `GpuNode` of that name exists: its agent reports the cards, and before its first
    /// report ([`crate::Event::Cards`]) no pod with GPUs is placed here.
    pub managed: bool,
    /// Its `GpuNode` says that the kubelet's topology manager refuses pods. Before the agent's
    /// first report nothing is known of its zones, and no pod that is aligned is placed here.
    pub aligns: bool,
    /// An autoscaler may remove it when it is empty.
    pub removable: bool,
}

impl Node {
    /// The label by which GPU feature discovery names the GPUs of a node.
    pub const PRODUCT_LABEL: &str = "nvidia.com/gpu.product";

    /// The label by which GPU feature discovery gives the memory of one GPU, in MiB.
    pub const GPU_MEMORY_LABEL: &str = "nvidia.com/gpu.memory";

    /// The product of its GPUs by its label, without what feature discovery adds for slices
    /// (`-MIG-1g.5gb`) and replicas (`-SHARED`). `None`: it has no such label.
    pub(crate) fn labelled_product(&self) -> Option<&str> {
        let label = self.labels.get(Self::PRODUCT_LABEL)?;
        let model = label.strip_suffix("-SHARED").unwrap_or(label);
        let model = model.split_once("-MIG-").map_or(model, |(model, _)| model);
        (!model.is_empty()).then_some(model)
    }

    /// The memory of one of its GPUs by its label. `None`: it has no such label.
    pub(crate) fn labelled_memory(&self) -> Option<Mib> {
        self.labels
            .get(Self::GPU_MEMORY_LABEL)?
            .parse()
            .ok()
            .map(Mib)
    }

    /// A ready node of that name with nothing on offer.
    pub fn named(name: &str) -> Self {
        Self {
            name: NodeName::new(name),
            uid: NodeUid::new(name),
            labels: Labels::new(),
            taints: Vec::new(),
            unschedulable: false,
            not_ready: Vec::new(),
            cpu: CpuMilli(0),
            memory: Bytes(0),
            pods: 0,
            extended: BTreeMap::new(),
            gpus: 0,
            managed: false,
            aligns: false,
            removable: false,
        }
    }
}

/// A taint: it keeps pods without a toleration away, or is a reason to prefer other nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taint {
    /// Its key.
    pub key: Arc<str>,
    /// Its value, empty where none.
    pub value: Arc<str>,
    /// What it does.
    pub effect: Effect,
}

/// How an unsupported rule ([`super::Pod::unsupported`]) is named that KAI took for MIG slices
/// before profiles were resources: a node with such a pod takes no profiles.
pub const LEGACY_MIG: &str = "legacy MIG annotation";

/// What a taint does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// Keeps new pods away.
    NoSchedule,
    /// Sends running ones away too.
    NoExecute,
    /// Excludes no pod: other nodes are preferred.
    PreferNoSchedule,
}
