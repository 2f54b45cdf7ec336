//! Preempt: pods of strictly lower priority in the same queue make room (KAI, `actions/preempt`).

use super::Cycle;
use super::eviction_bound::VictimFilter;
use super::runtime::RuntimeRule;
use super::scenario::Scenario;
use super::solve::ActionRules;
use crate::action::EvictCause;
use crate::capacity::{self, Check};
use crate::ids::QueueName;
use crate::job_queue::JobQueue;
use crate::state::rows::{JobKey, QueueKey, TaskKey};

struct Preemption {
    queue: Option<QueueKey>,
    priority: i32,
}

impl ActionRules for Preemption {
    fn cause(&self) -> EvictCause {
        EvictCause::Preempt
    }

    fn candidates(&self, cycle: &Cycle) -> Vec<JobKey> {
        self.queue
            .and_then(|queue| cycle.state.standing.get(&queue))
            .into_iter()
            .flat_map(|by_priority| by_priority.range(..self.priority))
            .flat_map(|(_, jobs)| jobs)
            .copied()
            .collect()
    }

    fn may_be_victim(&self, cycle: &mut Cycle, victim: JobKey) -> bool {
        !cycle.is_protected(RuntimeRule::Preempt, self.queue, victim)
            || cycle.gang(victim).is_elastic()
    }

    fn allows(
        &self,
        cycle: &mut Cycle,
        _job: JobKey,
        _tasks: &[TaskKey],
        scenario: &Scenario,
    ) -> bool {
        cycle.keeps_protected(RuntimeRule::Preempt, self.queue, scenario)
    }

    fn message(&self, cycle: &Cycle, job: JobKey, victim: TaskKey) -> String {
        format!(
            "Pod {} was preempted by higher priority workload {}",
            cycle.pod_name(victim),
            cycle.job_name(job)
        )
    }
}

impl Cycle<'_> {
    pub(super) fn preempt(&mut self) {
        self.infeasible.clear();
        self.passed_over.clear();
        // A failed search changes nothing.
        let may_find = self
            .ready_kinds()
            .iter()
            .any(|job| self.may_find_by_preempt(*job) && !self.within_delay(*job));
        if !may_find && !self.config.verify {
            return;
        }
        let jobs = self.old_enough();
        let entries = jobs.into_iter().map(|job| self.entry(job)).collect();
        let mut queue = JobQueue::new(false);
        queue.fill(self.state, &self.shares, entries);
        while let Some(entry) = queue.pop(self.state, &self.shares) {
            let tasks = self.next_tasks(entry.job);
            let wanted = self
                .shares
                .wanted(self.state, &tasks, self.shares.largest_card);
            if capacity::over(self.state, entry.job, wanted, Check::QuotaOnly).is_some() {
                self.pass_over(entry.job);
                continue;
            }
            let may_find = self.may_find_by_preempt(entry.job);
            let Some(row) = self.state.jobs.get(entry.job) else {
                continue;
            };
            let rules = Preemption {
                queue: row.queue,
                priority: row.priority(self.state),
            };
            if self.make_room(entry.job, &rules, may_find) {
                queue.arrange(self.state, &self.shares);
            }
        }
    }

    /// False: it would not fit either without the pods of lower priority in its queue.
    fn may_find_by_preempt(&mut self, job: JobKey) -> bool {
        if !self.has_placed_below(job) {
            return false;
        }
        let (Some(spec), Some((Some(queue), priority))) = (
            self.known(job).first,
            self.state
                .jobs
                .get(job)
                .map(|row| (row.queue, row.priority(self.state))),
        ) else {
            return false;
        };
        self.could_fit(spec, VictimFilter::Below(queue, priority))
    }

    /// A job of lower priority is placed in its queue.
    fn has_placed_below(&self, job: JobKey) -> bool {
        self.state.jobs.get(job).is_some_and(|row| {
            let lowest = row
                .queue
                .and_then(|queue| self.state.standing.get(&queue)?.first_key_value());
            lowest.is_some_and(|(lowest, _)| *lowest < row.priority(self.state))
        })
    }

    /// A queue's name for messages.
    pub(super) fn queue_name(&self, queue: Option<QueueKey>) -> QueueName {
        queue
            .and_then(|queue| self.state.queues.get(queue))
            .map_or_else(|| QueueName::new(""), |row| row.name.clone())
    }
}
