//! What the cluster is, as plain data: the shell fills these in, events carry them.
//!
//! Nothing here decides. A field that the shell cannot fill keeps its default, which
//! always means "less is allowed", never more.

use crate::ids::{
    ContainerName, DecisionId, GpuUuid, GroupName, NodeName, NodeUid, PodUid, QueueName,
    ResourceName, SetName, TopologyName,
};
use crate::units::{Bound, Bytes, CpuMilli, Duration, Mib, NanoGpu, Percent, Time};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Labels of an object.
pub type Labels = BTreeMap<Arc<str>, Arc<str>>;

/// How a card is shared. A card is in one mode at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// The whole card for one pod.
    Exclusive,
    /// One MPS server per card.
    Mps,
    /// One MPS server per share.
    MpsIsolated,
    /// The driver's time slices; memory is watched, not fenced.
    TimeSlicing,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Exclusive,
        Self::Mps,
        Self::MpsIsolated,
        Self::TimeSlicing,
    ];

    /// The name in objects and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Mps => "mps",
            Self::MpsIsolated => "mps-isolated",
            Self::TimeSlicing => "time-slicing",
        }
    }

    /// The mode of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == name)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

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
    /// `nvidia.com/gpu` in allocatable: what the kubelet would admit now. On a managed
    /// node the cards say which, and what is still to come.
    pub gpus: u32,
    /// True when a `GpuNode` of that name exists: its agent answers for the cards, and
    /// until it is heard ([`crate::Event::Cards`]) no pod with GPUs is placed here.
    pub managed: bool,
}

impl Node {
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
        }
    }
}

/// A taint. `NoSchedule` and `NoExecute` keep a pod without toleration away; the shell
/// leaves `PreferNoSchedule` out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taint {
    /// Its key.
    pub key: Arc<str>,
    /// Its value, empty where none.
    pub value: Arc<str>,
    /// What it does.
    pub effect: Effect,
}

/// How an unsupported rule ([`Pod::unsupported`]) is named that KAI took for MIG slices
/// before profiles were resources: a node on which such a pod stands takes no profiles.
pub const LEGACY_MIG: &str = "legacy MIG annotation";

/// What a taint does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Keeps new pods away.
    NoSchedule,
    /// Sends running ones away too.
    NoExecute,
}

/// A pod's toleration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Toleration {
    /// `None`: every key (only with operator `Exists`).
    pub key: Option<Arc<str>>,
    /// `None`: operator `Exists`, any value. `Some`: operator `Equal`.
    pub value: Option<Arc<str>>,
    /// `None`: every effect.
    pub effect: Option<Effect>,
}

/// What an agent says of its node's cards: always all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCards {
    /// Which node.
    pub node: NodeName,
    /// Mode of a share whose pod names none.
    pub default_mode: Mode,
    /// `Some(sentence)` when the node offers no shares, with the agent's reason.
    pub not_offering: Option<Arc<str>>,
    /// In any order.
    pub cards: Vec<Card>,
}

/// One physical card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// The name that everything else uses.
    pub uuid: GpuUuid,
    /// NVML's order on the node.
    pub index: u32,
    /// As NVML names it.
    pub product: Arc<str>,
    /// T: as NVML reports it.
    pub total: Mib,
    /// The driver's and the admin's reserve; G = total - reserved.
    pub reserved: Mib,
    /// The most that limits may sum to now: G less what strangers hold, quantised.
    pub grantable: Mib,
    /// MiB held by processes without a grant, quantised. For messages, and a card with
    /// strangers is not idle for whole use.
    pub strangers: Mib,
    /// The mode it is in while in use; `None` while idle.
    pub mode: Option<Mode>,
    /// What it can switch to while idle (the admin's pinning included); the mode it is
    /// in counts as well.
    pub switchable: Vec<Mode>,
    /// Whether a share on it would start now. Matters only while the card is in use.
    pub ready: bool,
    /// `Some(reason)` when unhealthy.
    pub unhealthy: Option<Arc<str>>,
    /// The admin wants nothing new on it.
    pub cordoned: bool,
    /// MIG is enabled: no shares, no whole use by us.
    pub mig: bool,
    /// MPS clients that the card takes, and how many shares may therefore be on it at
    /// once in the MPS modes. 0: not limited.
    pub client_slots: u32,
    /// NUMA node where the driver says one.
    pub numa: Option<u32>,
    /// UUIDs of cards with a direct link; empty where none.
    pub nvlink_peers: Vec<GpuUuid>,
    /// True when the card hangs on an `NVSwitch`: linked with all such cards of the node.
    pub nvswitch: bool,
    /// MiB that a fraction gets beside floor(f x T), for the CUDA context.
    pub allowance: Mib,
    /// Where the kubelet shows it.
    pub pool: Pool,
}

impl Card {
    /// A healthy, idle card with `total` MiB, all of it grantable, that may be used in
    /// every mode.
    pub fn named(uuid: &str, index: u32, product: &str, total: u64) -> Self {
        Self {
            uuid: GpuUuid::new(uuid),
            index,
            product: Arc::from(product),
            total: Mib(total),
            reserved: Mib(0),
            grantable: Mib(total),
            strangers: Mib(0),
            mode: None,
            switchable: Mode::ALL.to_vec(),
            ready: true,
            unhealthy: None,
            cordoned: false,
            mig: false,
            client_slots: 48,
            numa: None,
            nvlink_peers: Vec::new(),
            nvswitch: false,
            allowance: Mib(0),
            pool: Pool::Unknown,
        }
    }
}

/// In which of the kubelet's resources a card is seen allocatable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pool {
    /// The agent has not said (yet): nothing is derived from it.
    #[default]
    Unknown,
    /// As a whole GPU. Shares may open it too: their tokens are offered all along.
    Whole,
    /// As a whole GPU and without tokens, as while somebody holds it whole: shares wait
    /// until the kubelet shows its tokens again.
    WholeOnly,
    /// For shares only: whole use waits until the kubelet shows the card as whole again.
    Shared,
    /// Not offered at all.
    None,
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its name.
    pub name: QueueName,
    /// Its parent; `None` for a top-level queue.
    pub parent: Option<QueueName>,
    /// `spec.displayName`, used in messages in place of the name.
    pub display_name: Option<Arc<str>>,
    /// 100 where unset.
    pub priority: i32,
    /// Age breaks ties.
    pub created: Time,
    /// In nano-GPU.
    pub gpu: QueueResource,
    /// In millicores.
    pub cpu: QueueResource,
    /// In bytes.
    pub memory: QueueResource,
    /// Inherited where `None`.
    pub preempt_min_runtime: Option<Duration>,
    /// Inherited where `None`.
    pub reclaim_min_runtime: Option<Duration>,
}

impl Queue {
    /// A queue of that name without any bound.
    pub fn unlimited(name: &str) -> Self {
        let resource = QueueResource {
            quota: Bound::Unlimited,
            limit: Bound::Unlimited,
            weight: Weight::ONE,
            usage: 0,
        };
        Self {
            name: QueueName::new(name),
            parent: None,
            display_name: None,
            priority: 100,
            created: Time(0),
            gpu: resource,
            cpu: resource,
            memory: resource,
            preempt_min_runtime: None,
            reclaim_min_runtime: None,
        }
    }
}

impl Queue {
    /// GPU, CPU, memory.
    pub(crate) fn resource(&self, index: usize) -> QueueResource {
        match index {
            0 => self.gpu,
            1 => self.cpu,
            _ => self.memory,
        }
    }

    /// One bound of each resource.
    pub(crate) fn bound3(&self, of: fn(QueueResource) -> Bound) -> [Bound; 3] {
        [of(self.gpu), of(self.cpu), of(self.memory)]
    }
}

/// What a queue gets of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueResource {
    /// Guaranteed.
    pub quota: Bound,
    /// Never more than.
    pub limit: Bound,
    /// In the division of what is left over.
    pub weight: Weight,
    /// Past use as a part of the cluster, in billionths, for time-aware fairness.
    pub usage: u64,
}

/// A weight in millionths. Negative and unreadable weights count as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight(pub u64);

impl Weight {
    /// 1.
    pub const ONE: Self = Self(1_000_000);
}

/// A gang, or any set of pods that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodGroup {
    /// `namespace/name`.
    pub name: GroupName,
    /// `metadata.uid`: the last tie-breaker.
    pub uid: Arc<str>,
    /// A leaf queue.
    pub queue: QueueName,
    /// Of the priority class; higher goes first.
    pub priority: i32,
    /// Whether it may be a victim and may go over quota.
    pub preemptible: bool,
    /// `metadata.creationTimestamp`.
    pub created: Time,
    /// Sets of sets of pods. A group without sub-groups has one pod set `default`.
    pub root: SubGroup,
    /// Whether the shell writes `PodScheduled=False` for its pods.
    pub mark_unschedulable: bool,
    /// KAI's `schedulingBackoff: 1`: one failure parks the group until its spec changes.
    pub park_after_failure: bool,
    /// When the group last went from nothing to something, for min-runtime.
    pub last_start: Option<Time>,
    /// When the group was first seen below its minimum with pods running.
    pub stale_since: Option<Time>,
    /// Own grace before a stale gang is evicted; `None`: the configuration's.
    pub staleness_grace: Option<Duration>,
    /// Pending for so long before it may evict others.
    pub preemption_delay: Duration,
}

/// An inner node of a group's tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubGroup {
    /// Unique in the group.
    pub name: Option<SetName>,
    /// How many of the children must be satisfied; `None`: all.
    pub min_children: Option<u32>,
    /// Where it must or should be together.
    pub topology: Option<TopologyRule>,
    /// Inner children.
    pub groups: Vec<SubGroup>,
    /// Leaf children.
    pub sets: Vec<PodSet>,
}

impl SubGroup {
    /// One set, needed, bound to no topology.
    pub(crate) fn is_plain(&self) -> bool {
        self.groups.is_empty()
            && self.min_children.is_none()
            && self.topology.is_none()
            && matches!(self.sets.as_slice(), [only] if only.topology.is_none())
    }

    /// A set of that name is in it, or below it.
    pub(crate) fn has_set(&self, name: &str) -> bool {
        self.sets.iter().any(|set| set.name.as_str() == name)
            || self.groups.iter().any(|inner| inner.has_set(name))
    }
}

/// A leaf of a group's tree: pods of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSet {
    /// Unique in the group; `default` in a group without sub-groups.
    pub name: SetName,
    /// How many pods must be placed at once.
    pub min: u32,
    /// Where it must or should be together.
    pub topology: Option<TopologyRule>,
}

/// Levels of a topology that a part of a group is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyRule {
    /// Which topology.
    pub topology: TopologyName,
    /// All in one domain of this level.
    pub required: Option<Arc<str>>,
    /// In one domain of this level where that is possible.
    pub preferred: Option<Arc<str>>,
}

/// Levels of a data centre.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Its name.
    pub name: TopologyName,
    /// Node label keys, widest first.
    pub levels: Vec<Arc<str>>,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.uid`.
    pub uid: PodUid,
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// False for a pod of another scheduler: it is only counted where it stands.
    pub ours: bool,
    /// The queue, as its label says or the shell defaults it. A pod in a group follows
    /// the group's.
    pub queue: QueueName,
    /// The group, where there is one; `None`: the pod is a group of its own.
    pub group: Option<GroupName>,
    /// Which pod set of the group; `None`: `default`.
    pub sub_group: Option<SetName>,
    /// Of its priority class. Used where the pod is a group of its own.
    pub priority: i32,
    /// Used where the pod is a group of its own.
    pub preemptible: bool,
    /// `metadata.creationTimestamp`.
    pub created: Time,
    /// Order inside its group before age: smaller goes first (masters and heads low).
    pub task_order: i32,
    /// `metadata.labels`, as far as some other pod's affinity may look at them.
    pub labels: Labels,
    /// CPU by the kubelet's formula (init containers, sidecars, overhead).
    pub cpu: CpuMilli,
    /// Memory by the same formula.
    pub memory: Bytes,
    /// Other resources by the same formula, share tokens and MIG profiles too; *not*
    /// `nvidia.com/gpu` and not the opaque amounts.
    pub extended: BTreeMap<ResourceName, u64>,
    /// What its containers ask of cards, in the pod's order.
    pub gpus: Vec<ContainerAsk>,
    /// Which nodes will do.
    pub nodes: NodeRules,
    /// Its tolerations.
    pub tolerations: Vec<Toleration>,
    /// It has scheduling gates: not yet to be placed.
    pub gated: bool,
    /// Rules that the pod uses and the core does not know, each as a reader would name
    /// it (`pod affinity`, `resource claims`). Such a pod waits and says so.
    pub unsupported: Vec<Arc<str>>,
    /// Where it is in its life.
    pub phase: Phase,
}

impl Pod {
    /// A pending pod of `default-queue` in namespace `default` that asks for nothing.
    pub fn named(name: &str) -> Self {
        Self {
            uid: PodUid::new(name),
            namespace: Arc::from("default"),
            name: Arc::from(name),
            ours: true,
            queue: QueueName::new("default-queue"),
            group: None,
            sub_group: None,
            priority: 50,
            preemptible: true,
            created: Time(0),
            task_order: 0,
            labels: Labels::new(),
            cpu: CpuMilli(0),
            memory: Bytes(0),
            extended: BTreeMap::new(),
            gpus: Vec::new(),
            nodes: NodeRules::default(),
            tolerations: Vec::new(),
            gated: false,
            unsupported: Vec::new(),
            phase: Phase::Pending,
        }
    }
}

/// Where a pod is in its life, as the API server shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not bound.
    Pending,
    /// Bound, not yet running: `spec.nodeName` is set.
    Bound(Placement),
    /// Running.
    Running(Placement),
    /// Being deleted, still holding what it has. With `Some`: bound; with `None`: it was
    /// never bound and holds nothing.
    Releasing(Option<Placement>),
    /// Running, and should have been gone for so long that nobody counts on it (KAI's
    /// `stuck-in-releasing-threshold`, two minutes after its deletion timestamp): it
    /// holds what it has, and nothing is promised of that.
    Stuck(Placement),
    /// Succeeded: holds nothing.
    Succeeded,
    /// Failed: holds nothing.
    Failed,
}

/// What a pod holds where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// `spec.nodeName`.
    pub node: NodeName,
    /// The grant's content, as its annotation says. Empty for a pod without cards, and
    /// for a pod that asks for whole GPUs on a node without an agent. A pod that asks
    /// for cards on a managed node and comes without any is reported as a problem.
    pub grants: Vec<ContainerGrant>,
    /// The decision in the grant; an outcome event that names it is not needed any more.
    pub decision: Option<DecisionId>,
}

/// What one container asks of cards.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerAsk {
    /// Which container.
    pub container: ContainerName,
    /// True for an init container. Whole cards of init containers are lent from those of
    /// the app containers; a share is a grant of its own.
    pub init: bool,
    /// How much.
    pub ask: Ask,
}

/// Whole cards, or a part of some.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ask {
    /// `nvidia.com/gpu: n`.
    Whole(u32),
    /// A part.
    Share(Share),
}

/// A part of one or several cards.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share {
    /// Of each card.
    pub amount: Amount,
    /// How many cards, all different, all on one node. 0 is a bad request.
    pub devices: u32,
    /// Compute ceiling, where the user set one.
    pub compute: Option<Percent>,
    /// Where the user named a mode.
    pub mode: Option<Mode>,
}

/// How much of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Amount {
    /// Exactly so many MiB.
    Memory(Mib),
    /// Billionths of a card, 1 to 1,000,000,000.
    Fraction(NanoGpu),
}

/// What one container holds: the content of its part of the grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerGrant {
    /// Which container.
    pub container: ContainerName,
    /// Its cards, in the node's order.
    pub cards: Vec<GpuUuid>,
    /// Limit on each of them; in mode `exclusive` the smallest grantable of them.
    pub memory: Mib,
    /// Compute ceiling.
    pub compute: Percent,
    /// How the cards are shared.
    pub mode: Mode,
    /// Set where the last share of a card got its remainder.
    pub note: Option<Arc<str>>,
}

/// Which nodes will do: `nodeSelector` *and* one of the affinity's terms.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeRules {
    /// `spec.nodeSelector`: all must match.
    pub selector: Labels,
    /// `requiredDuringSchedulingIgnoredDuringExecution`: one of these; `None`: no rule.
    /// An empty list matches no node, as in Kubernetes.
    pub terms: Option<Vec<NodeTerm>>,
    /// `status.nominatedNodeName`, where another component named a node.
    pub nominated: Option<NodeName>,
}

/// All of its requirements must hold. A term without any matches no node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeTerm {
    /// Over labels.
    pub labels: Vec<Requirement>,
    /// Over `metadata.name`.
    pub name: Vec<Requirement>,
}

/// One requirement of a term.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirement {
    /// Label key; `metadata.name` for a field.
    pub key: Arc<str>,
    /// How.
    pub operator: Operator,
}

/// Kubernetes' node selector operators.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operator {
    /// The label is there and has one of these.
    In(Vec<Arc<str>>),
    /// The label is not there, or has none of these.
    NotIn(Vec<Arc<str>>),
    /// The label is there.
    Exists,
    /// It is not.
    DoesNotExist,
    /// The label is an integer above this.
    Above(i64),
    /// The label is an integer below this.
    Below(i64),
}
