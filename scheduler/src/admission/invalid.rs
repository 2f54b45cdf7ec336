//! Why an object of an admin is refused.

/// Why an object is refused. The text is what the user reads.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum Invalid {
    /// KAI's sentence (`queue_webhook.go`).
    #[error("resources must be specified")]
    QueueResources,
    /// The queue is its own ancestor.
    #[error("spec.parentQueue of queue {0} is the queue itself")]
    QueueParent(String),
    #[error("spec.parentQueue: queue {0} would be its own ancestor")]
    QueueCycle(String),
    #[error("spec.subGroups: the name {0} is used twice")]
    SubGroupTwice(String),
    #[error("spec.subGroups: the parent {parent} of {name} does not exist")]
    SubGroupParent { name: String, parent: String },
    #[error("spec.subGroups: {0} is its own ancestor")]
    SubGroupCycle(String),
    #[error("spec.subGroups: {there} sub-groups are more than {most} (--max-sub-groups)")]
    SubGroups { there: usize, most: u32 },
    #[error("spec.subGroups: {name} is more than {most} levels deep (--max-sub-group-depth)")]
    SubGroupDepth { name: String, most: u32 },
    #[error("minMember: {asked} pods at once are more than {most} (--max-gang-pods)")]
    GangPods { asked: u64, most: u32 },
    #[error(
        "spec.parentQueue: with queue {name} the tree of queues is more than {most} levels deep (--max-queue-depth)"
    )]
    QueueDepth { name: String, most: u32 },
    #[error("there are {there} queues, and at most {most} are allowed (--max-queues)")]
    Queues { there: usize, most: u32 },
    #[error(
        "spec.resources.{0}.lendingLimit: no KAI release implements it: remove it, or set limits on the queues that borrow"
    )]
    LendingLimit(&'static str),
    /// KAI's words.
    #[error("queue quota over-subscription: {0}")]
    OverSubscription(String),
    #[error("{0}")]
    QuotaByProduct(api::gpu_quota::QuotaError),
    #[error("{0}")]
    IdleRule(String),
    /// KAI's words.
    #[error(
        "cannot increase {field} ({old} -> {new}) on {of}a semi-preemptible PodGroup: it would reclassify running elastic pods or subgroups as core"
    )]
    RaisedMinimum {
        field: &'static str,
        /// The sub-group, as `subgroup "name" of `. It is empty for the group itself.
        of: String,
        old: i64,
        new: i64,
    },
    #[error("spec.minNonPreemptible: no KAI release implements it: remove it")]
    MinNonPreemptible,
    #[error("minMember and minSubGroup are mutually exclusive: set one of them")]
    GroupMinimum,
    #[error("subgroup {0:?}: minMember and minSubGroup are mutually exclusive")]
    SubGroupMinimum(String),
    #[error("{field} ({asked}) must be 0 or more")]
    Negative { field: String, asked: i32 },
    #[error("subgroup {0:?}: minSubGroup cannot be set on a leaf SubGroup (no child SubGroups)")]
    LeafSubGroups(String),
    #[error("subgroup {0}: minMember is required")]
    LeafMinimum(String),
    #[error(
        "subgroup {0:?}: minMember cannot be set on a mid-level SubGroup (has child SubGroups); use minSubGroup instead"
    )]
    ParentMinimum(String),
    #[error("spec.levels: the label {0} is used twice")]
    LevelTwice(String),
    #[error("spec.levels: the alias {0} is used twice, or is a node label of the topology")]
    AliasTwice(String),
    #[error("spec.levels: a level without a node label")]
    LevelEmpty,
    #[error("spec.levels must name at least one node label")]
    NoLevels,
}
