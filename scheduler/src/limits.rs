//! Limits on the size of pod groups and of the tree of queues.
//!
//! Tenants write pod groups and admins write queues, and every scheduling decision reads both. The
//! default limits are far above normal use.

use scheduler_core::model::Queue;

/// KAI's pod grouper creates one sub-group for each role or replica of a workload.
const SUB_GROUPS: u32 = 1024;
/// KAI's pod grouper creates at most three levels.
const SUB_GROUP_DEPTH: u32 = 16;
/// The largest published clusters have some 100,000 GPUs.
const GANG_PODS: u32 = 100_000;
/// Most trees have at most four: organisation, department, team and project.
const QUEUE_DEPTH: u32 = 16;
/// A decision takes half a microsecond for each.
const QUEUES: u32 = 20_000;

/// The core walks sub-groups recursively, and stops at this depth.
const DEEPEST_SUB_GROUP: i64 = 64;
/// The core places no pods of queues below this depth.
#[allow(clippy::cast_possible_wrap)] // Some dozens.
const DEEPEST_QUEUE: i64 = Queue::MAX_DEPTH as i64;

/// The limits as settings. The admission webhook rejects objects that exceed them. If such an
/// object exists anyway, the scheduler reads it up to the limit only, or the excess costs no other
/// workload anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct Limits {
    /// Sub-groups in a pod group. A group with more is rejected; if one exists anyway, only this
    /// many of its sub-groups are read.
    #[arg(long, default_value_t = SUB_GROUPS)]
    pub max_sub_groups: u32,
    /// Levels of sub-groups in a pod group, at most 64.
    #[arg(long, default_value_t = SUB_GROUP_DEPTH,
        value_parser = clap::value_parser!(u32).range(1..=DEEPEST_SUB_GROUP))]
    pub max_sub_group_depth: u32,
    /// Pods that a pod group may require to start together, over all its sub-groups.
    #[arg(long, default_value_t = GANG_PODS)]
    pub max_gang_pods: u32,
    /// Levels in the tree of queues, at most 64. A queue below the last level is rejected.
    #[arg(long, default_value_t = QUEUE_DEPTH,
        value_parser = clap::value_parser!(u32).range(1..=DEEPEST_QUEUE))]
    pub max_queue_depth: u32,
    /// Queues in the cluster. Further queues are rejected.
    #[arg(long, default_value_t = QUEUES)]
    pub max_queues: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_sub_groups: SUB_GROUPS,
            max_sub_group_depth: SUB_GROUP_DEPTH,
            max_gang_pods: GANG_PODS,
            max_queue_depth: QUEUE_DEPTH,
            max_queues: QUEUES,
        }
    }
}
