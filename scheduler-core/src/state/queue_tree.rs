//! The tree of queues, derived from the announced queues, and the sums over it.

use crate::model::Queue;
use crate::state::State;
use crate::state::keys::{QueueKey, TaskKey};
use crate::state::rows::QueueRow;
use crate::state::task_cell::{Status, TaskCell};
use std::collections::BTreeMap;

impl State {
    /// A queue came, went or moved: chains and sums are rebuilt before they are next
    /// needed, once for any number of changes.
    pub(crate) fn queues_changed(&mut self) {
        self.changes.queues = true;
        self.changes.capacity_grew();
    }

    /// Rebuilds the chains if a queue came, went or moved, and moves the sums of the pods in
    /// queues whose chain is another now.
    pub(crate) fn refresh_queues(&mut self) {
        if self.changes.queues {
            self.rebuild_queues();
        }
        self.refresh_products();
    }

    fn rebuild_queues(&mut self) {
        let names: Vec<QueueKey> = self.names.queues.values().copied().collect();
        let mut chains: BTreeMap<QueueKey, Vec<QueueKey>> = BTreeMap::new();
        for key in &names {
            let chain = self.chain(*key);
            if self.queues.get(*key).is_some_and(|row| row.chain != chain) {
                chains.insert(*key, chain);
            }
        }
        let moves = |key: &QueueKey| {
            chains.contains_key(key) && self.queues.get(*key).is_some_and(|row| row.users > 0)
        };
        let mut cells: Vec<(TaskKey, TaskCell)> = Vec::new();
        if names.iter().any(moves) {
            for row in self.jobs.values() {
                if row.queue.as_ref().is_some_and(moves) {
                    let tasks = row.tasks.iter();
                    cells.extend(
                        tasks.filter_map(|key| Some((*key, self.cells.tasks.get(*key)?.clone()))),
                    );
                }
            }
        }
        for (key, _) in &cells {
            self.transition(*key, TaskCell::of(Status::Detached));
        }
        // Whether pods in it may be placed at all.
        let takes_pods = |row: &QueueRow| !row.chain.is_empty() && row.children.is_empty();
        let is_used = |row: &&QueueRow| row.users > 0;
        let used = self.queues.values().filter(is_used);
        let took: Vec<bool> = used.map(takes_pods).collect();
        for row in self.queues.values_mut() {
            row.children.clear();
        }
        for (key, chain) in chains {
            if let Some(row) = self.queues.get_mut(key) {
                row.chain = chain;
            }
        }
        self.index.top_queues.clear();
        for (place, key) in names.into_iter().enumerate() {
            if let Some(row) = self.queues.get_mut(key) {
                row.place = place;
            }
            match self.queues.get(key).map(|row| row.chain.as_slice()) {
                Some([_, parent, ..]) => {
                    let parent = *parent;
                    if let Some(row) = self.queues.get_mut(parent) {
                        row.children.push(key);
                    }
                }
                Some([_]) => self.index.top_queues.push(key),
                _ => {}
            }
        }
        for (key, cell) in cells {
            self.transition(key, cell);
        }
        let used = self.queues.values().filter(is_used);
        if !used.map(takes_pods).eq(took) {
            self.changes.hindered += 1;
        }
        self.changes.queues = false;
    }

    /// Itself and its ancestors; empty where one is missing, they go round or are too many.
    fn chain(&self, key: QueueKey) -> Vec<QueueKey> {
        let mut chain = Vec::new();
        let mut at = Some(key);
        while let Some(key) = at {
            let Some((row, queue)) = self
                .queues
                .get(key)
                .and_then(|row| Some((row, row.queue.as_ref()?)))
            else {
                return Vec::new();
            };
            if chain.contains(&key) || chain.len() == Queue::MAX_DEPTH {
                return Vec::new();
            }
            chain.push(key);
            at = match &queue.parent {
                None => None,
                Some(parent) => {
                    // As a rule the parent that it had.
                    let is_it = |known: &QueueKey| {
                        let row = self.queues.get(*known);
                        row.is_some_and(|row| row.name == *parent)
                    };
                    let known = row.chain.get(1).copied().filter(is_it);
                    let parent = known.or_else(|| self.names.queues.get(parent).copied());
                    if parent.is_none() {
                        return Vec::new();
                    }
                    parent
                }
            };
        }
        chain
    }
}
