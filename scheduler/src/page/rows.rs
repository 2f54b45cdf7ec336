//! All that the page shows, as rows that notes change.

use super::changes::NodeChanges;
use super::relay::{Rank, RowEvent};
use super::row::{Live, LiveShare, PodRow, Uid};
use super::row_store::{Change, RowStore};
use crate::history::{CardNow, Held, History, Mark, MarkKind, QueueNow, Sample, Tenant};
use crate::status::Status;
use api::GpuNode;
use api::gpu_node::{GpuStatus, GrantStatus};
use scheduler_core::QueueView;
use scheduler_core::units::Time;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Value of a workload's priority where no class says one: KAI's `train`.
const DEFAULT_PRIORITY: i32 = 50;
/// Holds a share that no pod of this scheduler was granted.
const UNKNOWN: &str = "";

/// All rows.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) nodes: RowStore<Box<GpuNode>>,
    pub(super) pods: RowStore<PodRow>,
    pub(super) live: BTreeMap<String, Live>,
    /// Labels of nodes, each value once in memory.
    pub(super) labels: RowStore<Vec<(Arc<str>, Arc<str>)>>,
    pub(super) topologies: RowStore<Vec<String>>,
    tenants: RowStore<Tenant, Uid>,
    /// The containers that do not run, each with the reason, by the UID of their pod.
    crashes: RowStore<Vec<(String, String)>, Uid>,
    words: BTreeSet<Arc<str>>,
    classes: RowStore<Rank>,
    /// The queues of pod groups.
    groups: RowStore<String>,
    /// Position of each pending pod in its queue, by UID, from 1; `None`: must be counted again.
    places: Option<HashMap<String, u32>>,
    /// The latest of the cycle.
    pub(super) queues: Vec<QueueView>,
    /// Where the cycle is.
    pub(super) status: Status,
    /// What changed on which node.
    pub(super) changes: NodeChanges,
    pub(super) history: History,
    pub(super) now: Time,
}

impl Rows {
    /// Empty; nothing is known of before `now`.
    pub(super) fn new(now: Time) -> Self {
        Self {
            nodes: RowStore::default(),
            pods: RowStore::default(),
            live: BTreeMap::new(),
            labels: RowStore::default(),
            topologies: RowStore::default(),
            tenants: RowStore::default(),
            crashes: RowStore::default(),
            words: BTreeSet::new(),
            classes: RowStore::default(),
            groups: RowStore::default(),
            places: None,
            queues: Vec::new(),
            status: Status::default(),
            changes: NodeChanges::new(now),
            history: History::new(now),
            now,
        }
    }

    /// Takes a note in.
    pub(super) fn take(&mut self, note: RowEvent) {
        match note {
            RowEvent::Pod(change) => {
                self.pods.change(change);
                self.places = None;
            }
            RowEvent::Tenant(change) => {
                let change = change.map(|tenant| Tenant {
                    queue: self.once(&tenant.queue),
                    namespace: self.once(&tenant.namespace),
                    ..tenant
                });
                if let Change::Put(uid, tenant) = &change
                    && self.tenants.get(uid) == Some(tenant)
                {
                    return;
                }
                self.tenants.change(change);
            }
            RowEvent::Crash(change) => self.crashes.change(change),
            RowEvent::Labels(change) => {
                let change = change.map(|labels| {
                    let labels = labels.into_iter();
                    labels
                        .map(|(key, value)| (self.once(&key), self.once(&value)))
                        .collect()
                });
                if let Change::Put(name, labels) = &change {
                    if self.labels.get(name.as_str()) == Some(labels) {
                        return;
                    }
                    self.changes.node(name);
                }
                self.labels.change(change);
            }
            RowEvent::Topology(change) => self.topologies.change(change),
            RowEvent::Node(change) => {
                match &change {
                    Change::Drop(name) => {
                        self.live.remove(name);
                        self.changes.gone(name);
                    }
                    Change::Put(name, node) => {
                        self.changes.node(name);
                        for mark in self.cordons(name, node) {
                            self.note(mark, Uid::of(UNKNOWN));
                        }
                    }
                }
                self.nodes.change(change);
            }
            RowEvent::Group(change) => {
                self.groups.change(change);
                self.places = None;
            }
            RowEvent::Class(change) => {
                self.classes.change(change);
                self.places = None;
            }
            RowEvent::Live(node, live) => self.hear(node, live),
            RowEvent::Silent(node) => {
                self.changes.node(&node);
                self.live.remove(&node);
            }
            RowEvent::Refusal(node, refusal) => {
                let words = format!("{node}: {}", refusal.reason);
                let mark = self.mark(MarkKind::Refused, "", &refusal.pod_namespace, &words);
                self.note(mark, Uid::of(&refusal.pod_uid));
            }
            RowEvent::Mark(mark, pod) => self.note(mark, pod),
        }
    }

    /// An agent's report; returns the changes.
    fn hear(&mut self, node: String, mut live: Live) {
        let mut marks = Vec::new();
        let before = self.live.get(&node);
        for (key, share) in &mut live.shares {
            let old = before.and_then(|before| before.shares.get(key));
            since(share, old, before.is_some(), self.now);
            let told = old.map_or("", |old| old.complaint.as_str());
            if before.is_some() && !share.complaint.is_empty() && share.complaint != told {
                let card = share.cards.first().map_or("", String::as_str);
                let mark = self.mark(MarkKind::Limit, card, &share.namespace, &share.complaint);
                marks.push((mark, Uid::of(&key.0)));
            }
        }
        for (uuid, card) in &live.cards {
            let Some(old) = before.and_then(|before| before.cards.get(uuid)) else {
                continue;
            };
            let mark = match (old.fault.is_empty(), card.fault.is_empty()) {
                (true, false) => self.mark(MarkKind::Fault, uuid, "", &card.fault),
                (false, true) => self.mark(MarkKind::Recovered, uuid, "", "healthy again"),
                _ => continue,
            };
            marks.push((mark, Uid::of(UNKNOWN)));
        }
        if before.is_none_or(|before| NodeChanges::is_seen(before, &live)) {
            self.changes.node(&node);
        }
        self.live.insert(node, live);
        for (mark, pod) in marks {
            self.note(mark, pod);
        }
    }

    /// Cards of a node that were cordoned or uncordoned.
    fn cordons(&self, name: &str, node: &GpuNode) -> Vec<Mark> {
        let before = self.nodes.get(name).and_then(|node| node.status.as_ref());
        let before = before.into_iter().flat_map(|status| &status.gpus);
        let was: HashMap<&str, bool> = before
            .map(|gpu| (gpu.uuid.as_str(), gpu.cordoned))
            .collect();
        let status = node.status.iter();
        let changed = status.flat_map(|status| &status.gpus).filter_map(|gpu| {
            let kind = match (was.get(gpu.uuid.as_str())?, gpu.cordoned) {
                (false, true) => MarkKind::Cordoned,
                (true, false) => MarkKind::Uncordoned,
                _ => return None,
            };
            Some(self.mark(
                kind,
                &gpu.uuid,
                "",
                &format!("GPU {} of node {name}", gpu.index),
            ))
        });
        changed.collect()
    }

    fn mark(&self, kind: MarkKind, card: &str, namespace: &str, words: &str) -> Mark {
        Mark {
            at: self.now,
            kind,
            card: card.into(),
            queue: Arc::default(),
            namespace: namespace.into(),
            words: words.into(),
        }
    }

    fn note(&mut self, mut mark: Mark, pod: Uid) {
        if let Some(tenant) = self.tenants.get(&pod) {
            mark.queue = tenant.queue.clone();
        }
        self.history.marks.put(mark);
    }

    /// A text that many rows share.
    fn once(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.words.get(text) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        self.words.insert(text.clone());
        text
    }

    /// The queue that pays for what a pod holds; empty where none is known.
    pub(super) fn payer(&self, uid: &str) -> &str {
        self.tenants
            .get(&Uid::of(uid))
            .map_or("", |tenant| &tenant.queue)
    }

    /// The workload that made a pod, such as `Job/train`; empty where it holds nothing.
    pub(super) fn owner(&self, uid: &str) -> &str {
        self.tenants
            .get(&Uid::of(uid))
            .map_or("", |tenant| &tenant.owner)
    }

    /// Whether any pod has a grant and a container that does not run.
    pub(super) fn has_crashes(&self) -> bool {
        self.crashes.len() > 0
    }

    /// The first container of a pod with a grant that does not run, and why.
    pub(super) fn crashes_of(&self, uid: &str) -> Option<(&str, &str)> {
        let first = self.crashes.get(&Uid::of(uid))?.first()?;
        Some((&first.0, &first.1))
    }

    /// Returns why a container of a pod with a grant does not run; `None` if it runs.
    pub(super) fn crash(&self, uid: &str, container: &str) -> Option<&str> {
        let crashes = self.crashes.get(&Uid::of(uid))?;
        let crash = crashes.iter().find(|(name, _)| name == container)?;
        Some(&crash.1)
    }

    /// Notes what there is, where that is due.
    pub(super) fn sample(&mut self) {
        if !self.history.is_due(self.now) {
            return;
        }
        self.words.retain(|word| Arc::strong_count(word) > 1);
        let Self {
            history,
            live,
            nodes,
            tenants,
            queues,
            now,
            ..
        } = self;
        let cards = live.values().flat_map(|live| &live.cards);
        let cards = cards.map(|(uuid, card)| CardNow {
            uuid,
            total: card.total,
            grantable: card.grantable,
            granted: card.granted,
            used: card.used,
        });
        let queues = queues.iter().map(|view| QueueNow {
            name: view.queue.as_str(),
            held: view.held[0],
            waiting: view.waiting,
        });
        // By namespace, holders that have no grant of this scheduler.
        let mut others: BTreeMap<&str, Tenant> = BTreeMap::new();
        for (_, _, grant) in grants(nodes) {
            let namespace = namespace(grant);
            others.entry(namespace).or_insert_with(|| Tenant {
                namespace: namespace.into(),
                ..Tenant::default()
            });
        }
        let shares = grants(nodes).filter_map(|(node, gpu, grant)| {
            // A node whose agent is disconnected has no values.
            let live = live.get(node)?;
            let tenant = tenants.get(&Uid::of(&grant.pod_uid));
            let kept = grant.request_mib.unwrap_or(grant.memory_mib).0;
            let key = (grant.pod_uid.clone(), grant.container.clone());
            let share = live.shares.get(&key);
            let part = u128::from(kept) * 1_000_000_000;
            let part = part.checked_div(gpu.grantable_mib.0.into()).unwrap_or(0);
            Some(Held {
                tenant: tenant.or_else(|| others.get(namespace(grant)))?,
                product: &gpu.product,
                granted: kept,
                used: share.map(|share| share.used / share.cards.len().max(1) as u64),
                part: u64::try_from(part).unwrap_or(0),
                idle_minutes: share.and_then(|share| share.idle_minutes).unwrap_or(0),
            })
        });
        let sample = Sample {
            cards: cards.collect(),
            queues: queues.collect(),
            shares: shares.collect(),
        };
        history.sample(*now, &sample);
    }

    /// Returns the queue in which a pod waits: its group's, as the scheduler has it, else the one that
    /// the pod's labels name.
    pub(super) fn queue<'a>(&'a self, pod: &'a PodRow) -> &'a str {
        let of_group = self
            .groups
            .get(&pod.group)
            .filter(|queue| !queue.is_empty());
        of_group.map_or(&pod.queue, String::as_str)
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

    /// Computes positions, if something changed: a group is at the position of its oldest pod;
    /// higher priority first, then age.
    pub(super) fn settle(&mut self) {
        if self.places.is_some() {
            return;
        }
        let mut queues: BTreeMap<&str, BTreeMap<&str, (Reverse<i32>, i64)>> = BTreeMap::new();
        let waiting = || self.pods.iter().filter(|(_, pod)| pod.node.is_none());
        for (_, pod) in waiting() {
            let rank = (Reverse(self.priority(pod)), pod.created);
            let groups = queues.entry(self.queue(pod)).or_default();
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
            let at = place.get(&(self.queue(pod), pod.group.as_str()));
            (uid.clone(), at.copied().unwrap_or(0))
        };
        self.places = Some(waiting().map(of).collect());
    }

    pub(super) fn namespaces(&self) -> BTreeSet<String> {
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

/// Every grant on every card, with its node.
fn grants(
    nodes: &RowStore<Box<GpuNode>>,
) -> impl Iterator<Item = (&String, &GpuStatus, &GrantStatus)> {
    nodes.iter().flat_map(|(node, object)| {
        let gpus = object.status.iter().flat_map(|status| &status.gpus);
        gpus.flat_map(move |gpu| gpu.grants.iter().map(move |grant| (node, gpu, grant)))
    })
}

fn namespace(grant: &GrantStatus) -> &str {
    grant
        .pod
        .split_once('/')
        .map_or("", |(namespace, _)| namespace)
}

/// Since when a share is prepared, and runs: as first reported. `known`: its node has reported
/// before.
fn since(share: &mut LiveShare, old: Option<&LiveShare>, known: bool, now: Time) {
    (share.prepared, share.running) = old.map_or((None, None), |old| (old.prepared, old.running));
    let was = |phases: &[&str]| old.is_some_and(|old| phases.contains(&old.phase.as_str()));
    if known
        && matches!(share.phase.as_str(), "Prepared" | "Running")
        && !was(&["Prepared", "Running"])
    {
        share.prepared.get_or_insert(now);
    }
    if known && share.phase == "Running" && !was(&["Running"]) {
        share.running.get_or_insert(now);
    }
}
