//! Lists of rows by what is asked of them.

use crate::state::idle_pods::IdlePods;
use crate::state::keys::{JobKey, NodeKey, QueueKey, TaskKey};
use crate::state::uid::Uid;
use slotmap::SecondaryMap;
use std::collections::{BTreeMap, BTreeSet};

/// The lists that `transition` and the events keep current.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    /// Pods placed on a node.
    pub on_node: SecondaryMap<NodeKey, BTreeSet<TaskKey>>,
    pub pending: BTreeSet<TaskKey>,
    /// Jobs that may be victims: with pods that stand or are promised a place, by queue and
    /// priority.
    pub standing: BTreeMap<QueueKey, BTreeMap<i32, BTreeSet<JobKey>>>,
    /// The list of `standing` that each of them is in, and the number of such pods that it has.
    pub placed_at: SecondaryMap<JobKey, PlacedEntry>,
    /// Placed pods that do no work.
    pub idle: IdlePods,
    /// Background pods, placed or not.
    pub background: BTreeSet<TaskKey>,
    /// Tasks to be evicted for an agent's last word, until that is decided.
    pub to_evict: BTreeSet<(Uid, TaskKey)>,
    /// Queues without a parent, in order of name.
    pub top_queues: Vec<QueueKey>,
    /// The number of nodes with a taint that prefers other pods.
    pub soft_nodes: usize,
}

impl Index {
    /// Returns the pods placed on a node.
    pub(crate) fn pods_on(&self, node: NodeKey) -> impl Iterator<Item = TaskKey> {
        self.on_node.get(node).into_iter().flatten().copied()
    }
}

/// The place of a job with placed pods in [`Index::standing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacedEntry {
    pub queue: QueueKey,
    pub priority: i32,
    pub pods: u32,
}
