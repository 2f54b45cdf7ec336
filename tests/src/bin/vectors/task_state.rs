//! The state of a task between two decisions.

use crate::recorded::Task;

/// The state of a task after a round, before anything is fed back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) status: String,
    pub(crate) node: Option<String>,
    /// The cards that it holds or is promised.
    pub(crate) cards: Vec<String>,
    /// True if the task is in the core of a semi-preemptible job.
    pub(crate) core: bool,
}

/// A pod in the world.
#[derive(Clone)]
pub(crate) struct TaskState {
    pub(crate) task: Task,
    pub(crate) status: String,
    pub(crate) node: Option<String>,
    pub(crate) cards: Vec<String>,
    pub(crate) memory: u64,
}

impl TaskState {
    /// Returns whether the pod has a place, and what it asked for.
    pub(crate) fn holds(&self) -> bool {
        let standing = ["Running", "Releasing", "StuckInReleasing", "Bound"];
        standing.contains(&self.status.as_str())
    }
}
