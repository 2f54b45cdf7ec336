//! Stale gangs: what remains of a gang below its minimum is evicted after a grace period (KAI,
//! `actions/stalegangeviction`).

use crate::action::EvictCause;
use crate::cycle::Cycle;
use crate::model::Grace;
use crate::state::keys::{JobKey, TaskKey};
use crate::state::rows::Seen;
use crate::state::task_cell::Status;

impl Cycle<'_> {
    pub(super) fn evict_stale(&mut self) {
        for job in self.maybe_stale() {
            let gang = self.gang(job);
            let stale = gang.is_stale() && !self.has_succeeded(job);
            let now = self.state.now;
            let Some(row) = self.state.jobs.get_mut(job) else {
                continue;
            };
            if !stale {
                if std::mem::take(&mut row.stale_since).get().is_some() {
                    self.decision.stale.push((row.name.clone(), None));
                }
                continue;
            }
            self.state.check_staleness(job);
            let Some(row) = self.state.jobs.get_mut(job) else {
                continue;
            };
            // A time to come was written by a replica whose clock was ahead of this one's.
            let since = row.stale_since.get().filter(|since| *since <= now);
            if since.is_none() {
                row.stale_since = now.into();
                self.decision.stale.push((row.name.clone(), Some(now)));
            }
            let since = since.unwrap_or(now);
            let own = row
                .group
                .as_ref()
                .and_then(|group| group.spec.staleness_grace);
            let grace = match own {
                Some(Grace::For(grace)) => Some(grace),
                Some(Grace::Never) => None,
                None => self.config.staleness_grace,
            };
            let Some(grace) = grace else {
                continue;
            };
            let until = since.after(grace);
            if now < until {
                self.wake_at(until);
                continue;
            }
            let min: u64 = gang.sets.iter().map(|set| u64::from(set.min)).sum();
            let tasks: Vec<TaskKey> = gang
                .tasks()
                .filter(|(_, status)| matches!(status, Status::Bound | Status::Running))
                .map(|(task, _)| task)
                .filter(|task| !self.state.is_eviction_postponed(*task))
                .collect();
            for task in tasks {
                let message = format!(
                    "Workload doesn't meet the minimum required number of pods ({min}), evicting remaining pod: {}",
                    self.pod_name(task)
                );
                self.evict(task, None, EvictCause::StaleGang, &message);
            }
        }
        if self.config.verify {
            self.verify_steady();
        }
    }

    /// No group that was not checked is below its minimum, or marked so.
    fn verify_steady(&mut self) {
        let is_wrong = |job: JobKey| {
            let row = self.state.jobs.get(job);
            row.is_some_and(|row| {
                let is_stale = self.gang(job).is_stale() && !self.has_succeeded(job);
                !row.maybe_stale
                    && !row.is_never_stale()
                    && (is_stale || row.stale_since.get().is_some())
            })
        };
        if self.state.jobs.keys().any(is_wrong) {
            self.state
                .contradicts("a group below its minimum is not looked at");
        }
    }

    /// Groups that may be below their minimum, in order of name.
    fn maybe_stale(&mut self) -> Vec<JobKey> {
        let mut jobs = std::mem::take(&mut self.state.changes.maybe_stale);
        jobs.retain(|job| {
            let row = self.state.jobs.get_mut(*job);
            row.is_some_and(|row| std::mem::take(&mut row.maybe_stale))
        });
        jobs.sort_by(|one, other| {
            let name = |job: &JobKey| self.state.jobs.get(*job).map(|row| &row.name);
            name(one).cmp(&name(other))
        });
        jobs
    }

    /// Returns whether a member of the job has succeeded, whether or not its pod still exists.
    fn has_succeeded(&self, job: JobKey) -> bool {
        self.state.jobs.get(job).is_some_and(|row| {
            !row.succeeded().is_empty()
                || row.tasks.iter().any(|task| {
                    self.state
                        .tasks
                        .get(*task)
                        .is_some_and(|task| task.seen == Seen::Succeeded)
                })
        })
    }
}
