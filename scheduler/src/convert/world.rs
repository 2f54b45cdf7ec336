//! What is remembered between facts, and which part takes which fact.

use super::cards::Strangers;
use super::classes::Classes;
use super::config_maps::ConfigMapUsers;
use super::devices::{ClaimTerms, DeviceObjects, Stray};
use super::idle::IdlePods;
use super::isolation::IsolationConditions;
use super::listing::{Listing, ListingState};
use super::mig::MigNodes;
use super::owed::OwedCondition;
use super::recheck::{Due, LOOKS, RecheckQueue};
use super::run_time::RunTime;
use super::run_times::RunTimes;
use super::shown::Shown;
use super::storage::StorageObjects;
use super::whole::WholePod;
use super::wishes::Wishes;
use super::{namespaces, queue};
use crate::bursts::Bursts;
use crate::limits::Limits;
use crate::shard::{Live, Pool};
use crate::usage;
use crate::watch::{Fact, Key as _, Seen};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod as KubePod;
use k8s_openapi::api::storage::v1::CSINode;
use proto::names::queue::CONDITIONS;
use proto::telemetry::NodeState;
use scheduler_core::ids::{PodUid, QueueName, TopologyName};
use scheduler_core::mig_layout::MigCard;
use scheduler_core::model::{ContainerGrant, Mode, Node, NodeCards};
use scheduler_core::scale_up::Groups;
use scheduler_core::units::Time;
use scheduler_core::{Bind, Event, IdlePod};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A pod that is being deleted.
#[derive(Debug)]
pub(super) struct Leaving {
    /// The time from which the end of the pod is no longer counted on.
    pub(super) until: Time,
    /// The pod, which is converted again at that time. `None` once that was done.
    pub(super) pod: Option<Box<KubePod>>,
}

/// By queue and type of the condition: its status, and since when it has it.
pub type QueueConditions = BTreeMap<(QueueName, &'static str), (bool, Timestamp)>;

/// The state between two facts.
#[derive(Debug)]
pub struct World {
    pub(super) scheduler: String,
    /// Key of the label that names a workload's queue.
    pub(super) queue_label: String,
    pub(super) limits: Limits,
    /// Another scheduler's work is looked at.
    pub(super) observing: bool,
    /// Pods without an owner wait for their group, too.
    pub(super) alone_wait: bool,
    /// True if a consolidation also moves pods that no controller would create again.
    pub(super) moves_bare: bool,
    /// Shares get their limit, where the pod names one above its request.
    pub(super) bursts: Bursts,
    pub(super) classes: Classes,
    pub(super) pods: Listing,
    /// UIDs of the pods that the core has.
    pub(super) there: BTreeSet<String>,
    pub(super) nodes: Listing,
    pub(super) gpu_nodes: Listing,
    pub(super) queues: Listing,
    pub(super) usage: usage::LatestUsage,
    pub(super) groups: Listing,
    pub(super) topologies: Listing,
    pub(super) shards: Listing,
    /// `None`: no object changes the settings.
    pub(super) live: Option<Live>,
    /// Name of the shard's node pool.
    pub(super) pool: String,
    pub(super) class_names: Listing,
    pub(super) namespaces: Listing,
    pub(super) storage: StorageObjects,
    pub(super) config_maps: ConfigMapUsers,
    pub(super) devices: DeviceObjects,
    pub(super) again: RecheckQueue,
    /// The nodes as the core has them.
    pub(super) known_nodes: BTreeMap<String, Node>,
    /// Mode of a share that names none, by node with an agent.
    pub(super) default_modes: BTreeMap<String, Mode>,
    /// Groups of nodes that may be emptied for an autoscaler; `None`: nodes stay.
    pub(super) removable: Option<Groups>,
    /// Nodes whose `GpuNode` says that their kubelet refuses pods for their zones.
    pub(super) aligning: BTreeSet<String>,
    /// Cards in MIG mode.
    pub(super) mig: MigNodes,
    /// The last word of each agent that is heard.
    pub(super) states: BTreeMap<String, NodeState>,
    /// Nodes whose agents have no stream now.
    pub(super) disconnected: BTreeSet<String>,
    /// The cards of each node as the core was told them.
    pub(super) told: BTreeMap<String, NodeCards>,
    pub(super) strangers: BTreeMap<String, Strangers>,
    /// Bound pods with whole cards: the kubelet may pick another card than was granted.
    pub(super) whole: BTreeMap<String, WholePod>,
    /// The cards that the kubelet chose instead, by UID of the pod.
    pub(super) held: BTreeMap<String, Vec<ContainerGrant>>,
    pub(super) isolation: IsolationConditions,
    pub(super) idle: IdlePods,
    /// The reasons why pods wait, as the watch shows them, by UID.
    pub(super) reasons: BTreeMap<String, Shown>,
    /// Pods whose shown reason has changed since the last call of [`World::reasons_shown`].
    pub(super) reasons_shown: Vec<PodUid>,
    /// The status of each condition of ours of a queue, and the time since when it has that status, as the
    /// watch shows them.
    pub(super) queue_conditions: QueueConditions,
    /// Node of each bound pod that asks for cards or has claims: an agent speaks of its own node's alone.
    pub(super) placed_on: BTreeMap<String, Arc<str>>,
    /// Nodes on which pods were seen since their agents' states were read for conditions.
    pub(super) unread: BTreeSet<Arc<str>>,
    /// What the kubelet says of a resize that is not over, by UID of the pod.
    pub(super) resizes: BTreeMap<String, String>,
    /// The declared and the past run times of pods.
    pub(super) run_times: RunTimes,
    /// Running pods that are being deleted, while their end is counted on.
    pub(super) leaving: BTreeMap<String, Leaving>,
    /// The latest time that was told.
    pub(super) now: Time,
    /// Nodes that list what agents have them list.
    pub(super) listing: BTreeSet<String>,
    /// Pods that agents want gone.
    pub(super) wishes: Wishes,
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
            pods: Listing::default(),
            there: BTreeSet::new(),
            nodes: Listing::default(),
            gpu_nodes: Listing::default(),
            mig: MigNodes::default(),
            queues: Listing::default(),
            usage: usage::LatestUsage::default(),
            groups: Listing::default(),
            topologies: Listing::default(),
            shards: Listing::default(),
            live: None,
            pool: Pool::All.name().to_owned(),
            class_names: Listing::default(),
            namespaces: Listing::default(),
            storage: StorageObjects::default(),
            config_maps: ConfigMapUsers::default(),
            devices: DeviceObjects::default(),
            again: RecheckQueue::default(),
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
            isolation: IsolationConditions::default(),
            idle: IdlePods::default(),
            reasons: BTreeMap::new(),
            reasons_shown: Vec::new(),
            queue_conditions: BTreeMap::new(),
            placed_on: BTreeMap::new(),
            unread: BTreeSet::new(),
            resizes: BTreeMap::new(),
            run_times: RunTimes::default(),
            leaving: BTreeMap::new(),
            now: Time(0),
            listing: BTreeSet::new(),
            wishes: Wishes::default(),
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
            (&self.config_maps.listing, "configmaps"),
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
        let selected = self.devices.select();
        events.extend(self.follow(selected));
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

    /// Takes in a fact of the API server.
    pub fn take(&mut self, fact: Fact) -> Vec<Event> {
        match fact {
            Fact::Pod(seen) => {
                self.pods.note(&seen);
                match seen {
                    Seen::There(pod) => self.pod_there(*pod),
                    Seen::Gone(uid) => self.pod_gone(&uid),
                    Seen::Listing | Seen::Listed => Vec::new(),
                }
            }
            Fact::Node(seen) => {
                self.nodes.note(&seen);
                match seen {
                    Seen::There(node) => self.node_there(&node),
                    Seen::Gone(name) => self.node_gone(name),
                    Seen::Listing | Seen::Listed => Vec::new(),
                }
            }
            Fact::GpuNode(seen) => {
                self.gpu_nodes.note(&seen);
                match seen {
                    Seen::There(object) => self.managed(&object),
                    Seen::Gone(name) => self.unmanaged(&name),
                    Seen::Listing | Seen::Listed => Vec::new(),
                }
            }
            Fact::Queue(seen) => {
                self.queues.note(&seen);
                self.queue(seen).into_iter().collect()
            }
            Fact::Group(seen) => {
                self.groups.note(&seen);
                self.group(seen).into_iter().collect()
            }
            Fact::Topology(seen) => {
                self.topologies.note(&seen);
                match seen {
                    Seen::There(object) => vec![Event::Topology(queue::topology(&object))],
                    Seen::Gone(name) => vec![Event::TopologyGone(TopologyName::from(name))],
                    Seen::Listing | Seen::Listed => Vec::new(),
                }
            }
            Fact::Shard(seen) => {
                self.shards.note(&seen);
                self.shard(seen)
            }
            Fact::Config(seen) => {
                if let Some(live) = &mut self.live {
                    match seen {
                        Seen::There(object) => live.config(*object),
                        Seen::Gone(name) => live.config_gone(&name),
                        Seen::Listing | Seen::Listed => {}
                    }
                }
                Vec::new()
            }
            Fact::Class(seen) => {
                self.class_names.note(&seen);
                self.classes.take(seen);
                Vec::new()
            }
            Fact::Namespace(seen) => {
                self.namespaces.note(&seen);
                if let Seen::Gone(name) = &seen {
                    self.run_times.forget_namespace(name);
                }
                namespaces::event(seen).into_iter().collect()
            }
            Fact::ConfigMap(seen) => {
                let due = self.config_maps.take(seen);
                self.follow(due)
            }
            Fact::Claim(seen) => {
                let due = self.storage.claim(seen);
                self.follow(due)
            }
            Fact::Volume(seen) => {
                let due = self.storage.volume(seen);
                self.follow(due)
            }
            Fact::Storage(seen) => {
                let due = self.storage.class(seen);
                self.follow(due)
            }
            Fact::CsiNode(seen) => self.csi_node(seen),
            Fact::CsiDriver(seen) => {
                let due = self.storage.csi_driver(seen);
                self.follow(due)
            }
            Fact::CsiCapacity(seen) => {
                let due = self.storage.csi_capacity(seen);
                self.follow(due)
            }
            Fact::DeviceSlice(seen) => {
                let due = self.devices.slice(seen);
                self.follow(due)
            }
            Fact::DeviceClass(seen) => {
                let due = self.devices.class(seen);
                self.follow(due)
            }
            Fact::DeviceClaim(seen) => {
                let due = self.devices.claim(seen, &self.queue_label, self.now);
                self.follow(due)
            }
        }
    }

    /// Looks at pods again because of an object that they name.
    fn follow(&mut self, due: Due) -> Vec<Event> {
        self.again.add(due.later);
        let mut events = due.events;
        events.extend(due.now.into_iter().flat_map(|pod| self.pod_there(pod)));
        events
    }

    /// Pods are to be looked at again with the next decision, or selectors to be evaluated.
    pub fn is_due(&self) -> bool {
        !self.again.is_empty() || self.devices.is_due()
    }

    /// Looks at the pods whose turn it is, and converts those of which something has changed.
    fn look_again(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..LOOKS {
            let Some(uid) = self.again.next() else {
                break;
            };
            let pod = self.storage.changed(&uid);
            let pod = pod.or_else(|| self.config_maps.changed(&uid));
            let pod = pod.or_else(|| self.devices.changed(&uid));
            events.extend(pod.into_iter().flat_map(|pod| self.pod_there(pod)));
        }
        events
    }

    fn csi_node(&mut self, seen: Seen<CSINode>) -> Vec<Event> {
        let is_over = matches!(seen, Seen::Listed);
        let change = self.storage.csi().node(seen);
        if is_over {
            let due = self.storage.all_users();
            return self.follow(due);
        }
        let node = change.and_then(|(name, before)| {
            let node = self.known_nodes.get_mut(&name)?;
            node.extended
                .retain(|resource, _| !before.contains_key(resource));
            self.storage.csi().limit(node);
            Some(Event::Node(node.clone()))
        });
        node.into_iter().collect()
    }

    /// What is written of the devices of a pod's claims.
    pub(crate) fn claim_terms(&self, bind: &Bind) -> Vec<ClaimTerms> {
        self.devices.terms(bind)
    }

    /// Claims whose pods wait for so long after they got their devices that no write that would
    /// bind them can still be under way, but for one of this process.
    pub(crate) fn stray_claims(&mut self) -> Vec<Stray> {
        self.devices.strays(self.now)
    }

    /// Returns why the pod's volumes rule out every node. `None`: they do not.
    pub fn volumes_against(&self, pod: &PodUid) -> Option<String> {
        self.storage.against(pod)
    }

    /// Returns the names of the priority classes that are known.
    pub fn priority_classes(&self) -> impl Iterator<Item = &str> {
        self.classes.by_name.keys().map(String::as_str)
    }

    /// Conditions that are to be written now. Only the replica that leads asks for them: each is
    /// asked for again, ever later, until the watch shows it.
    pub fn owed_conditions(&mut self, now: Time) -> Vec<OwedCondition> {
        let mut owed = self.isolation.conditions().owed(now);
        owed.extend(self.idle.conditions().owed(now));
        owed
    }

    /// Returns the time at which a condition is to be written next.
    pub(crate) fn conditions_due(&mut self) -> Option<Time> {
        let isolation = self.isolation.conditions().due();
        isolation
            .into_iter()
            .chain(self.idle.conditions().due())
            .min()
    }

    /// Sets the conditions that warn idle pods. Returns when to call it again if nothing happens before.
    pub(crate) fn warn_idle(&mut self, pods: &[IdlePod], now: Time) -> Option<Time> {
        self.idle.warn(pods, now)
    }

    /// Whether some card may be given other slices.
    pub(crate) fn may_change_layouts(&self) -> bool {
        self.mig.may_change()
    }

    /// The cards that may be given other slices, and those that are.
    pub(crate) fn mig_cards(&self) -> Vec<MigCard> {
        let is_heard = |name: &str| !self.disconnected.contains(name);
        self.mig
            .cards(|name| self.states.get(name).filter(|_| is_heard(name)))
    }

    /// Remembers the status of the conditions of a queue, and since when each has that status.
    fn show_conditions(&mut self, queue: &api::Queue) {
        for kind in CONDITIONS {
            let key = (QueueName::from(queue.key()), kind);
            let all = queue.status.iter().flat_map(|status| &status.conditions);
            let mut ours = all.filter(|one| one.type_ == kind);
            match ours.next() {
                Some(one) => {
                    let shown = (one.status == "True", one.last_transition_time.0);
                    self.queue_conditions.insert(key, shown);
                }
                None => drop(self.queue_conditions.remove(&key)),
            }
        }
    }

    /// Returns the status of the conditions of each queue, and since when each has that status.
    pub fn queue_conditions(&self) -> &QueueConditions {
        &self.queue_conditions
    }

    /// Returns how long pods run, of those of which it is known at that time.
    pub fn run_times(&self, now: Time) -> BTreeMap<PodUid, RunTime> {
        self.run_times.known(now)
    }

    /// Returns the waiting pods whose shown reason has changed since the last call.
    pub fn reasons_shown(&mut self) -> Vec<PodUid> {
        std::mem::take(&mut self.reasons_shown)
    }

    /// Returns the reason why a pod waits, as the watch shows it. `None`: the pod has none.
    pub fn shown_reason(&self, pod: &PodUid) -> Option<Shown> {
        self.reasons.get(pod.as_str()).copied()
    }

    fn queue(&mut self, seen: Seen<api::Queue>) -> Option<Event> {
        match seen {
            Seen::There(object) => {
                self.show_conditions(&object);
                Some(Event::Queue(self.usage.queue(queue::queue(&object))))
            }
            Seen::Gone(name) => {
                let name = QueueName::from(name);
                self.usage.gone(&name);
                self.queue_conditions.retain(|(queue, _), _| *queue != name);
                Some(Event::QueueGone(name))
            }
            Seen::Listing | Seen::Listed => None,
        }
    }

    fn group(&self, seen: Seen<api::PodGroup>) -> Option<Event> {
        match seen {
            Seen::There(object) => {
                let class = object.spec.priority_class_name.as_ref();
                let class = self.classes.first([class]);
                let group = queue::group(&object, class, &self.limits, &self.pool);
                Some(Event::Group(group))
            }
            Seen::Gone(name) => Some(Event::GroupGone(name.into())),
            Seen::Listing | Seen::Listed => None,
        }
    }
}
