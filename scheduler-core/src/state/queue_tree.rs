//! The tree of queues as it follows from what was announced, and the sums over it.

use super::State;
use super::cell::{Cell, QueueUse, Status, TaskCell};
use super::rows::{QueueKey, TaskKey};
use std::collections::BTreeSet;

impl State {
    /// A queue came, went or moved: chains and sums are rebuilt before they are next
    /// needed, once for any number of changes.
    pub(crate) fn queues_changed(&mut self) {
        self.queues_dirty = true;
        self.hindered += 1;
        self.loosen();
    }

    /// Rebuilds chains and sums if a queue came, went or moved.
    pub(crate) fn refresh_queues(&mut self) {
        if !self.queues_dirty {
            return;
        }
        let tasks: Vec<(TaskKey, TaskCell)> = self
            .task_cells
            .iter()
            .map(|(key, cell)| (key, cell.clone()))
            .collect();
        for (key, _) in &tasks {
            self.transition(*key, TaskCell::of(Status::Detached));
        }
        let names: Vec<QueueKey> = self.queue_names.values().copied().collect();
        for key in &names {
            let chain = self.chain(*key);
            if let Some(row) = self.queues.get_mut(*key) {
                row.chain = chain;
                row.children.clear();
            }
            self.set(Cell::Queue(*key, QueueUse::default()));
        }
        self.top_queues.clear();
        for key in names {
            match self.queues.get(key).map(|row| row.chain.clone()).as_deref() {
                Some([_, parent, ..]) => {
                    if let Some(row) = self.queues.get_mut(*parent) {
                        row.children.push(key);
                    }
                }
                Some([_]) => self.top_queues.push(key),
                _ => {}
            }
        }
        for (key, cell) in tasks {
            self.transition(key, cell);
        }
        self.queues_dirty = false;
    }

    /// Itself and its ancestors; empty where one is missing or they go round.
    fn chain(&self, key: QueueKey) -> Vec<QueueKey> {
        let mut chain = Vec::new();
        let mut seen = BTreeSet::new();
        let mut at = Some(key);
        while let Some(key) = at {
            let Some(queue) = self.queues.get(key).and_then(|row| row.queue.as_ref()) else {
                return Vec::new();
            };
            if !seen.insert(key) {
                return Vec::new();
            }
            chain.push(key);
            at = match &queue.parent {
                None => None,
                Some(parent) => match self.queue_names.get(parent) {
                    Some(parent) => Some(*parent),
                    None => return Vec::new(),
                },
            };
        }
        chain
    }
}
