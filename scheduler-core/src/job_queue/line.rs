//! Jobs as they stand in line: what orders them in their queue, and all that wait, sorted.

use crate::gang::Growth;
use crate::shares::Three;
use crate::state::State;
use crate::state::rows::{JobKey, QueueKey, SpecKey, TaskKey};
use crate::units::Time;
use rustc_hash::FxHashMap;
use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

/// Order of jobs in one queue: smaller goes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct JobRank {
    pub priority: Reverse<i32>,
    pub growth: Growth,
    pub created: Time,
    pub uid: Arc<str>,
}

/// A job in the queue, whole or with some of its pods only.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub job: JobKey,
    pub rank: JobRank,
    /// What it wants next; nothing for a victim.
    pub wanted: Three,
    /// What it holds, where it is a victim.
    pub held: Three,
    /// The pods it stands for; `None`: all.
    pub part: Option<Arc<[TaskKey]>>,
    /// It may be served; else it only stands in line.
    pub ready: bool,
    /// It is one pod of its own that waits and may be placed.
    pub alone: Option<Alone>,
}

/// What a pod of its own has alike with others, beside its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alone {
    pub spec: SpecKey,
    pub priority: i32,
    pub preemptible: bool,
}

/// Waiting jobs by queue in order of the queues' names, the best last: sorted once for
/// many trees.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub by_queue: Vec<(QueueKey, Arc<Vec<Entry>>)>,
}

/// Jobs by queue in order of the queues' names, the best last.
pub(super) fn sorted(
    state: &State,
    entries: Vec<Entry>,
    victims: bool,
) -> Vec<(QueueKey, Vec<Entry>)> {
    let mut by_queue: FxHashMap<QueueKey, Vec<Entry>> = FxHashMap::default();
    for entry in entries {
        if let Some(queue) = state.jobs.get(entry.job).and_then(|job| job.queue) {
            by_queue.entry(queue).or_default().push(entry);
        }
    }
    let mut by_queue: Vec<(QueueKey, Vec<Entry>)> = by_queue.into_iter().collect();
    for (_, jobs) in &mut by_queue {
        jobs.sort_by(|one, other| order(victims, &other.rank, &one.rank));
    }
    // In order of name, not of keys.
    by_queue.sort_by(|one, other| {
        let name = |key: QueueKey| state.queues.get(key).map(|row| &row.name);
        name(one.0).cmp(&name(other.0))
    });
    by_queue
}

/// `Less`: the first goes first; of victims it is the last.
pub(super) fn order(victims: bool, one: &JobRank, other: &JobRank) -> Ordering {
    if victims {
        other.cmp(one)
    } else {
        one.cmp(other)
    }
}
