//! Aliquot's decisions, the other scheduler's actions, and the differences. Pure.

use jiff::Timestamp;
use scheduler_core::ids::{GpuUuid, NodeName, PodUid};
use scheduler_core::units::Time;
use scheduler_core::{Action, Decision};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A place that was found here, and not used there for this time, is a difference.
const PATIENCE_MS: u64 = 5_000;
/// Number of ended differences that are kept, the newest.
const KEPT: usize = 1_000;

/// In what the two differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Bound there to another node.
    OtherNode,
    /// Bound there to the same node, and to other cards.
    OtherCards,
    /// Bound there, and would wait here.
    WaitsHere,
    /// Would be bound here, and waits there.
    WaitsThere,
    /// Would be evicted here, and runs there.
    EvictedHere,
    /// Evicted there, and would run on here.
    EvictedThere,
}

impl Kind {
    /// A word for labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OtherNode => "other-node",
            Self::OtherCards => "other-cards",
            Self::WaitsHere => "waits-here",
            Self::WaitsThere => "waits-there",
            Self::EvictedHere => "evicted-here",
            Self::EvictedThere => "evicted-there",
        }
    }
}

/// One workload's pod, where the two differ about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Since when, or when.
    pub at: String,
    /// `namespace/name`.
    pub pod: String,
    /// In what.
    pub kind: Kind,
    /// What would be done here.
    pub here: String,
    /// The other scheduler's actions.
    pub there: String,
    /// Why not the same.
    pub why: String,
}

/// Pods, by how it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Bound there as would be here.
    pub same: u64,
    /// Bound there otherwise.
    pub other: u64,
    /// Bound there before a decision here.
    pub unseen: u64,
}

/// Everything that was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whose work was watched.
    pub scheduler: String,
    /// Bound pods since the start.
    pub bound: Counts,
    /// Differences that last.
    pub open: Vec<Difference>,
    /// Those that are over, the newest last.
    pub over: Vec<Difference>,
}

/// What would be done with a pod that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OwnDecision {
    /// There was no decision yet.
    Unknown,
    Bind(NodeName, Vec<GpuUuid>),
    /// A place, as soon as others have left.
    Promise(NodeName),
    Wait(String),
}

impl OwnDecision {
    fn text(&self) -> String {
        match self {
            Self::Unknown => "not looked at".to_owned(),
            Self::Bind(node, cards) => place(node, cards),
            Self::Promise(node) => format!("waits for room on node {node}"),
            Self::Wait(line) => format!("waits: {line}"),
        }
    }
}

#[derive(Debug)]
struct Entry {
    name: String,
    here: OwnDecision,
    /// Since when it could have stood.
    since: Option<Time>,
    /// The other one's reason for letting it wait.
    said: String,
    told: bool,
}

#[derive(Debug)]
struct Eviction {
    since: Time,
    name: String,
    message: String,
    told: bool,
}

/// Decisions of both schedulers, compared.
#[derive(Debug)]
pub(super) struct Comparison {
    scheduler: String,
    waiting: BTreeMap<PodUid, Entry>,
    evictions: BTreeMap<PodUid, Eviction>,
    /// Evicted there; until they have ended.
    evicted: BTreeSet<PodUid>,
    bound: Counts,
    over: VecDeque<Difference>,
}

impl Comparison {
    pub(super) fn new(scheduler: &str) -> Self {
        Self {
            scheduler: scheduler.to_owned(),
            waiting: BTreeMap::new(),
            evictions: BTreeMap::new(),
            evicted: BTreeSet::new(),
            bound: Counts::default(),
            over: VecDeque::new(),
        }
    }

    /// A pod waits there.
    pub(super) fn waits(&mut self, pod: &PodUid, name: &str, _now: Time) {
        self.waiting.entry(pod.clone()).or_insert_with(|| Entry {
            name: name.to_owned(),
            here: OwnDecision::Unknown,
            since: None,
            said: String::new(),
            told: false,
        });
    }

    /// Whether it waited, as far as is known.
    pub(super) fn is_open(&self, pod: &PodUid) -> bool {
        self.waiting.contains_key(pod)
    }

    /// Whether Aliquot would have placed it.
    pub(super) fn has_place(&self, pod: &PodUid) -> bool {
        let entry = self.waiting.get(pod);
        entry.is_some_and(|entry| {
            matches!(entry.here, OwnDecision::Bind(..) | OwnDecision::Promise(_))
        })
    }

    /// Bound there, before it could be decided here.
    pub(super) fn unseen(&mut self, pod: &PodUid) {
        if self.waiting.remove(pod).is_some() {
            self.bound.unseen += 1;
        }
    }

    /// Why it waits there.
    pub(super) fn said(&mut self, pod: &PodUid, message: &str) {
        if let Some(entry) = self.waiting.get_mut(pod) {
            message.clone_into(&mut entry.said);
        }
    }

    /// Bound there. `why`: why the node does not fit the pod, before it is placed there.
    pub(super) fn bound(
        &mut self,
        pod: &PodUid,
        node: &NodeName,
        cards: &[GpuUuid],
        why: impl Fn(&NodeName) -> Option<String>,
        now: Time,
    ) -> Option<Difference> {
        let entry = self.waiting.remove(pod)?;
        let against = || {
            why(node).map_or_else(
                || format!("node {node} would do too: another order of preference, or of work"),
                |why| format!("node {node}: {why}"),
            )
        };
        let (kind, why) = match &entry.here {
            OwnDecision::Unknown => {
                self.bound.unseen += 1;
                return None;
            }
            OwnDecision::Bind(here, ours) if here == node => {
                // A decision without cards leaves them to the node.
                if cards.is_empty() || ours.is_empty() || cards == ours.as_slice() {
                    self.bound.same += 1;
                    return None;
                }
                (
                    Kind::OtherCards,
                    "another order of preference, or of work".to_owned(),
                )
            }
            OwnDecision::Promise(here) if here == node => {
                self.bound.same += 1;
                return None;
            }
            OwnDecision::Bind(..) | OwnDecision::Promise(_) => (Kind::OtherNode, against()),
            OwnDecision::Wait(line) => {
                let why =
                    why(node).map_or_else(|| line.clone(), |why| format!("node {node}: {why}"));
                (Kind::WaitsHere, why)
            }
        };
        self.bound.other += 1;
        let difference = Difference {
            at: stamp(now),
            pod: entry.name,
            kind,
            here: entry.here.text(),
            there: place(node, cards),
            why,
        };
        Some(self.keep(difference))
    }

    /// Evicted there; reported once.
    pub(super) fn evicted(
        &mut self,
        pod: &PodUid,
        name: &str,
        message: &str,
        now: Time,
    ) -> Option<Difference> {
        if !self.evicted.insert(pod.clone()) || self.evictions.contains_key(pod) {
            return None;
        }
        let difference = Difference {
            at: stamp(now),
            pod: name.to_owned(),
            kind: Kind::EvictedThere,
            here: "runs on".to_owned(),
            there: format!("evicted: {message}"),
            why: "no pending pod would get its room here, or others would be evicted".to_owned(),
        };
        Some(self.keep(difference))
    }

    /// It is over, there and here.
    pub(super) fn gone(&mut self, pod: &PodUid) {
        self.waiting.remove(pod);
        self.evictions.remove(pod);
        self.evicted.remove(pod);
    }

    /// The decisions for the cluster as it is; returns the new differences.
    pub(super) fn decided(&mut self, decision: &Decision, now: Time) -> Vec<Difference> {
        let mut here: BTreeMap<PodUid, OwnDecision> = BTreeMap::new();
        let mut evictions = BTreeMap::new();
        for reason in &decision.reasons {
            here.insert(
                reason.pod.clone(),
                OwnDecision::Wait(reason.line.to_string()),
            );
        }
        for promise in &decision.promises {
            here.insert(
                promise.pod.clone(),
                OwnDecision::Promise(promise.node.clone()),
            );
        }
        for action in &decision.actions {
            match action {
                Action::Bind(bind) => {
                    let cards = bind.grants.iter().flat_map(|grant| grant.cards.clone());
                    let bind_to = OwnDecision::Bind(bind.node.clone(), cards.collect());
                    here.insert(bind.pod.clone(), bind_to);
                }
                Action::Evict(evict) => {
                    let before = self.evictions.remove(&evict.pod);
                    let eviction = Eviction {
                        since: before.as_ref().map_or(now, |before| before.since),
                        told: before.is_some_and(|before| before.told),
                        name: format!("{}/{}", evict.namespace, evict.name),
                        message: evict.message.to_string(),
                    };
                    evictions.insert(evict.pod.clone(), eviction);
                }
            }
        }
        self.evictions = evictions;
        for (pod, entry) in &mut self.waiting {
            if let Some(now_here) = here.remove(pod) {
                entry.here = now_here;
            }
            entry.since = match entry.here {
                OwnDecision::Bind(..) => entry.since.or(Some(now)),
                _ => None,
            };
            entry.told &= entry.since.is_some();
        }
        self.news(now)
    }

    /// Lasting differences that were not reported yet.
    fn news(&mut self, now: Time) -> Vec<Difference> {
        let mut news = Vec::new();
        for entry in self.waiting.values_mut() {
            if let Some(difference) = entry.difference(now)
                && !std::mem::replace(&mut entry.told, true)
            {
                news.push(difference);
            }
        }
        for eviction in self.evictions.values_mut() {
            if !std::mem::replace(&mut eviction.told, true) {
                news.push(eviction.difference());
            }
        }
        news
    }

    pub(super) fn report(&self, now: Time) -> Report {
        let waiting = self.waiting.values();
        let open = waiting.filter_map(|entry| entry.difference(now));
        Report {
            scheduler: self.scheduler.clone(),
            bound: self.bound,
            open: open
                .chain(self.evictions.values().map(Eviction::difference))
                .collect(),
            over: self.over.iter().cloned().collect(),
        }
    }

    fn keep(&mut self, difference: Difference) -> Difference {
        if self.over.len() >= KEPT {
            self.over.pop_front();
        }
        self.over.push_back(difference.clone());
        difference
    }
}

impl Entry {
    fn difference(&self, now: Time) -> Option<Difference> {
        let since = self.since?;
        (now.0 >= since.0.saturating_add(PATIENCE_MS)).then(|| Difference {
            at: stamp(since),
            pod: self.name.clone(),
            kind: Kind::WaitsThere,
            here: self.here.text(),
            there: "waits".to_owned(),
            why: if self.said.is_empty() {
                "the other scheduler says nothing".to_owned()
            } else {
                self.said.clone()
            },
        })
    }
}

impl Eviction {
    fn difference(&self) -> Difference {
        Difference {
            at: stamp(self.since),
            pod: self.name.clone(),
            kind: Kind::EvictedHere,
            here: "evicted".to_owned(),
            there: "runs on".to_owned(),
            why: self.message.clone(),
        }
    }
}

fn place(node: &NodeName, cards: &[GpuUuid]) -> String {
    if cards.is_empty() {
        return format!("node {node}");
    }
    let cards: Vec<&str> = cards.iter().map(GpuUuid::as_str).collect();
    format!("node {node}, {}", cards.join(", "))
}

fn stamp(time: Time) -> String {
    let millis = i64::try_from(time.0).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(millis).map_or_else(|_| String::new(), |stamp| stamp.to_string())
}
