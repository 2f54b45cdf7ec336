//! Facts of the API server and words of agents → the core's events.
//!
//! - `pod`, `node`, `queue`, `cards`: one object each; `resources`, `rules`, `quantity`:
//!   parts of a pod.
//! - [`World`]: what must be remembered between facts: who was there (to see who is gone
//!   after a new listing), which nodes have agents, what agents said last.
//!
//! Pure: no client, no clock.

mod cards;
mod node;
mod pod;
mod quantity;
mod queue;
mod resources;
mod rules;

use crate::telemetry::Heard;
use crate::watch::{Fact, Seen};
use cards::Strangers;
use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::ResourceExt as _;
use pod::Classes;
use proto::telemetry::{NodeState, Share as HeldShare};
use scheduler_core::ids::{
    ContainerName, DecisionId, GpuUuid, NodeName, PodUid, QueueName, TopologyName,
};
use scheduler_core::model::{ContainerGrant, Mode, Node, NodeCards, Phase};
use scheduler_core::units::{Mib, Percent, Time};
use scheduler_core::{Event, Refusal};
use std::collections::{BTreeMap, BTreeSet};

/// What an agent says about the fence around a pod's share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolation {
    /// `metadata.uid`.
    pub pod_uid: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// Every container's limit is read back from its fence as it was granted.
    pub verified: bool,
    /// One line per container.
    pub message: String,
}

/// Who is there of one kind; `true` while a listing has not named it yet.
#[derive(Clone, Debug, Default)]
struct Roll {
    listed: bool,
    names: BTreeMap<String, bool>,
}

impl Roll {
    fn begin(&mut self) {
        self.names.values_mut().for_each(|unnamed| *unnamed = true);
    }

    fn there(&mut self, name: &str) {
        self.names.insert(name.to_owned(), false);
    }

    /// Who was not named.
    fn end(&mut self) -> Vec<String> {
        self.listed = true;
        let gone = |(name, unnamed): (&String, &bool)| unnamed.then(|| name.clone());
        let gone: Vec<String> = self.names.iter().filter_map(gone).collect();
        self.names.retain(|_, unnamed| !*unnamed);
        gone
    }
}

/// What is remembered between facts.
#[derive(Debug)]
pub struct World {
    scheduler: String,
    classes: Classes,
    pods: Roll,
    nodes: Roll,
    gpu_nodes: Roll,
    queues: Roll,
    groups: Roll,
    topologies: Roll,
    class_names: Roll,
    /// As the core has them, but for `managed`.
    known_nodes: BTreeMap<String, Node>,
    /// Mode of a share that names none, by node with an agent.
    default_modes: BTreeMap<String, Mode>,
    /// Groups, for the value of their class.
    known_groups: BTreeMap<String, Box<api::PodGroup>>,
    /// The last word of each agent that is heard.
    states: BTreeMap<String, NodeState>,
    /// What the core was told of it.
    told: BTreeMap<String, NodeCards>,
    strangers: BTreeMap<String, Strangers>,
    /// Bound pods with whole cards: the kubelet may pick another card than was granted.
    whole: BTreeMap<String, Box<KubePod>>,
    /// Where it did, by pod.
    held: BTreeMap<String, Vec<ContainerGrant>>,
    isolation: BTreeMap<String, Isolation>,
    /// Running pods that are being deleted, until nobody counts on their end any more.
    leaving: BTreeMap<String, (Time, Box<KubePod>)>,
    /// As far as was told.
    now: Time,
    /// Nodes that list what agents have them list.
    listing: BTreeSet<String>,
    /// Pods that their agent wants gone, and by which decision they came.
    unwanted: BTreeMap<String, String>,
}

impl World {
    /// Nothing known yet. `scheduler` is the name in the specs of our pods.
    pub fn new(scheduler: &str) -> Self {
        Self {
            scheduler: scheduler.to_owned(),
            classes: Classes::default(),
            pods: Roll::default(),
            nodes: Roll::default(),
            gpu_nodes: Roll::default(),
            queues: Roll::default(),
            groups: Roll::default(),
            topologies: Roll::default(),
            class_names: Roll::default(),
            known_nodes: BTreeMap::new(),
            default_modes: BTreeMap::new(),
            known_groups: BTreeMap::new(),
            states: BTreeMap::new(),
            told: BTreeMap::new(),
            strangers: BTreeMap::new(),
            whole: BTreeMap::new(),
            held: BTreeMap::new(),
            isolation: BTreeMap::new(),
            leaving: BTreeMap::new(),
            now: Time(0),
            listing: BTreeSet::new(),
            unwanted: BTreeMap::new(),
        }
    }

    /// Kinds of objects that were not listed yet: nothing may be decided before.
    pub fn missing(&self) -> Vec<&'static str> {
        [
            (&self.pods, "pods"),
            (&self.nodes, "nodes"),
            (&self.gpu_nodes, "gpunodes"),
            (&self.queues, "queues"),
            (&self.groups, "podgroups"),
            (&self.topologies, "topologies"),
            (&self.class_names, "priorityclasses"),
        ]
        .into_iter()
        .filter_map(|(roll, name)| (!roll.listed).then_some(name))
        .collect()
    }

    /// Agents that are heard.
    pub fn agents(&self) -> usize {
        self.states.len()
    }

    /// Time went on: pods that ought to be gone by now, and are not.
    pub fn elapse(&mut self, now: Time) -> Vec<Event> {
        self.now = self.now.max(now);
        let due = |(at, _): &(Time, Box<KubePod>)| *at <= self.now;
        let due: Vec<Box<KubePod>> = self
            .leaving
            .values()
            .filter(|leaving| due(leaving))
            .map(|(_, pod)| pod.clone())
            .collect();
        due.into_iter()
            .flat_map(|pod| self.pod_there(*pod))
            .collect()
    }

    /// When time is to be told next; `None`: not before another fact.
    pub fn wake_at(&self) -> Option<Time> {
        self.leaving.values().map(|(at, _)| *at).min()
    }

    /// A fact of the API server.
    pub fn take(&mut self, fact: Fact) -> Vec<Event> {
        match fact {
            Fact::Pod(seen) => self.pod(seen),
            Fact::Node(seen) => self.node(seen),
            Fact::GpuNode(seen) => self.gpu_node(seen),
            Fact::Queue(seen) => self.queue(seen),
            Fact::Group(seen) => self.group(seen),
            Fact::Topology(seen) => self.topology(seen),
            Fact::Class(seen) => self.class(seen),
        }
    }

    /// What an agent said; the conditions that follow come beside the events.
    pub fn hear(&mut self, heard: Heard) -> (Vec<Event>, Vec<Isolation>) {
        match heard {
            Heard::State { node, state } => {
                let isolation = self.isolation(&node, &state);
                let mut events = self.adopt(&state);
                events.extend(self.unwanted(&node, &state));
                self.states.insert(node.clone(), state);
                events.extend(self.judge_managed(&node));
                events.extend(self.cards(&node));
                (events, isolation)
            }
            Heard::Refusal { node, refusal } => {
                let event = Event::Refusal(Refusal {
                    pod: PodUid::new(&refusal.pod_uid),
                    node: NodeName::from(node),
                    decision: DecisionId::parse(&refusal.decision_id),
                    reason: refusal.reason.into(),
                    last_word: refusal.r#final,
                });
                (vec![event], Vec::new())
            }
            Heard::Lost { node } => {
                self.told.remove(&node);
                let known = self.states.remove(&node).is_some();
                let lost = known.then(|| Event::AgentLost(NodeName::from(node.as_str())));
                let mut events = self.judge_managed(&node);
                events.extend(lost);
                (events, Vec::new())
            }
        }
    }

    /// Shares whose pods their agent wants gone: the card is broken, or the admin wants
    /// violations to end so. Taken back as grants that are refused for good.
    fn unwanted(&mut self, node: &str, state: &NodeState) -> Vec<Event> {
        let mut events = Vec::new();
        for share in state.shares.iter().filter(|share| share.evict) {
            let told = self
                .unwanted
                .insert(share.pod_uid.clone(), share.decision_id.clone());
            if told.as_ref() == Some(&share.decision_id) {
                continue;
            }
            events.push(Event::Refusal(Refusal {
                pod: PodUid::new(&share.pod_uid),
                node: NodeName::from(node),
                decision: DecisionId::parse(&share.decision_id),
                reason: share.complaint.as_str().into(),
                last_word: true,
            }));
        }
        events
    }

    fn pod(&mut self, seen: Seen<KubePod>) -> Vec<Event> {
        match seen {
            Seen::Listing => {
                self.pods.begin();
                Vec::new()
            }
            Seen::There(pod) => self.pod_there(*pod),
            Seen::Gone(pod) => self.pod_gone(&pod.uid().unwrap_or_default()),
            Seen::Listed => {
                let gone = self.pods.end();
                gone.iter().flat_map(|uid| self.forget_pod(uid)).collect()
            }
        }
    }

    fn pod_there(&mut self, pod: KubePod) -> Vec<Event> {
        let Some(uid) = pod.uid() else {
            return Vec::new();
        };
        // Not there before it is in its group.
        if crate::group::must_wait(&pod, &self.scheduler) {
            return self.pod_gone(&uid);
        }
        let held = self.held.get(&uid).map(Vec::as_slice);
        let Some(mut converted) = pod::of(&pod, &self.scheduler, &self.classes, held) else {
            return self.pod_gone(&uid);
        };
        self.pods.there(&uid);
        self.leaving.remove(&uid);
        if let Some(at) = pod::given_up_at(&pod) {
            if at > self.now {
                self.leaving
                    .insert(uid.clone(), (at, Box::new(pod.clone())));
            } else if let Phase::Releasing(Some(placement)) = converted.phase {
                converted.phase = Phase::Stuck(placement);
            }
        }
        let whole = converted
            .gpus
            .iter()
            .any(|ask| matches!(ask.ask, scheduler_core::model::Ask::Whole(_)));
        let stands = pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_some());
        if whole && stands {
            self.whole.insert(uid, Box::new(pod));
        }
        vec![Event::Pod(Box::new(converted))]
    }

    fn pod_gone(&mut self, uid: &str) -> Vec<Event> {
        if self.pods.names.remove(uid).is_none() {
            return Vec::new();
        }
        self.forget_pod(uid)
    }

    fn forget_pod(&mut self, uid: &str) -> Vec<Event> {
        self.whole.remove(uid);
        self.held.remove(uid);
        self.isolation.remove(uid);
        self.leaving.remove(uid);
        self.unwanted.remove(uid);
        vec![Event::PodGone(PodUid::new(uid))]
    }

    fn node(&mut self, seen: Seen<k8s_openapi::api::core::v1::Node>) -> Vec<Event> {
        match seen {
            Seen::Listing => {
                self.nodes.begin();
                Vec::new()
            }
            Seen::There(node) => {
                let name = node.name_any();
                self.nodes.there(&name);
                if node::lists_ours(&node) {
                    self.listing.insert(name.clone());
                } else {
                    self.listing.remove(&name);
                }
                let node = node::of(&node, self.is_managed(&name));
                // The kubelet's heartbeat changes nothing here.
                if self.known_nodes.get(&name) == Some(&node) {
                    return Vec::new();
                }
                self.known_nodes.insert(name, node.clone());
                vec![Event::Node(node)]
            }
            Seen::Gone(node) => {
                let name = node.name_any();
                self.nodes.names.remove(&name);
                self.node_gone(name)
            }
            Seen::Listed => {
                let gone = self.nodes.end();
                gone.into_iter()
                    .flat_map(|name| self.node_gone(name))
                    .collect()
            }
        }
    }

    fn node_gone(&mut self, name: String) -> Vec<Event> {
        self.known_nodes.remove(&name);
        self.listing.remove(&name);
        vec![Event::NodeGone(NodeName::from(name))]
    }

    fn gpu_node(&mut self, seen: Seen<api::GpuNode>) -> Vec<Event> {
        match seen {
            Seen::Listing => {
                self.gpu_nodes.begin();
                Vec::new()
            }
            Seen::There(object) => {
                let name = object.name_any();
                self.gpu_nodes.there(&name);
                let mode = object.spec.default_mode.map_or(Mode::Mps, pod::mode);
                let before = self.default_modes.insert(name.clone(), mode);
                if before == Some(mode) {
                    return Vec::new();
                }
                let mut events = self.judge_managed(&name);
                events.extend(self.cards(&name));
                events
            }
            Seen::Gone(object) => {
                let name = object.name_any();
                self.gpu_nodes.names.remove(&name);
                self.unmanaged(&name)
            }
            Seen::Listed => {
                let gone = self.gpu_nodes.end();
                gone.iter().flat_map(|name| self.unmanaged(name)).collect()
            }
        }
    }

    fn unmanaged(&mut self, name: &str) -> Vec<Event> {
        self.default_modes.remove(name);
        self.judge_managed(name)
    }

    /// Whether an agent answers for the node's cards: by its `GpuNode`, by its voice or by
    /// what it had the kubelet list. Each may come first or be missing for a while, and a
    /// pod that is sent to such a node without a grant is lost.
    fn is_managed(&self, name: &str) -> bool {
        self.default_modes.contains_key(name)
            || self.states.contains_key(name)
            || self.listing.contains(name)
    }

    fn judge_managed(&mut self, name: &str) -> Vec<Event> {
        let managed = self.is_managed(name);
        let node = self.known_nodes.get_mut(name);
        let changed = node.filter(|node| node.managed != managed).map(|node| {
            node.managed = managed;
            Event::Node(node.clone())
        });
        changed.into_iter().collect()
    }

    fn queue(&mut self, seen: Seen<api::Queue>) -> Vec<Event> {
        let gone = |name: String| Event::QueueGone(QueueName::from(name));
        match seen {
            Seen::Listing => self.queues.begin(),
            Seen::There(object) => {
                self.queues.there(&object.name_any());
                return vec![Event::Queue(queue::queue(&object))];
            }
            Seen::Gone(object) => {
                self.queues.names.remove(&object.name_any());
                return vec![gone(object.name_any())];
            }
            Seen::Listed => return self.queues.end().into_iter().map(gone).collect(),
        }
        Vec::new()
    }

    fn group(&mut self, seen: Seen<api::PodGroup>) -> Vec<Event> {
        let key = |group: &api::PodGroup| {
            queue::group_name(&group.namespace().unwrap_or_default(), &group.name_any()).to_string()
        };
        match seen {
            Seen::Listing => {
                self.groups.begin();
                Vec::new()
            }
            Seen::There(object) => {
                let name = key(&object);
                self.groups.there(&name);
                let event = self.group_event(&object);
                self.known_groups.insert(name, object);
                vec![event]
            }
            Seen::Gone(object) => {
                let name = key(&object);
                self.groups.names.remove(&name);
                vec![self.group_gone(name)]
            }
            Seen::Listed => {
                let gone = self.groups.end();
                gone.into_iter().map(|name| self.group_gone(name)).collect()
            }
        }
    }

    fn group_event(&self, group: &api::PodGroup) -> Event {
        let class = group.spec.priority_class_name.as_ref();
        Event::Group(queue::group(group, self.classes.value([class])))
    }

    fn group_gone(&mut self, name: String) -> Event {
        self.known_groups.remove(&name);
        Event::GroupGone(name.into())
    }

    fn topology(&mut self, seen: Seen<api::Topology>) -> Vec<Event> {
        let gone = |name: String| Event::TopologyGone(TopologyName::from(name));
        match seen {
            Seen::Listing => self.topologies.begin(),
            Seen::There(object) => {
                self.topologies.there(&object.name_any());
                return vec![Event::Topology(queue::topology(&object))];
            }
            Seen::Gone(object) => {
                self.topologies.names.remove(&object.name_any());
                return vec![gone(object.name_any())];
            }
            Seen::Listed => return self.topologies.end().into_iter().map(gone).collect(),
        }
        Vec::new()
    }

    /// Pods are listed anew by the watch when a class changes; groups are read again here.
    fn class(&mut self, seen: Seen<k8s_openapi::api::scheduling::v1::PriorityClass>) -> Vec<Event> {
        let before = self.classes.clone();
        match seen {
            Seen::Listing => self.class_names.begin(),
            Seen::There(class) => {
                let name = class.name_any();
                self.class_names.there(&name);
                self.classes
                    .values
                    .insert(name.clone(), class.value.unwrap_or_default());
                if class.global_default == Some(true) {
                    self.classes.default = Some(name);
                } else if self.classes.default.as_ref() == Some(&name) {
                    self.classes.default = None;
                }
            }
            Seen::Gone(class) => {
                self.class_names.names.remove(&class.name_any());
                self.forget_class(&class.name_any());
            }
            Seen::Listed => {
                for name in self.class_names.end() {
                    self.forget_class(&name);
                }
            }
        }
        if before == self.classes {
            return Vec::new();
        }
        let groups = self.known_groups.values();
        groups.map(|group| self.group_event(group)).collect()
    }

    fn forget_class(&mut self, name: &str) {
        self.classes.values.remove(name);
        if self.classes.default.as_deref() == Some(name) {
            self.classes.default = None;
        }
    }

    /// The cards of a node, where they changed.
    fn cards(&mut self, name: &str) -> Option<Event> {
        let state = self.states.get(name)?;
        let mode = self.default_modes.get(name).copied().unwrap_or(Mode::Mps);
        let before = self.strangers.entry(name.to_owned()).or_default();
        let (cards, strangers) = cards::of(state, mode, before);
        *before = strangers;
        if self.told.get(name) == Some(&cards) {
            return None;
        }
        self.told.insert(name.to_owned(), cards.clone());
        Some(Event::Cards(cards))
    }

    /// Pods whose whole cards are others than their grants name: the kubelet picked them,
    /// the agent took that in, and so does this ledger.
    fn adopt(&mut self, state: &NodeState) -> Vec<Event> {
        let mut by_pod: BTreeMap<&str, Vec<&HeldShare>> = BTreeMap::new();
        for share in &state.shares {
            if share.mode == Mode::Exclusive.as_str() && !share.gpu_uuids.is_empty() {
                by_pod.entry(&share.pod_uid).or_default().push(share);
            }
        }
        let mut events = Vec::new();
        for (uid, shares) in by_pod {
            let Some(pod) = self.whole.get(uid) else {
                continue;
            };
            let grants: Vec<ContainerGrant> = shares.into_iter().map(held).collect();
            let same = |known: &[ContainerGrant]| {
                let cards = |grants: &[ContainerGrant]| -> Vec<GpuUuid> {
                    let mut cards: Vec<_> = grants
                        .iter()
                        .flat_map(|grant| grant.cards.clone())
                        .collect();
                    cards.sort();
                    cards.dedup();
                    cards
                };
                cards(known) == cards(&grants)
            };
            let known = self.held.get(uid).map(Vec::as_slice);
            let converted = pod::of(pod, &self.scheduler, &self.classes, known);
            let placed = converted.as_ref().and_then(placement);
            if placed.is_none_or(|placed| same(&placed.grants)) {
                continue;
            }
            self.held.insert(uid.to_owned(), grants);
            let known = self.held.get(uid).map(Vec::as_slice);
            let corrected = pod::of(pod, &self.scheduler, &self.classes, known);
            events.extend(corrected.map(|pod| Event::Pod(Box::new(pod))));
        }
        events
    }

    /// Conditions that changed.
    fn isolation(&mut self, _node: &str, state: &NodeState) -> Vec<Isolation> {
        let mut by_pod: BTreeMap<&str, Vec<&HeldShare>> = BTreeMap::new();
        for share in &state.shares {
            if share.phase == "Running" && share.mode != Mode::Exclusive.as_str() {
                by_pod.entry(&share.pod_uid).or_default().push(share);
            }
        }
        let mut changed = Vec::new();
        for shares in by_pod.into_values() {
            let now = isolation_of(&shares);
            if self.isolation.get(&now.pod_uid) != Some(&now) {
                self.isolation.insert(now.pod_uid.clone(), now.clone());
                changed.push(now);
            }
        }
        changed
    }
}

fn placement(pod: &scheduler_core::model::Pod) -> Option<&scheduler_core::model::Placement> {
    use scheduler_core::model::Phase;
    match &pod.phase {
        Phase::Bound(placement) | Phase::Running(placement) | Phase::Releasing(Some(placement)) => {
            Some(placement)
        }
        _ => None,
    }
}

fn held(share: &HeldShare) -> ContainerGrant {
    ContainerGrant {
        container: ContainerName::new(&share.container),
        cards: share.gpu_uuids.iter().map(GpuUuid::new).collect(),
        memory: Mib(share.memory_mib),
        compute: u8::try_from(share.compute_percent)
            .ok()
            .and_then(Percent::new)
            .unwrap_or(Percent::FULL),
        mode: Mode::Exclusive,
        note: None,
    }
}

/// Never claims more than was read back.
fn isolation_of(shares: &[&HeldShare]) -> Isolation {
    let first = shares.first();
    let text =
        |of: fn(&HeldShare) -> &String| first.map(|share| of(share).clone()).unwrap_or_default();
    let holds =
        |share: &HeldShare| share.observed_limit_mib == share.memory_mib && !share.fence.is_empty();
    let lines: Vec<String> = shares
        .iter()
        .map(|share| {
            let fence = if share.fence.is_empty() {
                "no fence"
            } else {
                &share.fence
            };
            if share.mode == Mode::TimeSlicing.as_str() {
                format!(
                    "container {}: {fence}, {} MiB granted, nothing to read back in mode {}",
                    share.container, share.memory_mib, share.mode
                )
            } else if share.observed_limit_mib == 0 {
                format!(
                    "container {}: {fence}, {} MiB granted, no limit read back yet",
                    share.container, share.memory_mib
                )
            } else {
                format!(
                    "container {}: {fence}, {} MiB granted, {} MiB read back",
                    share.container, share.memory_mib, share.observed_limit_mib
                )
            }
        })
        .collect();
    Isolation {
        pod_uid: text(|share| &share.pod_uid),
        namespace: text(|share| &share.pod_namespace),
        name: text(|share| &share.pod_name),
        verified: shares.iter().all(|share| holds(share)),
        message: lines.join("\n"),
    }
}

#[cfg(test)]
mod tests;
