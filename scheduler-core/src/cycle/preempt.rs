//! Preempt: pods of strictly lower priority in the same queue make room (KAI, `actions/preempt`).

use crate::action::EvictCause;
use crate::capacity::{self, Check};
use crate::cycle::Cycle;
use crate::cycle::relax::victim_filter::VictimFilter;
use crate::cycle::runtime::RuntimeRule;
use crate::cycle::scenario::Scenario;
use crate::cycle::search::ActionRules;
use crate::ids::QueueName;
use crate::job_queue::JobQueue;
use crate::state::keys::{JobKey, QueueKey, TaskKey};

struct Preemption {
    queue: QueueKey,
    priority: i32,
}

impl ActionRules for Preemption {
    fn cause(&self) -> EvictCause {
        EvictCause::Preempt
    }

    fn filter(&self) -> VictimFilter {
        VictimFilter::Below(self.queue, self.priority)
    }

    fn may_be_victim(&self, cycle: &mut Cycle, victim: JobKey) -> bool {
        !cycle.is_protected(RuntimeRule::Preempt, Some(self.queue), victim)
            || cycle.gang(victim).is_elastic()
    }

    fn allows(
        &self,
        cycle: &mut Cycle,
        _job: JobKey,
        _tasks: &[TaskKey],
        scenario: &Scenario,
    ) -> bool {
        cycle.keeps_protected(RuntimeRule::Preempt, Some(self.queue), scenario)
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
        self.memos.infeasible.clear();
        self.passed_over.clear();
        // A failed search changes nothing.
        let may_find = self.any_may_find(|cycle, job| {
            let rules = cycle.preemption(job);
            rules.is_some_and(|rules| cycle.may_find(job, rules.filter()))
                && !cycle.within_delay(job)
        });
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
            // If idle pods of the queue use up its quota, the search checks the quota without them.
            if capacity::over(self.state, entry.job, wanted, Check::QuotaOnly).is_some()
                && !self.has_idle_beside(entry.job)
            {
                self.pass_over(entry.job);
                continue;
            }
            let Some(rules) = self.preemption(entry.job) else {
                continue;
            };
            if self.make_room(entry.job, &rules) {
                queue.arrange(self.state, &self.shares);
            }
        }
    }

    /// Returns whether some job of the same queue gives way.
    fn has_idle_beside(&self, job: JobKey) -> bool {
        let queue = self.state.jobs.get(job).and_then(|row| row.queue);
        let mut idle = self.state.idle_jobs();
        idle.any(|(theirs, _)| Some(theirs) == queue)
    }

    /// Who may be preempted for the job. `None`: it is in no queue.
    fn preemption(&self, job: JobKey) -> Option<Preemption> {
        let row = self.state.jobs.get(job)?;
        Some(Preemption {
            queue: row.queue?,
            priority: row.priority(self.state),
        })
    }

    /// A queue's name for messages.
    pub(super) fn queue_name(&self, queue: Option<QueueKey>) -> QueueName {
        queue
            .and_then(|queue| self.state.queues.get(queue))
            .map_or_else(|| QueueName::new(""), |row| row.name.clone())
    }
}
