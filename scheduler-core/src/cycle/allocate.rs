//! Allocate: jobs in order, each as far as it fits now, or is promised what is leaving
//! (KAI, `actions/allocate/allocate.go`).

use super::Cycle;
use super::place::Way;
use super::reason::no_fit_line;
use crate::action::ReasonKind;
use crate::capacity::{self, Check};
use crate::fit;
use crate::gang::Pick;
use crate::job_queue::JobQueue;
use crate::model::Ask;
use crate::state::cell::{Status, TaskCell};
use crate::state::rows::{JobKey, JobRow, NoFit, SpecKey, TaskKey};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Most nodes that are looked at to see quickly that a request fits nowhere.
const LOOK: usize = 64;

/// Who may still be placed.
#[derive(Default)]
struct Hopes {
    /// [`crate::state::State::loosened`] at first.
    loosened: u64,
    /// What pods of their own ask for, where it may fit, and how many of them are left.
    of_pods: FxHashMap<SpecKey, u32>,
    /// Other jobs.
    of_groups: FxHashSet<JobKey>,
    /// Failures since the last look, and how many there are to be.
    failed: u32,
    patience: u32,
}

/// A pod of its own.
fn is_alone(row: &JobRow) -> bool {
    row.single && row.group.is_none()
}

impl Cycle<'_> {
    pub(super) fn allocate(&mut self) {
        let ready = self.ready_jobs();
        let mut hopes = self.hopes(&ready);
        let mut ended = self.ends(&mut hopes);
        if ended {
            self.fail_all(&ready);
            if !cfg!(debug_assertions) {
                return;
            }
        }
        let entries = ready.iter().map(|job| self.entry(*job)).collect();
        let mut queue = JobQueue::new(false);
        queue.fill(self.state, &self.shares, entries);
        while let Some(entry) = queue.pop(self.state, &self.shares) {
            if let Some(spec) = self.known(entry.job).first
                && let Some(left) = hopes.of_pods.get_mut(&spec)
                && self
                    .state
                    .jobs
                    .get(entry.job)
                    .is_some_and(|row| is_alone(row))
            {
                *left -= 1;
            }
            if self.cannot_sit(entry.job) {
                queue.nothing_moved();
                if !ended && self.ends(&mut hopes) {
                    ended = true;
                    self.fail_all(&ready);
                    if !cfg!(debug_assertions) {
                        return;
                    }
                }
                continue;
            }
            let rearranged = self.rearranged;
            if !self.allocate_job(entry.job) {
                hopes.of_groups.remove(&entry.job);
                queue.nothing_moved();
                continue;
            }
            debug_assert!(
                !ended,
                "a job was placed after it was known that none can be"
            );
            if self.rearranged != rearranged {
                queue.others_moved();
            }
            if self.next_of(entry.job).is_empty() {
                hopes.of_groups.remove(&entry.job);
            } else {
                let again = self.entry(entry.job);
                queue.push(self.state, &self.shares, again);
            }
        }
    }

    /// What may still come of those that wait.
    fn hopes(&mut self, ready: &[JobKey]) -> Hopes {
        let mut hopes = Hopes {
            loosened: self.state.loosened,
            ..Hopes::default()
        };
        for job in ready {
            let Some(spec) = self.known(*job).first else {
                continue;
            };
            let row = self.state.jobs.get(*job);
            if row.is_some_and(|row| is_alone(row)) {
                *hopes.of_pods.entry(spec).or_default() += 1;
            } else {
                hopes.of_groups.insert(*job);
            }
        }
        hopes
    }

    /// Nothing that is left can be placed: nobody but pods of their own is left, and none
    /// of their requests fits anywhere. Looked at after one failure, two more, four more.
    fn ends(&mut self, hopes: &mut Hopes) -> bool {
        // Something may fit that did not before.
        if hopes.loosened != self.state.loosened || !hopes.of_groups.is_empty() {
            return false;
        }
        hopes.failed += 1;
        if hopes.failed < hopes.patience {
            return false;
        }
        hopes.failed = 0;
        hopes
            .of_pods
            .retain(|spec, left| *left > 0 && !self.fits_nowhere(*spec));
        hopes.patience = (2 * hopes.patience).max(1);
        hopes.of_pods.is_empty()
    }

    /// It is known that the request fits nowhere now, or quick to see. False where it is not.
    fn fits_nowhere(&mut self, key: SpecKey) -> bool {
        self.state.refresh_rooms();
        let Some(spec) = self.state.specs.get(key) else {
            return false;
        };
        let at = self.state.loosened;
        if spec.no_fit.as_ref().is_some_and(|no_fit| no_fit.at == at) {
            return true;
        }
        let rooms = &self.state.rooms;
        let fits = |rank: u32| {
            rooms
                .node(rank)
                .is_some_and(|node| fit::node(self.state, spec, node, self.config, false).is_ok())
        };
        let somewhere = if spec.shares {
            let smallest = self.smallest();
            let sizes = spec.spec.gpus.iter().filter_map(|ask| match &ask.ask {
                Ask::Share(share) => Some(smallest.nominal(share.amount).0),
                Ask::Whole(_) => None,
            });
            let largest = sizes.max().unwrap_or(0);
            let mut nodes = rooms.by_most.range((largest, 0)..);
            nodes.by_ref().take(LOOK).any(|(_, rank)| fits(*rank)) || nodes.next().is_some()
        } else if spec.whole > 0 {
            let mut nodes = rooms.by_whole.range((i64::from(spec.whole), 0)..);
            nodes.by_ref().take(LOOK).any(|(_, rank)| fits(*rank)) || nodes.next().is_some()
        } else {
            return false;
        };
        debug_assert!(
            somewhere
                || !self
                    .nodes
                    .iter()
                    .any(|node| { fit::node(self.state, spec, *node, self.config, false).is_ok() }),
            "the index shows no node where there is one"
        );
        !somewhere
    }

    /// Says of a request that fits nowhere why.
    fn say_no_fit(&mut self, key: SpecKey) {
        let at = self.state.loosened;
        let Some(spec) = self.state.specs.get(key) else {
            return;
        };
        if spec.no_fit.as_ref().is_some_and(|no_fit| no_fit.at == at) {
            return;
        }
        let line = no_fit_line(self.state, self.config, spec, &self.nodes);
        if let Some(spec) = self.state.specs.get_mut(key) {
            spec.no_fit = Some(NoFit { at, line });
        }
    }

    /// Says to all that are left why they are not placed. That changes nothing, so their
    /// order makes no difference.
    fn fail_all(&mut self, ready: &[JobKey]) {
        for job in ready {
            if self.failures.contains_key(job) {
                continue;
            }
            if let Some(spec) = self.known(*job).first {
                self.say_no_fit(spec);
            }
            self.cannot_sit(*job);
        }
    }

    /// A pod of its own, of which it is known that it fits nowhere: says so. False where
    /// that is not known.
    fn cannot_sit(&mut self, job: JobKey) -> bool {
        if !self.state.jobs.get(job).is_some_and(|row| is_alone(row)) {
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
