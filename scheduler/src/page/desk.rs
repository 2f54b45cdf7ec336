//! The only owner of the rows: takes notes in, answers queries.
//!
//! A query over all cards of a large cluster takes milliseconds; that is why this is a
//! task of its own, and not the cycle's.

use super::answer::{self, Answer, Query, Rights};
use super::row::{Live, PodRow};
use super::shelf::{Change, Shelf};
use super::tap::{Note, Rank};
use crate::report::Views;
use crate::status::Status;
use api::GpuNode;
use scheduler_core::QueueView;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tokio::sync::{mpsc, oneshot, watch};

/// Value of a workload's priority where no class says one: KAI's `train`.
const DEFAULT_PRIORITY: i32 = 50;
/// Notes taken before the next query is looked at.
const BATCH: usize = 1024;

/// A question and where its answer goes.
#[derive(Debug)]
pub(super) enum Asked {
    /// Of a person.
    Query(Query, Rights, oneshot::Sender<Answer>),
    /// Namespaces of everything that is shown.
    Namespaces(oneshot::Sender<BTreeSet<String>>),
}

/// All rows.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) nodes: Shelf<Box<GpuNode>>,
    pub(super) pods: Shelf<PodRow>,
    pub(super) live: BTreeMap<String, Live>,
    classes: Shelf<Rank>,
    /// Place of each waiting pod in its queue, by UID, from 1; `None`: to be counted anew.
    places: Option<HashMap<String, u32>>,
    /// The latest of the cycle.
    pub(super) queues: Vec<QueueView>,
    /// Where the cycle is.
    pub(super) status: Status,
}

impl Rows {
    /// Takes a note in.
    pub(super) fn take(&mut self, note: Note) {
        match note {
            Note::Pod(change) => {
                self.pods.change(change);
                self.places = None;
            }
            Note::Node(change) => {
                if let Change::Drop(name) = &change {
                    self.live.remove(name);
                }
                self.nodes.change(change);
            }
            Note::Class(change) => {
                self.classes.change(change);
                self.places = None;
            }
            Note::Live(node, live) => {
                self.live.insert(node, live);
            }
            Note::Silent(node) => {
                self.live.remove(&node);
            }
        }
    }

    /// The value of a pod's class.
    pub(super) fn priority(&self, pod: &PodRow) -> i32 {
        let default = || self.classes.iter().find(|(_, rank)| rank.default);
        self.classes
            .get(&pod.class)
            .or_else(|| default().map(|(_, rank)| rank))
            .map_or(DEFAULT_PRIORITY, |rank| rank.value)
    }

    /// A pod's place in its queue; 0 where it waits in none.
    pub(super) fn place(&self, uid: &str) -> u32 {
        let places = self.places.as_ref();
        places
            .and_then(|places| places.get(uid))
            .copied()
            .unwrap_or(0)
    }

    /// Counts places, where something changed: a group stands where its oldest pod does,
    /// the higher priority first, then the older.
    pub(super) fn settle(&mut self) {
        if self.places.is_some() {
            return;
        }
        let mut queues: BTreeMap<&str, BTreeMap<&str, (Reverse<i32>, i64)>> = BTreeMap::new();
        let waiting = || self.pods.iter().filter(|(_, pod)| pod.node.is_none());
        for (_, pod) in waiting() {
            let rank = (Reverse(self.priority(pod)), pod.created);
            let groups = queues.entry(&pod.queue).or_default();
            let best = groups.entry(&pod.group).or_insert(rank);
            *best = rank.min(*best);
        }
        let mut place: HashMap<(&str, &str), u32> = HashMap::new();
        for (queue, groups) in &queues {
            let mut order: Vec<_> = groups.iter().map(|(group, rank)| (rank, *group)).collect();
            order.sort_unstable();
            for (at, (_, group)) in (1..).zip(order) {
                place.insert((queue, group), at);
            }
        }
        let of = |(uid, pod): (&String, &PodRow)| {
            let at = place.get(&(pod.queue.as_str(), pod.group.as_str()));
            (uid.clone(), at.copied().unwrap_or(0))
        };
        self.places = Some(waiting().map(of).collect());
    }

    fn namespaces(&self) -> BTreeSet<String> {
        let pods = self.pods.iter().map(|(_, pod)| pod.namespace.clone());
        let statuses = self
            .nodes
            .iter()
            .filter_map(|(_, node)| node.status.as_ref());
        let grants = statuses
            .flat_map(|status| &status.gpus)
            .flat_map(|gpu| &gpu.grants);
        let held = grants.filter_map(|grant| Some(grant.pod.split_once('/')?.0.to_owned()));
        pods.chain(held).collect()
    }
}

/// Until nobody asks any more, or there is no news.
pub(super) async fn run(
    mut notes: mpsc::UnboundedReceiver<Note>,
    mut asked: mpsc::Receiver<Asked>,
    mut views: watch::Receiver<Views>,
    mut status: watch::Receiver<Status>,
) {
    let mut rows = Rows::default();
    loop {
        tokio::select! {
            note = notes.recv() => match note {
                Some(note) => {
                    rows.take(note);
                    for _ in 0..BATCH {
                        let Ok(note) = notes.try_recv() else { break };
                        rows.take(note);
                    }
                }
                None => return,
            },
            question = asked.recv() => match question {
                Some(Asked::Query(query, rights, to)) => {
                    rows.settle();
                    if views.has_changed().unwrap_or(false) {
                        rows.queues.clone_from(&views.borrow_and_update().queues);
                    }
                    rows.status = status.borrow_and_update().clone();
                    let _ = to.send(answer::to(&query, &rights, &rows));
                }
                Some(Asked::Namespaces(to)) => {
                    let _ = to.send(rows.namespaces());
                }
                None => return,
            },
        }
    }
}
