//! Pods, and where they are in their lives.

use super::{
    AlignedContainer, Attachment, Claim, ContainerAsk, ContainerGrant, DeviceClaim, HostPort,
    Labels, NodeRules, PodRules, Preemptibility, Toleration,
};
use crate::ids::{DecisionId, GroupName, NodeName, PodUid, QueueName, ResourceName, SetName};
use crate::model::ask::Front;
use crate::units::{Bytes, CpuMilli, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A pod's rank among the pods of its job: smaller is placed first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskOrder {
    /// What its operator's labels say.
    pub lead: Lead,
    /// What `kai.scheduler/task-priority` says, the highest smallest.
    pub place: i32,
}

/// Whether a pod goes before the others of its job, by KAI's plugins in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lead {
    /// A master or launcher: `training.kubeflow.org/job-role`.
    Kubeflow,
    /// A head: `ray.io/node-type`.
    Ray,
    /// It does not.
    #[default]
    None,
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
    /// False for a pod of another scheduler: it only counts on its node.
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
    /// Used where the pod is a group of its own. One pod is all that such a group needs, so that a
    /// semi-preemptible pod counts as a non-preemptible one.
    pub preemptibility: Preemptibility,
    /// It may be evicted so that an autoscaler removes its node: a controller makes it again, and
    /// it does not say otherwise.
    pub safe_to_evict: bool,
    /// True if its `preemptionPolicy` is `Never`, so that no pod is evicted for it. For the pods of
    /// a group, the group's policy counts.
    pub never_preempts: bool,
    /// True if a consolidation may not move it, because no controller would create it again.
    pub immovable: bool,
    /// `metadata.creationTimestamp`.
    pub created: Time,
    /// Order inside its group before age: smaller goes first.
    pub task_order: TaskOrder,
    /// `metadata.labels`, which other pods' rules may match.
    pub labels: Labels,
    /// CPU by the kubelet's formula (init containers, sidecars, overhead).
    pub cpu: CpuMilli,
    /// Memory by the same formula.
    pub memory: Bytes,
    /// Other resources by the same formula, share tokens and MIG profiles too; *not*
    /// `nvidia.com/gpu` and not the opaque amounts.
    pub extended: BTreeMap<ResourceName, u64>,
    /// Its containers' requests to cards, in the pod's order.
    pub gpus: Vec<ContainerAsk>,
    /// What a topology manager aligns of each container of a Guaranteed pod, in the pod's order.
    /// Empty: of its GPUs alone.
    pub aligned: Vec<AlignedContainer>,
    /// Its claims that are bound where it goes, and those that one pod uses at a time, each
    /// once. Where the volume of a bound claim can be used is a rule of [`Self::nodes`].
    pub claims: Vec<Claim>,
    /// Its volumes that count towards a limit of a node, in order, each once.
    pub attachments: Vec<Attachment>,
    /// Its claims on devices, in the pod's order, each once.
    pub devices: Vec<DeviceClaim>,
    /// Which nodes will do.
    pub nodes: NodeRules,
    /// Its tolerations.
    pub tolerations: Vec<Toleration>,
    /// Where it may go because of other pods.
    pub pods: PodRules,
    /// Ports of its node that it takes, each once.
    pub ports: Vec<HostPort>,
    /// It has scheduling gates: not yet to be placed.
    pub gated: bool,
    /// Rules that the pod uses and the core does not know, each as a reader would name
    /// it. Such a pod waits and says so.
    pub unsupported: Vec<Arc<str>>,
    /// What has to come before it may be placed, as KAI's pre-predicates say it:
    /// `ConfigMap: Missing required configmaps: [a b]`.
    pub lacks: Vec<Arc<str>>,
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
            preemptibility: Preemptibility::Preemptible,
            safe_to_evict: false,
            never_preempts: false,
            immovable: false,
            created: Time(0),
            task_order: TaskOrder::default(),
            labels: Labels::new(),
            cpu: CpuMilli(0),
            memory: Bytes(0),
            extended: BTreeMap::new(),
            gpus: Vec::new(),
            aligned: Vec::new(),
            claims: Vec::new(),
            attachments: Vec::new(),
            devices: Vec::new(),
            nodes: NodeRules::default(),
            tolerations: Vec::new(),
            pods: PodRules::default(),
            ports: Vec::new(),
            gated: false,
            unsupported: Vec::new(),
            lacks: Vec::new(),
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
    /// Running, but its termination is so overdue that their release is not expected (KAI's
    /// `stuck-in-releasing-threshold`, two minutes after its deletion timestamp): it holds what it
    /// has, and nothing is promised of that.
    Stuck(Placement),
    /// Succeeded: holds nothing.
    Succeeded,
    /// Failed: holds nothing.
    Failed,
}

/// What a pod holds on its node.
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
    /// How the whole GPUs in its resources were given.
    pub front: Front,
}
