//! How jobs come, go, and change: their rows, their queues, and the order of their pods.

use crate::ids::{GroupName, QueueName};
use crate::state::State;
use crate::state::job_row::{JobRow, MaybeTime};
use crate::state::keys::{JobKey, TaskKey};

impl State {
    /// The row of a job, made if it is not there.
    pub(crate) fn job(&mut self, name: &GroupName, single: bool) -> JobKey {
        if let Some(key) = self.job_of(name) {
            return key;
        }
        let key = self.jobs.insert(JobRow {
            name: name.clone(),
            group: None,
            single,
            tasks: Vec::new(),
            queue: None,
            last_start: MaybeTime::default(),
            stale_since: MaybeTime::default(),
            past: None,
            stamp: 0,
            maybe_stale: false,
            is_changed: false,
            taken: None,
        });
        self.names.jobs.insert(name.clone(), key);
        key
    }

    /// Whether the job is below its minimum is looked at again.
    pub(crate) fn check_staleness(&mut self, job: JobKey) {
        if let Some(row) = self.jobs.get_mut(job)
            && !row.maybe_stale
            && !row.is_never_stale()
        {
            row.maybe_stale = true;
            self.changes.maybe_stale.push(job);
        }
    }

    /// Puts a job into a queue. Its tasks must be detached: their sums are the queue's.
    pub(crate) fn set_job_queue(&mut self, job: JobKey, queue: Option<&QueueName>) {
        let new = queue.map(|name| self.queue(name));
        let old = match self.jobs.get_mut(job) {
            Some(row) => std::mem::replace(&mut row.queue, new),
            None => None,
        };
        if old == new {
            return;
        }
        if let Some(row) = new.and_then(|key| self.queues.get_mut(key)) {
            row.users += 1;
        }
        if let Some(key) = old {
            if let Some(row) = self.queues.get_mut(key) {
                row.users = row.users.saturating_sub(1);
            }
            self.release_queue(key);
        }
    }

    /// Puts a detached task into a job, in its order there.
    pub(crate) fn join_job(&mut self, task: TaskKey, job: JobKey) {
        let tasks = &self.tasks;
        let Some((row, own)) = self.jobs.get_mut(job).zip(tasks.get(task)) else {
            return;
        };
        let at = row.tasks.partition_point(|other| {
            tasks
                .get(*other)
                .is_some_and(|other| other.in_job() < own.in_job())
        });
        row.tasks.insert(at, task);
    }

    /// Takes a detached task out of its job.
    pub(crate) fn leave_job(&mut self, task: TaskKey) {
        let Some(job) = self.tasks.get_mut(task).and_then(|row| row.job.take()) else {
            return;
        };
        if let Some(row) = self.jobs.get_mut(job) {
            row.tasks.retain(|other| *other != task);
        }
        self.release_job(job);
    }

    /// Drops a job's row when neither a group nor a pod names it any more.
    pub(crate) fn release_job(&mut self, key: JobKey) {
        let unused = self
            .jobs
            .get(key)
            .is_some_and(|row| row.group.is_none() && row.tasks.is_empty());
        if unused {
            self.set_job_queue(key, None);
            if let Some(row) = self.jobs.remove(key) {
                self.pauses.evicted.remove(&row.name);
                if row.taken.is_some() {
                    self.outputs.changed_groups.is_gone(row.name.clone());
                }
                self.names.jobs.remove(&row.name);
            }
        }
    }

    /// A fact about the group changed, or one about a pod of it that lasts.
    pub(crate) fn group_changed(&mut self, job: JobKey) {
        let Some(row) = self.jobs.get_mut(job) else {
            return;
        };
        if row.single || row.is_changed {
            return;
        }
        row.is_changed = true;
        let list = &mut self.outputs.changed_groups.jobs;
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
            let job = self.outputs.changed_groups.jobs.pop_front()?;
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
        assert!(state.outputs.changed_groups.jobs.len() <= 5);
        assert_eq!(state.next_changed_group(), Some(stays));
        assert_eq!(state.next_changed_group(), None);
        assert!(state.outputs.changed_groups.is_empty());
    }
}
