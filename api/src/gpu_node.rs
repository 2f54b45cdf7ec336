//! `GpuNode`, cluster-scoped, named as the node; that it exists means "agent-managed".
//!
//! `spec` is the admin's, `status` the agent's: written on change and every five minutes
//! with jitter, coalesced, capped in size. Fast values go by telemetry, never here.

use crate::units::{Fence, Mib, Mode};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The administrator's settings for a node's cards.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "aliquot.dev",
    version = "v1alpha1",
    kind = "GpuNode",
    plural = "gpunodes",
    shortname = "gn",
    status = "GpuNodeStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"GPUs", "type":"integer", "jsonPath":".status.gpuCount"}"#,
    printcolumn = r#"{"name":"Product", "type":"string", "jsonPath":".status.product"}"#,
    printcolumn = r#"{"name":"Granted MiB", "type":"integer", "jsonPath":".status.grantedMib"}"#,
    printcolumn = r#"{"name":"Grantable MiB", "type":"integer", "jsonPath":".status.grantableMib"}"#,
    printcolumn = r#"{"name":"Shares", "type":"integer", "jsonPath":".status.shareCount"}"#,
    printcolumn = r#"{"name":"Offering", "type":"string", "jsonPath":".status.conditions[?(@.type==\"Offering\")].status"}"#,
    printcolumn = r#"{"name":"Age", "type":"date", "jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct GpuNodeSpec {
    /// Mode of a share whose pod names none; `mps` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_mode: Option<Mode>,
    /// By which way shares of a card are granted that names none under `gpus`; `auto` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_front: Option<Front>,
    /// Per card, by UUID.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub gpus: Vec<GpuPolicy>,
    /// MiB of each card that are never granted, in addition to what the driver reserves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve_mib: Option<Mib>,
    /// MiB that a fraction gets in addition, for the CUDA context; 512 when unset, 0 for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_allowance_mib: Option<Mib>,
    /// Shares under a weaker fence are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_fence: Option<Fence>,
    /// How long a process has a card in mode `time-slicing` while another one waits; the
    /// driver's own when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_slice: Option<TimeSlice>,
    /// What happens to a container that holds more than its share, or uses a card past its
    /// MPS server; `Kill` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_violation: Option<Reaction>,
    /// What happens to a container that holds more than is kept for it while what is kept for
    /// the others of its card is short; `Kill` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_pressure: Option<Reaction>,
    /// What happens to a process of a pod that uses a card without a grant; `Report` when
    /// unset. Processes outside of pods are only reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_stranger: Option<Reaction>,
    /// How the node's kubelet aligns pods to NUMA zones, as its own configuration says. Unset: it
    /// refuses no pod for that, and pods are placed without regard to zones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_manager: Option<TopologyManager>,
}

/// The kubelet's topology manager, by the words of its configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyManager {
    /// What the kubelet does with a pod that its NUMA zones cannot hold:
    /// its `topologyManagerPolicy`.
    pub policy: TopologyPolicy,
    /// What the kubelet aligns as one: its `topologyManagerScope`; `container` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<TopologyScope>,
}

/// What the kubelet does with a pod that its NUMA zones cannot hold:
/// its `topologyManagerPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TopologyPolicy {
    /// It does not align.
    None,
    /// It starts it anyhow.
    BestEffort,
    /// It refuses one that the least number of zones cannot hold.
    Restricted,
    /// It refuses one that no single zone can hold.
    SingleNumaNode,
}

impl TopologyPolicy {
    /// Whether the kubelet refuses pods (`TopologyAffinityError`).
    pub fn refuses(self) -> bool {
        matches!(self, Self::Restricted | Self::SingleNumaNode)
    }

    /// As the kubelet names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::BestEffort => "best-effort",
            Self::Restricted => "restricted",
            Self::SingleNumaNode => "single-numa-node",
        }
    }
}

/// What the kubelet aligns as one: its `topologyManagerScope`; `container` when unset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TopologyScope {
    /// Each container by itself.
    Container,
    /// All containers of a pod together.
    Pod,
}

/// The front by which shares of a card are granted. A change ends no share; the card opens to the
/// other front once it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Front {
    /// By either, one at a time: an idle card is open to both.
    Auto,
    /// By `ResourceClaim` alone; by nothing where the agent runs without `--dra=true`.
    Dra,
    /// By annotation, and whole by `nvidia.com/gpu`, alone.
    Plugin,
}

/// The driver's time slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TimeSlice {
    /// The driver's own.
    Default,
    /// Shorter: less delay, less throughput.
    Short,
    /// In between.
    Medium,
    /// Longer: more throughput, more delay.
    Long,
}

impl TimeSlice {
    /// As `nvidia-smi compute-policy --set-timeslice` numbers it.
    pub fn number(self) -> u32 {
        match self {
            Self::Default => 0,
            Self::Short => 1,
            Self::Medium => 2,
            Self::Long => 3,
        }
    }
}

/// What the agent does about a container or process that uses memory that it was not granted.
/// `Report`: an event and a metric. `Evict`: the scheduler evicts the pod too, and after 30 s the
/// agent kills its processes. `Kill`: the agent kills its processes at once. Stricter ones come
/// later.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum Reaction {
    /// Told and counted.
    Report,
    /// Told; the scheduler evicts the pod. Processes that are still there after 30 s are killed
    /// on the node, however long a grace period the pod asks for.
    Evict,
    /// Its processes are killed on the node.
    Kill,
}

/// What the admin wants of one card.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuPolicy {
    /// Which card.
    #[schemars(length(min = 1, max = 64))]
    pub uuid: String,
    /// The only mode this card is used in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// By which way its shares are granted; the node's `defaultFront` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub front: Option<Front>,
    /// No new pods are placed on this card.
    #[serde(default)]
    pub cordoned: bool,
    /// The slices that a card in MIG mode is to have: how many of each profile, `{"1g.10gb": 7}`.
    /// The agent destroys and creates them once nothing uses the card. Needs its flag
    /// `--mig-strategy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 8))]
    pub mig_layout: Option<BTreeMap<String, u32>>,
    /// Layouts from which the scheduler may choose, in order of preference. While nothing uses the
    /// card and a pod waits for a slice of one of them, it writes that one to `migLayout`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub mig_layouts: Vec<BTreeMap<String, u32>>,
    /// The administrator has hidden this card from the other device plugin on the node.
    #[serde(default)]
    pub hidden_from_other_plugins: bool,
}

/// What the agent observes and has granted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuNodeStatus {
    /// Generation of the spec that this status reflects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// NVIDIA driver.
    #[serde(default)]
    pub driver_version: String,
    /// Cards on the node.
    #[serde(default)]
    pub gpu_count: u32,
    /// Of the first card.
    #[serde(default)]
    pub product: String,
    /// Sum of all limits.
    #[serde(default)]
    pub granted_mib: Mib,
    /// Sum over the cards.
    #[serde(default)]
    pub grantable_mib: Mib,
    /// Containers that hold a share.
    #[serde(default)]
    pub share_count: u32,
    /// Each card, and after a card in MIG mode its slices.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub gpus: Vec<GpuStatus>,
    /// `Offering`: whether the node offers shares, and why not. `DriverLimits`: whether
    /// the driver limits the memory of cgroups on all cards, and which part is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>,
}

/// One card.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuStatus {
    /// Identifies the card everywhere else.
    pub uuid: String,
    /// NVML's order.
    pub index: u32,
    /// As NVML names it.
    pub product: String,
    /// As NVML reports it.
    pub total_mib: Mib,
    /// The driver's and the admin's reserve.
    pub reserved_mib: Mib,
    /// Quantised; current values go by telemetry.
    pub used_mib: Mib,
    /// Sum of what is kept for the shares on it: their limits, or requests where those are less.
    pub granted_mib: Mib,
    /// The most that may be kept.
    pub grantable_mib: Mib,
    /// While in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The modes that it can switch to while idle.
    #[serde(default)]
    pub switchable_modes: Vec<Mode>,
    /// Whether a container with a grant on it could start now.
    pub ready: bool,
    /// State of its MPS server.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mps: String,
    /// `Healthy` or `Unhealthy`.
    pub health: String,
    /// Why not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub health_reason: String,
    /// CUDA compute capability.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub compute_capability: String,
    /// PCI bus id.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pci: String,
    /// NUMA node, if the driver reports one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// UUIDs, or `nvswitch`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nvlink_peers: Vec<String>,
    /// No new pods are placed on it.
    #[serde(default)]
    pub cordoned: bool,
    /// The card is in MIG mode: it is offered in slices, if at all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mig_enabled: bool,
    /// Of a slice of a card in MIG mode: its profile.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mig_profile: String,
    /// Of a card that does not have the slices in `spec.gpus[].migLayout`: what they wait for, or
    /// why they were not created.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mig_layout_message: String,
    /// The shares on the card.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub grants: Vec<GrantStatus>,
    /// Processes without a grant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub strangers: Vec<StrangerStatus>,
}

/// One container's hold on a card.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrantStatus {
    /// `namespace/name`.
    pub pod: String,
    /// `metadata.uid`.
    pub pod_uid: String,
    /// Its name.
    pub container: String,
    /// Its limit on this card.
    pub memory_mib: Mib,
    /// The memory of this card that is kept for it, if less than its limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_mib: Option<Mib>,
    /// Its compute ceiling in per cent.
    pub compute_percent: u8,
    /// Reserved, Prepared, Running or Terminating.
    pub phase: String,
    /// What is really active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// The memory that one of its CUDA processes can allocate on this card, whatever it does inside
    /// its container, until the watchdog ends it. Equal to its limit if the tenant cannot exceed
    /// that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reach_mib: Option<Mib>,
    /// What is wrong with it; empty when nothing is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub complaint: String,
    /// Its `ResourceClaim`, in the pod's namespace; empty: it comes from the scheduler's grant.
    /// Each container of a claim has a row; they hold one share together, which counts once.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub claim: String,
}

/// A GPU process without a grant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StrangerStatus {
    /// On the host.
    pub pid: u32,
    /// Its name.
    pub command: String,
    /// What it holds.
    pub memory_mib: Mib,
}
