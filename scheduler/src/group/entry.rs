//! What the desk knows of a pod that wants a group, and whose turn it is.

use super::draft::Draft;
use super::object::Packed;
use std::sync::Arc;
use tokio::time::Instant;

/// Of the seats, one in so many is for what can wait: bindings go first.
const LATER: usize = 8;
/// And one in so many is for groups that are made: nobody's group is decided later for it.
const MADE: usize = 2;

/// A pod that wants a group.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) pod: Packed,
    /// When it was seen, or tried again: its owners are not older.
    pub(super) since: Instant,
    pub(super) failures: u32,
    /// It is not placed before its group is decided.
    pub(super) waits: bool,
    pub(super) state: State,
    pub(super) step: Step,
    pub(super) draft: Option<Arc<Draft>>,
    /// The watch shows it in that group, which is perhaps not made yet.
    pub(super) member_of: Option<String>,
    /// It is placed as a member of its group.
    pub(super) told: bool,
    /// It wants something else since the step that is at work began.
    pub(super) changed: bool,
}

/// What is to be done next for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Decide its group.
    Draft,
    /// Make the group.
    Group,
    /// Write the group's name on the pod.
    Pod,
}

/// Who has a turn before whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Pods that wait for their group to be decided.
    Decide,
    /// Groups of those that are decided.
    Make,
    /// Pods that are told their group, and all steps of pods that are placed meanwhile.
    Later,
}

impl Lane {
    pub(super) const ALL: [Self; 3] = [Self::Decide, Self::Make, Self::Later];

    /// Of so many seats, how many it may take.
    pub(super) fn most(self, seats: usize) -> usize {
        let part = match self {
            Self::Decide => 1,
            Self::Make => MADE,
            Self::Later => LATER,
        };
        (seats / part).max(1)
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

/// What came of a step.
pub(super) enum Done {
    Drafted(Arc<Draft>),
    Made,
    Written,
}

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In its lane.
    Ready,
    /// A task has it.
    AtWork,
    /// In the agenda.
    Until(Instant),
    /// Grouped by us; the watch has not shown it yet.
    Done,
}
