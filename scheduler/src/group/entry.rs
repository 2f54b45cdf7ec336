//! What the grouper knows of one pod, and the order in which pods are worked on.

use super::draft::Draft;
use super::object::Packed;
use std::sync::Arc;
use tokio::time::Instant;

/// Work that can wait gets one request in so many: bindings go first.
const LATER: usize = 8;
/// The creation of groups gets one request in so many, so that it does not delay decisions.
const MADE: usize = 2;

/// A pod that needs a group.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) pod: Packed,
    /// When it was first seen, or last started again. Owners are read after that.
    pub(super) since: Instant,
    pub(super) failures: u32,
    /// The pod must not be placed before its group is decided.
    pub(super) waits: bool,
    pub(super) state: State,
    pub(super) step: Step,
    pub(super) draft: Option<Arc<Draft>>,
    /// The group that the pod names, which may not exist yet.
    pub(super) member_of: Option<String>,
    /// The cycle knows it as a member of its group.
    pub(super) told: bool,
    /// What it requests has changed since the current step began.
    pub(super) changed: bool,
}

/// The next step for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Decide its group.
    Draft,
    /// Create the group.
    Group,
    /// Annotate the pod with the group's name.
    Pod,
}

/// Classes of work, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Pods that wait for their group to be decided.
    Decide,
    /// Groups that were decided and are to be created.
    Make,
    /// Annotations of pods, and all steps of pods that need not wait for their group.
    Later,
}

impl Lane {
    pub(super) const ALL: [Self; 3] = [Self::Decide, Self::Make, Self::Later];

    /// How many of that many permits this class may take.
    pub(super) fn most(self, permits: usize) -> usize {
        let part = match self {
            Self::Decide => 1,
            Self::Make => MADE,
            Self::Later => LATER,
        };
        (permits / part).max(1)
    }
}

impl Entry {
    pub(super) fn lane(&self) -> Lane {
        match self.step {
            Step::Draft if self.waits => Lane::Decide,
            Step::Group if self.waits => Lane::Make,
            _ => Lane::Later,
        }
    }
}

/// The result of a step.
pub(super) enum Done {
    Drafted(Arc<Draft>),
    Made,
    Written,
}

/// Where a pod is in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Ready, in its lane.
    Ready,
    /// A task is working on it.
    AtWork,
    /// It waits until then, in the agenda.
    Until(Instant),
    /// All steps are done; the watch has not shown the annotation yet.
    Done,
}
