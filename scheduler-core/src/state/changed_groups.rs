//! Which pod groups may have another [`crate::GroupView`] than the one that was taken last.

use crate::ids::GroupName;
use crate::state::keys::JobKey;
use std::collections::VecDeque;

/// What is to be looked at, and what is gone. Bounded by the number of jobs and of views that were
/// taken, also where the caller takes none.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangedGroups {
    /// In the order in which they changed, each once. Some may be gone.
    pub(super) jobs: VecDeque<JobKey>,
    /// Of these a view was taken.
    gone: VecDeque<GroupName>,
}

impl ChangedGroups {
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.gone.is_empty()
    }

    /// The first ones, at most `most`.
    pub(crate) fn take_gone(&mut self, most: usize) -> Vec<GroupName> {
        self.gone.drain(..most.min(self.gone.len())).collect()
    }

    pub(super) fn is_gone(&mut self, group: GroupName) {
        self.gone.push_back(group);
    }
}
