//! Scale-down: moves the pods of an underused node to other nodes in use, so that an autoscaler
//! finds the node empty (ours, [`ScaleDown`]).
//!
//! Autoscalers simulate neither cards nor fences, and so never remove a node with a share. Here one
//! node a decision is emptied, where ordinary placement puts each of its pods onto another node that
//! is in use, with the emptied node among those to choose from: pods that come again in place of the
//! evicted ones do not go back. Nothing is moved while a pod waits that its queues allow, while a pod
//! with GPUs is leaving, or before each workload of the node has run for the delay, so that what
//! was moved stays for at least that long.

use crate::action::EvictCause;
use crate::capacity::{self, Check};
use crate::config::ScaleDown;
use crate::cycle::Cycle;
use crate::cycle::plan::Way;
use crate::gang::Pick;
use crate::job_queue::JobQueue;
use crate::state::keys::{JobKey, NodeKey, TaskKey};
use crate::state::node_set::NodeSet;
use crate::state::spec_row::SpecRow;
use crate::state::task_cell::Status;
use crate::units::Time;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Nodes that are tried in a decision, those with the fewest pods first, then those that hold least.
/// More would seldom help: where the smallest nodes cannot be emptied, the others are fuller.
const TRIES: usize = 8;

/// A node that may be emptied, and the workloads of which all pods are there.
struct Candidate {
    node: NodeKey,
    tasks: Vec<TaskKey>,
    jobs: BTreeSet<JobKey>,
    /// What they hold: nano-GPU.
    held: u128,
}

impl Cycle<'_> {
    pub(super) fn scale_down(&mut self) {
        let Some(rules) = self.config.scale_down else {
            return;
        };
        let is_busy = self.budget.goes_on || self.budget.search_goes_on || self.plan.words() > 0;
        if is_busy || !self.consolidates() || self.some_job_may_run() {
            return;
        }
        let Some(stable) = self.nodes_where_nothing_leaves() else {
            return;
        };
        let nodes = Arc::clone(&self.nodes);
        let mut candidates: Vec<Candidate> = Vec::new();
        for node in nodes.iter().copied() {
            if let Some(found) = self.candidate(node, rules) {
                let until = self
                    .youngest_start(found.jobs.iter().copied())
                    .after(rules.delay);
                if until <= self.state.now {
                    candidates.push(found);
                } else {
                    self.wake_at(until);
                }
            }
        }
        // Stable: equals stay in the order of their names.
        candidates.sort_by_key(|found| (found.tasks.len(), found.held));
        candidates.truncate(TRIES);
        for found in candidates {
            if self.empty_node(&found, &stable) {
                return;
            }
        }
    }

    /// Some job waits that its queues allow to run: what is freed is its.
    fn some_job_may_run(&mut self) -> bool {
        let jobs = self.ready_kinds();
        jobs.into_iter().any(|job| {
            let tasks = self.next_tasks(job);
            let largest = self.shares.largest_card;
            let wanted = self.shares.wanted(self.state, &tasks, largest);
            !tasks.is_empty() && capacity::over(self.state, job, wanted, Check::All).is_none()
        })
    }

    /// Nodes whose pods stay, and whose room is therefore there now. `None`: a pod with GPUs is
    /// leaving some node, and may be one that was moved.
    fn nodes_where_nothing_leaves(&self) -> Option<NodeSet> {
        let mut stable = Vec::new();
        for node in self.nodes.iter().copied() {
            let sums = self.state.cells.nodes.get(node);
            if sums.is_none_or(|sums| sums.releasing.pods == 0) {
                stable.push(node);
                continue;
            }
            let leaves = |task: &TaskKey| {
                self.state.cell(*task).status == Status::Releasing && self.has_gpus(*task)
            };
            if self
                .state
                .index
                .on_node
                .get(node)
                .into_iter()
                .flatten()
                .any(leaves)
            {
                return None;
            }
        }
        Some(self.state.caches.rooms.set(stable))
    }

    fn has_gpus(&self, task: TaskKey) -> bool {
        let row = self.state.tasks.get(task);
        let spec = row.and_then(|row| self.state.specs.get(row.spec));
        spec.is_some_and(SpecRow::wants_gpus)
    }

    /// The node, if all of its pods of ours may be moved, and there are some. Other pods without
    /// GPUs, and nodes without any, are the autoscaler's to judge.
    fn candidate(&self, node: NodeKey, rules: ScaleDown) -> Option<Candidate> {
        let row = self.state.nodes.get(node).filter(|row| !row.is_plain())?;
        row.node.as_ref().filter(|node| node.removable)?;
        let (mut tasks, mut jobs, mut held) = (Vec::new(), BTreeSet::new(), 0);
        for task in self.state.index.pods_on(node) {
            let row = self.state.tasks.get(task)?;
            let Some(job) = row.job else {
                if self.has_gpus(task) {
                    return None;
                }
                continue;
            };
            let cell = self.state.cell(task);
            let runs = cell.status == Status::Running;
            if !runs || !row.facts.safe_to_evict || tasks.len() == rules.pods as usize {
                return None;
            }
            tasks.push(task);
            jobs.insert(job);
            held += self.state.charge(task, cell.holds())[0];
        }
        let may_move = |job: &JobKey| {
            let row = self.state.jobs.get(*job);
            let is_here = |task: &TaskKey| {
                let cell = self.state.cell(*task);
                cell.node.is_none_or(|at| at == node)
            };
            row.is_some_and(|row| row.is_preemptible(self.state) && row.tasks.iter().all(is_here))
                && !self.has_spared(*job)
        };
        let may_move = !tasks.is_empty() && jobs.iter().all(may_move);
        may_move.then_some(Candidate {
            node,
            tasks,
            jobs,
            held,
        })
    }

    /// Returns the latest time at which one of these jobs started or one of their placed pods was
    /// created.
    pub(super) fn youngest_start(&self, jobs: impl IntoIterator<Item = JobKey>) -> Time {
        let jobs = jobs.into_iter();
        let rows = jobs.filter_map(|job| self.state.jobs.get(job));
        let starts = rows.map(|row| {
            let tasks = row.tasks.iter();
            let placed = tasks.filter(|task| self.state.cell(**task).node.is_some());
            let created = placed.filter_map(|task| self.state.tasks.get(*task));
            let created = created.map(|task| task.created).max();
            row.last_start.get().max(created).unwrap_or_default()
        });
        starts.max().unwrap_or_default()
    }

    /// Moves all pods of the node, if ordinary placement puts them onto other nodes in use.
    fn empty_node(&mut self, found: &Candidate, stable: &NodeSet) -> bool {
        let mark = self.state.mark();
        for task in &found.tasks {
            self.make_victim(*task);
        }
        self.budget.steps += 1;
        let Some(moved) = self.place_elsewhere(found, stable) else {
            self.state.rollback(mark);
            return false;
        };
        self.state.keep(mark);
        let name = self.state.nodes.get(found.node).map(|row| row.name.clone());
        let name = name.map_or_else(String::new, |name| name.to_string());
        // In the order in which they were placed: the pods that come again do so in that of the
        // evictions, more or less.
        for task in &moved {
            let message = format!(
                "Pod {} was moved off node {name}, whose pods all fit on other nodes in use (scale-down)",
                self.pod_name(*task)
            );
            self.evict(*task, None, EvictCause::ScaleDown, &message);
            self.promise(*task);
        }
        true
    }

    /// The pods, in the order in which they were placed.
    fn place_elsewhere(&mut self, found: &Candidate, stable: &NodeSet) -> Option<Vec<TaskKey>> {
        let mut moved = Vec::with_capacity(found.tasks.len());
        let mut queue = JobQueue::new(false);
        let entries = found.jobs.iter().map(|job| self.entry(*job)).collect();
        queue.fill(self.state, &self.shares, entries);
        while let Some(entry) = queue.pop(self.state, &self.shares) {
            // Of an elastic job first its minimum, then pod by pod.
            loop {
                let gang = self.gang(entry.job);
                let next = gang.next(Pick::WaitingAndVictims, &|task| self.may(task));
                if next.is_empty() {
                    break;
                }
                let placed = self.place_job(entry.job, &gang, &next, stable, Way::Promise);
                placed.ok()?;
                moved.extend(next);
            }
        }
        let are_moved = moved.len() == found.tasks.len()
            && moved.iter().all(|task| self.is_moved(*task, found))
            && self.are_spread(moved.iter().copied());
        are_moved.then_some(moved)
    }

    /// It has a place on a node where another pod keeps one, with GPUs if it has some.
    fn is_moved(&self, task: TaskKey, found: &Candidate) -> bool {
        let cell = self.state.cell(task);
        let Some(node) = cell.node.filter(|_| cell.status == Status::Promised) else {
            return false;
        };
        let mut beside = self.state.index.on_node.get(node).into_iter().flatten();
        let keeps = |other: &TaskKey| {
            !found.tasks.contains(other) && (self.has_gpus(*other) || !self.has_gpus(task))
        };
        node != found.node && beside.any(keeps)
    }
}
