//! Every field that a decision may move, as a cell, and the one setter that writes it.
//!
//! Undo is physical: [`State::set`] keeps the old value, [`State::rollback`] puts old
//! values back in reverse order. There are no inverse operations, so nothing has to be
//! the exact opposite of anything. Indexes (who stands where, who waits) follow the
//! cells inside [`State::swap`], forwards and backwards alike. Generations are no cells:
//! they only rise, also on the way back.

use super::card_use::mode_index;
pub(crate) use super::card_use::{CardSums, CardUse};
use super::core_pods::CorePods;
use super::devices::{ClaimHold, DeviceUse, Slot};
pub(crate) use super::extra_use::ExtraUse;
use super::footprint;
use super::keys::{CardKey, JobKey, NodeKey, QueueKey, TaskKey};
use super::pod_counts::CountKey;
use super::products::ProductUse;
use super::rows::{Hold, SpecRow};
use super::transition::As;
use super::volumes::ClaimUse;
use super::{PlacedEntry, State};
use crate::ids::{ClaimUid, DecisionId, DeviceId, ResourceName};
use crate::model::{Front, Mode, Preemptibility};
use std::sync::Arc;

/// Where a task is, for the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Status {
    /// Not counted anywhere: its row is being changed.
    #[default]
    Detached,
    /// Waits for a place.
    Pending,
    /// Has a place as soon as what is being released there is free: counted apart from
    /// what is really taken. Lives only inside one decision.
    Promised,
    /// Decided here, no outcome yet seen in the API server: counts as taken. Inside a
    /// trial without a decision, and whole GPUs are only counted, not yet chosen.
    Assumed,
    /// Bound.
    Bound,
    /// Runs.
    Running,
    /// Evicted inside a trial; what it holds is in [`TaskCell::leaving`].
    Victim,
    /// On its way out, still holding.
    Releasing,
    /// Termination overdue: it still holds its resources, and is treated as holding them indefinitely.
    Stuck,
    /// Holds nothing any more, or never will.
    Done,
}

/// One task's place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskCell {
    pub status: Status,
    pub node: Option<NodeKey>,
    /// How its whole GPUs are given there.
    pub front: Front,
    /// `None`: nothing.
    pub holds: Option<Arc<[Hold]>>,
    /// The open decision, while assumed. Boxed: few pods are.
    pub decision: Option<Box<DecisionId>>,
    /// What a victim of this trial still holds, wherever it may be promised a new place.
    pub leaving: Option<Arc<Leaving>>,
}

/// The place that a victim of a trial is leaving, to go back to if it is spared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaving {
    pub was: Status,
    pub node: NodeKey,
    pub front: Front,
    pub holds: Option<Arc<[Hold]>>,
    pub decision: Option<DecisionId>,
}

impl Leaving {
    pub(crate) fn holds(&self) -> &[Hold] {
        self.holds.as_deref().unwrap_or_default()
    }
}

impl Status {
    /// How the place of such a pod counts. `None`: it has none.
    pub(crate) fn counts_as(self) -> Option<As> {
        match self {
            Self::Assumed | Self::Bound | Self::Running | Self::Stuck => Some(As::Taken),
            Self::Releasing => Some(As::Leaving),
            Self::Promised => Some(As::Promised),
            Self::Detached | Self::Pending | Self::Victim | Self::Done => None,
        }
    }

    /// KAI's `activeUsed`.
    pub(crate) fn is_active(self) -> bool {
        self.is_allocated() || matches!(self, Self::Releasing | Self::Stuck | Self::Victim)
    }

    /// KAI's `activeAllocated`: promises too, what is on its way out not.
    pub(crate) fn is_allocated(self) -> bool {
        matches!(
            self,
            Self::Promised | Self::Assumed | Self::Bound | Self::Running
        )
    }
}

impl TaskCell {
    pub(crate) fn of(status: Status) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    pub(crate) fn holds(&self) -> &[Hold] {
        self.holds.as_deref().unwrap_or_default()
    }

    /// The cell of a pod that leaves its place, which it may get back.
    pub(crate) fn victim(self) -> Self {
        let leaving = match (self.status, self.node) {
            (Status::Promised, _) | (_, None) => self.leaving,
            (was, Some(node)) => Some(Arc::new(Leaving {
                was,
                node,
                front: self.front,
                holds: self.holds,
                decision: self.decision.map(|decision| *decision),
            })),
        };
        Self {
            leaving,
            ..Self::of(Status::Victim)
        }
    }

    /// The places that it takes, and how each counts.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (NodeKey, As)> + use<> {
        let leaving = self
            .leaving
            .as_ref()
            .map(|leaving| (leaving.node, As::Leaving));
        let own = self.node.zip(self.status.counts_as());
        leaving.into_iter().chain(own)
    }

    /// Where it stands, and where it is leaving.
    pub(crate) fn places(&self) -> [Option<NodeKey>; 2] {
        [self.node, self.leaving.as_ref().map(|leaving| leaving.node)]
    }
}

/// Sums over the tasks of a node. `u128`: adding up any number of pods of any size
/// cannot overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub cpu: u128,
    pub memory: u128,
    pub pods: u128,
    /// Whole GPUs of tasks without cards of their own.
    pub gpus: u128,
}

/// What is taken of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeUse {
    /// By all that stand there, those on their way out too.
    pub used: Amounts,
    /// By those on their way out.
    pub releasing: Amounts,
    /// Promised on top, of what is being released.
    pub promised: Amounts,
    /// What pods of other schedulers count for in queues: GPU, CPU, memory.
    pub foreign: [u128; 3],
}

/// What the jobs of a queue and of all queues below it hold and want: nano-GPU,
/// millicores, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueUse {
    pub allocated: [u128; 3],
    pub non_preemptible: [u128; 3],
    /// By pods that wait; GPU memory apart, since its worth depends on the cluster.
    pub pending: [u128; 3],
    /// GPU memory that waiting pods want.
    pub pending_mib: u128,
}

/// One cell with a value: what to write, or what was there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Task(TaskKey, TaskCell),
    Node(NodeKey, NodeUse),
    Extra(NodeKey, ResourceName, ExtraUse),
    Card(CardKey, CardUse),
    Queue(QueueKey, QueueUse),
    /// The core of a semi-preemptible job.
    Core(JobKey, CorePods),
    /// Of the queue's product at that place.
    Product(QueueKey, usize, ProductUse),
    /// `None`: in no pod's use.
    Claim(ClaimUid, Option<ClaimUse>),
    /// Of a domain.
    Count(CountKey, Arc<str>, ExtraUse),
    /// `None`: in no pod's use.
    Hold(Slot, Option<ClaimHold>),
    Device(DeviceId, DeviceUse),
}

/// A point to come back to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(usize);

/// Old values, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    old: Vec<Cell>,
    open: usize,
    /// Where the newest mark is, or was.
    newest: usize,
}

impl Journal {
    /// Keeps what a cell was, unless one of the last that were kept is the same cell's: all pods
    /// of a gang change the same queue, and few nodes.
    fn keep(&mut self, old: Cell) {
        /// How many are compared.
        const LAST: usize = 8;
        let from = self.newest.max(self.old.len().saturating_sub(LAST));
        let last = self.old.get(from..).unwrap_or_default();
        if !last.iter().any(|kept| kept.is_of(&old)) {
            self.old.push(old);
        }
    }
}

impl Cell {
    /// Both are of the same node, card or queue. Other cells seldom change twice in a row.
    fn is_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Node(one, _), Self::Node(other, _)) => one == other,
            (Self::Card(one, _), Self::Card(other, _)) => one == other,
            (Self::Queue(one, _), Self::Queue(other, _)) => one == other,
            _ => false,
        }
    }
}

impl State {
    /// The one setter of every scheduling field.
    pub(crate) fn set(&mut self, cell: Cell) {
        let old = self.swap(cell);
        if self.journal.open > 0 {
            self.journal.keep(old);
        } else {
            self.settled += 1;
        }
    }

    /// From here on, [`State::rollback`] can come back here.
    pub(crate) fn mark(&mut self) -> Mark {
        self.journal.open += 1;
        self.journal.newest = self.journal.old.len();
        Mark(self.journal.newest)
    }

    /// Puts every cell back to what it was at `mark`, and closes it.
    pub(crate) fn rollback(&mut self, mark: Mark) {
        while self.journal.old.len() > mark.0 {
            if let Some(cell) = self.journal.old.pop() {
                self.swap(cell);
            }
        }
        self.close();
    }

    /// Keeps what was done since `mark`, and closes it.
    pub(crate) fn keep(&mut self, _mark: Mark) {
        if self.journal.open == 1 && self.is_tentative() {
            self.settled += 1;
            let old = std::mem::take(&mut self.journal.old);
            for cell in &old {
                if let Cell::Task(task, _) = cell {
                    self.pod_changed(*task);
                }
            }
            // To be cleared: the next trial needs as much room.
            self.journal.old = old;
        }
        self.close();
    }

    fn close(&mut self) {
        self.journal.open = self.journal.open.saturating_sub(1);
        self.journal.newest = self.journal.newest.min(self.journal.old.len());
        if self.journal.open == 0 {
            self.journal.old.clear();
        }
    }

    /// True inside a transaction that may be undone.
    pub(crate) fn in_trial(&self) -> bool {
        self.journal.open > 0
    }

    /// True inside a transaction that has moved something: what is found out now may not
    /// hold after it.
    pub(crate) fn is_tentative(&self) -> bool {
        !self.journal.old.is_empty()
    }

    fn swap(&mut self, cell: Cell) -> Cell {
        match cell {
            Cell::Task(key, mut value) => {
                if let Some(slot) = self.task_cells.get_mut(key) {
                    std::mem::swap(slot, &mut value);
                }
                self.pod_counts.task_moved();
                self.reindex(key, &value);
                if !self.in_trial() {
                    self.pod_changed(key);
                }
                Cell::Task(key, value)
            }
            Cell::Node(key, mut value) => {
                if let Some(slot) = self.node_use.get_mut(key) {
                    std::mem::swap(slot, &mut value);
                }
                // Which pods stand where it aligns matters, beside the sums.
                if self
                    .nodes
                    .get(key)
                    .is_some_and(|row| row.topology_manager.is_some())
                {
                    self.touch_node(key);
                } else {
                    self.move_node(key);
                }
                Cell::Node(key, value)
            }
            Cell::Extra(key, name, value) => {
                let old = if value == ExtraUse::default() {
                    self.extra_use.remove(&(key, name.clone()))
                } else {
                    self.extra_use.insert((key, name.clone()), value)
                };
                self.move_part(key);
                Cell::Extra(key, name, old.unwrap_or_default())
            }
            Cell::Card(key, mut value) => {
                if let Some(slot) = self.card_use.get_mut(key) {
                    std::mem::swap(slot, &mut value);
                }
                if let Some(node) = self.cards.get(key).map(|row| row.node) {
                    self.move_part(node);
                    self.touch_namesakes(key);
                }
                Cell::Card(key, value)
            }
            Cell::Queue(key, mut value) => {
                if let Some(slot) = self.queue_use.get_mut(key) {
                    std::mem::swap(slot, &mut value);
                }
                Cell::Queue(key, value)
            }
            Cell::Core(job, value) => {
                let old = match value {
                    Some(core) => self.cores.insert(job, core),
                    None => self.cores.remove(job),
                };
                Cell::Core(job, old)
            }
            Cell::Product(key, at, mut value) => {
                let slot = self.products.of.get_mut(key);
                if let Some(slot) = slot.and_then(|all| all.get_mut(at)) {
                    std::mem::swap(slot, &mut value);
                }
                Cell::Product(key, at, value)
            }
            Cell::Count(key, domain, value) => {
                let old = self.pod_counts.swap(key, &domain, value);
                Cell::Count(key, domain, old)
            }
            Cell::Claim(claim, value) => {
                self.volumes_version += 1;
                let node = value.as_ref().map(|used| used.node);
                let old = self.volumes.swap(&claim, value);
                let nodes = [node, old.as_ref().map(|used| used.node)];
                for node in nodes.into_iter().flatten() {
                    self.touch_node(node);
                }
                Cell::Claim(claim, old)
            }
            Cell::Hold(slot, value) => {
                let old = self.swap_hold(&slot, value);
                Cell::Hold(slot, old)
            }
            Cell::Device(id, value) => {
                let old = self.swap_use(&id, value);
                Cell::Device(id, old)
            }
        }
    }

    /// Brings the indexes in line with a task's new cell; `old` is what it was.
    fn reindex(&mut self, key: TaskKey, old: &TaskCell) {
        let Some(new) = self.task_cells.get(key) else {
            return;
        };
        if old.places() != new.places() {
            for node in old.places().into_iter().flatten() {
                if let Some(set) = self.on_node.get_mut(node) {
                    set.remove(&key);
                }
            }
            for node in new.places().into_iter().flatten() {
                if let Some(set) = self.on_node.get_mut(node) {
                    set.insert(key);
                }
            }
        }
        let (stood, stands) = (old.status.is_allocated(), new.status.is_allocated());
        let (was, is) = (
            self.is_overallocated(key, old),
            self.is_overallocated(key, new),
        );
        self.overallocated = (self.overallocated + u32::from(is)).saturating_sub(u32::from(was));
        if new.status == Status::Pending {
            self.pending.insert(key);
        } else if old.status == Status::Pending {
            self.pending.remove(&key);
        }
        let moved = old.status != new.status;
        let statuses = [old.status, new.status];
        if stood != stands {
            self.count_placed(key, stands);
        }
        if moved
            && let Some(job) = self.tasks.get(key).and_then(|row| row.job)
            && let Some(row) = self.jobs.get_mut(job)
        {
            self.moved.note(job, row.stamp);
            self.touched += 1;
            row.stamp = self.touched;
            self.status_log.note(row.stamp, job, key, statuses);
            self.check_staleness(job);
        }
    }

    /// It holds more whole cards than its request says: to move it would free some.
    fn is_overallocated(&self, key: TaskKey, cell: &TaskCell) -> bool {
        if cell.holds().is_empty() {
            return false;
        }
        let whole = self
            .tasks
            .get(key)
            .and_then(|row| self.specs.get(row.spec))
            .map_or(0, SpecRow::gpus);
        let held: u32 = footprint::of_pod(cell.holds())
            .map(|(_, takes)| takes.sums.modes[mode_index(Mode::Exclusive)])
            .sum();
        held > whole
    }

    /// One more, or one less, of a job's pods stands.
    fn count_placed(&mut self, key: TaskKey, stands: bool) {
        let Some((row, job)) = self.tasks.get(key).and_then(|row| Some((row, row.job?))) else {
            return;
        };
        // All pods of a semi-preemptible job count: its core does not leave, and no search takes it.
        if self.preemptibility(row) == Preemptibility::NonPreemptible {
            return;
        }
        if stands {
            if let Some(at) = self.placed_at.get_mut(job) {
                at.pods += 1;
                return;
            }
            let Some((queue, priority)) = self
                .jobs
                .get(job)
                .and_then(|row| Some((row.queue?, row.priority(self))))
            else {
                return;
            };
            self.placed_at.insert(
                job,
                PlacedEntry {
                    queue,
                    priority,
                    pods: 1,
                },
            );
            self.standing
                .entry(queue)
                .or_default()
                .entry(priority)
                .or_default()
                .insert(job);
            return;
        }
        let Some(at) = self.placed_at.get_mut(job) else {
            return;
        };
        at.pods -= 1;
        let at = *at;
        if at.pods > 0 {
            return;
        }
        self.placed_at.remove(job);
        let Some(by_priority) = self.standing.get_mut(&at.queue) else {
            return;
        };
        if let Some(jobs) = by_priority.get_mut(&at.priority) {
            jobs.remove(&job);
            if jobs.is_empty() {
                by_priority.remove(&at.priority);
            }
        }
        if by_priority.is_empty() {
            self.standing.remove(&at.queue);
        }
    }
}

#[cfg(test)]
mod tests;
