//! Which jobs give way because they are idle: whatever their priority and preemptibility, they may be
//! victims of preempt and reclaim, and are the first ones.
//!
//! In: [`State::idle`], which the shell keeps by the queues' rules. Sums and quotas do not depend on
//! it: an idle non-preemptible pod counts as one, so that its queue is within its quota when the pod
//! works again.

use crate::state::State;
use crate::state::keys::{JobKey, QueueKey};
use crate::state::task_cell::Status;
use std::collections::BTreeSet;

impl State {
    /// Returns true if all pods of the job that have not ended are idle. A pod that waits, or of which
    /// nothing is known, works as far as the core can tell.
    pub(crate) fn gives_way(&self, job: JobKey) -> bool {
        if self.idle.is_empty() {
            return false;
        }
        let Some(row) = self.jobs.get(job) else {
            return false;
        };
        let mut left = row
            .tasks
            .iter()
            .filter(|task| self.cell(**task).status != Status::Done)
            .peekable();
        left.peek().is_some() && left.all(|task| self.idle.contains(task))
    }

    /// Returns the jobs that give way and hold something, each once.
    pub(crate) fn idle_jobs(&self) -> impl Iterator<Item = (QueueKey, JobKey)> + '_ {
        let tasks = self.idle.iter();
        let jobs: BTreeSet<JobKey> = tasks
            .filter(|task| self.cell(**task).status.is_allocated())
            .filter_map(|task| self.tasks.get(*task)?.job)
            .collect();
        jobs.into_iter()
            .filter_map(|job| Some((self.jobs.get(job)?.queue?, job)))
            .filter(|(_, job)| self.gives_way(*job))
    }

    /// Returns the queues with jobs that may be victims, each once.
    pub(crate) fn victim_queues(&self) -> impl Iterator<Item = QueueKey> + '_ {
        let idle: BTreeSet<QueueKey> = self.idle_jobs().map(|(queue, _)| queue).collect();
        let others = idle
            .into_iter()
            .filter(|queue| !self.standing.contains_key(queue));
        self.standing.keys().copied().chain(others)
    }
}
