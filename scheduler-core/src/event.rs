//! Everything that can happen. The shell turns watches, streams and outcomes into these.
//!
//! Rules for the shell:
//! - An upsert carries the whole object and replaces the previous version.
//! - Order between different objects does not matter: a pod may come before its queue,
//!   its group or its node, cards before their node.
//! - Every [`crate::Action`] is answered by exactly one [`Event::Outcome`]. A pod upsert
//!   that shows the bound pod counts as one too; the outcome may still follow.
//! - Nothing here may fail: what cannot be used comes back as a [`crate::Problem`].

use crate::action::{Bind, EvictCause};
use crate::config::Config;
use crate::ids::{
    ClaimUid, DecisionId, GpuUuid, GroupName, NodeName, PodUid, PoolName, QueueName, SetName,
    TopologyName, VolumeName,
};
use crate::model::{
    AllocatedDevice, Allocation, DevicePool, Labels, Node, NodeCards, NodeTerm, Pod, PodGroup,
    Queue, Topology, Volume,
};
use crate::units::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Time has come this far. Never goes back; an earlier time is ignored.
    Tick(Time),
    /// Other settings from now on, but for those that are the process's ([`Config`]). The core
    /// is rebuilt from its own snapshot: nothing that was computed under the old settings is
    /// left, and a binding under way stays one.
    Config(Box<Config>),
    /// A node is there, or has changed.
    Node(Node),
    /// A node was deleted. Its pods stay known until they are deleted themselves.
    NodeGone(NodeName),
    /// An agent's full state.
    Cards(NodeCards),
    /// An agent has stopped reporting: nothing new is placed there, no pod is evicted.
    AgentLost(NodeName),
    /// A queue is there, or has changed.
    Queue(Queue),
    /// A queue was deleted.
    QueueGone(QueueName),
    /// A pod group is there, or has changed.
    Group(PodGroup),
    /// A pod group was deleted. Pods that name it wait until it is back.
    GroupGone(GroupName),
    /// A topology is there, or has changed.
    Topology(Topology),
    /// A topology was deleted.
    TopologyGone(TopologyName),
    /// A namespace is there, or its labels have changed. One that was never announced has no
    /// labels.
    Namespace(Namespace),
    /// A namespace was deleted.
    NamespaceGone(Arc<str>),
    /// A volume to which a claim may still come is there, or has changed.
    Volume(Volume),
    /// A volume was deleted, or no other claim can be bound to it any more.
    VolumeGone(VolumeName),
    /// A pool of devices is there, or has changed.
    Devices(DevicePool),
    /// A pool of devices was deleted.
    DevicesGone(PoolName),
    /// A claim has devices, whichever scheduler allocated them.
    Allocated(Allocation),
    /// A claim has none any more, or was deleted.
    Freed(ClaimUid),
    /// A pod is there, or has changed. Pods of other schedulers too, as long as they
    /// are bound to a node.
    Pod(Box<Pod>),
    /// A pod was deleted from the API server.
    PodGone(PodUid),
    /// How an action ended.
    Outcome(Outcome),
    /// An agent does not honour a grant. Its placement is taken back: the pod counts as
    /// pending again once it is seen so, and its node is avoided for a while.
    Refusal(Refusal),
    /// An agent requests the eviction of a pod. Its memory counts as held until it has ended.
    EvictRequest(EvictRequest),
    /// A pod does no work on its GPUs, or works again.
    Activity(Activity),
    /// Only in snapshots: an agent's permanent refusal that was already applied.
    Refused(Refusal),
    /// Only in snapshots: an eviction that was decided; its pod has not left yet.
    Evicting(Evicting),
    /// Only in snapshots: a binding that was decided and has no outcome yet.
    Assumed(Box<Bind>),
    /// Only in snapshots: where a claim of pods with a place is being bound, and to what.
    Given(Given),
    /// Only in snapshots: devices that were picked for a claim of pods with a place.
    Picked(Picked),
    /// Only in snapshots: why and until when a pod is not tried again.
    Backoff(Backoff),
    /// Only in snapshots: until when nothing new is put on a card.
    CardPause(CardPause),
    /// Only in snapshots: pods were evicted for a job.
    Evicted(Evicted),
    /// Only in snapshots: a search for victims that was cut short, and waits for its turn.
    Rest(Rest),
    /// Only in snapshots: what the core knows of a job's life and its group does not say.
    Life(Life),
    /// Only in snapshots: the last sequence number given to a decision.
    Sequence(u64),
}

/// A namespace, for rules that select namespaces by label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.labels`.
    pub labels: Labels,
}

/// Pods were evicted for a job. Until it has more active pods, none is evicted for it before a pause
/// has passed, which doubles with each decision that gains it none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The job that room was made for.
    pub by: GroupName,
    /// How many pods with a place it had at the end of that decision.
    pub active: u32,
    /// How many such decisions there were in a row, each of which found it with no more.
    pub times: u32,
    /// The end of the pause.
    pub until: Time,
}

/// A job's search for victims was cut short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Whose.
    pub of: GroupName,
    /// The purpose of its evictions.
    pub cause: EvictCause,
    /// It is not tried again before.
    pub until: Time,
    /// Its steps then.
    pub steps: u64,
}

/// When a job started, and since when it lacks pods: what its group does not say, because
/// it has none, or because the shell has not written it yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// The job. Ignored while the job is unknown.
    pub of: GroupName,
    /// When it last went from nothing to something, for min-runtime.
    pub last_start: Option<Time>,
    /// Since when it runs below its minimum.
    pub stale_since: Option<Time>,
    /// The time at which one of its pods was last evicted.
    pub last_evicted: Option<Time>,
    /// The time at which one of its pods was last evicted for being idle.
    pub gave_way: Option<Time>,
    /// The number of members, by pod set, that have succeeded and whose pods are gone.
    pub succeeded: BTreeMap<SetName, u32>,
    /// True if the shell has not been told yet of the start or of the succeeded members.
    pub unreported: bool,
}

/// A card on which a grant was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardPause {
    /// Of which node.
    pub node: NodeName,
    /// Which card.
    pub card: GpuUuid,
    /// How often in a row, at least 1; a pod that runs on it ends the row.
    pub refusals: u32,
    /// Nothing new before.
    pub until: Time,
    /// The last refusal.
    pub reason: Arc<str>,
}

/// How one action ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Which action.
    pub decision: DecisionId,
    /// How.
    pub result: OutcomeResult,
}

/// How an action ended. An unknown end is none: the scheduler's shell asks the API server
/// until it has an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutcomeResult {
    /// The API server took it.
    Confirmed,
    /// The eviction of a pod whose grant was refused ([`EvictCause::GrantRefused`]) and which no
    /// controller would recreate: its condition was written and the pod was not deleted. It stays
    /// until a person deletes it, and the kubelet counts it until then.
    Stays,
    /// The API server, or something before it, refused it.
    Refused {
        /// One readable sentence.
        reason: Arc<str>,
        /// Whether trying again may help. False: the pod waits until it changes.
        retryable: bool,
    },
}

/// A grant that an agent does not honour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Whose.
    pub pod: PodUid,
    /// Where.
    pub node: NodeName,
    /// Of which decision, where the grant was readable.
    pub decision: Option<DecisionId>,
    /// One readable sentence.
    pub reason: Arc<str>,
    /// False: the agent keeps trying, the placement stays. True: only a new decision
    /// helps, and the core answers with an eviction of the pod.
    pub last_word: bool,
}

/// A pod that an agent wants gone: its card is broken, or it breaks a fence and the admin
/// wants that to end so. Any pod on the node, those of other schedulers too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictRequest {
    /// Whose.
    pub pod: PodUid,
    /// The pod's node: a request from another node does nothing.
    pub node: NodeName,
    /// One readable sentence.
    pub reason: Arc<str>,
}

/// The activity of a placed pod on its GPUs. A pod counts as working until an event says otherwise, and
/// while it waits for a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// The pod, which must be known.
    pub pod: PodUid,
    /// The time since when it does no work; `None`: it works, or that is not known.
    pub idle_since: Option<Time>,
}

/// An eviction under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicting {
    /// Which decision.
    pub decision: DecisionId,
    /// Whose.
    pub pod: PodUid,
    /// Why.
    pub cause: EvictCause,
    /// The workload that an eviction makes room for.
    pub in_favour_of: Option<GroupName>,
    /// Its outcome is known: only the pod's leaving is awaited.
    pub settled: bool,
    /// That outcome was [`OutcomeResult::Stays`].
    pub stays: bool,
}

/// A claim that is being bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Which claim. Does nothing where no pod with a place has it.
    pub claim: ClaimUid,
    /// Where.
    pub node: NodeName,
    /// The volume that it was given; `None`: one is provisioned.
    pub volume: Option<VolumeName>,
}

/// Devices of a claim that the API server has not shown yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picked {
    /// Which claim. Does nothing where no pod with a place has it.
    pub claim: ClaimUid,
    /// Its devices.
    pub devices: Arc<[AllocatedDevice]>,
    /// Nodes that can use them.
    pub nodes: Option<Arc<[NodeTerm]>>,
}

/// A pod that is not tried for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Whose.
    pub pod: PodUid,
    /// How often it was refused in a row, at least 1.
    pub refusals: u32,
    /// Not tried before; `None`: not before the pod changes.
    pub until: Option<Time>,
    /// The last refusal, for its reason line.
    pub reason: Arc<str>,
    /// The workload that an eviction, which was refused, would have made room for.
    pub in_favour_of: Option<GroupName>,
    /// Nodes that refused it, least recent first: avoided while the pause lasts and
    /// once more in the next placement, unless no other node fits.
    pub avoid: Vec<NodeName>,
}
