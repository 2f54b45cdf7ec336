//! What an admin sets for one core.

use crate::model::Requirement;
use crate::units::{Duration, NanoGpu};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Settings; the names and defaults are KAI's where KAI has the setting. All but `epoch`,
/// `most_counted` and `verify`, which are the process's, may change while the core lives
/// ([`crate::Event::Config`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Distinguishes the decisions of two processes; rises with each start of the shell.
    pub epoch: u64,
    /// First pause after a refusal; doubles with each further one.
    pub backoff_first: Duration,
    /// Longest pause after a refusal.
    pub backoff_longest: Duration,
    /// Nano-GPU per product are counted over this many MiB, by product name; a product
    /// that is not here counts over its total.
    pub bases: BTreeMap<String, u64>,
    /// Most steps of one job's search for victims. It begins with fewer, and has more each
    /// time that it was cut short.
    pub budget: u64,
    /// What a decision does, in this order.
    pub actions: Vec<Step>,
    /// How nodes are chosen for pods with GPUs.
    pub gpu_placement: Placement,
    /// How nodes are chosen for pods without.
    pub cpu_placement: Placement,
    /// How a node's cards are chosen for shares (KAI's `gpupack` and `gpuspread`);
    /// `None`: as nodes are for pods with GPUs.
    pub card_placement: Option<Placement>,
    /// What of KAI's plugins is switched off.
    pub without: BTreeSet<Plugin>,
    /// The `mode` of KAI's plugin `gpujoborder`, which orders two jobs of a queue that are equal in
    /// priority and minimum. `None`: the plugin is off, and the older job goes first.
    pub gpu_job_order: Option<GpuJobOrder>,
    /// The `labelSelector` of KAI's plugin `backgroundpods`: pods whose labels meet all of these are
    /// maintenance work, which decisions about other pods take for gone. `None`: no pod is.
    pub background: Option<Vec<Requirement>>,
    /// `restrict-node-scheduling`; `None`: a pod may go to any node.
    pub workers: Option<Workers>,
    /// Ours: the number of empty nodes with GPUs to keep. Before one of the last of these is used,
    /// the scheduler tries to make room elsewhere by moving running workloads. 0: KAI's rules only.
    /// No effect without consolidation: by its bound, its absence from `actions`, or a placement
    /// that spreads.
    pub keep_empty_nodes: u32,
    /// Ours: nodes are emptied for an autoscaler; `None`: none is. No effect where consolidation
    /// has none.
    pub scale_down: Option<ScaleDown>,
    /// `kValue` in billionths: how much past use counts in fair share.
    pub k_value: u64,
    /// `max-consolidation-preemptees`: most jobs that a consolidation may move; `None`:
    /// no bound.
    pub consolidation_jobs: Option<u32>,
    /// Ours: a job that started less than this long ago is not moved by a consolidation.
    pub consolidation_min_age: Duration,
    /// Ours: most jobs for which one decision moves or evicts others; `None`: no bound.
    /// With 0, 1, 2 and so on a decision is seen coming about.
    pub most_favoured: Option<u32>,
    /// `default-staleness-grace-period`; `None`: a stale gang is never evicted.
    pub staleness_grace: Option<Duration>,
    /// `defaultPreemptMinRuntime`.
    pub preempt_min_runtime: Duration,
    /// `defaultReclaimMinRuntime`.
    pub reclaim_min_runtime: Duration,
    /// `reclaimResolveMethod`: whose minimum run time counts for reclaim.
    pub reclaim_resolve: Resolve,
    /// `queuePriorityInQuotaReclaim`: a queue of higher priority takes from one of lower
    /// priority what that has within its quota, as long as it stays within its own.
    pub queue_priority_in_quota: bool,
    /// `relcaimerSaturationMultiplier` in billionths, at least 10^9.
    pub saturation_multiplier: u64,
    /// Ours: how many matches of pods by selectors of affinity, anti-affinity and spread are
    /// counted, for all selectors together. Further selectors are evaluated on the pods in each
    /// search. Does not change decisions.
    pub most_counted: u64,
    /// Every search that could be skipped is run and compared, and every sum is recomputed after
    /// each decision; differences are in [`crate::Core::violations`]. Does not change
    /// decisions; many times slower: for tests, and to find a defect in a cluster.
    pub verify: bool,
}

/// When the pods of a node are moved to others in use, so that an autoscaler removes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleDown {
    /// Each of its workloads has run for that long.
    pub delay: Duration,
    /// It has at most this many pods of ours.
    pub pods: u32,
}

/// Keys of the labels that nodes must have, whatever the value: KAI's
/// `gpu-worker-node-label-key` and `cpu-worker-node-label-key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Of nodes for pods that ask for GPUs, shares of them or MIG profiles.
    pub gpu: Arc<str>,
    /// Of nodes for pods that do not.
    pub cpu: Arc<str>,
}

impl Default for Workers {
    fn default() -> Self {
        Self {
            gpu: Arc::from("node-role.kubernetes.io/gpu-worker"),
            cpu: Arc::from("node-role.kubernetes.io/cpu-worker"),
        }
    }
}

/// One of KAI's actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Places jobs that fit, or that will fit when leaving pods have ended.
    Allocate,
    /// Moves running work so that something fits.
    Consolidation,
    /// Takes back what other queues hold beyond their share.
    Reclaim,
    /// Evicts work of lower priority in the same queue.
    Preempt,
    /// Evicts the rest of gangs below their minimum.
    StaleGangEviction,
}

impl Step {
    /// All of them, in KAI's order.
    pub const ALL: [Self; 5] = [
        Self::Allocate,
        Self::Consolidation,
        Self::Reclaim,
        Self::Preempt,
        Self::StaleGangEviction,
    ];

    /// It searches for victims.
    pub(crate) fn searches(self) -> bool {
        matches!(self, Self::Consolidation | Self::Reclaim | Self::Preempt)
    }
}

/// The order of jobs by the GPUs that all of their pods request. Victims are taken in the reverse
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuJobOrder {
    /// Jobs with more GPUs go first.
    PreferLarger,
    /// Jobs with fewer GPUs go first.
    PreferSmaller,
}

/// One of KAI's plugins that can be switched off. The others' work cannot be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Plugin {
    /// Nodes where a pod sits now, before those where it will when others have left.
    NodeAvailability,
    /// Nodes without GPUs for pods without.
    ResourceType,
    /// Preferred affinity to other pods.
    PodAffinity,
    /// The node that `status.nominatedNodeName` names.
    NominatedNode,
    /// Cards that are shared already, for shares.
    GpuSharingOrder,
    /// The fullest or the emptiest node.
    NodePlacement,
    /// Victims that have not run for long enough are spared.
    MinRuntime,
    /// Jobs of higher priority before others of their queue. Without it preemption still takes
    /// from lower priority only, and only from younger jobs: an older one would go first.
    Priority,
    /// Jobs below their minimum before those at it, and these before those above it.
    Elastic,
    /// Masters and launchers of Kubeflow's jobs before their other pods.
    Kubeflow,
    /// Heads of Ray's clusters before their other pods.
    Ray,
    /// Pods of a job by `kai.scheduler/task-priority`.
    TaskOrder,
}

impl Plugin {
    /// All of them, by KAI's names.
    pub const ALL: [(Self, &'static str); 12] = [
        (Self::NodeAvailability, "nodeavailability"),
        (Self::ResourceType, "resourcetype"),
        (Self::PodAffinity, "podaffinity"),
        (Self::NominatedNode, "nominatednode"),
        (Self::GpuSharingOrder, "gpusharingorder"),
        (Self::NodePlacement, "nodeplacement"),
        (Self::MinRuntime, "minruntime"),
        (Self::Priority, "priority"),
        (Self::Elastic, "elastic"),
        (Self::Kubeflow, "kubeflow"),
        (Self::Ray, "ray"),
        (Self::TaskOrder, "taskorder"),
    ];

    /// Whether it ranks nodes; the others order jobs or pods, or spare victims.
    pub(crate) fn ranks_nodes(self) -> bool {
        match self {
            Self::NodeAvailability
            | Self::ResourceType
            | Self::PodAffinity
            | Self::NominatedNode
            | Self::GpuSharingOrder
            | Self::NodePlacement => true,
            Self::MinRuntime
            | Self::Priority
            | Self::Elastic
            | Self::Kubeflow
            | Self::Ray
            | Self::TaskOrder => false,
        }
    }

    /// By KAI's name. `None`: there is none of that name that can be switched off.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find_map(|(plugin, known)| (known == name).then_some(plugin))
    }
}

/// Which queue's minimum run time protects a victim of reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resolve {
    /// The victim's ancestor just below where the two queues part, or the nearest above it
    /// that has one.
    #[default]
    Lca,
    /// The victim's own queue, or the nearest above it that has one.
    Queue,
}

/// How a node is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The fullest that will do.
    #[default]
    Binpack,
    /// The emptiest.
    Spread,
    /// Ours: where least will stay unused ([`crate::fragment`]). A node's cards are packed.
    Fragmentation,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            epoch: 0,
            backoff_first: Duration::seconds(1),
            backoff_longest: Duration::seconds(60),
            bases: BTreeMap::new(),
            budget: 4_000_000,
            actions: Step::ALL.to_vec(),
            gpu_placement: Placement::Binpack,
            cpu_placement: Placement::Binpack,
            card_placement: None,
            without: BTreeSet::new(),
            gpu_job_order: None,
            background: None,
            workers: None,
            keep_empty_nodes: 0,
            scale_down: None,
            k_value: NanoGpu::ONE.0,
            consolidation_jobs: Some(16),
            consolidation_min_age: Duration(0),
            most_favoured: None,
            staleness_grace: Some(Duration::seconds(60)),
            preempt_min_runtime: Duration(0),
            reclaim_min_runtime: Duration(0),
            reclaim_resolve: Resolve::Lca,
            queue_priority_in_quota: false,
            saturation_multiplier: NanoGpu::ONE.0,
            // Seven selectors for each of 140,000 pods. A match takes 8 bytes, and 80 more where
            // no other pod of the selector is in its domain.
            most_counted: 1_000_000,
            verify: false,
        }
    }
}

impl Config {
    /// The defaults, with [`Config::verify`].
    pub fn verified() -> Self {
        Self {
            verify: true,
            ..Self::default()
        }
    }

    /// These settings, with the process's own values from `other`.
    pub(crate) fn of_process(self, other: &Self) -> Self {
        Self {
            epoch: other.epoch,
            most_counted: other.most_counted,
            verify: other.verify,
            ..self
        }
    }

    /// Whether the plugin is at work.
    pub(crate) fn has(&self, plugin: Plugin) -> bool {
        !self.without.contains(&plugin)
    }

    /// How a node's cards are chosen for shares: packed, or spread.
    pub(crate) fn cards(&self) -> Placement {
        match self.card_placement.unwrap_or(self.gpu_placement) {
            Placement::Spread => Placement::Spread,
            Placement::Binpack | Placement::Fragmentation => Placement::Binpack,
        }
    }
}
