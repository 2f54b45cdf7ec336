//! Which pods have another status than before, for what is kept of large jobs.
//!
//! A cache of what follows from a job's pods has the job's stamp
//! ([`super::job_row::JobRow::stamp`]). From the log it learns which of them have moved since,
//! instead of reading all of them again.

use crate::state::keys::{JobKey, TaskKey};
use crate::state::task_cell::Status;
use std::collections::VecDeque;

/// The last changes, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct StatusLog {
    changes: VecDeque<Change>,
    /// The stamp of the last change that was dropped.
    from: u64,
}

#[derive(Clone, Debug)]
struct Change {
    /// The job's, after it.
    stamp: u64,
    job: JobKey,
    /// `None`: what the row of a pod says may be another, or the job has other pods. A pod is
    /// detached for that.
    task: Option<TaskKey>,
}

impl StatusLog {
    /// Changes that are kept. What is older is read again, from all pods of the job.
    const MOST: usize = 1024;

    pub(super) fn note(&mut self, stamp: u64, job: JobKey, task: TaskKey, moved: [Status; 2]) {
        if self.changes.len() == Self::MOST
            && let Some(dropped) = self.changes.pop_front()
        {
            self.from = dropped.stamp;
        }
        let task = (!moved.contains(&Status::Detached)).then_some(task);
        self.changes.push_back(Change { stamp, job, task });
    }

    /// The pods of the job that have moved since it had that stamp, some more than once. `None`:
    /// that is not known, or the job itself has changed.
    pub(crate) fn since(&self, stamp: u64, job: JobKey) -> Option<Vec<TaskKey>> {
        if stamp < self.from {
            return None;
        }
        let changes = self.changes.iter().rev();
        let changes = changes.take_while(|change| change.stamp > stamp);
        let its = changes.filter(|change| change.job == job);
        its.map(|change| change.task).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slotmap::KeyData;

    #[test]
    fn it_knows_what_it_has_dropped_and_whose_change_it_is() {
        let task = |id: u64| TaskKey::from(KeyData::from_ffi((1 << 32) | id));
        let job = |id: u64| JobKey::from(KeyData::from_ffi((1 << 32) | id));
        let mut log = StatusLog::default();
        let moved = [Status::Pending, Status::Assumed];
        log.note(1, job(1), task(1), moved);
        log.note(2, job(2), task(2), moved);
        log.note(3, job(1), task(3), moved);
        assert_eq!(log.since(0, job(1)), Some(vec![task(3), task(1)]));
        assert_eq!(log.since(1, job(1)), Some(vec![task(3)]));
        log.note(4, job(2), task(4), [Status::Pending, Status::Detached]);
        assert_eq!(log.since(3, job(1)), Some(Vec::new()));
        assert_eq!(log.since(3, job(2)), None);
        for stamp in 5..=1_025 {
            log.note(stamp, job(3), task(5), moved);
        }
        assert_eq!(log.since(1, job(1)), Some(vec![task(3)]));
        assert_eq!(log.since(0, job(1)), None);
    }
}
