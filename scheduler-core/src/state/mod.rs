//! The state of one core: rows of facts, cells of sums, indexes over both.
//!
//! Values, each with the methods that need nothing else:
//! - [`rows`], [`job_row`], [`spec`], [`spec_row`]: what is known of each object; changed by events
//!   alone. [`task_cell`], [`hold`]: where a pod is, and what it holds there.
//! - [`node_use`], [`card_use`], [`queue_use`], [`extra_use`], [`products`]: sums; [`way`]: how an
//!   amount enters or leaves one.
//! - [`volumes`], [`devices`]: what claims can have, and what is in use of it.
//! - [`counted`], [`pod_counts`], [`pod_index`]: how many pods stand in which domain, of those that
//!   rules of others speak of; [`domains`], [`spreading`]: what a search has found out about them.
//! - [`room`], [`verdicts`]: what the nodes have to give, and what they say to the requests of pods that
//!   wait; [`crate::fit`] keeps both up to date.
//! - [`open`]: decisions without an outcome. [`status_log`], [`changed_groups`]: what has changed lately.
//! - [`interner`]: what many objects have alike, kept once; [`uid`]: what each has its own.
//!
//! The parts of [`State`], beside the rows: [`names`], the keys of the rows; [`cells`], everything that
//! a decision may move, with the journal of [`cell`]s that undoes it; [`index`], lists of rows;
//! [`pauses`], what is not tried before its time; [`outputs`], what the shell is told; [`changes`],
//! stamps and lists of what has changed; [`caches`], what is kept for the next decision.
//!
//! Above [`State`]:
//! - `setter`: the one setter of cells, and its undoing.
//! - `transition`: the one function that moves sums. With it, `claims`, `device_claims`, `pod_counting`
//!   and `product_sums` move those of their parts.
//! - `jobs`, `queue_tree`, `device_pools`, `pod_terms`: how objects come, go and change.
//! - `pod_domains`: what a search asks about other pods.
//!
//! Keys are slots: their order is chance and decides nothing. Whatever is walked in
//! order is walked through the ordered maps of names, or sorted by names.

pub(crate) mod caches;
pub(crate) mod card_names;
pub(crate) mod card_use;
pub(crate) mod cell;
pub(crate) mod cells;
pub(crate) mod changed_groups;
pub(crate) mod changes;
mod claims;
pub(crate) mod core_pods;
pub(crate) mod counted;
mod device_claims;
mod device_pools;
pub(crate) mod devices;
pub(crate) mod domains;
pub(crate) mod extra_use;
pub(crate) mod footprint;
pub(crate) mod hold;
pub(crate) mod idle;
mod idle_pods;
pub(crate) mod index;
pub(crate) mod interner;
pub(crate) mod job_row;
mod jobs;
pub(crate) mod keys;
pub(crate) mod mig;
pub(crate) mod names;
pub(crate) mod node_set;
pub(crate) mod node_use;
mod open;
pub(crate) mod outputs;
pub(crate) mod pauses;
mod pod_counting;
pub(crate) mod pod_counts;
mod pod_domains;
pub(crate) mod pod_index;
pub(crate) mod pod_labels;
mod pod_terms;
mod product_sums;
pub(crate) mod products;
mod queue_tree;
pub(crate) mod queue_use;
pub(crate) mod room;
pub(crate) mod rows;
mod setter;
pub(crate) mod spec;
pub(crate) mod spec_row;
pub(crate) mod spreading;
mod status_log;
pub(crate) mod task_cell;
pub(crate) mod transition;
pub(crate) mod uid;
pub(crate) mod verdicts;
pub(crate) mod volumes;
pub(crate) mod way;

use crate::ids::{ClaimUid, GpuUuid, GroupName, NodeName, QueueName, TopologyName};
use crate::model::{Preemptibility, TaskOrder, Topology};
use crate::state::caches::Caches;
use crate::state::card_use::CardUse;
use crate::state::cells::Cells;
use crate::state::changes::Changes;
use crate::state::index::Index;
use crate::state::job_row::{GroupRow, JobRow};
use crate::state::keys::{CardKey, JobKey, NodeKey, QueueKey, SpecKey, TaskKey};
use crate::state::names::Names;
use crate::state::node_use::NodeUse;
pub(crate) use crate::state::open::{Open, OpenDecision, Progress};
use crate::state::outputs::Outputs;
use crate::state::pauses::Pauses;
use crate::state::queue_use::QueueUse;
use crate::state::rows::{CardRow, NodeRow, QueueRow, TaskRow};
use crate::state::spec_row::SpecRow;
use crate::state::task_cell::TaskCell;
use crate::state::uid::Uid;
use crate::units::Time;
use slotmap::SlotMap;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The order of pending pods: the job of higher priority, then the older job, then the smaller uid;
/// inside a job the task order, then the older pod, then the smaller uid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order {
    pub(super) job: (Reverse<i32>, Time, Uid),
    pub(super) task: (TaskOrder, Time, Uid),
}

/// Everything that one core knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub now: Time,
    /// Jobs of higher priority go first ([`crate::Plugin::Priority`]).
    pub by_priority: bool,

    pub nodes: SlotMap<NodeKey, NodeRow>,
    pub cards: SlotMap<CardKey, CardRow>,
    pub tasks: SlotMap<TaskKey, TaskRow>,
    pub jobs: SlotMap<JobKey, JobRow>,
    pub queues: SlotMap<QueueKey, QueueRow>,
    pub specs: SlotMap<SpecKey, SpecRow>,
    pub topologies: BTreeMap<TopologyName, Topology>,
    pub names: Names,
    pub interner: interner::Interner,

    pub cells: Cells,
    pub volumes: volumes::Volumes,
    pub devices: devices::Devices,
    pub index: Index,
    pub open: Open,
    pub pauses: Pauses,
    pub outputs: Outputs,
    pub changes: Changes,
    pub caches: Caches,
}

/// A pod that is taken out of all sums for a moment.
#[derive(Clone, Debug)]
pub(crate) struct DetachedPod {
    pub task: TaskKey,
    pub(super) cell: TaskCell,
    /// Its claims' nodes and volumes.
    pub(super) given: Vec<(ClaimUid, volumes::ClaimUse)>,
    /// What was picked for its claims on devices.
    pub(super) picked: Vec<devices::Kept>,
}

impl State {
    /// A fact about the node changed: what was computed from it is void.
    pub(crate) fn touch_node(&mut self, key: NodeKey) {
        if let Some(row) = self.nodes.get_mut(key) {
            row.facts += 1;
        }
        self.move_node(key);
    }

    /// What a card of the node, or another of its resources, has left changed.
    pub(crate) fn move_part(&mut self, key: NodeKey) {
        if let Some(row) = self.nodes.get_mut(key) {
            row.parts += 1;
        }
        self.move_node(key);
    }

    /// What the node has left changed.
    pub(crate) fn move_node(&mut self, key: NodeKey) {
        self.changes.touched += 1;
        if !self.in_trial() {
            self.changes.settled += 1;
        }
        self.caches.rooms.touch(key);
        if let Some(row) = self.nodes.get_mut(key) {
            row.generation = self.changes.touched;
            if !row.is_dirty {
                row.is_dirty = true;
                self.caches.verdicts.touch(key);
            }
        }
    }

    /// The pod with that UID.
    pub(crate) fn task_of(&self, uid: impl Into<Uid>) -> Option<TaskKey> {
        self.names.tasks.get(&uid.into()).copied()
    }

    /// The job with that name.
    pub(crate) fn job_of(&self, name: &GroupName) -> Option<JobKey> {
        self.names.jobs.get(name).copied()
    }

    /// All pods, in order of their UIDs.
    pub(crate) fn tasks_by_uid(&self) -> Vec<TaskKey> {
        let mut keys: Vec<TaskKey> = self.tasks.keys().collect();
        keys.sort_unstable_by_key(|key| self.tasks.get(*key).map(|row| &row.uid));
        keys
    }

    /// The name of a task's group, whether the group is there or not.
    pub(crate) fn group_name(&self, row: &TaskRow) -> Option<GroupName> {
        let Some(job) = row.job.and_then(|job| self.jobs.get(job)) else {
            return row.facts.foreign_group.clone();
        };
        (!job.single).then(|| job.name.clone())
    }

    /// It is in that group, whether the group is there or not; `None`: in none.
    pub(crate) fn is_of_group(&self, row: &TaskRow, group: Option<&GroupName>) -> bool {
        let Some(job) = row.job.and_then(|job| self.jobs.get(job)) else {
            return row.facts.foreign_group.as_ref() == group;
        };
        group.map_or(job.single, |group| !job.single && job.name == *group)
    }

    /// The group of a task, where it has one that is there.
    pub(crate) fn group_of(&self, row: &TaskRow) -> Option<&GroupRow> {
        self.jobs.get(row.job?)?.group.as_ref()
    }

    pub(crate) fn preemptibility(&self, row: &TaskRow) -> Preemptibility {
        self.group_of(row)
            .map_or_else(|| row.alone(), |group| group.spec.preemptibility)
    }

    /// Returns whether a placed pod counts as non-preemptible in its queues.
    pub(crate) fn counts_as_fixed(&self, key: TaskKey, row: &TaskRow) -> bool {
        match self.preemptibility(row) {
            Preemptibility::Preemptible => false,
            Preemptibility::NonPreemptible => true,
            Preemptibility::SemiPreemptible => {
                let core = row.job.and_then(|job| self.cells.cores.get(job));
                core.is_some_and(|core| core.iter().any(|pod| pod.task == key))
            }
        }
    }

    /// Where a task stands in the order. Changes only while the task is detached.
    pub(crate) fn order(&self, row: &TaskRow) -> Order {
        let job = row.job.and_then(|job| self.jobs.get(job));
        let (priority, created, uid) = match job.and_then(|job| Some((job, job.group.as_ref()?))) {
            Some((job, group)) => (
                group.spec.priority,
                group.created,
                group.tie_breaker(&job.name),
            ),
            None => (row.facts.priority, row.created, row.uid.clone()),
        };
        let priority = if self.by_priority { priority } else { 0 };
        let job = (Reverse(priority), created, uid);
        Order {
            job,
            task: (row.facts.in_order, row.created, row.uid.clone()),
        }
    }

    /// The row of a node, made if it is not there.
    pub(crate) fn node(&mut self, name: &NodeName) -> NodeKey {
        if let Some(key) = self.names.nodes.get(name) {
            return *key;
        }
        let key = self.nodes.insert(NodeRow {
            name: name.clone(),
            node: None,
            agent: None,
            topology_manager: None,
            mig: rows::MigStrategy::default(),
            lacks: rows::MissingLabels::default(),
            product: None,
            cards: Vec::new(),
            generation: 0,
            facts: 0,
            parts: 0,
            is_dirty: false,
        });
        self.cells.nodes.insert(key, NodeUse::default());
        self.index.on_node.insert(key, BTreeSet::new());
        self.names.nodes.insert(name.clone(), key);
        self.caches.rooms.rename();
        key
    }

    /// Drops a node's row when nothing names it any more.
    pub(crate) fn release_node(&mut self, key: NodeKey) {
        let empty = self.index.on_node.get(key).is_none_or(BTreeSet::is_empty)
            && self.nodes.get(key).is_some_and(|row| {
                row.node.is_none()
                    && row.agent.is_none()
                    && row.topology_manager.is_none()
                    && row.cards.is_empty()
            });
        if empty && let Some(row) = self.nodes.remove(key) {
            if !row.is_dirty {
                self.caches.verdicts.touch(key);
            }
            self.names.nodes.remove(&row.name);
            self.caches.rooms.rename();
            self.cells.nodes.remove(key);
            self.index.on_node.remove(key);
        }
    }

    /// Returns the row of a card on `node`, and makes it if it is not there.
    pub(crate) fn card(&mut self, uuid: &GpuUuid, node: NodeKey) -> CardKey {
        if let Some(key) = self.names.cards.on(uuid, node) {
            return key;
        }
        let key = self.cards.insert(CardRow {
            uuid: uuid.clone(),
            node,
            is_named_twice: false,
            card: None,
            pause: None,
        });
        self.cells.cards.insert(key, CardUse::default());
        self.names.cards.insert(uuid, node, key);
        self.count_names(uuid);
        if let Some(row) = self.nodes.get_mut(node) {
            row.cards.push(key);
        }
        self.sort_cards(node);
        key
    }

    /// Drops a card's row when neither an agent nor a pod names it any more.
    pub(crate) fn release_card(&mut self, key: CardKey) {
        let unused = self
            .cells
            .cards
            .get(key)
            .is_none_or(|used| used.holders() == 0)
            && self.cards.get(key).is_some_and(|row| row.card.is_none());
        if unused && let Some(row) = self.cards.remove(key) {
            self.names.cards.remove(&row.uuid, row.node);
            self.count_names(&row.uuid);
            self.cells.cards.remove(key);
            if let Some(node) = self.nodes.get_mut(row.node) {
                node.cards.retain(|card| *card != key);
            }
            self.release_node(row.node);
        }
    }

    /// Notes on each row of the card whether it has another one.
    fn count_names(&mut self, uuid: &GpuUuid) {
        let rows: Vec<CardKey> = self.names.cards.everywhere(uuid).collect();
        for key in &rows {
            if let Some(row) = self.cards.get_mut(*key) {
                row.is_named_twice = rows.len() > 1;
            }
        }
    }

    /// Which node has a card that several name depends on all of them: a change of one of its rows
    /// is a change of the other nodes, too.
    pub(crate) fn touch_namesakes(&mut self, key: CardKey) {
        let Some(row) = self.cards.get(key).filter(|row| row.is_named_twice) else {
            return;
        };
        let (uuid, here) = (row.uuid.clone(), row.node);
        let rows = self.names.cards.everywhere(&uuid);
        let nodes: Vec<NodeKey> = rows
            .filter_map(|key| Some(self.cards.get(key)?.node))
            .filter(|node| *node != here)
            .collect();
        for node in nodes {
            self.touch_node(node);
        }
    }

    /// Puts a node's cards into their order: index, then UUID; unknown ones last.
    pub(crate) fn sort_cards(&mut self, node: NodeKey) {
        let cards = &self.cards;
        if let Some(row) = self.nodes.get_mut(node) {
            row.cards.sort_by_key(|key| {
                cards.get(*key).map(|row| {
                    let index = row.card.as_ref().map_or(u32::MAX, |card| card.index);
                    (index, row.uuid.clone())
                })
            });
        }
    }

    /// The row of a queue, made if it is not there; one more names it.
    pub(crate) fn queue(&mut self, name: &QueueName) -> QueueKey {
        if let Some(key) = self.names.queues.get(name) {
            return *key;
        }
        let key = self.queues.insert(QueueRow {
            name: name.clone(),
            queue: None,
            users: 0,
            chain: Vec::new(),
            children: Vec::new(),
            place: 0,
        });
        self.cells.queues.insert(key, QueueUse::default());
        self.names.queues.insert(name.clone(), key);
        key
    }

    /// Drops a queue's row when nothing names it any more.
    pub(crate) fn release_queue(&mut self, key: QueueKey) {
        let unused = self
            .queues
            .get(key)
            .is_some_and(|row| row.users == 0 && row.queue.is_none());
        if unused && let Some(row) = self.queues.remove(key) {
            self.names.queues.remove(&row.name);
            self.cells.queues.remove(key);
            self.cells.products.of.remove(key);
        }
    }

    /// The cells of a task, or those of none.
    pub(crate) fn cell(&self, task: TaskKey) -> TaskCell {
        self.cells.tasks.get(task).cloned().unwrap_or_default()
    }

    /// True when other queues name this one as their parent.
    pub(crate) fn has_children(&self, name: &QueueName) -> bool {
        self.names
            .queues
            .get(name)
            .and_then(|key| self.queues.get(*key))
            .is_some_and(|row| !row.children.is_empty())
    }

    /// True when the queue and all its ancestors are there, and are not too many.
    pub(crate) fn queue_exists(&self, name: &QueueName) -> bool {
        let mut at = Some(name);
        for _ in 0..=crate::model::Queue::MAX_DEPTH {
            let Some(name) = at else {
                return true;
            };
            let Some(queue) = self
                .names
                .queues
                .get(name)
                .and_then(|key| self.queues.get(*key)?.queue.as_ref())
            else {
                return false;
            };
            at = queue.parent.as_ref();
        }
        false
    }
}
