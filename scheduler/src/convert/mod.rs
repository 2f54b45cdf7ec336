//! Facts of the API server and words of agents → the core's events.
//!
//! - `pod_rules`: what of a pod is about other pods.
//! - `pod`, `node`, `queue`, `cards`: one object each; `resources`, `rules`:
//!   parts of a pod.
//! - `namespaces`: their labels; `classes`: values of priority classes.
//! - `volume`: where a pod's volumes let it go, and its claims; `supply`: volumes that a claim
//!   may still get; `storage`: what is remembered of them; `config_maps`: those that are missing;
//!   `recheck`: pods that are looked at again because one of these changed.
//! - `devices`: devices that claims get, and what claims want.
//! - `admin`: what an admin says of the shard.
//! - `csi`: what CSI drivers can do for which nodes.
//! - `scale_down`: what may be moved for an autoscaler; `settings`: what a world is to be like.
//! - `run_time`: how long a pod says that it runs.
//! - `agent`: what agents say; `isolation`: the pod condition that follows from it.
//! - [`World`]: what must be remembered between facts: who was there (to see who is gone
//!   after a new listing), which nodes have agents, what agents said last.
//!
//! Pure: no client, no clock.

mod admin;
mod agent;
mod aligned;
mod cards;
mod classes;
mod config_maps;
pub(crate) mod csi;
mod devices;
mod duration;
mod hindrance;
mod isolation;
mod listing;
pub(crate) mod mig;
mod namespaces;
mod node;
mod pod;
mod pod_rules;
pub(crate) mod queue;
mod recheck;
pub(crate) mod resources;
mod rules;
pub mod run_time;
mod scale_down;
mod settings;
mod shown;
mod storage;
mod supply;
pub(crate) mod volume;

use crate::bursts::Bursts;
use crate::limits::Limits;
use crate::shard::{Live, Pool};
use crate::stored_pod::StoredPod;
use crate::telemetry::AgentEvent;
use crate::usage;
use crate::watch::{Fact, Seen};
use agent::AgentEviction;
use cards::Strangers;
use classes::Classes;
pub(crate) use devices::stand_in;
pub use devices::{ClaimTerms, StandIn, Stray, Terms};
pub(crate) use duration::duration;
use hindrance::Hindrance;
pub use isolation::{Isolation, OwedIsolation};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::ResourceExt as _;
use listing::{ListedObjects, ListingState};
use pod::Deletion;
use proto::names::queue::QUOTA_CONDITION;
use proto::telemetry::NodeState;
use run_time::RunTime;
use scheduler_core::ids::{NodeName, PodUid, QueueName, TopologyName};
use scheduler_core::model::{ContainerGrant, Mode, Node, NodeCards, Phase, Pod};
use scheduler_core::scale_up::Groups;
use scheduler_core::units::Time;
use scheduler_core::{Event, Refusal};
pub use shown::Shown;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A pod that is being deleted.
#[derive(Debug)]
struct Leaving {
    /// The time from which the end of the pod is no longer counted on.
    until: Time,
    /// The pod, which is converted again at that time. `None` once that was done.
    pod: Option<Box<KubePod>>,
}

/// What is remembered between facts.
#[derive(Debug)]
pub struct World {
    scheduler: String,
    /// Key of the label that names a workload's queue.
    queue_label: String,
    limits: Limits,
    /// Another scheduler's work is looked at.
    observing: bool,
    /// Pods without an owner wait for their group, too.
    alone_wait: bool,
    /// True if a consolidation also moves pods that no controller would create again.
    moves_bare: bool,
    /// Shares get their limit, where the pod names one above its request.
    bursts: Bursts,
    classes: Classes,
    pods: ListedObjects,
    nodes: ListedObjects,
    gpu_nodes: ListedObjects,
    queues: ListedObjects,
    usage: usage::LatestUsage,
    groups: ListedObjects,
    topologies: ListedObjects,
    shards: ListedObjects,
    configs: ListedObjects,
    /// `None`: no object changes the settings.
    live: Option<Live>,
    /// Name of the shard's node pool.
    pool: String,
    class_names: ListedObjects,
    namespaces: ListedObjects,
    storage: storage::StorageObjects,
    config_maps: config_maps::ConfigMapUsers,
    devices: devices::DeviceObjects,
    again: recheck::RecheckQueue,
    /// As the core has them.
    known_nodes: BTreeMap<String, Node>,
    /// Mode of a share that names none, by node with an agent.
    default_modes: BTreeMap<String, Mode>,
    /// Groups of nodes that may be emptied for an autoscaler; `None`: nodes stay.
    removable: Option<Groups>,
    /// Nodes whose `GpuNode` says that their kubelet refuses pods for their zones.
    aligning: BTreeSet<String>,
    /// Cards in MIG mode.
    mig: mig::MigNodes,
    /// The last word of each agent that is heard.
    states: BTreeMap<String, NodeState>,
    /// Nodes whose agents have no stream now.
    disconnected: BTreeSet<String>,
    /// What the core was told of it.
    told: BTreeMap<String, NodeCards>,
    strangers: BTreeMap<String, Strangers>,
    /// Bound pods with whole cards: the kubelet may pick another card than was granted.
    whole: BTreeMap<String, agent::WholePod>,
    /// Where it did, by pod.
    held: BTreeMap<String, Vec<ContainerGrant>>,
    isolation: isolation::IsolationConditions,
    /// The reasons why pods wait, as the watch shows them, by UID.
    reasons: BTreeMap<String, Shown>,
    /// Pods whose shown reason has changed since the last call of [`World::reasons_shown`].
    reasons_shown: Vec<PodUid>,
    /// The status of the condition of each queue, and the time since when it has that status, as the
    /// watch shows them.
    queue_conditions: BTreeMap<QueueName, (bool, Timestamp)>,
    /// Node of each bound pod that asks for cards or has claims: an agent speaks of its own node's alone.
    placed_on: BTreeMap<String, Arc<str>>,
    /// Nodes on which pods were seen since their agents' states were read for conditions.
    unread: BTreeSet<Arc<str>>,
    /// What became of a pod's resize that is not over, by pod.
    resizes: BTreeMap<String, String>,
    /// The run times of the pods that say how long they run.
    run_times: BTreeMap<PodUid, RunTime>,
    /// Running pods that are being deleted, while their end is counted on.
    leaving: BTreeMap<String, Leaving>,
    /// As far as was told.
    now: Time,
    /// Nodes that list what agents have them list.
    listing: BTreeSet<String>,
    /// Pods that agents want gone, with the node whose agent wants it.
    wishes: BTreeMap<(String, NodeName), AgentEviction>,
}

impl World {
    /// Nothing known yet. `scheduler` is the name in the specs of our pods.
    pub fn new(scheduler: &str) -> Self {
        Self {
            scheduler: scheduler.to_owned(),
            queue_label: proto::names::kai::QUEUE_LABEL.to_owned(),
            limits: Limits::default(),
            observing: false,
            alone_wait: false,
            moves_bare: false,
            bursts: Bursts::ANY,
            classes: Classes::default(),
            pods: ListedObjects::default(),
            nodes: ListedObjects::default(),
            gpu_nodes: ListedObjects::default(),
            mig: mig::MigNodes::default(),
            queues: ListedObjects::default(),
            usage: usage::LatestUsage::default(),
            groups: ListedObjects::default(),
            topologies: ListedObjects::default(),
            shards: ListedObjects::default(),
            configs: ListedObjects::default(),
            live: None,
            pool: Pool::All.name().to_owned(),
            class_names: ListedObjects::default(),
            namespaces: ListedObjects::default(),
            storage: storage::StorageObjects::default(),
            config_maps: config_maps::ConfigMapUsers::default(),
            devices: devices::DeviceObjects::default(),
            again: recheck::RecheckQueue::default(),
            known_nodes: BTreeMap::new(),
            default_modes: BTreeMap::new(),
            removable: None,
            aligning: BTreeSet::new(),
            states: BTreeMap::new(),
            disconnected: BTreeSet::new(),
            told: BTreeMap::new(),
            strangers: BTreeMap::new(),
            whole: BTreeMap::new(),
            held: BTreeMap::new(),
            isolation: isolation::IsolationConditions::default(),
            reasons: BTreeMap::new(),
            reasons_shown: Vec::new(),
            queue_conditions: BTreeMap::new(),
            placed_on: BTreeMap::new(),
            unread: BTreeSet::new(),
            resizes: BTreeMap::new(),
            run_times: BTreeMap::new(),
            leaving: BTreeMap::new(),
            now: Time(0),
            listing: BTreeSet::new(),
            wishes: BTreeMap::new(),
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
            (&self.shards, "schedulingshards"),
            (&self.class_names, "priorityclasses"),
            (&self.namespaces, "namespaces"),
            (&self.config_maps.there, "configmaps"),
        ]
        .into_iter()
        .chain(self.storage.rolls())
        .chain(self.devices.rolls())
        .filter_map(|(roll, name)| (!roll.listed).then_some(name))
        .collect()
    }

    /// This replica begins to lead: what the leader before it bound may not have been seen
    /// yet. Nothing may be decided before pods have been listed again.
    pub(crate) fn begins_to_lead(&mut self) {
        self.pods.behind = ListingState::Waits;
        self.devices.listing().behind = ListingState::Waits;
    }

    /// Kinds of objects whose listing a decision waits for: the first one, or one that has begun
    /// since this replica leads.
    pub(crate) fn awaited(&self) -> Vec<&'static str> {
        let mut awaited = self.missing();
        let pods = self.pods.behind != ListingState::No;
        awaited.extend(pods.then_some("pods"));
        awaited.extend(self.devices.is_behind().then_some("resourceclaims"));
        awaited.sort_unstable();
        awaited.dedup();
        awaited
    }

    /// What the kubelet says of the pod's resize, as one sentence. `None`: it has none that is
    /// not over.
    pub fn resize(&self, pod: &PodUid) -> Option<&str> {
        self.resizes.get(pod.as_str()).map(String::as_str)
    }

    /// Agents that are heard.
    pub fn agents(&self) -> usize {
        self.states.len()
    }

    /// Sets the time at which facts are taken. A replica that does not lead never calls
    /// [`Self::elapse`] and depends on this.
    pub fn tell_time(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// Time went on, and a decision comes: pods that ought to be gone by now, and are not, and
    /// those whose turn it is to be looked at again.
    pub fn elapse(&mut self, now: Time) -> Vec<Event> {
        self.tell_time(now);
        let due = self.leaving.values();
        let due = due.filter(|leaving| leaving.until <= self.now);
        let due: Vec<Box<KubePod>> = due.filter_map(|leaving| leaving.pod.clone()).collect();
        let mut events: Vec<Event> = due
            .into_iter()
            .flat_map(|pod| self.pod_there(*pod))
            .collect();
        events.extend(self.select_devices());
        events.extend(self.look_again());
        events.extend(self.usage_elapses());
        events
    }

    /// When time is to be told next; `None`: not before another fact.
    pub fn wake_at(&self) -> Option<Time> {
        let leaving = self.leaving.values();
        let counted_on = leaving.filter(|leaving| leaving.pod.is_some());
        counted_on
            .map(|leaving| leaving.until)
            .chain(self.report_due())
            .chain(self.usage.due())
            .chain(self.devices.due())
            .min()
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
            Fact::Shard(seen) => self.shard(seen),
            Fact::Config(seen) => {
                self.config(seen);
                Vec::new()
            }
            Fact::Class(seen) => {
                self.class(seen);
                Vec::new()
            }
            Fact::Namespace(seen) => self.namespace(seen),
            Fact::ConfigMap(seen) => self.config_map(seen),
            Fact::Claim(seen) => self.claim(seen),
            Fact::Volume(seen) => self.volume(seen),
            Fact::Storage(seen) => self.storage_class(seen),
            Fact::CsiNode(seen) => self.csi_node(seen),
            Fact::CsiDriver(seen) => self.csi_driver(seen),
            Fact::CsiCapacity(seen) => self.csi_capacity(seen),
            Fact::DeviceSlice(seen) => self.device_slice(seen),
            Fact::DeviceClass(seen) => self.device_class(seen),
            Fact::DeviceClaim(seen) => self.device_claim(seen),
        }
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
        if crate::group::must_wait(&pod, &self.scheduler, self.alone_wait) {
            return self.pod_gone(&uid);
        }
        let held = self.held.get(&uid).map(Vec::as_slice);
        let Some(mut converted) = self.read(&pod, held) else {
            return self.pod_gone(&uid);
        };
        if self.observing {
            converted
                .unsupported
                .retain(|rule| **rule != *Hindrance::NoToken.to_string());
        }
        self.narrow(&pod, &mut converted);
        self.look_up(&pod, &mut converted);
        self.claim_devices(&pod, &mut converted);
        let mut events = self.devices_of_pod(&uid, &converted.phase);
        let seen_before = self.pods.names.contains_key(&uid);
        self.pods.there(&uid);
        self.isolation.show(&uid, &pod);
        let waits = matches!(converted.phase, Phase::Pending);
        let reason = Shown::on(&pod, "PodScheduled").filter(|one| waits && !one.holds);
        let before = match reason {
            Some(reason) => self.reasons.insert(uid.clone(), reason),
            None => self.reasons.remove(&uid),
        };
        if waits && before != reason {
            self.reasons_shown.push(PodUid::new(&uid));
        }
        match resources::resize(&pod) {
            Some(said) => self.resizes.insert(uid.clone(), said),
            None => self.resizes.remove(&uid),
        };
        match run_time::of(&pod) {
            Some(run) => self.run_times.insert(converted.uid.clone(), run),
            None => self.run_times.remove(&converted.uid),
        };
        if self.is_given_up(&uid, &pod, seen_before)
            && let Phase::Releasing(Some(placement)) = converted.phase
        {
            converted.phase = Phase::Stuck(placement);
        }
        // What it has by claim is its claim's to say.
        let by_plugin = agent::placement(&converted)
            .is_none_or(|place| place.front == scheduler_core::model::Front::Plugin);
        let whole = by_plugin
            && converted
                .gpus
                .iter()
                .any(|ask| matches!(ask.ask, scheduler_core::model::Ask::Whole(_)));
        let spec = pod.spec.as_ref();
        let node = spec.and_then(|spec| spec.node_name.as_deref());
        let stands = matches!(converted.phase, Phase::Bound(_) | Phase::Running(_));
        let refused = node.zip(isolation::refusal_on(&pod));
        let refused = refused.filter(|_| stands && !seen_before);
        let refused = refused.map(|(node, reason)| {
            Event::Refused(Refusal {
                pod: PodUid::new(&uid),
                node: NodeName::from(node),
                decision: None,
                reason: reason.into(),
                last_word: true,
            })
        });
        // A claim may be for a share, which its node's agent then tells.
        let claims = spec.and_then(|spec| spec.resource_claims.as_deref());
        let asks = !converted.gpus.is_empty() || !claims.unwrap_or_default().is_empty();
        if let Some(node) = node.filter(|node| !node.is_empty())
            && asks
        {
            if self.placed_on.get(&uid).map(AsRef::as_ref) != Some(node) {
                let node: Arc<str> = Arc::from(node);
                self.placed_on.insert(uid.clone(), Arc::clone(&node));
                self.unread.insert(node);
            }
            if whole {
                let placed = agent::placement(&converted);
                let cards = placed.map(|placed| agent::cards_of(&placed.grants));
                let pod = StoredPod::of(&pod);
                self.whole
                    .insert(uid.clone(), agent::WholePod { cards, pod });
            }
        }
        events.push(Event::Pod(Box::new(converted)));
        events.extend(refused);
        events.extend(self.wishes_for(&uid));
        events
    }

    /// The pod as the core has it, and its queue by the label that the admin chose.
    fn read(&self, pod: &KubePod, held: Option<&[ContainerGrant]>) -> Option<Pod> {
        let mut converted = pod::of(pod, &self.scheduler, &self.queue_label, &self.classes, held)?;
        // Who has a place has what was granted.
        if converted.phase == Phase::Pending {
            let asks = converted.gpus.iter_mut();
            asks.for_each(|ask| pod::hold(ask, self.bursts));
        }
        converted.immovable = !self.moves_bare && !scale_down::has_controller(pod);
        converted.safe_to_evict = self.removable.is_some() && scale_down::is_safe_to_evict(pod);
        Some(converted)
    }

    /// Returns true if the end of a pod that is being deleted is no longer counted on. If the pod was
    /// `seen_before` its deletion, the time runs from when the deletion was seen, because the API
    /// server's clock may differ from this one. The deadline by the API server's clock counts only for
    /// a pod that was already being deleted when it was first seen.
    fn is_given_up(&mut self, uid: &str, pod: &KubePod, seen_before: bool) -> bool {
        let Some(deletion) = Deletion::of(pod) else {
            self.leaving.remove(uid);
            return false;
        };
        let from_now = deletion.given_up_after(self.now);
        let until = match self.leaving.get(uid) {
            Some(known) => known.until.min(from_now),
            None if seen_before => from_now,
            None => deletion.given_up_at(),
        };
        let given_up = until <= self.now;
        let pod = (!given_up).then(|| Box::new(pod.clone()));
        self.leaving.insert(uid.to_owned(), Leaving { until, pod });
        given_up
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
        self.isolation.forget(uid);
        self.reasons.remove(uid);
        self.placed_on.remove(uid);
        self.resizes.remove(uid);
        self.run_times.remove(&PodUid::new(uid));
        self.leaving.remove(uid);
        let first = (uid.to_owned(), NodeName::new(""));
        let mut of_pod = Vec::new();
        for (key, _) in self
            .wishes
            .range(first..)
            .take_while(|((pod, _), _)| pod == uid)
        {
            of_pod.push(key.clone());
        }
        for key in of_pod {
            self.wishes.remove(&key);
        }
        self.storage.forget(uid);
        self.config_maps.forget(uid);
        let mut events = vec![Event::PodGone(PodUid::new(uid))];
        events.extend(self.forget_claims(uid));
        events
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
                let manager = object.spec.topology_manager.as_ref();
                if manager.is_some_and(|manager| manager.policy.refuses()) {
                    self.aligning.insert(name.clone());
                } else {
                    self.aligning.remove(&name);
                }
                self.mig_policy(&name, &object);
                let mut events = self.judge_managed(&name);
                if before != Some(mode) {
                    events.extend(self.cards(&name));
                }
                if self.observing && object.status.is_some() {
                    let state = crate::observe::said(&object);
                    events.extend(self.hear(AgentEvent::State { node: name, state }));
                }
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
        self.aligning.remove(name);
        self.no_mig_policy(name);
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
        let (managed, aligns) = (self.is_managed(name), self.aligning.contains(name));
        let node = self.known_nodes.get_mut(name);
        let node = node.filter(|node| (node.managed, node.aligns) != (managed, aligns));
        let changed = node.map(|node| {
            node.managed = managed;
            node.aligns = aligns;
            Event::Node(node.clone())
        });
        changed.into_iter().collect()
    }

    /// Remembers the status of the condition of a queue, and since when it has that status.
    fn show_condition(&mut self, queue: &api::Queue) {
        let name = QueueName::from(queue.name_any());
        let all = queue.status.iter().flat_map(|status| &status.conditions);
        let mut ours = all.filter(|one| one.type_ == QUOTA_CONDITION);
        match ours.next() {
            Some(one) => {
                let shown = (one.status == "True", one.last_transition_time.0);
                self.queue_conditions.insert(name, shown);
            }
            None => drop(self.queue_conditions.remove(&name)),
        }
    }

    /// Returns the status of the condition of each queue, and since when it has that status.
    pub fn queue_conditions(&self) -> &BTreeMap<QueueName, (bool, Timestamp)> {
        &self.queue_conditions
    }

    /// Returns how long pods run, of those that say so.
    pub fn run_times(&self) -> &BTreeMap<PodUid, RunTime> {
        &self.run_times
    }

    /// Returns the waiting pods whose shown reason has changed since the last call.
    pub fn reasons_shown(&mut self) -> Vec<PodUid> {
        std::mem::take(&mut self.reasons_shown)
    }

    /// Returns the reason why a pod waits, as the watch shows it. `None`: the pod has none.
    pub fn shown_reason(&self, pod: &PodUid) -> Option<Shown> {
        self.reasons.get(pod.as_str()).copied()
    }

    fn queue(&mut self, seen: Seen<api::Queue>) -> Vec<Event> {
        let gone = |name: String| Event::QueueGone(QueueName::from(name));
        match seen {
            Seen::Listing => self.queues.begin(),
            Seen::There(object) => {
                self.queues.there(&object.name_any());
                self.show_condition(&object);
                return vec![Event::Queue(self.usage.queue(queue::queue(&object)))];
            }
            Seen::Gone(object) => {
                self.queues.names.remove(&object.name_any());
                self.usage.gone(&QueueName::from(object.name_any()));
                self.queue_conditions
                    .remove(&QueueName::from(object.name_any()));
                return vec![gone(object.name_any())];
            }
            Seen::Listed => {
                let names = self.queues.end();
                for name in &names {
                    self.usage.gone(&QueueName::new(name));
                    self.queue_conditions.remove(&QueueName::new(name));
                }
                return names.into_iter().map(gone).collect();
            }
        }
        Vec::new()
    }

    fn group(&mut self, seen: Seen<api::PodGroup>) -> Vec<Event> {
        let key = |group: &api::PodGroup| {
            queue::group_name(&group.namespace().unwrap_or_default(), &group.name_any()).to_string()
        };
        let gone = |name: String| Event::GroupGone(name.into());
        match seen {
            Seen::Listing => {
                self.groups.begin();
                Vec::new()
            }
            Seen::There(object) => {
                self.groups.there(&key(&object));
                let class = object.spec.priority_class_name.as_ref();
                let class = self.classes.first([class]);
                let group = queue::group(&object, class, &self.limits, &self.pool);
                vec![Event::Group(group)]
            }
            Seen::Gone(object) => {
                let name = key(&object);
                self.groups.names.remove(&name);
                vec![gone(name)]
            }
            Seen::Listed => {
                let names = self.groups.end();
                names.into_iter().map(gone).collect()
            }
        }
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
}

#[cfg(test)]
mod fields;
#[cfg(test)]
pub(crate) mod tests;
