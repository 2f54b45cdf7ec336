//! Which jobs an action may take victims from: what its search and every relaxation ask.

use crate::shares::QueueAmounts;
use crate::state::State;
use crate::state::keys::{QueueKey, TaskKey};
use std::sync::Arc;

/// The rule of one action for one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) enum VictimFilter {
    /// Consolidation: up to so many jobs as may be moved, all of which must have a place again.
    Movable,
    /// Reclaim: jobs of the queues that may lose something to a job of this queue that wants so
    /// much in all.
    LosersTo(QueueKey, QueueAmounts),
    /// Preempt: jobs of the queue below that priority.
    Below(QueueKey, i32),
}

/// Who may go by a filter, taken too wide: all jobs, however many may be moved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum PermittedVictims {
    All,
    Of(Arc<[QueueKey]>),
    Below(QueueKey, i32),
}

impl PermittedVictims {
    pub(super) fn is_empty(&self, state: &State) -> bool {
        match self {
            Self::All => state.index.placed_at.keys().next().is_none(),
            Self::Of(queues) => queues.is_empty(),
            Self::Below(queue, priority) => {
                let placed = state.index.standing.get(queue);
                let lowest = placed.and_then(|placed| placed.first_key_value());
                lowest.is_none_or(|(lowest, _)| lowest >= priority)
                    && state.idle_jobs().next().is_none()
            }
        }
    }

    pub(super) fn has(&self, state: &State, task: TaskKey) -> bool {
        let Some((key, job)) = state
            .tasks
            .get(task)
            .and_then(|row| Some((row.job?, state.jobs.get(row.job?)?)))
        else {
            return false;
        };
        // What pods without their group are follows from where the others of them are.
        if job.group.is_none() && !job.single {
            return true;
        }
        if state.gives_way(key) {
            return match self {
                Self::All => state.index.placed_at.contains_key(key),
                Self::Of(queues) => job.queue.is_some_and(|queue| queues.contains(&queue)),
                Self::Below(queue, _) => job.queue == Some(*queue),
            };
        }
        let Some(placed) = state.index.placed_at.get(key) else {
            return false;
        };
        match self {
            Self::All => true,
            Self::Of(queues) => queues.contains(&placed.queue),
            Self::Below(queue, priority) => placed.queue == *queue && placed.priority < *priority,
        }
    }
}
