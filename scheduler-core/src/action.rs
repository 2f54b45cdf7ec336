//! Everything the core may request of the shell, and the reasons of pending pods.
//!
//! What an action takes counts as taken from the moment it is returned, until its
//! outcome says otherwise.

use crate::config::Step;
use crate::ids::{
    ClaimUid, DecisionId, GpuUuid, GroupName, NodeName, NodeUid, PodUid, QueueName, SetName,
    VolumeName,
};
use crate::model::{AllocatedDevice, ContainerGrant, Front, NodeTerm, Placement};
use crate::units::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What [`crate::Core::decide`] returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// In the order in which they were decided. Independent of each other: the shell
    /// may run them side by side, evictions first.
    pub actions: Vec<Action>,
    /// Pods that have a place as soon as the resources being released there are free: all of them,
    /// also those of earlier decisions that still hold.
    pub promises: Vec<Promise>,
    /// Groups that went from nothing to something, and when: `last-start-timestamp`.
    pub started: Vec<(GroupName, Time)>,
    /// Groups that fell below their minimum at that time, or are whole again.
    pub stale: Vec<(GroupName, Option<Time>)>,
    /// Groups with a preemption delay that lose a pod, each with the time for
    /// `last-eviction-timestamp`.
    pub delayed: Vec<(GroupName, Time)>,
    /// Groups whose members have succeeded and are gone, each with their number by pod set. The map
    /// is empty for a group that has begun again.
    pub succeeded: Vec<(GroupName, BTreeMap<SetName, u32>)>,
    /// Pods whose reason for waiting changed, in order of uid.
    pub reasons: Vec<PodReason>,
    /// Pods that lost, to a later step, a place that this decision had given them. Rules between
    /// pods were judged when each was placed, with these where they then stood; in
    /// Kubernetes, too, none is judged again when another one goes.
    pub displaced: usize,
    /// Search steps that were used.
    pub steps: u64,
    /// What each of KAI's actions did of it.
    pub tallies: BTreeMap<Step, Tally>,
    /// How often each of [`crate::relaxations`] ruled out a search for victims, or a set of victims
    /// within one.
    pub ruled_out: BTreeMap<&'static str, u64>,
    /// True when searches, pods of a large elastic group, or reasons of many different
    /// requests were left to the next decision, which should be taken soon. A search that was
    /// cut short is not repeated before [`Self::wake_at`].
    pub cut_short: bool,
    /// Decide again at this time even if nothing happens; `None`: only after an event.
    pub wake_at: Option<Time>,
}

/// What one of KAI's actions did in one decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Search steps.
    pub steps: u64,
    /// Workloads that it tried to place.
    pub tried: u64,
    /// Of them, the successful ones.
    pub placed: u64,
    /// Sets of victims whose leaving it tried out.
    pub simulated: u64,
    /// Of them, those that did not help, or whose pods may not be evicted.
    pub rejected: u64,
}

/// A place that a pod will have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Whose.
    pub pod: PodUid,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Where.
    pub node: NodeName,
    /// On which cards, where it asks for shares; whole GPUs are chosen later.
    pub cards: Vec<GpuUuid>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Bind a pod, with its grant.
    Bind(Bind),
    /// Delete a pod.
    Evict(Evict),
}

impl Action {
    /// Which decision it is.
    pub fn decision(&self) -> DecisionId {
        match self {
            Self::Bind(bind) => bind.decision,
            Self::Evict(evict) => evict.decision,
        }
    }
}

/// One `Binding`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// For the grant and the outcome.
    pub decision: DecisionId,
    /// Which pod.
    pub pod: PodUid,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Where to.
    pub node: NodeName,
    /// For the grant.
    pub node_uid: NodeUid,
    /// One for each container that asks for cards, in the pod's order. Empty for a pod
    /// without, and for whole GPUs on a node without an agent (its plugin picks).
    pub grants: Vec<ContainerGrant>,
    /// The work on the pod's claims before it is bound, in the pod's order.
    pub claims: Vec<ClaimBinding>,
    /// What the pod's claims on devices get before it is bound, in the pod's order.
    pub devices: Vec<DeviceBinding>,
    /// `received-resource-type`.
    pub received: Received,
    /// How the whole GPUs in its resources are given.
    pub front: Front,
    /// The queue that it is charged to from now on; `None` for a pod that holds no cards of
    /// ours, which is charged by what its object says.
    pub queue: Option<QueueName>,
    /// Its group; `None` for a pod that is a group of its own.
    pub group: Option<GroupName>,
}

impl Bind {
    /// The pod's placement once it is done.
    pub fn placement(&self) -> Placement {
        Placement {
            node: self.node.clone(),
            grants: self.grants.clone(),
            decision: Some(self.decision),
            front: self.front,
        }
    }
}

/// A claim that is bound before its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimBinding {
    /// Its UID.
    pub uid: ClaimUid,
    /// `namespace/name`.
    pub name: Arc<str>,
    /// The volume that it gets; `None`: one is provisioned on the pod's node.
    pub volume: Option<VolumeName>,
}

/// A claim that gets its devices before its pod is bound, and is reserved for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceBinding {
    /// Its UID.
    pub uid: ClaimUid,
    /// `namespace/name`.
    pub name: Arc<str>,
    /// Which devices: where it has some already, those.
    pub devices: Arc<[AllocatedDevice]>,
    /// Nodes that can use them, for its `nodeSelector`: for one of these. `None`: all.
    pub nodes: Option<Arc<[NodeTerm]>>,
}

/// KAI's `received-resource-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// No GPU: the annotation is not written.
    Nothing,
    /// Whole GPUs.
    Regular,
    /// Shares.
    Fraction,
    /// MIG slices, by their profile.
    MigInstance,
}

/// Delete one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evict {
    /// For the outcome.
    pub decision: DecisionId,
    /// Which pod.
    pub pod: PodUid,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its group; `None` for a pod that is a group of its own.
    pub group: Option<GroupName>,
    /// Why.
    pub cause: EvictCause,
    /// The event's text, KAI's wording.
    pub message: Arc<str>,
    /// The workload that an eviction makes room for.
    pub in_favour_of: Option<GroupName>,
}

/// Why a pod is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictCause {
    /// An agent refused its grant permanently.
    GrantRefused,
    /// An agent requests it: a broken card, a violation, a process without a grant.
    AgentRequest,
    /// It is moved to make room.
    Consolidation,
    /// Another queue reclaims its fair share.
    Reclaim,
    /// A workload of higher priority in its queue.
    Preempt,
    /// Its gang is below its minimum.
    StaleGang,
    /// It is moved so that an autoscaler can remove its node.
    ScaleDown,
    /// A workload takes the place of a background pod.
    Background,
}

impl EvictCause {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::GrantRefused,
        Self::AgentRequest,
        Self::Consolidation,
        Self::Reclaim,
        Self::Preempt,
        Self::StaleGang,
        Self::ScaleDown,
        Self::Background,
    ];

    /// For other pods, so that disruption budgets apply. An eviction because of the pod itself
    /// ignores them.
    pub fn makes_room(self) -> bool {
        match self {
            Self::GrantRefused | Self::AgentRequest => false,
            Self::Consolidation
            | Self::Reclaim
            | Self::Preempt
            | Self::StaleGang
            | Self::ScaleDown
            | Self::Background => true,
        }
    }

    /// Returns true if idle jobs may be victims of the action, whatever their priority.
    pub(crate) fn takes_idle_jobs(self) -> bool {
        matches!(self, Self::Reclaim | Self::Preempt)
    }

    /// A word for labels and texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::GrantRefused => "grant-refused",
            Self::AgentRequest => "agent-request",
            Self::Consolidation => "consolidation",
            Self::Reclaim => "reclaim",
            Self::Preempt => "preempt",
            Self::StaleGang => "stale-gang",
            Self::ScaleDown => "scale-down",
            // KAI's word.
            Self::Background => "backgroundpods",
        }
    }
}

/// The most bytes of a reason line. Conditions and events keep a line of this length whole.
pub const MAX_LINE: usize = 1000;

/// Why a pod waits, when that changed. The shell writes `PodScheduled=False` with it, the
/// first few changes soon, then at most every 30 s per pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodReason {
    /// Which pod.
    pub pod: PodUid,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// False where the group asks that no condition be written.
    pub mark: bool,
    /// The kind, for labels and conditions.
    pub kind: ReasonKind,
    /// One line, at most [`MAX_LINE`] bytes.
    pub line: Arc<str>,
}

/// Kinds of reasons, KAI's codes where KAI has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReasonKind {
    /// Scheduling gates.
    Gated,
    /// KAI: `QueueDoesNotExist`.
    QueueDoesNotExist,
    /// The pod names a group that does not exist, or a sub-group that the group does not have.
    GroupDoesNotExist,
    /// A rule that is not supported.
    Unsupported,
    /// The request is invalid.
    BadRequest,
    /// A pause after a refusal.
    Backoff,
    /// The gang has too few pods yet. KAI: `NotReady`.
    NotReady,
    /// KAI: `OverLimit`.
    OverLimit,
    /// KAI: `NonPreemptibleOverQuota`.
    NonPreemptibleOverQuota,
    /// Nothing fits. KAI: `PodSchedulingErrors`.
    Unschedulable,
    /// It has a place as soon as resources that are being released are free.
    Promised,
    /// It was tried once without success, and its group requests no more (`schedulingBackoff: 1`).
    Parked,
}

impl ReasonKind {
    /// A word for labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gated => "Gated",
            Self::QueueDoesNotExist => "QueueDoesNotExist",
            Self::GroupDoesNotExist => "GroupDoesNotExist",
            Self::Unsupported => "Unsupported",
            Self::BadRequest => "BadRequest",
            Self::Backoff => "Backoff",
            Self::NotReady => "NotReady",
            Self::OverLimit => "OverLimit",
            Self::NonPreemptibleOverQuota => "NonPreemptibleOverQuota",
            Self::Unschedulable => "Unschedulable",
            Self::Promised => "Promised",
            Self::Parked => "Parked",
        }
    }
}
