//! Decisions without an outcome: by their id, and by the pod that they are about.

use super::keys::TaskKey;
use crate::action::EvictCause;
use crate::ids::{DecisionId, GroupName};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// A decision whose outcome is still open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenDecision {
    pub task: TaskKey,
    /// An eviction, not a binding.
    pub evicts: Option<EvictCause>,
    /// The workload that an eviction makes room for.
    pub in_favour_of: Option<GroupName>,
    /// Of a binding. An eviction is closed by its answer alone.
    pub progress: Progress,
}

/// What is known of a binding that is open. It is closed when both facts are in: its
/// answer, and the pod bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It was handed on.
    Sent,
    /// The API server took it. What it takes stays taken until the pod is seen.
    Answered,
    /// The pod was seen bound, or on its way out; the answer has not come.
    Seen,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Open {
    by_id: BTreeMap<DecisionId, OpenDecision>,
    /// Few pods have one: a map beside all pods would have room for each.
    of_task: FxHashMap<TaskKey, Vec<DecisionId>>,
    /// The last sequence number given.
    pub sequence: u64,
}

impl Open {
    pub(crate) fn get(&self, id: &DecisionId) -> Option<&OpenDecision> {
        self.by_id.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: &DecisionId) -> Option<&mut OpenDecision> {
        self.by_id.get_mut(id)
    }

    pub(crate) fn insert(&mut self, id: DecisionId, open: OpenDecision) {
        let task = open.task;
        if let Some(known) = self.by_id.insert(id, open) {
            self.forget_one(known.task, &id);
        }
        if let Some(ids) = self.of_task.get_mut(&task) {
            ids.push(id);
        } else {
            self.of_task.insert(task, vec![id]);
        }
    }

    pub(crate) fn remove(&mut self, id: &DecisionId) {
        if let Some(open) = self.by_id.remove(id) {
            self.forget_one(open.task, id);
        }
    }

    fn forget_one(&mut self, task: TaskKey, id: &DecisionId) {
        if let Some(ids) = self.of_task.get_mut(&task) {
            ids.retain(|other| other != id);
            if ids.is_empty() {
                self.of_task.remove(&task);
            }
        }
    }

    /// The pod's binding that is still open.
    pub(crate) fn binding_of(&self, task: TaskKey) -> Option<DecisionId> {
        let ids = self.of_task.get(&task)?;
        let is_binding = |id: &&DecisionId| {
            self.by_id
                .get(*id)
                .is_some_and(|open| open.evicts.is_none())
        };
        ids.iter().find(is_binding).copied()
    }

    /// The pod is gone, and what was decided about it with it.
    pub(crate) fn forget(&mut self, task: TaskKey) {
        for id in self.of_task.remove(&task).unwrap_or_default() {
            self.by_id.remove(&id);
        }
    }

    /// The API server has shown where the pod is.
    pub(crate) fn bindings_seen(&mut self, task: TaskKey) {
        let Some(id) = self.binding_of(task) else {
            return;
        };
        match self.by_id.get_mut(&id) {
            Some(open) if open.progress != Progress::Answered => open.progress = Progress::Seen,
            _ => self.remove(&id),
        }
    }

    /// How many are open.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }
}
