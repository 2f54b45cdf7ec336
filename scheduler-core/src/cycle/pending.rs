//! Brings the list of pending jobs ([`super::waiting`]) up to date, and reads it.

use crate::config::{GpuJobOrder, Plugin};
use crate::cycle::Cycle;
use crate::cycle::gpu_sum::GpuSum;
use crate::cycle::waiting::{JobProgress, PodClass, Waiting, WaitingJob};
use crate::gang::{AvailabilityTier, Gang, Pick};
use crate::job_queue::{Entry, JobRank, Line, SingletonClass};
use crate::shares::{QueueAmounts, less, plus};
use crate::state::State;
use crate::state::keys::{JobKey, QueueKey, TaskKey};
use crate::state::spec_row::SpecRow;
use crate::state::task_cell::Status;
use crate::state::uid::Uid;
use crate::units::Time;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Jobs with this many pods are cached.
const MANY: usize = 8;

/// It has a pod that waits without a gate.
fn waits(state: &State, job: JobKey) -> bool {
    state.jobs.get(job).is_some_and(|row| {
        row.tasks.iter().any(|task| {
            let waits = state
                .cells
                .tasks
                .get(*task)
                .is_some_and(|cell| cell.status == Status::Pending);
            waits && state.tasks.get(*task).is_some_and(|row| !row.gated)
        })
    })
}

impl Cycle<'_> {
    /// Updates the pending jobs. Not inside a trial.
    pub(super) fn refresh_waiting(&mut self) {
        let at = Some((self.state.changes.hindered, self.shares.smallest_card));
        if self.waiting.at != at {
            self.waiting = Waiting {
                at,
                ..Waiting::default()
            };
            drop(self.state.changes.moved.take(self.state.changes.touched));
            let waits = self.state.index.pending.iter();
            let jobs: BTreeSet<JobKey> = waits
                .filter_map(|task| self.state.tasks.get(*task)?.job)
                .collect();
            self.list(jobs);
        } else if self.waiting.settled != Some(self.state.changes.settled) {
            let moved = self.state.changes.moved.take(self.state.changes.touched);
            self.list(moved);
        }
        self.waiting.settled = Some(self.state.changes.settled);
        debug_assert_eq!(self.recomputed(), self.seen(), "who waits is out of date");
    }

    /// Checks these jobs again.
    fn list(&mut self, jobs: impl IntoIterator<Item = JobKey>) {
        type Change = (Vec<(JobKey, JobRank)>, Vec<Entry>);
        let mut changes: FxHashMap<QueueKey, Change> = FxHashMap::default();
        for job in jobs {
            if let Some((queue, rank)) = self.waiting.unlist(job) {
                changes.entry(queue).or_default().0.push((job, rank));
            }
            self.waiting.fresh.push(job);
            if !waits(self.state, job) {
                continue;
            }
            let known = self.current(job);
            let (entry, may) = (known.entry.clone(), known.first.is_some());
            let queue = self.state.jobs.get(job).and_then(|row| row.queue);
            let kind = PodClass::of(queue, &entry).filter(|_| entry.ready);
            let waiting = &mut self.waiting;
            if let Some(kind) = kind {
                let alike = waiting.kinds.entry(kind).or_default();
                alike.jobs.insert(job);
                alike.unreported_starts.push(job);
            } else if entry.ready && may {
                waiting.others.insert(job);
            }
            let listed = WaitingJob {
                queue,
                rank: entry.rank.clone(),
                kind,
                ready: entry.ready,
            };
            waiting.listed.insert(job, listed);
            if let Some(queue) = queue {
                if !entry.ready {
                    *waiting.unready.entry(queue).or_default() += 1;
                }
                changes.entry(queue).or_default().1.push(entry);
            }
        }
        if !changes.is_empty() {
            self.waiting.line = None;
        }
        for (queue, (gone, new)) in changes {
            self.waiting.update(queue, &gone, new);
        }
    }

    /// All jobs that wait, sorted. Not inside a trial.
    pub(super) fn line(&mut self) -> Arc<Line> {
        self.refresh_waiting();
        if let Some(line) = &self.waiting.line {
            return Arc::clone(line);
        }
        let lines = &self.waiting.lines;
        // In order of name, not of keys.
        let queues = self.state.names.queues.values();
        let by_queue = queues
            .filter_map(|queue| Some((*queue, Arc::clone(lines.get(queue)?))))
            .collect();
        let line = Arc::new(Line { by_queue });
        self.waiting.line = Some(Arc::clone(&line));
        line
    }

    /// Waiting jobs that are ready to be placed, queue by queue.
    pub(super) fn ready_jobs(&mut self) -> Vec<JobKey> {
        let line = self.line();
        self.passed_over.extend(self.waiting.unready.keys());
        let entries = line.by_queue.iter().flat_map(|(_, line)| line.entries());
        entries
            .filter(|entry| entry.ready)
            .map(|entry| entry.job)
            .collect()
    }

    /// One of each kind of ready jobs that may be placed, and all that are of no kind.
    pub(super) fn ready_kinds(&mut self) -> Vec<JobKey> {
        self.refresh_waiting();
        self.passed_over.extend(self.waiting.unready.keys());
        let kinds = self.waiting.kinds.values();
        let one = kinds.filter_map(|alike| alike.jobs.first().copied());
        one.chain(self.waiting.others.iter().copied()).collect()
    }

    /// Waiting jobs that are ready, and old enough to evict others for.
    pub(super) fn old_enough(&mut self) -> Vec<JobKey> {
        let mut jobs = self.ready_jobs();
        jobs.retain(|job| {
            let young = self.within_delay(*job);
            if young {
                self.pass_over(*job);
            }
            !young
        });
        jobs
    }

    /// The common kind of a job's pods, by the data of the last check.
    pub(super) fn kind(&self, job: JobKey) -> Option<PodClass> {
        self.waiting.listed.get(&job)?.kind
    }

    /// A job in the queue of jobs with demand.
    pub(super) fn entry(&mut self, job: JobKey) -> Entry {
        self.known(job).entry.clone()
    }

    /// The pods that a job would place next, victims of the trial among them.
    pub(super) fn next_tasks(&mut self, job: JobKey) -> Arc<[TaskKey]> {
        Arc::clone(&self.known(job).next)
    }

    /// The job has no pod to place next. Of a small job that is seen from its pods: most are placed
    /// at once, and nothing else about them is asked for again.
    pub(super) fn has_none_left(&mut self, job: JobKey) -> bool {
        let pods = self.state.jobs.get(job).map_or(0, |row| row.tasks.len());
        pods < MANY && !waits(self.state, job) || self.next_tasks(job).is_empty()
    }

    /// What follows from where a job's pods are; computed again when one has moved.
    pub(super) fn known(&mut self, job: JobKey) -> &JobProgress {
        self.waiting.asked.insert(job);
        self.current(job)
    }

    fn current(&mut self, job: JobKey) -> &JobProgress {
        let stamp = self.state.jobs.get(job).map_or(0, |row| row.stamp);
        let known = self.waiting.known.get(&job);
        if known.is_none_or(|known| known.stamp != stamp) {
            let known = self.followed(job, stamp);
            let known = known.unwrap_or_else(|| self.insert(job, stamp));
            self.waiting.known.insert(job, Box::new(known));
        }
        &self.waiting.known[&job]
    }

    /// From what was known of a large job, by the pods that have moved since. `None`: it is
    /// unknown which ones have.
    fn followed(&mut self, job: JobKey, stamp: u64) -> Option<JobProgress> {
        let known = self.waiting.known.get_mut(&job)?;
        known.gang.as_ref()?;
        let moved = self.state.outputs.status_log.since(known.stamp, job)?;
        let (mut kept, mut held) = (known.gang.take()?, known.held);
        let gang = Arc::make_mut(&mut kept);
        for task in moved {
            let status = self.state.cells.tasks.get(task)?.status;
            let old = gang.follow(self.state, task)?;
            held = less(held, self.held_by_pod(task, old));
            held = plus(held, self.held_by_pod(task, status));
        }
        if self.config.verify {
            let whole = self.gang(job);
            if *gang != whole || held != self.held_by_gang(&whole) {
                self.state.contradicts("a gang is out of date");
            }
        }
        let mut known = self.progress(job, stamp, gang, held);
        known.gang = Some(kept);
        Some(known)
    }

    /// The job, cached so that a large one is not rebuilt for each use.
    pub(super) fn gang_of(&mut self, job: JobKey) -> Arc<Gang> {
        let pods = self.state.jobs.get(job).map_or(0, |row| row.tasks.len());
        if pods < MANY {
            return Arc::new(self.gang(job));
        }
        let gang = self.known(job).gang.clone();
        gang.unwrap_or_else(|| Arc::new(self.gang(job)))
    }

    pub(super) fn insert(&self, job: JobKey, stamp: u64) -> JobProgress {
        let gang = self.gang(job);
        let held = self.held_by_gang(&gang);
        let mut known = self.progress(job, stamp, &gang, held);
        let pods = self.state.jobs.get(job).map_or(0, |row| row.tasks.len());
        known.gang = (pods >= MANY).then(|| Arc::new(gang));
        known
    }

    /// What follows from where its pods are, but for the gang itself.
    fn progress(&self, job: JobKey, stamp: u64, gang: &Gang, held: QueueAmounts) -> JobProgress {
        let next = gang.next(Pick::WaitingAndVictims, &|task| self.may(task));
        let wanted = self
            .shares
            .wanted(self.state, &next, self.shares.smallest_card);
        let first = next.first().and_then(|task| self.state.tasks.get(*task));
        let row = self.state.jobs.get(job);
        let alone = row
            .filter(|row| row.is_like_alone())
            .zip(first.filter(|task| task.rare.avoid.is_empty()))
            .filter(|(_, task)| {
                let spec = self.state.specs.get(task.spec);
                spec.is_some_and(SpecRow::stays_out)
            })
            .map(|(row, task)| SingletonClass {
                spec: task.spec,
                priority: row.priority(self.state),
                preemptible: row.is_preemptible(self.state),
            });
        JobProgress {
            stamp,
            sum: self.sum_of(&next),
            held,
            first: first.map(|task| task.spec),
            next: Arc::from(next),
            entry: Entry {
                job,
                rank: self.rank(job, gang),
                wanted,
                held: [0; 3],
                part: None,
                ready: gang.is_ready(),
                alone,
            },
            gang: None,
        }
    }

    fn sum_of(&self, tasks: &[TaskKey]) -> GpuSum {
        let mut sum = GpuSum::default();
        for task in tasks {
            let row = self.state.tasks.get(*task);
            if let Some(spec) = row.and_then(|row| self.state.specs.get(row.spec)) {
                sum.add(spec);
            }
        }
        sum
    }

    pub(super) fn rank(&self, job: JobKey, gang: &Gang) -> JobRank {
        let row = self.state.jobs.get(job);
        let (created, uid) = row.map_or((Time(0), Uid::from("")), |row| match &row.group {
            Some(group) => (group.created, group.tie_breaker(&row.name)),
            None => row
                .only(self.state)
                .map_or((Time(0), Uid::from("")), |task| {
                    (task.created, task.uid.clone())
                }),
        });
        JobRank {
            priority: Reverse(row.map_or(0, |row| {
                if self.state.is_returning(job) {
                    i32::MIN
                } else if self.state.by_priority {
                    row.priority(self.state)
                } else {
                    0
                }
            })),
            availability_tier: if self.config.has(Plugin::Elastic) {
                gang.availability_tier()
            } else {
                AvailabilityTier::Below
            },
            size: self.size(gang),
            created,
            uid,
        }
    }

    /// Returns the rank of a job by KAI's plugin `gpujoborder`: the GPUs of its pods that wait or have a
    /// place, without GPU memory. 0: the plugin is off.
    fn size(&self, gang: &Gang) -> i64 {
        let Some(order) = self.config.gpu_job_order else {
            return 0;
        };
        let counts = |status| status == Status::Pending || Status::is_allocated(status);
        let pods = gang.tasks().filter(|(_, status)| counts(*status));
        let specs = pods.filter_map(|(task, _)| {
            let row = self.state.tasks.get(task)?;
            self.state.specs.get(row.spec)
        });
        let gpus: u128 = specs.map(|spec| spec.request()[0]).sum();
        let gpus = i64::try_from(gpus).unwrap_or(i64::MAX);
        match order {
            GpuJobOrder::PreferLarger => -gpus,
            GpuJobOrder::PreferSmaller => gpus,
        }
    }

    /// The pending jobs of each queue, in order, with their kinds.
    fn seen(&self) -> Seen {
        let mut seen = Seen::default();
        for (queue, line) in &self.waiting.lines {
            seen.lines.insert(*queue, line.entries().to_vec());
        }
        for (kind, alike) in &self.waiting.kinds {
            seen.kinds
                .extend(alike.jobs.iter().map(|job| (*job, *kind)));
        }
        seen.others.clone_from(&self.waiting.others);
        for (queue, count) in &self.waiting.unready {
            seen.unready.insert(*queue, *count);
        }
        seen
    }

    /// The same from the state alone.
    fn recomputed(&self) -> Seen {
        let mut seen = Seen::default();
        for (job, row) in &self.state.jobs {
            if !waits(self.state, job) {
                continue;
            }
            let known = self.insert(job, 0);
            let entry = known.entry;
            match PodClass::of(row.queue, &entry) {
                Some(kind) if entry.ready => drop(seen.kinds.insert(job, kind)),
                _ if entry.ready && known.first.is_some() => drop(seen.others.insert(job)),
                _ => {}
            }
            if let Some(queue) = row.queue {
                if !entry.ready {
                    *seen.unready.entry(queue).or_default() += 1;
                }
                seen.lines.entry(queue).or_default().push(entry);
            }
        }
        for line in seen.lines.values_mut() {
            line.sort_by(|one, other| other.rank.cmp(&one.rank));
        }
        seen
    }
}

/// All data about pending jobs, for comparison.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    pub(super) lines: BTreeMap<QueueKey, Vec<Entry>>,
    pub(super) kinds: BTreeMap<JobKey, PodClass>,
    pub(super) others: BTreeSet<JobKey>,
    pub(super) unready: BTreeMap<QueueKey, u32>,
}
