//! Everything that a decision may move, and the journal that undoes it.
//!
//! `setter` alone writes it. The use of claims and devices is also undone from the journal; it lies
//! with what is known of them, in [`super::volumes`] and [`super::devices`].

use crate::ids::ResourceName;
use crate::state::card_use::CardUse;
use crate::state::cell::Journal;
use crate::state::core_pods::CorePod;
use crate::state::extra_use::ExtraUse;
use crate::state::keys::{CardKey, JobKey, NodeKey, QueueKey, TaskKey};
use crate::state::node_use::NodeUse;
use crate::state::pod_counts::PodCounts;
use crate::state::products::Products;
use crate::state::queue_use::QueueUse;
use crate::state::task_cell::TaskCell;
use rustc_hash::FxHashMap;
use slotmap::SecondaryMap;
use std::sync::Arc;

/// The places of pods, and the sums that follow from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cells {
    pub tasks: SecondaryMap<TaskKey, TaskCell>,
    pub nodes: SecondaryMap<NodeKey, NodeUse>,
    pub cards: SecondaryMap<CardKey, CardUse>,
    pub queues: SecondaryMap<QueueKey, QueueUse>,
    /// The cores of semi-preemptible jobs that have one.
    pub cores: SecondaryMap<JobKey, Arc<[CorePod]>>,
    pub products: Products,
    /// Looked up, never walked.
    pub extra: FxHashMap<(NodeKey, ResourceName), ExtraUse>,
    pub pod_counts: PodCounts,
    /// The number of pods that hold more whole cards than they ask for.
    pub overallocated: u32,
    pub journal: Journal,
    /// True while a decision is being taken: volumes are picked for the claims of pods that are
    /// placed. A pod that is seen with a place has what it was given before.
    pub deciding: bool,
}
