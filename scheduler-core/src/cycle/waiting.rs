//! The ordered list of pending jobs, kept between decisions. Only jobs with a changed pod are
//! examined again, and pods without a group that are equivalent get their reason together.
//!
//! [`Changes::moved`](crate::state::changes::Changes::moved) lists the changed jobs. A change of anything else that the
//! list depends on (whether pods are held back, what GPU memory counts for) invalidates all of it. A
//! debug assertion compares the list with one computed from scratch.

use crate::cycle::gpu_sum::GpuSum;
use crate::gang::Gang;
use crate::job_queue::{Entry, JobRank, Line, QueueLine};
use crate::reason::WaitReason;
use crate::shares::QueueAmounts;
use crate::state::keys::{JobKey, QueueKey, SpecKey, TaskKey};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Up to this many jobs are inserted into a queue one by one; more are sorted in.
const FEW: usize = 4;

/// What follows from where the pods of a job are.
#[derive(Clone, Debug)]
pub(super) struct JobProgress {
    /// [`crate::state::job_row::JobRow::stamp`] at that time.
    pub(super) stamp: u64,
    pub next: Arc<[TaskKey]>,
    /// Of a job of several pods.
    pub(super) gang: Option<Arc<Gang>>,
    /// What the first of these asks for.
    pub first: Option<SpecKey>,
    /// What they ask for, where there is a sum of what is free.
    pub sum: GpuSum,
    /// As one of those that want something.
    pub entry: Entry,
    /// What its allocated pods hold, in the count of queues.
    pub held: QueueAmounts,
}

/// What a pod of its own has alike with others, as far as it matters whether it can be
/// placed, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PodClass {
    pub queue: QueueKey,
    pub spec: SpecKey,
    pub priority: i32,
    pub preemptible: bool,
}

impl PodClass {
    /// The entry of a job in that queue. `None`: it is not a single pod, or it is hindered.
    pub(super) fn of(queue: Option<QueueKey>, entry: &Entry) -> Option<Self> {
        let alone = entry.alone?;
        Some(Self {
            queue: queue?,
            spec: alone.spec,
            priority: alone.priority,
            preemptible: alone.preemptible,
        })
    }
}

/// Those of one kind.
#[derive(Debug, Default)]
pub(super) struct PodClassJobs {
    pub jobs: BTreeSet<JobKey>,
    /// Why they wait, by this decision.
    pub why: Option<Arc<WaitReason>>,
    /// The last reason of all of them, except for unreported ones.
    pub told: Option<Arc<WaitReason>>,
    pub unreported_starts: Vec<JobKey>,
}

/// A job that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WaitingJob {
    pub(super) queue: Option<QueueKey>,
    pub(super) rank: JobRank,
    pub(super) kind: Option<PodClass>,
    pub(super) ready: bool,
}

/// All that wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// [`Changes::hindered`](crate::state::changes::Changes::hindered), and the value of GPU memory, at the last check; `None`: unknown.
    pub(super) at: Option<(u64, u128)>,
    /// [`Changes::settled`](crate::state::changes::Changes::settled) at the last check.
    pub(super) settled: Option<u64>,
    // Boxed: a hash map has room for up to twice as many.
    pub(super) known: FxHashMap<JobKey, Box<JobProgress>>,
    /// Whose progress something other than the list has asked for in this decision.
    pub(super) asked: FxHashSet<JobKey>,
    /// How many were kept in [`Self::known`] when it was last cleared out.
    pub(super) kept: usize,
    pub(super) listed: FxHashMap<JobKey, WaitingJob>,
    /// By queue, the best last.
    pub(super) lines: FxHashMap<QueueKey, Arc<QueueLine>>,
    pub(super) kinds: FxHashMap<PodClass, PodClassJobs>,
    /// Ready jobs that may be placed and are of no kind.
    pub(super) others: BTreeSet<JobKey>,
    /// How many wait in a queue that are not ready.
    pub(super) unready: FxHashMap<QueueKey, u32>,
    /// Jobs with a changed pod, until the reasons of their pods have been reported.
    pub(super) fresh: Vec<JobKey>,
    /// All lines in order of the queues' names, while nothing has moved.
    pub(super) line: Option<Arc<Line>>,
}

impl Waiting {
    /// Removes a job. `Some`: its position in its queue.
    pub(super) fn unlist(&mut self, job: JobKey) -> Option<(QueueKey, JobRank)> {
        let was = self.listed.remove(&job)?;
        if let Some(kind) = was.kind {
            if let Some(alike) = self.kinds.get_mut(&kind) {
                alike.jobs.remove(&job);
                if alike.jobs.is_empty() {
                    self.kinds.remove(&kind);
                }
            }
        } else {
            self.others.remove(&job);
        }
        let queue = was.queue?;
        if !was.ready
            && let Some(count) = self.unready.get_mut(&queue)
        {
            *count -= 1;
            if *count == 0 {
                self.unready.remove(&queue);
            }
        }
        Some((queue, was.rank))
    }

    /// Brings a queue's line up to date.
    pub(super) fn update(&mut self, queue: QueueKey, gone: &[(JobKey, JobRank)], new: Vec<Entry>) {
        let line = Arc::make_mut(self.lines.entry(queue).or_default()).entries_mut();
        if gone.len() + new.len() > FEW {
            let gone: FxHashSet<JobKey> = gone.iter().map(|(job, _)| *job).collect();
            line.retain(|entry| !gone.contains(&entry.job));
            line.extend(new);
            line.sort_by(|one, other| other.rank.cmp(&one.rank));
        } else {
            for (job, rank) in gone {
                let from = line.partition_point(|entry| entry.rank > *rank);
                let at = line[from..].iter().position(|entry| entry.job == *job);
                if let Some(at) = at {
                    line.remove(from + at);
                }
            }
            for entry in new {
                let at = line.partition_point(|other| other.rank > entry.rank);
                line.insert(at, entry);
            }
        }
        if line.is_empty() {
            self.lines.remove(&queue);
        }
    }

    /// What the next decision needs no more is let go.
    pub(super) fn keep(&mut self) {
        // The line has what orders a job. The rest is asked for again of the few whose turn comes in
        // each decision, and takes time to compute for large ones only.
        if self.known.len() > 2 * self.kept + 64 {
            let (listed, asked) = (&self.listed, &self.asked);
            self.known.retain(|job, known| {
                listed.contains_key(job) && (known.gang.is_some() || asked.contains(job))
            });
            self.known.shrink_to(2 * self.known.len());
            self.kept = self.known.len();
        }
        self.asked = FxHashSet::default();
        self.line = None;
        for alike in self.kinds.values_mut() {
            alike.why = None;
        }
    }
}
