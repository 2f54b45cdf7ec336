//! What the current decision has decided so far, and may still change before it ends.
//!
//! Where a pod is placed is in its cell. A [`Plan`] adds what cells do not hold: the order in which
//! pods were decided, why a pod has to leave, and when a job had started before. A later search may
//! take what an earlier action has placed, and may move back what another search has moved. It only
//! changes cells and the plan; no action has to be withdrawn, because [`super::commit`] derives the
//! actions from the final state.

use super::Cycle;
use crate::action::EvictCause;
use crate::fit::choose_whole;
use crate::ids::GroupName;
use crate::model::Front;
use crate::state::cell::{Status, TaskCell};
use crate::state::keys::{JobKey, TaskKey};
use crate::units::Time;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Why a pod has to leave.
#[derive(Clone, Debug)]
pub(super) struct Eviction {
    pub cause: EvictCause,
    pub message: Arc<str>,
    /// The workload that it makes room for.
    pub in_favour_of: Option<GroupName>,
}

/// The decision about a pod.
#[derive(Clone, Debug)]
pub(super) enum Planned {
    /// It has a place, as its cell says.
    Bind,
    Evict(Eviction),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// How often something was noted.
    turns: u64,
    /// The last decision about each pod, and its order.
    words: FxHashMap<TaskKey, (u64, Planned)>,
    /// Pods that this decision had placed, and whose places a later search has taken: they wait
    /// for the next decision, as a pod does that was evicted.
    displaced: BTreeSet<TaskKey>,
    /// Pods that have a place once others have left, and when each was given it.
    promised: FxHashMap<TaskKey, u64>,
    /// Jobs that this decision has started, when it did, and when they had started before.
    starts: FxHashMap<JobKey, (u64, Option<Time>)>,
}

impl Plan {
    fn turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    fn note(&mut self, task: TaskKey, word: Planned) {
        let turn = self.turn();
        self.words.insert(task, (turn, word));
    }

    /// Current number of pods to be bound or evicted.
    pub(super) fn words(&self) -> usize {
        self.words.len()
    }

    /// Some pod has to leave.
    pub(super) fn evicts(&self) -> bool {
        let mut words = self.words.values();
        words.any(|(_, word)| matches!(word, Planned::Evict(_)))
    }

    pub(super) fn has_displaced(&self, task: TaskKey) -> bool {
        self.displaced.contains(&task)
    }

    /// How many pods have lost the place that this decision had given them.
    pub(super) fn displaced(&self) -> usize {
        self.displaced.len()
    }

    /// The pod is promised no place any more.
    pub(super) fn breaks_promise(&mut self, task: TaskKey) {
        self.promised.remove(&task);
    }

    /// Pods that are promised a place, in the order in which they were.
    pub(super) fn promised(&self) -> Vec<TaskKey> {
        let promised = self.promised.iter();
        in_turn(promised.map(|(task, turn)| (*turn, *task)))
    }

    /// Pods with a place of this decision, and victims that are promised another.
    pub(super) fn places(&self) -> impl Iterator<Item = TaskKey> {
        let bound = self
            .words
            .iter()
            .filter_map(|(task, (_, word))| match word {
                Planned::Bind => Some(*task),
                Planned::Evict(_) => None,
            });
        bound.chain(self.promised.keys().copied())
    }

    /// The decisions, in order. This empties the plan.
    pub(super) fn take_planned(&mut self) -> Vec<(TaskKey, Planned)> {
        let words = std::mem::take(&mut self.words).into_iter();
        in_turn(words.map(|(task, (turn, word))| (turn, (task, word))))
    }

    /// Jobs that were started, in that order, and when they had started before.
    pub(super) fn take_starts(&mut self) -> Vec<(JobKey, Option<Time>)> {
        let starts = std::mem::take(&mut self.starts).into_iter();
        in_turn(starts.map(|(job, (turn, before))| (turn, (job, before))))
    }
}

/// Sorted by turn, of which there are no two alike.
fn in_turn<T>(all: impl Iterator<Item = (u64, T)>) -> Vec<T> {
    let mut all: Vec<(u64, T)> = all.collect();
    all.sort_unstable_by_key(|(turn, _)| *turn);
    all.into_iter().map(|(_, one)| one).collect()
}

/// It has, or is leaving, a place that this decision has given it: no one has acted on it yet.
/// A place of an earlier decision has an id.
pub(super) fn is_new(cell: &TaskCell) -> bool {
    let (status, decision) = match &cell.leaving {
        Some(leaving) => (leaving.was, leaving.decision),
        None => (cell.status, cell.decision.as_deref().copied()),
    };
    status == Status::Assumed && decision.is_none()
}

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
        self.state.capacity_version += 1;
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
        self.state.capacity_version += 1;
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
