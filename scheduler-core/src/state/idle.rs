//! Idle pods: a job without work gives way to jobs that wait, by the rule of its queue.
//!
//! - Facts: the time since when each placed pod has done no work ([`crate::event::Activity`]), and the
//!   queue's `idle_after` and `idle_exempt_from`. Both come from the job's queue, or from the nearest
//!   queue above it that sets `idle_after`.
//! - Rule: once all pods of a job have been idle for that long, it may be a victim of preempt and
//!   reclaim, whatever its priority and preemptibility, and is the first one. A job of the exempt
//!   priority or above never gives way.
//! - A job that gave way comes last in its queue, and gets no room by evictions, until the same time has
//!   passed again: its controller creates its pods again at once, and they would take back what another
//!   job just got.
//!
//! Sums and quotas do not depend on it: an idle non-preemptible pod counts as one, so that its queue is
//! within its quota when the pod works again.

use crate::ids::{PodUid, QueueName};
use crate::model::{Grace, Queue};
use crate::state::State;
use crate::state::keys::{JobKey, QueueKey, TaskKey};
use crate::state::task_cell::Status;
use crate::units::{Duration, Time};
use std::collections::{BTreeMap, BTreeSet};

/// A placed pod that does no work and whose queue has a rule about that, for the shell to warn of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdlePod {
    /// The pod.
    pub pod: PodUid,
    /// The time since when all pods of its job have been idle.
    pub since: Time,
    /// The time from which it gives way.
    pub gives_way: Time,
    /// The queue whose rule that is.
    pub queue: QueueName,
}

/// The rule that applies to a job.
struct Rule<'a> {
    after: Duration,
    queue: &'a Queue,
}

impl State {
    /// Sets the time since when a pod has been idle; `None`: the pod works, or nothing is known. A pod
    /// that waits for a place counts as working.
    pub(crate) fn set_idle(&mut self, key: TaskKey, since: Option<Time>) {
        let since = since.filter(|_| self.cell(key).node.is_some());
        let before = match since {
            Some(since) => self.index.idle.since.insert(key, since),
            None => self.index.idle.since.remove(&key),
        };
        if before != since {
            self.changes.wake();
        }
    }

    /// Returns the time since when a pod has been idle. `None`: the pod works, or nothing is known.
    pub(crate) fn idle_since(&self, key: TaskKey) -> Option<Time> {
        self.index.idle.since.get(&key).copied()
    }

    /// Computes which jobs give way and which come last. Each decision calls it first.
    pub(crate) fn refresh_idle(&mut self) {
        self.index.idle.next = None;
        self.refresh_giving_way();
        self.refresh_returning();
    }

    fn refresh_giving_way(&mut self) {
        if self.index.idle.since.is_empty() && self.index.idle.giving_way.is_empty() {
            return;
        }
        let mut giving_way = BTreeSet::new();
        for job in self.jobs_with_idle() {
            match self.idle_job(job) {
                Some((_, at, _)) if at <= self.now => drop(giving_way.insert(job)),
                Some((_, at, _)) => {
                    self.index.idle.next = self.index.idle.next.into_iter().chain([at]).min();
                }
                None => {}
            }
        }
        let before = std::mem::take(&mut self.index.idle.giving_way);
        let changed: Vec<JobKey> = before.symmetric_difference(&giving_way).copied().collect();
        let grew = giving_way.difference(&before).next().is_some();
        self.index.idle.giving_way = giving_way;
        // Searches for victims must look at their nodes again.
        for job in changed {
            let tasks = self.jobs.get(job).map(|row| row.tasks.clone());
            for task in tasks.into_iter().flatten() {
                if let Some(node) = self.cell(task).node {
                    self.touch_node(node);
                }
            }
        }
        if grew {
            self.changes.capacity_grew();
        }
    }

    fn refresh_returning(&mut self) {
        if self.index.idle.gave_way.is_empty() && self.index.idle.returning.is_empty() {
            return;
        }
        let mut returning = BTreeMap::new();
        for (job, at) in std::mem::take(&mut self.index.idle.gave_way) {
            if let Some(rule) = self.idle_rule(job)
                && at.after(rule.after) > self.now
            {
                let until = at.after(rule.after);
                self.index.idle.next = self.index.idle.next.into_iter().chain([until]).min();
                returning.insert(job, at);
            }
        }
        let before = std::mem::take(&mut self.index.idle.returning);
        self.index.idle.returning = returning.keys().copied().collect();
        self.index.idle.gave_way = returning;
        let changed = before.symmetric_difference(&self.index.idle.returning);
        let changed: Vec<JobKey> = changed.copied().collect();
        for job in changed {
            // The job has another rank now.
            if let Some(row) = self.jobs.get_mut(job) {
                self.changes.moved.note(job, row.stamp);
                self.changes.touched += 1;
                self.changes.settled += 1;
                row.stamp = self.changes.touched;
            }
            self.changes.wake();
        }
    }

    /// Notes that a pod of the job is evicted for being idle.
    pub(crate) fn note_gave_way(&mut self, job: JobKey, at: Time) {
        self.index.idle.gave_way.insert(job, at);
    }

    /// Returns when a pod of the job was last evicted for being idle, while that matters.
    pub(crate) fn gave_way(&self, job: JobKey) -> Option<Time> {
        self.index.idle.gave_way.get(&job).copied()
    }

    /// Returns true if the job gave way, and comes last and gets no room by evictions in this decision.
    pub(crate) fn is_returning(&self, job: JobKey) -> bool {
        self.index.idle.returning.contains(&job)
    }

    /// Returns true if the job gives way in this decision.
    pub(crate) fn gives_way(&self, job: JobKey) -> bool {
        self.index.idle.giving_way.contains(&job)
    }

    /// Returns the jobs that give way, with their queues.
    pub(crate) fn idle_jobs(&self) -> impl Iterator<Item = (QueueKey, JobKey)> + '_ {
        let jobs = self.index.idle.giving_way.iter();
        jobs.filter_map(|job| Some((self.jobs.get(*job)?.queue?, *job)))
    }

    /// Returns the queues with jobs that may be victims, each once.
    pub(crate) fn victim_queues(&self) -> impl Iterator<Item = QueueKey> + '_ {
        let idle: BTreeSet<QueueKey> = self.idle_jobs().map(|(queue, _)| queue).collect();
        let others = idle
            .into_iter()
            .filter(|queue| !self.index.standing.contains_key(queue));
        self.index.standing.keys().copied().chain(others)
    }

    /// Returns the idle pods whose queues have a rule, in order of their UIDs.
    pub(crate) fn idle_pods(&self) -> Vec<IdlePod> {
        let mut pods = Vec::new();
        for job in self.jobs_with_idle() {
            let Some((since, gives_way, queue)) = self.idle_job(job) else {
                continue;
            };
            let tasks = self.jobs.get(job).map_or(&[][..], |row| &row.tasks);
            let idle = tasks
                .iter()
                .filter(|task| self.idle_since(**task).is_some());
            pods.extend(idle.filter_map(|task| {
                Some(IdlePod {
                    pod: self.tasks.get(*task)?.uid.of_pod(),
                    since,
                    gives_way,
                    queue: queue.clone(),
                })
            }));
        }
        pods.sort_unstable_by(|one, other| one.pod.cmp(&other.pod));
        pods
    }

    fn jobs_with_idle(&self) -> BTreeSet<JobKey> {
        let tasks = self.index.idle.since.keys();
        let held = tasks.filter(|task| self.cell(**task).status.is_allocated());
        held.filter_map(|task| self.tasks.get(*task)?.job).collect()
    }

    /// Returns the time since when all running and waiting pods of the job have been idle, the time from
    /// which the job gives way, and the queue whose rule applies. `None`: a pod works, or no rule applies.
    fn idle_job(&self, job: JobKey) -> Option<(Time, Time, QueueName)> {
        let row = self.jobs.get(job)?;
        let left = row.tasks.iter().copied();
        let left = left.filter(|task| self.cell(*task).status != Status::Done);
        let since = left.map(|task| self.idle_since(task));
        let since = since.reduce(|one, other| Some(one?.max(other?)))??;
        let rule = self.idle_rule(job)?;
        let exempt = rule.queue.idle_exempt_from;
        if exempt.is_some_and(|from| row.priority(self) >= from) {
            return None;
        }
        let since = since.min(self.now);
        Some((since, since.after(rule.after), rule.queue.name.clone()))
    }

    fn idle_rule(&self, job: JobKey) -> Option<Rule<'_>> {
        let chain = &self.queues.get(self.jobs.get(job)?.queue?)?.chain;
        let queues = chain
            .iter()
            .filter_map(|key| self.queues.get(*key)?.queue.as_ref());
        let mut rules = queues.filter_map(|queue| Some((queue, queue.idle_after?)));
        match rules.next()? {
            (_, Grace::Never) => None,
            (queue, Grace::For(after)) => Some(Rule { after, queue }),
        }
    }
}
