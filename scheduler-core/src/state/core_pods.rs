//! The charge of the core of a semi-preemptible job, which counts as non-preemptible in the job's
//! queues.

use super::keys::{NodeKey, TaskKey};
use std::sync::Arc;

/// A pod of a core and its charge, as it was when the core was last computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CorePod {
    pub task: TaskKey,
    pub node: NodeKey,
    /// The charge: GPUs (nano), CPU (milli), memory (bytes).
    pub charge: [u128; 3],
}

/// The core of a job. `None`: it has none.
pub(crate) type CorePods = Option<Arc<[CorePod]>>;
