//! Pending jobs in order: what orders them within their queue, and the sorted list of all of them.

use crate::gang::AvailabilityTier;
use crate::shares::QueueAmounts;
use crate::state::State;
use crate::state::keys::{JobKey, QueueKey, SpecKey, TaskKey};
use crate::state::uid::Uid;
use crate::units::Time;
use rustc_hash::FxHashMap;
use std::cmp::{Ordering, Reverse};
use std::sync::{Arc, OnceLock};

/// Order of jobs in one queue: smaller goes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct JobRank {
    pub priority: Reverse<i32>,
    pub availability_tier: AvailabilityTier,
    /// The rank by GPUs. It is 0 for every job if no such order is set.
    pub size: i64,
    pub created: Time,
    pub uid: Uid,
}

/// A job in the queue, whole or with some of its pods only.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub job: JobKey,
    pub rank: JobRank,
    /// Its next request; nothing for a victim.
    pub wanted: QueueAmounts,
    /// Its allocation, if it is a victim.
    pub held: QueueAmounts,
    /// The pods that it represents; `None`: all.
    pub part: Option<Arc<[TaskKey]>>,
    /// It may be served; else it is only in the queue.
    pub ready: bool,
    /// It is one pod of its own that waits and may be placed.
    pub alone: Option<SingletonClass>,
}

impl Entry {
    /// A job in the queue of victims, by what its allocated pods hold. `part`: those of its pods
    /// that are left.
    pub(crate) fn victim(
        job: JobKey,
        rank: JobRank,
        held: QueueAmounts,
        part: Option<Arc<[TaskKey]>>,
    ) -> Self {
        Self {
            job,
            rank,
            wanted: [0; 3],
            held,
            part,
            ready: true,
            alone: None,
        }
    }
}

/// What a pod of its own has alike with others, beside its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SingletonClass {
    pub spec: SpecKey,
    pub priority: i32,
    pub preemptible: bool,
}

/// The jobs that wait in one queue, the best last.
#[derive(Debug, Default)]
pub(crate) struct QueueLine {
    entries: Vec<Entry>,
    /// For each job, the first of the adjacent ones that want the same; computed on demand.
    runs: OnceLock<Box<[u32]>>,
}

impl QueueLine {
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// To be changed. The order is the caller's.
    pub(crate) fn entries_mut(&mut self) -> &mut Vec<Entry> {
        self.runs.take();
        &mut self.entries
    }

    /// The first of the adjacent jobs before this one that want the same.
    pub(super) fn run(&self, at: usize) -> usize {
        let runs = self.runs.get_or_init(|| {
            let mut first = 0;
            let first_of = |(at, entry): (u32, &Entry)| {
                let before = self.entries.get((at as usize).wrapping_sub(1));
                if before.is_none_or(|before| before.wanted != entry.wanted) {
                    first = at;
                }
                first
            };
            (0..).zip(&self.entries).map(first_of).collect()
        });
        runs.get(at).map_or(at, |first| *first as usize)
    }
}

impl Clone for QueueLine {
    /// To be changed, as a rule.
    fn clone(&self) -> Self {
        self.entries.clone().into()
    }
}

impl From<Vec<Entry>> for QueueLine {
    fn from(entries: Vec<Entry>) -> Self {
        Self {
            entries,
            runs: OnceLock::new(),
        }
    }
}

/// Waiting jobs by queue in order of the queues' names: sorted once for many trees.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub by_queue: Vec<(QueueKey, Arc<QueueLine>)>,
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
