//! What the current decision has decided so far, and may still change before it ends.
//!
//! Where a pod is placed is in its cell. A [`Plan`] adds what cells do not hold: the order in which
//! pods were decided, why a pod has to leave, and when a job had started before. A later search may
//! take what an earlier action has placed, and may move back what another search has moved. It only
//! changes cells and the plan; no action has to be withdrawn, because [`super::commit`] derives the
//! actions from the final state.

use crate::action::EvictCause;
use crate::ids::GroupName;
use crate::state::keys::{JobKey, TaskKey};
use crate::state::task_cell::{Status, TaskCell};
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
    pub(super) words: FxHashMap<TaskKey, (u64, Planned)>,
    /// Pods that this decision had placed, and whose places a later search has taken: they wait
    /// for the next decision, as a pod does that was evicted.
    pub(super) displaced: BTreeSet<TaskKey>,
    /// Pods that have a place once others have left, and when each was given it.
    pub(super) promised: FxHashMap<TaskKey, u64>,
    /// Jobs that this decision has started, when it did, and when they had started before.
    pub(super) starts: FxHashMap<JobKey, (u64, Option<Time>)>,
}

impl Plan {
    pub(super) fn turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    pub(super) fn note(&mut self, task: TaskKey, word: Planned) {
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

/// Whether pods may be bound now, or are only promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Real,
    Promise,
}
