//! Allocate: jobs in order, each as far as it fits now, or is promised what is leaving
//! (KAI, `actions/allocate/allocate.go`).

use super::Cycle;
use super::place::Way;
use crate::action::ReasonKind;
use crate::capacity::{self, Check};
use crate::gang::Pick;
use crate::job_queue::JobQueue;
use crate::state::cell::{Status, TaskCell};
use crate::state::rows::{JobKey, TaskKey};
use std::sync::Arc;

impl Cycle<'_> {
    pub(super) fn allocate(&mut self) {
        let ready = self.ready_jobs();
        let entries = ready.iter().map(|job| self.entry(*job)).collect();
        let mut queue = JobQueue::new(false);
        queue.fill(self.state, &self.shares, entries);
        while let Some(entry) = queue.pop(self.state, &self.shares) {
            if self.cannot_sit(entry.job) {
                queue.nothing_moved();
                continue;
            }
            let rearranged = self.rearranged;
            if !self.allocate_job(entry.job) {
                queue.nothing_moved();
                continue;
            }
            if self.rearranged != rearranged {
                queue.others_moved();
            }
            if !self.next_of(entry.job).is_empty() {
                let again = self.entry(entry.job);
                queue.push(self.state, &self.shares, again);
            }
        }
    }

    /// A pod of its own, of which it is known that it fits nowhere: says so. False where
    /// that is not known.
    fn cannot_sit(&mut self, job: JobKey) -> bool {
        if !self
            .state
            .jobs
            .get(job)
            .is_some_and(|row| row.single && row.group.is_none())
        {
            return false;
        }
        let tasks = self.next_tasks(job);
        let [task] = tasks.as_ref() else {
            return false;
        };
        let Some(line) = self
            .state
            .tasks
            .get(*task)
            .and_then(|row| self.state.specs.get(row.spec)?.no_fit.as_ref())
            .filter(|no_fit| no_fit.at == self.state.loosened)
            .map(|no_fit| Arc::clone(&no_fit.line))
        else {
            return false;
        };
        let wanted = self
            .shares
            .wanted(self.state, &tasks, self.shares.largest_card);
        let said = match capacity::over(self.state, &self.shares, job, wanted, Check::All) {
            Some((kind, line)) => (kind, Arc::from(line)),
            None => (ReasonKind::Unschedulable, line),
        };
        self.failures.insert(job, said);
        true
    }

    fn next_of(&self, job: JobKey) -> Vec<TaskKey> {
        self.gang(job).next(Pick::Waiting, &|task| self.may(task))
    }

    /// True when something of the job was placed or promised.
    fn allocate_job(&mut self, job: JobKey) -> bool {
        let gang = self.gang(job);
        let tasks = gang.next(Pick::Waiting, &|task| self.may(task));
        if tasks.is_empty() {
            return false;
        }
        let started = gang
            .tasks()
            .any(|(_, status)| status.is_allocated() && status != Status::Promised);
        let nodes = Arc::clone(&self.nodes);
        let mut mark = self.state.mark();
        let mut placed = self.place_job(job, &gang, &tasks, &nodes, Way::Real);
        if placed.is_ok()
            && let Some(keep) = self.opens_kept(&tasks)
        {
            // Elsewhere, then elsewhere by moving others, then there after all.
            self.state.rollback(mark);
            mark = self.state.mark();
            placed = self.place_job(job, &gang, &tasks, &keep.others, Way::Real);
            if placed.is_err() {
                self.state.rollback(mark);
                if self.may_move_others(job) && self.consolidate_for(job, keep.nodes) {
                    return true;
                }
                mark = self.state.mark();
                placed = self.place_job(job, &gang, &tasks, &nodes, Way::Real);
            }
        }
        if let Err(failure) = placed {
            self.state.rollback(mark);
            self.failures.insert(job, (failure.kind, failure.line));
            return false;
        }
        self.state.keep(mark);
        let whole_waits = self.gang(job).must_wait_whole();
        for task in tasks {
            let cell = self.state.cell(task);
            if whole_waits && cell.status == Status::Assumed {
                self.state.transition(
                    task,
                    TaskCell {
                        status: Status::Promised,
                        ..cell
                    },
                );
            }
            if self.state.cell(task).status == Status::Promised {
                self.promise(task);
            } else {
                self.bind(task);
            }
        }
        if !started && !whole_waits {
            self.started(job);
        }
        true
    }

    pub(super) fn started(&mut self, job: JobKey) {
        let now = self.state.now;
        if let Some(row) = self.state.jobs.get_mut(job) {
            self.starts.push((job, row.last_start));
            row.last_start = Some(now);
            if row.group.is_some() {
                self.decision.started.push(row.name.clone());
            }
        }
    }
}
