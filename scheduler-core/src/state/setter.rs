//! The one setter of every field that a decision may move ([`super::cell`]), and its undoing.
//!
//! Undo is physical: [`State::set`] keeps the old value, [`State::rollback`] puts old
//! values back in reverse order. There are no inverse operations, so nothing has to be
//! the exact opposite of anything. Indexes (who stands where, who waits) follow the
//! cells inside [`State::swap`], forwards and backwards alike.

use crate::model::{Mode, Preemptibility};
use crate::state::card_use::mode_index;
use crate::state::cell::{Cell, Mark};
use crate::state::extra_use::ExtraUse;
use crate::state::index::PlacedEntry;
use crate::state::keys::TaskKey;
use crate::state::spec_row::SpecRow;
use crate::state::task_cell::{Status, TaskCell};
use crate::state::{State, footprint};

impl State {
    /// The one setter of every scheduling field.
    pub(crate) fn set(&mut self, cell: Cell) {
        let old = self.swap(cell);
        if self.cells.journal.open > 0 {
            self.cells.journal.keep(old);
        } else {
            self.changes.settled += 1;
        }
    }

    /// From here on, [`State::rollback`] can come back here.
    pub(crate) fn mark(&mut self) -> Mark {
        self.cells.journal.open += 1;
        self.cells.journal.newest = self.cells.journal.old.len();
        Mark(self.cells.journal.newest)
    }

    /// Puts every cell back to what it was at `mark`, and closes it.
    pub(crate) fn rollback(&mut self, mark: Mark) {
        while self.cells.journal.old.len() > mark.0 {
            if let Some(cell) = self.cells.journal.old.pop() {
                self.swap(cell);
            }
        }
        self.close();
    }

    /// Keeps what was done since `mark`, and closes it.
    pub(crate) fn keep(&mut self, _mark: Mark) {
        if self.cells.journal.open == 1 && self.is_tentative() {
            self.changes.settled += 1;
            let old = std::mem::take(&mut self.cells.journal.old);
            for cell in &old {
                if let Cell::Task(task, _) = cell {
                    self.pod_changed(*task);
                }
            }
            // To be cleared: the next trial needs as much room.
            self.cells.journal.old = old;
        }
        self.close();
    }

    fn close(&mut self) {
        self.cells.journal.open = self.cells.journal.open.saturating_sub(1);
        self.cells.journal.newest = self.cells.journal.newest.min(self.cells.journal.old.len());
        if self.cells.journal.open == 0 {
            self.cells.journal.old.clear();
        }
    }

    /// True inside a transaction that may be undone.
    pub(crate) fn in_trial(&self) -> bool {
        self.cells.journal.open > 0
    }

    /// True inside a transaction that has moved something: what is found out now may not
    /// hold after it.
    pub(crate) fn is_tentative(&self) -> bool {
        !self.cells.journal.old.is_empty()
    }

    fn swap(&mut self, cell: Cell) -> Cell {
        match cell {
            Cell::Task(key, mut value) => {
                if let Some(slot) = self.cells.tasks.get_mut(key) {
                    std::mem::swap(slot, &mut value);
                }
                self.cells.pod_counts.task_moved();
                self.reindex(key, &value);
                if !self.in_trial() {
                    self.pod_changed(key);
                }
                Cell::Task(key, value)
            }
            Cell::Node(key, mut value) => {
                if let Some(slot) = self.cells.nodes.get_mut(key) {
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
                    self.cells.extra.remove(&(key, name.clone()))
                } else {
                    self.cells.extra.insert((key, name.clone()), value)
                };
                self.move_part(key);
                Cell::Extra(key, name, old.unwrap_or_default())
            }
            Cell::Card(key, mut value) => {
                if let Some(slot) = self.cells.cards.get_mut(key) {
                    std::mem::swap(slot, &mut value);
                }
                if let Some(node) = self.cards.get(key).map(|row| row.node) {
                    self.move_part(node);
                    self.touch_namesakes(key);
                }
                Cell::Card(key, value)
            }
            Cell::Queue(key, mut value) => {
                if let Some(slot) = self.cells.queues.get_mut(key) {
                    std::mem::swap(slot, &mut value);
                }
                Cell::Queue(key, value)
            }
            Cell::Core(job, value) => {
                let old = match value {
                    Some(core) => self.cells.cores.insert(job, core),
                    None => self.cells.cores.remove(job),
                };
                Cell::Core(job, old)
            }
            Cell::Product(key, at, mut value) => {
                let slot = self.cells.products.of.get_mut(key);
                if let Some(slot) = slot.and_then(|all| all.get_mut(at)) {
                    std::mem::swap(slot, &mut value);
                }
                Cell::Product(key, at, value)
            }
            Cell::Count(key, domain, value) => {
                let old = self.cells.pod_counts.swap(key, &domain, value);
                Cell::Count(key, domain, old)
            }
            Cell::Claim(claim, value) => {
                self.changes.volumes += 1;
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
        let Some(new) = self.cells.tasks.get(key) else {
            return;
        };
        if old.places() != new.places() {
            for node in old.places().into_iter().flatten() {
                if let Some(set) = self.index.on_node.get_mut(node) {
                    set.remove(&key);
                }
            }
            for node in new.places().into_iter().flatten() {
                if let Some(set) = self.index.on_node.get_mut(node) {
                    set.insert(key);
                }
            }
        }
        let (stood, stands) = (old.status.is_allocated(), new.status.is_allocated());
        let (was, is) = (
            self.is_overallocated(key, old),
            self.is_overallocated(key, new),
        );
        self.cells.overallocated =
            (self.cells.overallocated + u32::from(is)).saturating_sub(u32::from(was));
        if new.status == Status::Pending {
            self.index.pending.insert(key);
        } else if old.status == Status::Pending {
            self.index.pending.remove(&key);
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
            self.changes.moved.note(job, row.stamp);
            self.changes.touched += 1;
            row.stamp = self.changes.touched;
            self.outputs.status_log.note(row.stamp, job, key, statuses);
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
            if let Some(at) = self.index.placed_at.get_mut(job) {
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
            self.index.placed_at.insert(
                job,
                PlacedEntry {
                    queue,
                    priority,
                    pods: 1,
                },
            );
            self.index
                .standing
                .entry(queue)
                .or_default()
                .entry(priority)
                .or_default()
                .insert(job);
            return;
        }
        let Some(at) = self.index.placed_at.get_mut(job) else {
            return;
        };
        at.pods -= 1;
        let at = *at;
        if at.pods > 0 {
            return;
        }
        self.index.placed_at.remove(job);
        let Some(by_priority) = self.index.standing.get_mut(&at.queue) else {
            return;
        };
        if let Some(jobs) = by_priority.get_mut(&at.priority) {
            jobs.remove(&job);
            if jobs.is_empty() {
                by_priority.remove(&at.priority);
            }
        }
        if by_priority.is_empty() {
            self.index.standing.remove(&at.queue);
        }
    }
}

#[cfg(test)]
mod tests;
