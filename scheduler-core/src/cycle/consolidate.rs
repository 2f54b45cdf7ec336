//! Consolidation: moves running work so that a waiting job fits; everybody that is moved
//! must have a place (KAI, `actions/consolidation`).

use super::Cycle;
use super::scenario::Scenario;
use super::solve::Rules;
use crate::action::EvictCause;
use crate::config::Placement;
use crate::job_queue::JobQueue;
use crate::state::cell::Status;
use crate::state::rows::{JobKey, NodeKey, TaskKey};

struct Consolidation {
    job: JobKey,
    /// How many jobs may be taken; `None`: any number.
    most: Option<usize>,
    /// Empty nodes that are to stay so.
    barred: Vec<NodeKey>,
}

impl Rules for Consolidation {
    fn cause(&self) -> EvictCause {
        EvictCause::Consolidation
    }

    fn candidates(&self, cycle: &Cycle) -> Vec<JobKey> {
        let Some(most) = self.most else {
            return cycle.state.standing_at.keys().collect();
        };
        // Which ones is KAI's chance; here it is their names.
        cycle
            .state
            .job_names
            .values()
            .copied()
            .filter(|job| *job != self.job && cycle.state.standing_at.contains_key(*job))
            .take(most)
            .collect()
    }

    fn may_be_victim(&self, _cycle: &mut Cycle, _victim: JobKey) -> bool {
        true
    }

    fn allows(
        &self,
        cycle: &mut Cycle,
        _job: JobKey,
        _tasks: &[TaskKey],
        scenario: &Scenario,
    ) -> bool {
        scenario
            .units()
            .flat_map(|unit| &unit.tasks)
            .all(|task| cycle.state.cell(*task).status != Status::Victim)
    }

    fn barred(&self) -> &[NodeKey] {
        &self.barred
    }

    fn message(&self, cycle: &Cycle, _job: JobKey, victim: TaskKey) -> String {
        format!(
            "Pod {} was preempted and rescheduled due to bin packing (resource consolidation) procedure",
            cycle.pod_name(victim)
        )
    }
}

impl Cycle<'_> {
    pub(super) fn consolidate(&mut self) {
        if !self.consolidates() {
            return;
        }
        let mut jobs = self.ready_jobs().to_vec();
        jobs.retain(|job| self.may_move_others(*job));
        // Who finds nothing changes nothing.
        if !jobs.iter().any(|job| self.enough_in_sum(*job)) {
            return;
        }
        let entries = jobs.into_iter().map(|job| self.entry(job)).collect();
        let mut queue = JobQueue::new(false);
        queue.fill(self.state, &self.shares, entries);
        while let Some(entry) = queue.pop(self.state, &self.shares) {
            if self.consolidate_for(entry.job, Vec::new()) {
                queue.others_moved();
            } else {
                queue.nothing_moved();
            }
        }
    }

    /// Running work is moved at all.
    pub(super) fn consolidates(&self) -> bool {
        let spread = self.config.gpu_placement == Placement::Spread
            || self.config.cpu_placement == Placement::Spread;
        !spread && self.config.consolidation_jobs != Some(0)
    }

    /// Others may be moved for this job.
    pub(super) fn may_move_others(&mut self, job: JobKey) -> bool {
        let preemptible = self
            .state
            .jobs
            .get(job)
            .is_some_and(|row| row.is_preemptible(self.state));
        preemptible && !self.within_delay(job)
    }

    /// Makes room for one job without putting anybody on the barred nodes. True when it
    /// was found.
    pub(super) fn consolidate_for(&mut self, job: JobKey, barred: Vec<NodeKey>) -> bool {
        if !self.enough_in_sum(job) {
            return false;
        }
        // KAI's bound lets one more through than it says.
        let most = self.config.consolidation_jobs.map(|most| most as usize + 1);
        self.make_room(job, &Consolidation { job, most, barred })
    }

    /// The cluster has as much as the job wants, in sum.
    fn enough_in_sum(&mut self, job: JobKey) -> bool {
        self.state.refresh_rooms();
        let tasks = self.next_tasks(job);
        let wanted = self.shares.wanted(self.state, &tasks, 0);
        let mib: u128 = tasks
            .iter()
            .filter_map(|task| self.state.specs.get(self.state.tasks.get(*task)?.spec))
            .map(|spec| spec.share_mib)
            .sum();
        let rooms = &self.state.rooms;
        wanted[0] <= rooms.nano && mib <= rooms.mib
    }

    /// A pod's name for messages.
    pub(super) fn pod_name(&self, task: TaskKey) -> String {
        self.state
            .tasks
            .get(task)
            .map_or_else(String::new, |row| format!("{}/{}", row.namespace, row.name))
    }

    /// A job's name for messages.
    pub(super) fn job_name(&self, job: JobKey) -> String {
        self.state
            .jobs
            .get(job)
            .map_or_else(String::new, |row| match row.only(self.state) {
                Some(task) if row.single => format!("{}/{}", task.namespace, task.name),
                _ => row.name.to_string(),
            })
    }
}
