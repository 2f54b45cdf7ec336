//! Which pod groups may have another [`crate::GroupView`] than the one that was taken last.

use super::State;
use super::keys::{JobKey, TaskKey};
use crate::ids::GroupName;
use std::collections::VecDeque;

/// What is to be looked at, and what is gone. Bounded by the number of jobs and of views that were
/// taken, also where the caller takes none.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangedGroups {
    /// In the order in which they changed, each once. Some may be gone.
    jobs: VecDeque<JobKey>,
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

impl State {
    /// A fact about the group changed, or one about a pod of it that lasts.
    pub(crate) fn group_changed(&mut self, job: JobKey) {
        let Some(row) = self.jobs.get_mut(job) else {
            return;
        };
        if row.single || row.is_changed {
            return;
        }
        row.is_changed = true;
        let list = &mut self.changed_groups.jobs;
        // Keys of jobs that are gone are dropped when they may be half of the list.
        if list.len() > 2 * self.jobs.len() {
            list.retain(|key| self.jobs.get(*key).is_some_and(|row| row.is_changed));
        }
        list.push_back(job);
    }

    /// Something about the pod changed that lasts.
    pub(crate) fn pod_changed(&mut self, task: TaskKey) {
        if let Some(job) = self.tasks.get(task).and_then(|row| row.job) {
            self.group_changed(job);
        }
    }

    /// The group that changed first of those that were not taken since.
    pub(crate) fn next_changed_group(&mut self) -> Option<JobKey> {
        loop {
            let job = self.changed_groups.jobs.pop_front()?;
            if let Some(row) = self.jobs.get_mut(job) {
                row.is_changed = false;
                return Some(job);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nobody_takes_views_the_list_is_no_longer_than_two_times_the_jobs() {
        let mut state = State::default();
        let stays = state.job(&"a/stays".into(), false);
        state.group_changed(stays);
        for at in 0..100 {
            let comes = state.job(&format!("a/{at}").into(), false);
            state.group_changed(comes);
            state.release_job(comes);
        }
        assert!(state.changed_groups.jobs.len() <= 5);
        assert_eq!(state.next_changed_group(), Some(stays));
        assert_eq!(state.next_changed_group(), None);
        assert!(state.changed_groups.is_empty());
    }
}
