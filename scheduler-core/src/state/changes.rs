//! Changes since they were last looked at: stamps that only rise, and lists.

use crate::state::keys::JobKey;

/// The changes of one state. A trial that is undone leaves the stamps risen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    /// Incremented whenever something may fit that did not.
    pub capacity: u64,
    /// Incremented whenever there may be something to decide.
    pub wake: u64,
    /// Incremented with every change of a node.
    pub touched: u64,
    /// Incremented with every change that is kept; rolled-back trials do not count.
    pub settled: u64,
    /// Incremented whenever a pod may be hindered that was not, or the other way round, other than
    /// by a change of its own.
    pub hindered: u64,
    /// Incremented with every fact of a node's own.
    pub nodes: u64,
    /// Incremented with every volume and every claim's use: each may be another node's.
    pub volumes: u64,
    /// True if a queue came, went or moved: chains and sums are to be rebuilt.
    pub queues: bool,
    /// Jobs of which a pod has moved.
    pub moved: ChangedJobs,
    /// Groups that may have fallen below their minimum, or risen to it: of which a pod or
    /// the group itself has changed. Those that are below it stay here.
    pub maybe_stale: Vec<JobKey>,
}

impl Changes {
    /// Something may fit now that did not.
    pub(crate) fn capacity_grew(&mut self) {
        self.capacity += 1;
        self.wake += 1;
    }

    /// There may be something to decide.
    pub(crate) fn wake(&mut self) {
        self.wake += 1;
    }
}

/// Jobs of which a pod has moved since they were looked at last, each once.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangedJobs {
    pub(super) jobs: Vec<JobKey>,
    /// [`Changes::touched`] at that time.
    since: u64,
}

impl ChangedJobs {
    /// Notes a job of which a pod has moved, with the stamp that the job had before.
    pub(super) fn note(&mut self, job: JobKey, stamp: u64) {
        if stamp <= self.since {
            self.jobs.push(job);
        }
    }

    /// Returns all of them, and counts them as looked at now.
    pub(crate) fn take(&mut self, now: u64) -> Vec<JobKey> {
        self.since = now;
        std::mem::take(&mut self.jobs)
    }
}
