//! How a decision changes the cells of pods together with its [`Plan`](super::plan::Plan).

use crate::action::EvictCause;
use crate::cycle::Cycle;
use crate::cycle::plan::{Eviction, Planned, is_new};
use crate::fit::choose_whole;
use crate::model::Front;
use crate::state::keys::{JobKey, TaskKey};
use crate::state::task_cell::{Status, TaskCell};
use std::sync::Arc;

impl Cycle<'_> {
    /// A placement that is kept: whole GPUs are chosen.
    pub(super) fn bind(&mut self, task: TaskKey) {
        let cell = self.state.cell(task);
        let row = self.state.tasks.get(task);
        let spec = row.and_then(|row| self.state.specs.get(row.spec));
        let Some((node, spec)) = cell.node.zip(spec) else {
            return;
        };
        let mut holds = match cell.front {
            Front::Plugin => choose_whole(self.state, spec, node, task),
            Front::Claim => Vec::new(),
        };
        if !holds.is_empty() {
            holds.extend(cell.holds().iter().cloned());
            let holds = Some(Arc::from(holds));
            self.state.transition(task, TaskCell { holds, ..cell });
        }
        self.plan.note(task, Planned::Bind);
    }

    /// A place that the pod will have, kept for the rest of this decision.
    pub(super) fn promise(&mut self, task: TaskKey) {
        let turn = self.plan.turn();
        self.plan.promised.entry(task).or_insert(turn);
    }

    /// A victim has to leave its node; if it has another place, it keeps that for the rest of this
    /// decision. False if it does not have to leave: this decision had placed it, or it only had a
    /// promise.
    pub(super) fn evict(
        &mut self,
        task: TaskKey,
        for_job: Option<JobKey>,
        cause: EvictCause,
        message: &str,
    ) -> bool {
        let cell = self.state.cell(task);
        if is_new(&cell) {
            let to = match cell.status {
                Status::Promised => TaskCell {
                    leaving: None,
                    ..cell
                },
                _ => TaskCell::of(Status::Pending),
            };
            self.displace(task, to);
            return false;
        }
        let to = match (cell.status, &cell.leaving) {
            (Status::Victim, Some(leaving)) => TaskCell {
                status: Status::Releasing,
                node: Some(leaving.node),
                front: leaving.front,
                holds: leaving.holds.clone(),
                decision: None,
                leaving: None,
            },
            (Status::Victim, None) => {
                // It was only promised a place: it waits on.
                self.state.transition(task, TaskCell::of(Status::Pending));
                return false;
            }
            (Status::Promised, Some(_)) => cell.clone(),
            (Status::Bound | Status::Running | Status::Assumed, _) => TaskCell {
                status: Status::Releasing,
                decision: None,
                ..cell.clone()
            },
            _ => return false,
        };
        self.state.transition(task, to);
        // What the victim leaves may be promised to another pod.
        self.state.changes.capacity += 1;
        let in_favour_of = for_job
            .and_then(|job| self.state.jobs.get(job))
            .map(|row| row.name.clone());
        let eviction = Eviction {
            cause,
            message: Arc::from(message),
            in_favour_of,
        };
        match self.plan.words.get_mut(&task) {
            Some((_, Planned::Evict(known))) => {
                // One that was to move for one job, and loses its new place to another, leaves
                // for that one, by its rule.
                if cell.status == Status::Victim {
                    *known = eviction;
                }
            }
            _ => self.plan.note(task, Planned::Evict(eviction)),
        }
        true
    }

    /// A pod whose binding was not refused, and which has to leave its node nevertheless.
    pub(super) fn evict_as_it_is(&mut self, task: TaskKey, cause: EvictCause, message: &str) {
        let eviction = Eviction {
            cause,
            message: Arc::from(message),
            in_favour_of: None,
        };
        self.plan.note(task, Planned::Evict(eviction));
    }

    /// A victim of an earlier search that stays where it is, after all. (KAI has deleted such a
    /// pod by then.)
    pub(super) fn stays(&mut self, task: TaskKey) {
        if let Some((_, Planned::Evict(_))) = self.plan.words.get(&task) {
            self.plan.words.remove(&task);
        }
    }

    /// Takes the place that this decision had given a pod. (KAI binds such a pod and deletes it
    /// at once.)
    pub(super) fn displace(&mut self, task: TaskKey, to: TaskCell) {
        self.state.transition(task, to);
        self.plan.words.remove(&task);
        self.plan.displaced.insert(task);
        self.state.changes.capacity += 1;
    }

    /// A job of which nothing stood has something now.
    pub(super) fn started(&mut self, job: JobKey) {
        let now = self.state.now;
        if let Some(row) = self.state.jobs.get_mut(job) {
            let before = std::mem::replace(&mut row.last_start, now.into()).get();
            let turn = self.plan.turn();
            let starts = &mut self.plan.starts;
            let before = starts.get(&job).map_or(before, |(_, before)| *before);
            starts.insert(job, (turn, before));
        }
    }
}
