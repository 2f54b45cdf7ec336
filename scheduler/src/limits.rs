//! How large a pod group and the tree of queues may be. A tenant writes the one, an admin the
//! other, and every decision reads both. The defaults are far above use; all are here.

use scheduler_core::model::Queue;

/// KAI's groupers make one sub-group for each role or replica of a workload.
const SUB_GROUPS: u32 = 1024;
/// KAI's groupers make three levels at most.
const SUB_GROUP_DEPTH: u32 = 16;
/// The largest clusters of which anything is published have some 100,000 GPUs.
const GANG_PODS: u32 = 100_000;
/// Organisation, department, team, project; few have more.
const QUEUE_DEPTH: u32 = 16;
/// A decision spends half a microsecond on each.
const QUEUES: u32 = 20_000;

/// A recursive walk of the core looks no deeper.
const DEEPEST_SUB_GROUP: i64 = 64;
/// The core places nothing further down.
#[allow(clippy::cast_possible_wrap)] // Some dozens.
const DEEPEST_QUEUE: i64 = Queue::MAX_DEPTH as i64;

/// Settings. What is larger is refused at admission; what got in all the same is not read
/// beyond them, or costs nobody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct Limits {
    /// Sub-groups of a pod group. A group with more is refused; of one that is there all the
    /// same the first so many are read.
    #[arg(long, default_value_t = SUB_GROUPS)]
    pub max_sub_groups: u32,
    /// Levels of sub-groups of a pod group, at most 64.
    #[arg(long, default_value_t = SUB_GROUP_DEPTH,
        value_parser = clap::value_parser!(u32).range(1..=DEEPEST_SUB_GROUP))]
    pub max_sub_group_depth: u32,
    /// Pods that a pod group may need at once, over all its sub-groups.
    #[arg(long, default_value_t = GANG_PODS)]
    pub max_gang_pods: u32,
    /// Levels of the tree of queues, at most 64; a queue further down is refused.
    #[arg(long, default_value_t = QUEUE_DEPTH,
        value_parser = clap::value_parser!(u32).range(1..=DEEPEST_QUEUE))]
    pub max_queue_depth: u32,
    /// Queues in all; no more are admitted.
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
