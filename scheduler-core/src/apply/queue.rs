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
    let of = |queue: Option<&Queue>| queue.map_or_else(Vec::new, |queue| queue.products.clone());
    let products = of(row.queue.as_ref()) != queue.products;
    row.queue = Some(queue);
    if products {
        state.products_changed();
    }
    match chain(state, &name) {
        Chain::Ends => {}
        Chain::Breaks if parent.is_some_and(|parent| !is_there(state, &parent)) => {
            problems.push(Problem::QueueOrphan(name));
        }
        // A queue further up names a parent that does not exist: reported with that queue.
        Chain::Breaks => {}
        Chain::GoesRound => problems.push(Problem::QueueCycle(name)),
        Chain::IsTooLong => problems.push(Problem::QueueDepth(name)),
    }
    if moved {
        state.queues_changed();
    }
    state.pauses.end_evictions(state.now);
    state.changes.capacity_grew();
}

pub(super) fn gone(state: &mut State, name: &QueueName, problems: &mut Vec<Problem>) {
    let key = state.names.queues.get(name).copied();
    let Some(row) = key.and_then(|key| state.queues.get_mut(key)) else {
        problems.push(Problem::Unknown {
            what: "queue",
            name: name.shared(),
        });
        return;
    };
    let known = row.queue.take();
    if known.is_some_and(|queue| !queue.products.is_empty()) {
        state.products_changed();
    }
    state.queues_changed();
    state.pauses.end_evictions(state.now);
    if let Some(key) = key {
        state.release_queue(key);
    }
    state.changes.capacity_grew();
}

fn is_there(state: &State, name: &QueueName) -> bool {
    let key = state.names.queues.get(name);
    key.and_then(|key| state.queues.get(*key))
        .is_some_and(|row| row.queue.is_some())
}

/// How the queues above one end.
enum Chain {
    Ends,
    /// One is missing.
    Breaks,
    GoesRound,
    IsTooLong,
}

fn chain(state: &State, name: &QueueName) -> Chain {
    let mut seen = BTreeSet::new();
    let mut at = Some(name);
    while let Some(name) = at {
        if !seen.insert(name) {
            return Chain::GoesRound;
        }
        if seen.len() > Queue::MAX_DEPTH {
            return Chain::IsTooLong;
        }
        let key = state.names.queues.get(name);
        let Some(queue) = key.and_then(|key| state.queues.get(*key)?.queue.as_ref()) else {
            return Chain::Breaks;
        };
        at = queue.parent.as_ref();
    }
    Chain::Ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::core::Core;
    use crate::event::Event;
    use crate::model::Pod;
    use crate::units::{Bytes, CpuMilli, Time};

    /// Queues below each other, created from the top, with a pod in each of `pods`.
    fn play(depth: usize, pods: &[usize]) -> (Vec<Problem>, Vec<String>) {
        let mut core = Core::new(Config::default());
        let mut problems = Vec::new();
        let mut node = crate::model::Node::named("n");
        (node.cpu, node.memory, node.pods) = (CpuMilli(100_000), Bytes(1 << 40), 100);
        problems.extend(core.apply(Event::Node(node)));
        for level in 1..=depth {
            let mut queue = Queue::unlimited(&format!("q{level}"));
            queue.parent = (level > 1).then(|| QueueName::new(format!("q{}", level - 1)));
            problems.extend(core.apply(Event::Queue(queue)));
        }
        for level in pods {
            let mut leaf = Queue::unlimited(&format!("leaf{level}"));
            leaf.parent = Some(QueueName::new(format!("q{}", level - 1)));
            problems.extend(core.apply(Event::Queue(leaf)));
            let mut pod = Pod::named(&format!("p{level}"));
            pod.queue = QueueName::new(format!("leaf{level}"));
            pod.cpu = CpuMilli(1);
            problems.extend(core.apply(Event::Pod(Box::new(pod))));
        }
        let decision = core.decide(Time(1));
        let bound = decision.actions.iter().filter_map(|action| match action {
            crate::Action::Bind(bind) => Some(bind.pod.to_string()),
            crate::Action::Evict(_) => None,
        });
        (problems, bound.collect())
    }

    #[test]
    fn below_the_last_level_nobody_is_placed_and_the_others_are() {
        let most = Queue::MAX_DEPTH;
        let (problems, bound) = play(most, &[2, most, most + 1]);
        let deep = QueueName::new(format!("leaf{}", most + 1));
        assert_eq!(problems, [Problem::QueueDepth(deep)]);
        assert_eq!(bound, ["p2".to_owned(), format!("p{most}")]);
    }

    #[test]
    fn a_chain_of_any_length_is_read_in_linear_time() {
        // Without a limit this takes 25,000,000 steps, and half as many queue keys of memory.
        let (problems, bound) = play(5_000, &[2]);
        assert_eq!(problems.len(), 5_000 - Queue::MAX_DEPTH);
        assert_eq!(bound, ["p2"]);
    }
}
