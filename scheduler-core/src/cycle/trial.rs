//! Tries one set of victims inside a trial of the state: they are removed, and all pods are placed
//! again in ordinary order.

use crate::action::EvictCause;
use crate::cycle::Cycle;
use crate::cycle::plan::Way;
use crate::cycle::scenario::Scenario;
use crate::cycle::search::VictimSearch;
use crate::gang::{Gang, Pick};
use crate::job_queue::{Entry, JobQueue};
use crate::state::cell::Mark;
use crate::state::keys::{JobKey, TaskKey};
use crate::state::node_set::NodeSet;
use crate::state::spec_row::SpecRow;
use crate::{fit, product_quota};
use std::collections::BTreeSet;

impl Cycle<'_> {
    /// Removes the victims and places all pods again. `Some`: the job fits and the
    /// rules allow it.
    pub(super) fn try_scenario(
        &mut self,
        search: &VictimSearch,
        count: usize,
        scenario: &Scenario,
    ) -> Option<Mark> {
        let tasks = &search.tasks[..count];
        if search.line.get().is_none() {
            let _ = search.line.set(self.line());
        }
        let mark = self.state.mark();
        let mut nodes = search.feasible.clone();
        for task in scenario.tasks() {
            let node = self.state.cell(task).node;
            nodes.extend(node.and_then(|node| self.state.caches.rooms.rank(node)));
            self.make_victim(task);
        }
        // A pod that leaves a node which is to stay empty makes room for no other.
        if let Some(barred) = search.rules.barred() {
            nodes.remove_all(barred);
        }
        self.budget.steps += 1;
        self.tally().simulated += 1;
        let placed = self.simulate(search, tasks, &nodes, scenario);
        if placed {
            self.return_to_own_cards(scenario);
        }
        if placed
            && self.are_spread(tasks.iter().copied().chain(scenario.tasks()))
            // Of a part of the job only the victims are kept, not where they went.
            && (count < search.tasks.len() || !self.moves_above_quota(scenario))
            && search.rules.allows(self, search.job, tasks, scenario)
        {
            return Some(mark);
        }
        self.tally().rejected += 1;
        self.state.rollback(mark);
        None
    }

    /// A victim is moved to GPUs of another product, of which a queue then holds more than its
    /// quota: reclaim might take from it what the quota gives it.
    fn moves_above_quota(&self, scenario: &Scenario) -> bool {
        let moves = |task: TaskKey| {
            let cell = self.state.cell(task);
            let (had, has) = (cell.leaving.as_ref()?.node, cell.node?);
            let product = |node| Some(&self.state.product_of(node)?.name);
            let is_other = product(had) != product(has);
            Some(is_other && product_quota::is_above(self.state, task, has))
        };
        self.state.has_product_quotas()
            && scenario
                .tasks()
                .into_iter()
                .any(|task| moves(task) == Some(true))
    }

    /// The placed pods still satisfy their own spread constraints: a later pod may have been placed
    /// in the domain of an earlier one.
    pub(super) fn are_spread(&mut self, tasks: impl Iterator<Item = TaskKey>) -> bool {
        for task in tasks {
            let Some(spec) = self.state.tasks.get(task).map(|row| row.spec) else {
                continue;
            };
            let row = self.state.specs.get(spec);
            if !row.is_some_and(SpecRow::is_spread) {
                continue;
            }
            self.state.refresh_domains(spec);
            let state = &*self.state;
            let node = state.cell(task).node;
            let node = node.and_then(|node| state.nodes.get(node)?.node.as_ref());
            let holds = |node| {
                let spec = state.specs.get(spec);
                spec.is_none_or(|spec| fit::pods::is_spread(state, spec, node))
            };
            if !node.is_none_or(holds) {
                return false;
            }
        }
        true
    }

    pub(super) fn make_victim(&mut self, task: TaskKey) {
        let victim = self.state.cell(task).victim();
        self.state.transition(task, victim);
    }

    /// The job and the victims, in ordinary order among all that wait.
    fn simulate(
        &mut self,
        search: &VictimSearch,
        tasks: &[TaskKey],
        nodes: &NodeSet,
        scenario: &Scenario,
    ) -> bool {
        let (job, gang) = (search.job, search.gang);
        let losers: BTreeSet<JobKey> = scenario.units().map(|unit| unit.job).collect();
        let mut entries: Vec<Entry> = Vec::with_capacity(losers.len() + 1);
        for loser in &losers {
            let mut entry = self.entry(*loser);
            // A job that gives way is placed again after all others, whatever its priority.
            entry.rank = self.victim_rank(*loser, entry.rank);
            entries.push(entry);
        }
        let mut own = self.entry(job);
        own.wanted = self
            .shares
            .wanted(self.state, tasks, self.shares.smallest_card);
        entries.push(own);
        let Some(line) = search.line.get() else {
            return false;
        };
        // Every moved pod must have a place: the rest need not be tried.
        let moves = search.rules.cause() == EvictCause::Consolidation;
        let mut queue = JobQueue::new(false);
        queue.fill_beside(self.state, &self.shares, entries, line);
        let part = as_alone(gang, tasks);
        let again = |cycle: &mut Self, job| cycle.place_again(search, job, (&part, tasks), nodes);
        // As in allocate: first what brings no queue above its quota of a product.
        let outer = std::mem::replace(&mut self.borrows, !self.state.has_product_quotas());
        let mut deferred = Vec::new();
        let mut placed = false;
        while let Some(entry) = queue.pop_own(self.state, &self.shares, &mut self.budget.pondered) {
            match again(self, entry.job) {
                Seat::Found => placed |= entry.job == job,
                Seat::Deferred => deferred.push(entry.job),
                Seat::None if entry.job == job || moves => {
                    self.borrows = outer;
                    return false;
                }
                Seat::None => {}
            }
        }
        self.borrows = outer;
        for later in deferred {
            let is_in = again(self, later) == Seat::Found;
            placed |= is_in && later == job;
            if !is_in && (later == job || moves) {
                return false;
            }
        }
        placed
    }

    /// Places the job of the search, or one that has lost pods. Else nothing is changed.
    fn place_again(
        &mut self,
        search: &VictimSearch,
        job: JobKey,
        (part, tasks): (&Gang, &[TaskKey]),
        nodes: &NodeSet,
    ) -> Seat {
        let before = self.deferred.replace(false);
        let mark = self.state.mark();
        let placed = if job == search.job {
            self.place_job(job, part, tasks, nodes, Way::Promise)
        } else {
            let gang = self.gang(job);
            let again = gang.next(Pick::WaitingAndVictims, &|task| self.may(task));
            self.place_job(job, &gang, &again, nodes, Way::Promise)
        };
        match placed {
            Ok(()) => self.state.keep(mark),
            Err(_) => self.state.rollback(mark),
        }
        match (placed, self.deferred.replace(before || self.deferred.get())) {
            (Ok(()), _) => Seat::Found,
            (Err(_), true) => Seat::Deferred,
            (Err(_), false) => Seat::None,
        }
    }
}

/// What came of a job that was placed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seat {
    Found,
    /// It has one if its queue is brought above its quota of a product.
    Deferred,
    None,
}

/// Returns the gang as if it had only these pods and those that are placed, and needed all of them.
/// If a topology is required, the placed pods determine the domain.
fn as_alone(gang: &Gang, tasks: &[TaskKey]) -> Gang {
    let mut alone = gang.with(&|task, status| status.is_allocated() || tasks.contains(&task));
    for set in &mut alone.sets {
        if !set.tasks.is_empty() {
            set.min = u32::try_from(set.tasks.len()).unwrap_or(u32::MAX);
        }
    }
    alone
}
