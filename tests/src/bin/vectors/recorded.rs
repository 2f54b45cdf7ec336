//! What a vector says: the cluster and its tasks, and how they are expected to end.

use scheduler_core::ids::ClaimUid;
use scheduler_core::model::{AllocatedDevice, DeviceWants, NodeTerm, Pod};
use scheduler_core::{Config, Event};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The time at which every round takes place.
pub(crate) const NOW: u64 = 1_000_000_000;

/// A vector: a cluster, its tasks, and how they are expected to end.
pub(crate) struct Case {
    pub(crate) config: Config,
    /// Nodes, cards, queues, topologies, groups.
    pub(crate) facts: Vec<Event>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) rounds: usize,
    pub(crate) accepted: Vec<BTreeMap<String, Expected>>,
    /// Cards per node, in order.
    pub(crate) cards: BTreeMap<String, usize>,
    pub(crate) claims: Claims,
}

/// A task as the vector gives it.
#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) pod: Pod,
    pub(crate) status: String,
    pub(crate) node: Option<String>,
    pub(crate) groups: Vec<String>,
    /// This number of whole GPUs.
    pub(crate) whole: usize,
    /// A share of each of this many GPUs.
    pub(crate) shares: usize,
    pub(crate) delete_on_evict: bool,
    /// Names of its device claims.
    pub(crate) claims: Vec<String>,
}

/// The state in which the vector expects a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) status: String,
    pub(crate) node: Option<String>,
    pub(crate) groups: Option<Vec<String>>,
    /// Whether it is in the core of its job; `None` for a pod of a job that is not semi-preemptible.
    pub(crate) core: Option<bool>,
}

pub(crate) fn card_name(node: &str, index: usize) -> String {
    format!("GPU-{node}-{index}")
}

/// A claim of the case.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) uid: ClaimUid,
    pub(crate) queue: Option<String>,
    pub(crate) class: String,
    pub(crate) wants: Arc<DeviceWants>,
    /// The devices that the vector records at the end, each with its pool.
    pub(crate) recorded: Vec<(String, String)>,
    /// The number of pods for which it is reserved and that the case does not have as tasks. These
    /// use it all the time. The case's own pods use it from the time that they have a place: the
    /// status of the end says nothing about the start.
    pub(crate) other_users: usize,
}

/// The claims of a vector, by name.
pub(crate) type Claims = BTreeMap<String, Claim>;

/// Devices, and the nodes that can use them.
pub(crate) type Has = (Arc<[AllocatedDevice]>, Option<Arc<[NodeTerm]>>);
