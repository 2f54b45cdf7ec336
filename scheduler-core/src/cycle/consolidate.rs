//! Consolidation: moves running pods so that a pending job fits. Every pod that is moved must have
//! a new place (KAI, `actions/consolidation`).

use super::Cycle;
use super::eviction_bound::VictimFilter;
use super::repack::{self, Movable, Places};
use super::scenario::Scenario;
use super::solve::ActionRules;
use crate::action::EvictCause;
use crate::config::Placement;
use crate::job_queue::JobQueue;
use crate::state::cell::Status;
use crate::state::node_set::NodeSet;
use crate::state::rows::{JobKey, SpecKey, TaskKey};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

struct Consolidation {
    job: JobKey,
    /// How many jobs may be taken; `None`: any number.
    most: Option<usize>,
    /// Empty nodes that are to stay so.
    barred: NodeSet,
}

impl ActionRules for Consolidation {
    fn cause(&self) -> EvictCause {
        EvictCause::Consolidation
    }

    fn candidates(&self, cycle: &Cycle) -> Vec<JobKey> {
        cycle.movable(self.most, Some(self.job))
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

/// Which jobs may be moved, and for which requests that may help, as long as nothing changes.
#[derive(Debug)]
pub(super) struct MoveBounds {
    /// [`crate::state::State::settled`] at that time.
    at: u64,
    jobs: Vec<JobKey>,
    movable_pods: Movable,
    /// By what the first pod asks for.
    answers: FxHashMap<SpecKey, bool>,
    places: Places,
}

impl Cycle<'_> {
    pub(super) fn consolidate(&mut self) {
        if !self.consolidates() {
            return;
        }
        self.infeasible.clear();
        self.passed_over.clear();
        // A failed search changes nothing.
        let may_find = self.ready_kinds().iter().any(|job| {
            self.may_move_others(*job) && self.enough_in_sum(*job) && self.may_find_by_moving(*job)
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
        let preemptible = self
            .state
            .jobs
            .get(job)
            .is_some_and(|row| row.is_preemptible(self.state));
        preemptible && !self.within_delay(job)
    }

    /// Makes room for one job without using the barred nodes. True when it
    /// was found.
    pub(super) fn consolidate_for(&mut self, job: JobKey, barred: NodeSet) -> bool {
        if !self.enough_in_sum(job) {
            self.forget_job_class(job);
            return false;
        }
        let may_find = self.may_find_by_moving(job);
        let most = self.max_moved();
        self.make_room(job, &Consolidation { job, most, barred }, may_find)
    }

    /// KAI's bound lets one more through than it says.
    fn max_moved(&self) -> Option<usize> {
        self.config.consolidation_jobs.map(|most| most as usize + 1)
    }

    /// Jobs that a consolidation may move. Which ones is KAI's chance; here it is their names.
    fn movable(&self, most: Option<usize>, besides: Option<JobKey>) -> Vec<JobKey> {
        let stands = |job: &JobKey| self.state.placed_at.contains_key(*job);
        let Some(most) = most else {
            return self.state.placed_at.keys().collect();
        };
        if let Some(moves) = self
            .moves
            .as_ref()
            .filter(|moves| moves.at == self.state.settled)
            && besides.is_none_or(|job| !stands(&job))
        {
            return moves.jobs.clone();
        }
        self.state
            .job_names
            .values()
            .copied()
            .filter(|job| Some(*job) != besides && stands(job))
            .take(most)
            .collect()
    }

    fn refresh_move_bounds(&mut self) {
        let at = self.state.settled;
        if self.moves.as_ref().is_some_and(|moves| moves.at == at) {
            return;
        }
        let jobs = match self.max_moved() {
            Some(most) => self.movable(Some(most), None),
            // The full list is not needed here.
            None => self.movable(Some(repack::MOST + 1), None),
        };
        let movable_pods = self.movable_pods(&jobs);
        self.moves = Some(MoveBounds {
            at,
            jobs,
            movable_pods,
            answers: FxHashMap::default(),
            places: Places::default(),
        });
    }

    /// False: no move makes this job fit.
    fn may_find_by_moving(&mut self, job: JobKey) -> bool {
        let Some(spec) = self.known(job).first else {
            return false;
        };
        if !self.could_fit(spec, VictimFilter::All) {
            return false;
        }
        // A job with placed pods is one of those that are not moved for it.
        if self.state.placed_at.contains_key(job) {
            return true;
        }
        self.refresh_move_bounds();
        let Some(mut moves) = self.moves.take() else {
            return true;
        };
        let known = moves.answers.get(&spec).copied();
        let few = self.max_moved().is_some() || moves.jobs.len() <= repack::MOST;
        let mut places = std::mem::take(&mut moves.places);
        let answer = known.unwrap_or_else(|| {
            !few || self.could_be_arranged(spec, &moves.movable_pods, &mut places)
        });
        moves.places = places;
        let moves = self.moves.insert(moves);
        moves.answers.insert(spec, answer);
        answer
    }

    /// False: these cannot all have a place, and the first pod of that request too. A larger set
    /// has too many arrangements for this check, so it is tried.
    pub(super) fn could_all_move(&mut self, spec: SpecKey, scenario: &Scenario) -> bool {
        let jobs: Vec<JobKey> = scenario.by_job().iter().map(|unit| unit.job).collect();
        if jobs.len() > repack::MOST {
            return true;
        }
        self.refresh_move_bounds();
        let Some(mut moves) = self.moves.take() else {
            return true;
        };
        let movable_pods = self.movable_pods(&jobs);
        let answer = self.could_be_arranged(spec, &movable_pods, &mut moves.places);
        self.moves = Some(moves);
        answer
    }

    /// Every job that may be moved for this one, and is in the same queue with the same priority, is served before it.
    pub(super) fn follows_all_movable(&mut self, job: JobKey, rules: &dyn ActionRules) -> bool {
        // Without priorities, jobs of every priority are in one queue with it.
        let by_priority = self.state.by_priority;
        if self.max_moved().is_none() || rules.barred().is_some() || !by_priority {
            return false;
        }
        self.refresh_move_bounds();
        let Some(queue) = self.state.jobs.get(job).and_then(|row| row.queue) else {
            return false;
        };
        let own = self.entry(job).rank;
        let others: Vec<JobKey> = self
            .moves
            .iter()
            .flat_map(|moves| &moves.jobs)
            .copied()
            .filter(|other| {
                let at = self.state.placed_at.get(*other);
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
        // There is no sum of free devices for claims.
        let by_claim: u128 = tasks
            .iter()
            .filter_map(|task| self.state.specs.get(self.state.tasks.get(*task)?.spec))
            .map(|spec| spec.device_nano)
            .sum();
        let rooms = &self.state.rooms;
        wanted[0].saturating_sub(by_claim) <= rooms.nano && mib <= rooms.mib
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
