//! NUMA zones of a node, and what its kubelet's topology manager aligns to them.

use crate::ids::PodUid;
use crate::units::Bytes;

/// The topology manager of a node whose policy refuses pods (`TopologyAffinityError`). A node with
/// another policy has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyManager {
    /// `topologyManagerPolicy`.
    pub policy: TopologyPolicy,
    /// `topologyManagerScope`.
    pub scope: TopologyScope,
    /// `cpuManagerPolicy: static`: containers of Guaranteed pods that request whole CPUs get them
    /// exclusively.
    pub cpu_manager: bool,
    /// `memoryManagerPolicy: Static`: the memory of Guaranteed pods is pinned.
    pub memory_manager: bool,
    /// In order of their ids, at most [`Self::MOST_ZONES`]; a node with more is not aligned. Empty:
    /// not known yet, and nothing that is aligned is placed there.
    pub zones: Vec<NumaZone>,
    /// What the kubelet has given to pods, in order. A pod that it has not admitted yet is not in
    /// it.
    pub used: Vec<NumaUse>,
}

impl TopologyManager {
    /// The kubelet's own limit.
    pub const MOST_ZONES: usize = 8;
}

/// The policies that refuse pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopologyPolicy {
    /// `restricted`: on the least number of zones that could hold the request.
    Restricted,
    /// `single-numa-node`: on one zone.
    SingleNumaNode,
}

/// What is aligned as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopologyScope {
    /// Each container by itself.
    Container,
    /// All containers of a pod together.
    Pod,
}

/// One NUMA node of a machine, by the kubelet's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumaZone {
    /// The kernel's number, as cards name it ([`super::Card::numa`]).
    pub id: u32,
    /// Its CPUs, reserved ones too.
    pub cpus: u32,
    /// CPUs that containers may get exclusively.
    pub allocatable_cpus: u32,
    /// Memory that may be pinned; 0 without a memory manager.
    pub memory: Bytes,
}

/// What one pod has been given of one zone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NumaUse {
    /// Which pod.
    pub pod: PodUid,
    /// Which zone. `None`: it holds devices alone, whose cards say where.
    pub zone: Option<u32>,
    /// Exclusive CPUs.
    pub cpus: u32,
    /// Pinned memory. Of memory that is pinned to several zones together, this zone's part.
    pub memory: Bytes,
}

/// What the topology manager aligns of one container of a Guaranteed pod. Of another pod it aligns
/// GPUs alone, and [`super::Pod::aligned`] is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AlignedContainer {
    /// An init container that ends before the others start. A sidecar is none.
    pub init: bool,
    /// CPUs, where it requests a whole number of them; else 0.
    pub cpus: u32,
    /// Memory.
    pub memory: Bytes,
    /// Whole GPUs of the device plugin.
    pub gpus: u32,
    /// GPUs of which it gets a share by annotation.
    pub shares: u32,
}
