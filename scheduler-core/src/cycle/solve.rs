//! Which pods must leave so that a job fits: KAI's scenario search (`actions/common/solvers`), run on
//! the state itself inside trials.
//!
//! A job's pods are probed in growing numbers (1, 2, 4, ... then by bisection), so that the victims
//! of a smaller part are known when a larger one is tried. A probe takes victims unit by unit, in the
//! order in which queues lose pods. After each unit, the sets that [`super::scenario`] generates from
//! the victims so far are tried: they are removed, then the job and the victims are placed again in
//! ordinary order. The first set that lets the job in and satisfies the action's rule wins. Victims
//! that found a place are moved, or stay where they are.

use crate::action::EvictCause;
use crate::cycle::Cycle;
use crate::cycle::budget::SearchOutcome;
use crate::cycle::memos::JobClass;
use crate::cycle::scenario::{EvictionUnit, Generator, Scenario, TakenVictims};
use crate::cycle::search::{ActionRules, VictimSearch, VictimSet};
use crate::job_queue::{Entry, JobQueue, JobRank};
use crate::model::Preemptibility;
use crate::state::cell::Mark;
use crate::state::keys::{JobKey, NodeKey, QueueKey, TaskKey};
use crate::state::node_set::NodeSet;
use crate::state::spec_row::SpecRow;
use crate::state::task_cell::Status;
use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Room that a search found, in a trial that is open.
struct FoundRoom {
    mark: Mark,
    /// Pods of the job.
    pub(super) tasks: Arc<[TaskKey]>,
    pub(super) scenario: Scenario,
}

/// Victims that are put in order in about the time of a step.
const VICTIMS: usize = 4;

/// A failed attempt: the number of pods of the job, and these victims in this order.
type FailedAttempt = BTreeSet<(usize, Vec<TaskKey>)>;

impl Cycle<'_> {
    /// Makes room for a job. True if room was found; the state then contains the result.
    pub(super) fn make_room(&mut self, job: JobKey, rules: &dyn ActionRules) -> bool {
        if self.is_background(job) {
            return false;
        }
        if let Some(relaxation) = self.search_ruled_out(job, rules.filter()) {
            self.compare_search(job, rules, relaxation);
            self.forget_job_class(job);
            return false;
        }
        let job_class = self.job_class(job, rules);
        if let Some((queue, job_class)) = &job_class
            && let Some((before, found)) = self.memos.infeasible.get(queue)
            && before == job_class
        {
            match *found {
                SearchOutcome::Nothing => {
                    self.compare_search(job, rules, "the search for a job of its class");
                }
                SearchOutcome::Postponed => self.postpone(job),
                SearchOutcome::Room | SearchOutcome::CutShort => {}
            }
            return false;
        }
        let found = self.in_turn(job, rules.cause(), |cycle| {
            let found = cycle.find_room(job, rules);
            let has_room = found.is_some();
            if let Some(found) = found {
                cycle.state.keep(found.mark);
                cycle.keep_solution(job, &found.tasks, &found.scenario, rules);
            }
            cycle.tried(has_room)
        });
        if found == SearchOutcome::Room {
            self.memos.infeasible.clear();
        } else if let Some((queue, job_class)) = job_class {
            self.memos.infeasible.insert(queue, (job_class, found));
        } else {
            self.forget_job_class(job);
        }
        found == SearchOutcome::Room
    }

    /// Drop the result: the next job is adjacent to this one, not to the job before it.
    pub(super) fn forget_job_class(&mut self, job: JobKey) {
        if let Some(queue) = self.state.jobs.get(job).and_then(|row| row.queue) {
            self.memos.infeasible.remove(&queue);
        }
    }

    /// With `verify`, the search is run nevertheless: what ruled it out must be right.
    fn compare_search(&mut self, job: JobKey, rules: &dyn ActionRules, by: &str) {
        if !self.config.verify {
            return;
        }
        let before = (self.budget.steps, self.budget.pondered, self.wake);
        self.budget.begin_search(self.config.budget);
        let tallies = self.decision.tallies.clone();
        if let Some(found) = self.find_room(job, rules) {
            self.state.rollback(found.mark);
            self.state
                .contradicts(&format!("room was found, which was ruled out by {by}"));
        }
        self.decision.tallies = tallies;
        (self.budget.steps, self.budget.pondered, self.wake) = before;
    }

    /// With `verify`, a set of victims that is skipped is tried all the same.
    fn compare_set(&mut self, set: &VictimSet, count: usize, by: &str) {
        if !self.config.verify {
            return;
        }
        if let Some(mark) = self.try_scenario(set.search, count, set.scenario) {
            self.state.rollback(mark);
            self.state.contradicts(&format!(
                "a set of victims lets the job in, which was ruled out by {by}"
            ));
        }
    }

    /// The key by which jobs of one queue can be compared. `None`: the job is like no other. Either
    /// a job of its queue and priority that may be moved comes after it, so that its age decides
    /// the order of victims; or it has placed pods, or a tree; or jobs that are not served now, but
    /// are in the queue too, may be in between.
    fn job_class(&mut self, job: JobKey, rules: &dyn ActionRules) -> Option<(QueueKey, JobClass)> {
        let cause = rules.cause();
        let queue = self.state.jobs.get(job)?.queue?;
        if cause == EvictCause::Consolidation && !self.follows_all_movable(job, rules)
            || self.passed_over.contains(&queue)
        {
            return None;
        }
        let gang = self.gang_of(job);
        let row = self.state.jobs.get(job)?;
        let [set] = gang.sets.as_slice() else {
            return None;
        };
        if gang.tree.is_some() {
            return None;
        }
        let mut specs = Vec::with_capacity(set.tasks.len());
        for (task, status) in &set.tasks {
            let task = self.state.tasks.get(*task)?;
            let plain = *status == Status::Pending && task.rare.avoid.is_empty() && !task.gated;
            // Affinity of other pods decides where it may be placed, and is not in its signature.
            let spec = self.state.specs.get(task.spec)?;
            let is_apart = spec.spec.others.is_none() && !self.state.may_be_matched(task);
            if !plain || !is_apart || task.rare.pause.is_some() {
                return None;
            }
            specs.push(task.spec);
        }
        let job_class = JobClass {
            cause,
            priority: row.priority(self.state),
            preemptibility: row.preemptibility(self.state),
            min: set.min,
            specs,
        };
        Some((queue, job_class))
    }

    fn find_room(&mut self, job: JobKey, rules: &dyn ActionRules) -> Option<FoundRoom> {
        let gang = self.gang_of(job);
        let tasks = self.next_tasks(job);
        // Jobs before it in this action may have taken what it had.
        if tasks.is_empty() || !gang.is_ready() {
            return None;
        }
        rules.begin(self);
        let victims = self.victims(job, rules);
        if victims.is_empty() {
            return None;
        }
        let mut feasible = self.feasible_nodes(&tasks);
        if let Some(barred) = rules.barred() {
            feasible.remove_all(barred);
        }
        let open = self.open_to(&tasks);
        let mut search = VictimSearch {
            line: OnceCell::new(),
            job,
            gang: &gang,
            tasks: &tasks,
            rules,
            victims: &[],
            available_to: self.available_to(&feasible),
            slots: self.slots(&tasks, &feasible, &open),
            feasible,
            open,
        };
        // Idle jobs are searched alone first, so that no job that works is evicted while they suffice.
        let idle: Vec<JobKey> = victims
            .iter()
            .copied()
            .filter(|victim| self.state.gives_way(*victim))
            .collect();
        let idle_alone = (!idle.is_empty() && idle.len() < victims.len()).then_some(&idle);
        for victims in idle_alone.into_iter().chain([&victims]) {
            search.victims = victims;
            let found = self.find_among(&search);
            if let Some((mark, scenario)) = found {
                return Some(FoundRoom {
                    mark,
                    tasks,
                    scenario,
                });
            }
        }
        None
    }

    /// Looks for the fewest of the search's victims whose places make room for the job.
    fn find_among(&mut self, search: &VictimSearch) -> Option<(Mark, Scenario)> {
        let mut failed = FailedAttempt::default();
        for generator in Generator::ALL {
            let Some(recorded) = self.largest_part(search, generator, &mut failed) else {
                continue;
            };
            let all = search.tasks.len();
            let Some((mark, scenario)) = self.probe(search, all, generator, &recorded, &mut failed)
            else {
                continue;
            };
            if !self.gang(search.job).is_satisfied() {
                self.state.rollback(mark);
                return None;
            }
            return Some((mark, scenario));
        }
        None
    }

    /// Finds the largest part of the job that can be made room for. `Some`: there is one,
    /// and the victims that it needs.
    fn largest_part(
        &mut self,
        search: &VictimSearch,
        generator: Generator,
        failed: &mut FailedAttempt,
    ) -> Option<Vec<EvictionUnit>> {
        let mut recorded: Vec<EvictionUnit> = Vec::new();
        let mut try_part = |cycle: &mut Self, count: usize, recorded: &mut Vec<EvictionUnit>| {
            let Some((mark, scenario)) = cycle.probe(search, count, generator, recorded, failed)
            else {
                return false;
            };
            *recorded = cycle.really_lost(&scenario);
            cycle.state.rollback(mark);
            true
        };
        let all = search.tasks.len();
        let (mut known, mut count) = (0, 1);
        let mut too_many = loop {
            if !try_part(self, count, &mut recorded) {
                break count;
            }
            known = count;
            if count == all {
                return Some(recorded);
            }
            count = (count * 2).min(all);
        };
        while too_many - known > 1 {
            let middle = usize::midpoint(known, too_many);
            if try_part(self, middle, &mut recorded) {
                known = middle;
            } else {
                too_many = middle;
            }
        }
        (known > 0).then_some(recorded)
    }

    /// Units of which some pod is still a victim, or moved, after a simulation.
    fn really_lost(&self, scenario: &Scenario) -> Vec<EvictionUnit> {
        scenario
            .units()
            .filter(|unit| {
                unit.tasks.iter().any(|task| {
                    matches!(
                        self.state.cell(*task).status,
                        Status::Victim | Status::Promised
                    )
                })
            })
            .cloned()
            .collect()
    }

    /// Jobs that may lose pods, by the action's rule.
    fn victims(&mut self, job: JobKey, rules: &dyn ActionRules) -> Vec<JobKey> {
        let mut victims = self.permitted_jobs(rules.filter(), Some(job), usize::MAX);
        victims.retain(|victim| {
            *victim != job
                && !self.is_being_bound(*victim)
                && !self.has_spared(*victim)
                && rules.may_be_victim(self, *victim)
        });
        victims
    }

    /// A binding under way is settled first: its pod cannot be evicted and bound at once. One of
    /// this decision can be taken back.
    fn is_being_bound(&self, job: JobKey) -> bool {
        self.state.jobs.get(job).is_some_and(|row| {
            row.tasks.iter().any(|task| {
                self.state
                    .cells
                    .tasks
                    .get(*task)
                    .is_some_and(|cell| cell.status == Status::Assumed && cell.decision.is_some())
            })
        })
    }

    /// Whether one of its pods is spared.
    pub(super) fn has_spared(&self, job: JobKey) -> bool {
        let row = self.state.jobs.get(job);
        row.is_some_and(|row| {
            row.tasks
                .iter()
                .any(|task| self.state.is_eviction_postponed(*task))
        })
    }

    /// Nodes with something to give, for jobs of which every pod wants GPUs; else all.
    fn feasible_nodes(&mut self, tasks: &[TaskKey]) -> NodeSet {
        self.state.refresh_rooms();
        let gpus_only = tasks.iter().all(|task| {
            self.state
                .tasks
                .get(*task)
                .and_then(|row| self.state.specs.get(row.spec))
                .is_some_and(SpecRow::wants_gpus)
        });
        if !gpus_only {
            return NodeSet::clone(&self.all);
        }
        self.state.caches.rooms.some_gpu.clone()
    }

    /// Tries one set of victims after another. `Some`: the first `count` pods of the job
    /// are in, in a trial that is left open.
    fn probe(
        &mut self,
        search: &VictimSearch,
        count: usize,
        generator: Generator,
        recorded: &[EvictionUnit],
        failed: &mut FailedAttempt,
    ) -> Option<(Mark, Scenario)> {
        let pieces = search.victims.len() / VICTIMS;
        if self
            .budget
            .charge(u64::try_from(pieces).unwrap_or(u64::MAX))
        {
            return None;
        }
        let mut queue = JobQueue::new(true);
        let entries = search
            .victims
            .iter()
            .map(|victim| {
                let known = self.known(*victim);
                let (rank, held) = (known.entry.rank.clone(), known.held);
                Entry::victim(*victim, self.victim_rank(*victim, rank), held, None)
            })
            .collect();
        queue.fill(self.state, &self.shares, entries);
        let known: BTreeSet<TaskKey> = recorded
            .iter()
            .flat_map(|unit| unit.tasks.iter().copied())
            .collect();
        let mut taken = TakenVictims::new(recorded);
        self.state.refresh_rooms();
        let tasks = &search.tasks[..count];
        let demand = self.demand(tasks, search, recorded);
        let mut available_to = demand.available_to;
        loop {
            // Trials leave the index where they were.
            self.state.refresh_rooms();
            let enough = generator == Generator::NodeLocal || available_to >= demand.all;
            let scenarios = if enough {
                self.scenarios(generator, search, &demand, &taken)
            } else {
                Vec::new()
            };
            for scenario in scenarios {
                if self.budget.charge(1) {
                    return None;
                }
                let victims = scenario.tasks();
                if victims.is_empty() || failed.contains(&(count, victims.clone())) {
                    continue;
                }
                let set = VictimSet {
                    search,
                    demand: &demand,
                    scenario: &scenario,
                };
                if let Some(relaxation) = self.set_ruled_out(&set) {
                    self.compare_set(&set, count, relaxation);
                    self.state.refresh_rooms();
                    continue;
                }
                if let Some(mark) = self.try_scenario(search, count, &scenario) {
                    return Some((mark, scenario));
                }
                failed.insert((count, victims));
            }
            if self.budget.charge(1) {
                return None;
            }
            self.next_victims(&mut queue, &known, &mut taken)?;
            self.state.refresh_rooms();
            available_to += taken
                .all
                .potential
                .last()
                .map_or(0, |unit| self.held_by(unit));
        }
    }

    /// Returns the rank of a job among the victims of its queue. A job that gives way is evicted before
    /// all others.
    pub(super) fn victim_rank(&self, job: JobKey, rank: JobRank) -> JobRank {
        if !self.state.gives_way(job) {
            return rank;
        }
        JobRank {
            priority: Reverse(i32::MIN),
            ..rank
        }
    }

    pub(super) fn is_semi_preemptible(&self, job: JobKey) -> bool {
        let row = self.state.jobs.get(job);
        let preemptibility = row.map(|row| row.preemptibility(self.state));
        preemptibility == Some(Preemptibility::SemiPreemptible)
    }

    /// Adds the next unit of victims.
    fn next_victims(
        &mut self,
        queue: &mut JobQueue,
        known: &BTreeSet<TaskKey>,
        taken: &mut TakenVictims,
    ) -> Option<()> {
        loop {
            let entry = queue.pop(self.state, &self.shares)?;
            let whole = self.gang(entry.job);
            let gang = match &entry.part {
                None => whole,
                Some(part) => whole.with(&|task, _| part.contains(&task)),
            };
            let keeps_core =
                self.is_semi_preemptible(entry.job) && !self.state.gives_way(entry.job);
            let (unit, more) = if keeps_core {
                gang.leave_beyond_core()
            } else {
                gang.leave()
            };
            let is_known = unit.iter().any(|task| known.contains(task));
            if is_known || more {
                let leaves: &dyn Fn(TaskKey) -> bool = if is_known {
                    &|task| known.contains(&task)
                } else {
                    &|task| unit.contains(&task)
                };
                let rest: Arc<[TaskKey]> = gang
                    .tasks()
                    .map(|(task, _)| task)
                    .filter(|task| !leaves(*task))
                    .collect();
                if !rest.is_empty() {
                    let gang = gang.with(&|task, _| rest.contains(&task));
                    let rank = self.rank(entry.job, &gang);
                    let rank = self.victim_rank(entry.job, rank);
                    let again =
                        Entry::victim(entry.job, rank, self.held_by_gang(&gang), Some(rest));
                    queue.push(self.state, &self.shares, again);
                }
            }
            if is_known || unit.is_empty() {
                continue;
            }
            let nodes: Vec<NodeKey> = unit
                .iter()
                .filter_map(|task| self.state.cell(*task).node)
                .collect();
            let unit = EvictionUnit {
                job: entry.job,
                tasks: unit,
            };
            taken.push(unit, nodes.into_iter());
            return Some(());
        }
    }
}
