//! Consolidation: moves running pods so that a pending job fits. Every pod that is moved must have
//! a new place (KAI, `actions/consolidation`).

use crate::action::EvictCause;
use crate::config::Placement;
use crate::cycle::Cycle;
use crate::cycle::relax::victim_filter::VictimFilter;
use crate::cycle::scenario::Scenario;
use crate::cycle::search::ActionRules;
use crate::ids::FilterName;
use crate::job_queue::JobQueue;
use crate::model::Preemptibility;
use crate::state::keys::{JobKey, TaskKey};
use crate::state::node_set::NodeSet;
use crate::state::task_cell::Status;
use crate::units::{Duration, NanoGpu};
use std::cmp::Reverse;

struct Consolidation {
    /// Empty nodes that are to stay so.
    barred: NodeSet,
}

impl ActionRules for Consolidation {
    fn cause(&self) -> EvictCause {
        EvictCause::Consolidation
    }

    fn filter(&self) -> VictimFilter {
        VictimFilter::Movable
    }

    fn may_be_victim(&self, cycle: &mut Cycle, victim: JobKey) -> bool {
        !cycle.is_immovable(victim) && cycle.is_settled(victim)
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

    fn barred(&self) -> Option<&NodeSet> {
        Some(&self.barred).filter(|barred| !barred.is_empty())
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
        self.memos.infeasible.clear();
        self.passed_over.clear();
        // A failed search changes nothing.
        let may_find = self.any_may_find(|cycle, job| {
            cycle.may_move_others(job)
                && cycle.enough_in_sum(job)
                && cycle.may_find(job, VictimFilter::Movable)
        });
        if !may_find && !self.config.verify {
            return;
        }
        let mut jobs = self.ready_jobs();
        jobs.retain(|job| {
            let may = self.may_move_others(*job);
            if !may {
                self.pass_over(*job);
            }
            may
        });
        let entries = jobs.into_iter().map(|job| self.entry(job)).collect();
        let mut queue = JobQueue::new(false);
        queue.fill(self.state, &self.shares, entries);
        while let Some(entry) = queue.pop(self.state, &self.shares) {
            if self.consolidate_for(entry.job, NodeSet::default()) {
                queue.arrange(self.state, &self.shares);
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
        // As in KAI, a semi-preemptible job may be moved too, with its core.
        let row = self.state.jobs.get(job);
        let preemptibility = row.map(|row| row.preemptibility(self.state));
        let may = preemptibility.is_some_and(|one| one != Preemptibility::NonPreemptible);
        may && !self.within_delay(job)
    }

    /// Makes room for one job without using the barred nodes. True when it
    /// was found.
    pub(super) fn consolidate_for(&mut self, job: JobKey, barred: NodeSet) -> bool {
        if !self.enough_in_sum(job) {
            self.forget_job_class(job);
            return false;
        }
        self.make_room(job, &Consolidation { barred })
    }

    /// Returns whether moving the job would lose one of its pods, because no controller creates it
    /// again.
    fn is_immovable(&self, job: JobKey) -> bool {
        let tasks = self.state.jobs.get(job).map(|row| row.tasks.iter());
        let mut rows = tasks
            .into_iter()
            .flatten()
            .filter_map(|task| self.state.tasks.get(*task));
        rows.any(|row| row.facts.immovable)
    }

    /// Returns whether the job and its youngest pod have run for the minimum age of a job that is
    /// moved.
    fn is_settled(&mut self, job: JobKey) -> bool {
        let min_age = self.config.consolidation_min_age;
        if min_age == Duration(0) {
            return true;
        }
        let settled = self.youngest_start([job]).after(min_age);
        let is_settled = settled <= self.state.now;
        if !is_settled {
            self.wake_at(settled);
        }
        is_settled
    }

    /// KAI's bound lets one more through than it says.
    fn max_moved(&self) -> Option<usize> {
        self.config.consolidation_jobs.map(|most| most as usize + 1)
    }

    /// Jobs that a consolidation may move, at most that many. Which ones is KAI's chance; here it is
    /// their names.
    pub(super) fn movable(&self, besides: Option<JobKey>, most: usize) -> Vec<JobKey> {
        let bound = self.max_moved();
        if bound.is_none() && most == usize::MAX {
            return self.state.index.placed_at.keys().collect();
        }
        let most = bound.map_or(most, |bound| bound.min(most));
        let is_placed = |job: &JobKey| self.state.index.placed_at.contains_key(*job);
        if let Some((at, jobs)) = &self.memos.moves
            && *at == self.state.changes.settled
            && besides.is_none_or(|job| !is_placed(&job))
        {
            return jobs.iter().copied().take(most).collect();
        }
        let jobs = self.state.names.jobs.values().copied();
        jobs.filter(|job| Some(*job) != besides && is_placed(job))
            .take(most)
            .collect()
    }

    /// Every job that may be moved for this one, and is in the same queue with the same priority, is served before it.
    pub(super) fn follows_all_movable(&mut self, job: JobKey, rules: &dyn ActionRules) -> bool {
        // Without priorities, jobs of every priority are in one queue with it.
        // And by the plugin for sizes, a job may change its turn when a pod of it has moved.
        let by_age = self.state.by_priority && self.config.gpu_job_order.is_none();
        if self.max_moved().is_none() || rules.barred().is_some() || !by_age {
            return false;
        }
        if self
            .memos
            .moves
            .as_ref()
            .is_none_or(|(at, _)| *at != self.state.changes.settled)
        {
            let jobs = self.movable(None, usize::MAX);
            self.memos.moves = Some((self.state.changes.settled, jobs));
        }
        let Some(queue) = self.state.jobs.get(job).and_then(|row| row.queue) else {
            return false;
        };
        let own = self.entry(job).rank;
        let others: Vec<JobKey> = self
            .memos
            .moves
            .iter()
            .flat_map(|(_, jobs)| jobs)
            .copied()
            .filter(|other| {
                let at = self.state.index.placed_at.get(*other);
                *other != job
                    && at
                        .is_some_and(|at| at.queue == queue && Reverse(at.priority) == own.priority)
            })
            .collect();
        others.into_iter().all(|other| {
            let rank = self.entry(other).rank;
            (rank.created, &rank.uid) < (own.created, &own.uid)
        })
    }

    /// KAI's rule (`IsEnoughGPUsAllocatableForJob`): the cluster has as many GPUs and as much GPU
    /// memory free or leaving as the job wants, in sum, and as many devices of the drivers that
    /// have some for it. The search could find room where it has less: the last fraction on a card
    /// may get less than its part, and a pod that is moved may take a device of another driver.
    fn enough_in_sum(&mut self, job: JobKey) -> bool {
        self.state.refresh_rooms();
        let sum = self.known(job).sum.clone();
        let (rooms, free) = (&self.state.caches.rooms, self.state.devices.free());
        let one = u128::from(NanoGpu::ONE.0);
        let left = |filter: &FilterName| free.of(filter).unwrap_or(u64::MAX);
        let either: u128 = sum.either.values().map(|count| u128::from(*count)).sum();
        let instead: u128 = sum
            .either
            .keys()
            .map(|filter| u128::from(left(filter)))
            .sum();
        let mut devices = sum.devices.iter();
        sum.nano + either * one <= rooms.nano + instead * one
            && sum.mib <= rooms.mib
            && devices.all(|(filter, count)| *count <= left(filter))
    }

    /// A pod's name for messages.
    pub(super) fn pod_name(&self, task: TaskKey) -> String {
        self.state.tasks.get(task).map_or_else(String::new, |row| {
            format!("{}/{}", row.facts.namespace, row.name)
        })
    }

    /// A job's name for messages.
    pub(super) fn job_name(&self, job: JobKey) -> String {
        self.state
            .jobs
            .get(job)
            .map_or_else(String::new, |row| match row.only(self.state) {
                Some(task) if row.single => format!("{}/{}", task.facts.namespace, task.name),
                _ => row.name.to_string(),
            })
    }
}
