//! Every field that a decision may move, as a cell, and the journal of old values.
//!
//! Generations are no cells: they only rise, also when a trial is undone.

use crate::ids::{ClaimUid, DeviceId, ResourceName};
use crate::state::card_use::CardUse;
use crate::state::core_pods::CorePods;
use crate::state::counted::CountKey;
use crate::state::devices::usage::DeviceUse;
use crate::state::devices::{ClaimHold, Slot};
use crate::state::extra_use::ExtraUse;
use crate::state::keys::{CardKey, JobKey, NodeKey, QueueKey, TaskKey};
use crate::state::node_use::NodeUse;
use crate::state::products::ProductUse;
use crate::state::queue_use::QueueUse;
pub(super) use crate::state::task_cell::TaskCell;
use crate::state::volumes::ClaimUse;
use std::sync::Arc;

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
pub(crate) struct Mark(pub(super) usize);

/// Old values, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    pub(super) old: Vec<Cell>,
    pub(super) open: usize,
    /// Where the newest mark is, or was.
    pub(super) newest: usize,
}

impl Journal {
    /// Keeps what a cell was, unless one of the last that were kept is the same cell's: all pods
    /// of a gang change the same queue, and few nodes.
    pub(super) fn keep(&mut self, old: Cell) {
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
