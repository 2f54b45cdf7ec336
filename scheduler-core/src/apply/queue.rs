//! Queues come, change and go.

use crate::ids::QueueName;
use crate::model::Queue;
use crate::problem::Problem;
use crate::state::State;
use std::collections::BTreeSet;

pub(super) fn upsert(state: &mut State, queue: Queue, problems: &mut Vec<Problem>) {
    let key = state.queue(&queue.name.clone());
    let Some(row) = state.queues.get_mut(key) else {
        return;
    };
    if row.queue.as_ref() == Some(&queue) {
        return;
    }
    let name = queue.name.clone();
    let parent = queue.parent.clone();
    let moved = row
        .queue
        .as_ref()
        .is_none_or(|known| known.parent != queue.parent);
    row.queue = Some(queue);
    if in_cycle(state, &name) {
        problems.push(Problem::QueueCycle(name));
    } else if parent.is_some_and(|parent| {
        state
            .queue_names
            .get(&parent)
            .and_then(|key| state.queues.get(*key))
            .is_none_or(|row| row.queue.is_none())
    }) {
        problems.push(Problem::QueueOrphan(name));
    }
    if moved {
        state.queues_changed();
    }
    state.loosen();
}

pub(super) fn gone(state: &mut State, name: &QueueName, problems: &mut Vec<Problem>) {
    let key = state.queue_names.get(name).copied();
    let Some(row) = key.and_then(|key| state.queues.get_mut(key)) else {
        problems.push(Problem::Unknown {
            what: "queue",
            name: name.shared(),
        });
        return;
    };
    row.queue = None;
    state.queues_changed();
    if let Some(key) = key {
        state.release_queue(key);
    }
    state.loosen();
}

fn in_cycle(state: &State, name: &QueueName) -> bool {
    let mut seen = BTreeSet::new();
    let mut at = Some(name.clone());
    while let Some(name) = at {
        if !seen.insert(name.clone()) {
            return true;
        }
        at = state
            .queue_names
            .get(&name)
            .and_then(|key| state.queues.get(*key)?.queue.as_ref()?.parent.clone());
    }
    false
}
