//! Keeps a job from being evicted for the same beneficiary again and again.
//!
//! Pods are evicted so that another job, the beneficiary, can start. A third job may take the freed
//! room first. By KAI's rules alone, the victims could then come back and be evicted again, without
//! end. So the state records each eviction: its beneficiary, how many active pods the beneficiary
//! had then, and how many the victim was left with. The job is evicted for the same beneficiary
//! again only if the beneficiary has more active pods than it had, or the victim no more than it
//! was left with. A job has a limited number of pods, so these evictions end unless something
//! outside the scheduler changes.

use super::Cycle;
use crate::action::Action;
use crate::ids::GroupName;
use crate::state::cell::Status;
use crate::state::rows::{Evicted, JobKey};

impl Cycle<'_> {
    /// The victim was evicted for this job before, has more pods again, and the job has no
    /// more than then.
    pub(super) fn was_evicted_for_nothing(&self, job: JobKey, victim: JobKey) -> bool {
        if self.state.evicted.is_empty() {
            return false;
        }
        let (Some(by), Some(of)) = (self.state.jobs.get(job), self.state.jobs.get(victim)) else {
            return false;
        };
        self.state
            .evicted
            .get(&(by.group_name(), of.group_name()))
            .is_some_and(|before| {
                self.active(job) <= before.active && self.active(victim) > before.left
            })
    }

    /// A job was evicted for this one before.
    pub(super) fn has_evicted(&self, job: JobKey) -> bool {
        let Some(row) = self.state.jobs.get(job) else {
            return false;
        };
        let name = row.group_name();
        let first = (name.clone(), GroupName::new(""));
        self.state
            .evicted
            .range(first..)
            .next()
            .is_some_and(|((by, _), _)| *by == name)
    }

    /// How many of its pods have a place, those of this decision included.
    fn active(&self, job: JobKey) -> u32 {
        let tasks = self.state.jobs.get(job).map_or(&[][..], |row| &row.tasks);
        let active = tasks.iter().filter(|task| {
            let status = self.state.cell(**task).status;
            matches!(status, Status::Assumed | Status::Bound | Status::Running)
        });
        u32::try_from(active.count()).unwrap_or(u32::MAX)
    }

    /// Records which job is evicted for which by this decision.
    pub(super) fn remember_evictions(&mut self) {
        let mut evicted = Vec::new();
        for action in &self.decision.actions {
            if let Action::Evict(evict) = action
                && let Some(by) = &evict.in_favour_of
                && let Some(job) = self.state.job_of(by)
                && let Some(task) = self.state.task_of(&evict.pod)
                && let Some(victim) = self.state.tasks.get(task).and_then(|row| row.job)
                && let Some(of) = self.state.jobs.get(victim)
            {
                let now = Evicted {
                    active: self.active(job),
                    left: self.active(victim),
                };
                evicted.push(((by.clone(), of.group_name()), now));
            }
        }
        for (pair, now) in evicted {
            let known = self.state.evicted.entry(pair).or_insert(now);
            known.active = known.active.max(now.active);
            known.left = known.left.min(now.left);
        }
    }
}
