//! No eviction twice for nothing.
//!
//! Pods are told to leave in favour of a job, and before it gets their place another search
//! may take it: then they may come back, and all of it begin anew, for ever, each step by
//! KAI's rules. So it is remembered who made whom leave, and with how many pods standing.
//! A job makes the same job leave again only with more pods standing than then, or after
//! something changed that was not decided here. A job has only so many pods: without such
//! a change evictions come to an end.

use super::Cycle;
use crate::action::Action;
use crate::ids::GroupName;
use crate::state::cell::Status;
use crate::state::rows::JobKey;

impl Cycle<'_> {
    /// The victim left for this job before, and it has not got further.
    pub(super) fn has_swapped(&self, job: JobKey, victim: JobKey) -> bool {
        if self.state.swaps.is_empty() {
            return false;
        }
        let (Some(by), Some(of)) = (self.state.jobs.get(job), self.state.jobs.get(victim)) else {
            return false;
        };
        self.state
            .swaps
            .get(&(by.name.clone(), of.name.clone()))
            .is_some_and(|standing| self.stood(job) <= *standing)
    }

    /// Somebody left for this job before.
    pub(super) fn has_swapped_any(&self, job: JobKey) -> bool {
        let Some(row) = self.state.jobs.get(job) else {
            return false;
        };
        let first = (row.name.clone(), GroupName::new(""));
        self.state
            .swaps
            .range(first..)
            .next()
            .is_some_and(|((by, _), _)| *by == row.name)
    }

    /// How many of its pods stood before this decision.
    fn stood(&self, job: JobKey) -> u32 {
        let tasks = self.state.jobs.get(job).map_or(&[][..], |row| &row.tasks);
        let stood = tasks.iter().filter(|task| {
            let cell = self.state.cell(**task);
            let (status, decision) = match &cell.leaving {
                Some(leaving) => (leaving.was, leaving.decision),
                None => (cell.status, cell.decision),
            };
            matches!(status, Status::Assumed | Status::Bound | Status::Running)
                && !self.is_ours(decision)
        });
        u32::try_from(stood.count()).unwrap_or(u32::MAX)
    }

    /// Remembers who has to leave for whom by this decision.
    pub(super) fn remember_swaps(&mut self) {
        let mut swaps = Vec::new();
        for action in &self.decision.actions {
            if let Action::Evict(evict) = action
                && let Some(by) = &evict.in_favour_of
                && let Some(job) = self.state.job_names.get(by)
                && let Some(of) = self
                    .state
                    .task_names
                    .get(&evict.pod)
                    .and_then(|task| self.state.jobs.get(self.state.tasks.get(*task)?.job?))
            {
                swaps.push(((by.clone(), of.name.clone()), self.stood(*job)));
            }
        }
        for (pair, standing) in swaps {
            let known = self.state.swaps.entry(pair).or_default();
            *known = standing.max(*known);
        }
    }
}
