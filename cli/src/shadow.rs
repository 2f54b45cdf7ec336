//! The scheduler's own core, fed by lists instead of watches, for questions.
//!
//! In: the objects that the scheduler watches, listed once, or a snapshot file. Out: a
//! [`Shadow`] that answers as the scheduler would decide. Never asks the scheduler, and
//! never writes: what is tried here is tried on a copy.
//!
//! What agents tell schedulers by stream is read from `GpuNode` status. Two things are not
//! in there: how many MPS clients a card takes follows from the driver's version, and
//! which cards the kubelet shows as whole is taken as unknown, which hinders nothing.

use crate::connect::{Cluster, Where};
use crate::failure::Failure;
use api::{GpuNode, PodGroup, Queue, Topology};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt as _;
use proto::telemetry::{Gpu, NodeState, Share, Stranger};
use scheduler::config::Strategy;
use scheduler::convert::World;
use scheduler::telemetry::Heard;
use scheduler::watch::{Fact, Seen};
use scheduler_core::ids::PodUid;
use scheduler_core::model::Phase;
use scheduler_core::units::Time;
use scheduler_core::{
    Action, Core, Decision, Event, Outcome, OutcomeResult, QueueView, Step, text,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// MiB that a fraction gets for the CUDA context where the admin says nothing.
const CONTEXT_ALLOWANCE: u64 = 512;
/// MPS clients of a card, and from which driver branch on there are more.
const CLIENTS: u32 = 48;
const MORE_CLIENTS: (u32, u32) = (590, 60);
/// At the end of the UID of a pod that was evicted here and made anew.
pub(crate) const ANEW: &str = "-anew";
/// KAI's classes and their values.
const CLASSES: [(&str, i32); 4] = [
    ("train", 50),
    ("build-preemptible", 75),
    ("build", 100),
    ("inference", 125),
];
/// Decisions in a row, each with what came of the last.
const ROUNDS: usize = 64;

/// Where the state comes from, and how its scheduler is set.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Source {
    #[command(flatten)]
    pub(crate) place: Where,
    /// Ask a snapshot (`aliquot snapshot`) instead of a cluster; `-` is standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "context"])]
    pub(crate) snapshot: Option<PathBuf>,
    /// As the scheduler's own flag.
    #[arg(long, value_name = "NAME", default_value = proto::names::kai::SCHEDULER_NAME)]
    pub(crate) scheduler_name: String,
    /// As the scheduler's own flag.
    #[arg(long, value_enum, default_value_t = Strategy::Binpack)]
    pub(crate) gpu_placement: Strategy,
    /// As the scheduler's own flag.
    #[arg(long, value_enum, default_value_t = Strategy::Binpack)]
    pub(crate) cpu_placement: Strategy,
}

impl Source {
    /// The cluster, or the snapshot, as a core.
    pub(crate) async fn load(&self) -> Result<Shadow, Failure> {
        let config = self.config();
        if let Some(path) = &self.snapshot {
            let text = read(path)?;
            return Shadow::of_text(&text, config, &self.scheduler_name).map_err(|why| {
                Failure::input(format!("{} is no snapshot: {why}", path.display()))
            });
        }
        let cluster = self.place.connect().await?;
        let objects = Objects::list(&cluster).await?;
        Ok(Shadow::of_objects(
            objects,
            config,
            &self.scheduler_name,
            clock(),
        ))
    }

    /// The namespace of the context; `default` for a snapshot.
    pub(crate) async fn namespace(&self) -> Result<String, Failure> {
        if self.snapshot.is_some() {
            return Ok("default".to_owned());
        }
        Ok(self.place.connect().await?.namespace)
    }

    fn config(&self) -> scheduler_core::Config {
        let settings = scheduler::Config {
            gpu_placement: self.gpu_placement,
            cpu_placement: self.cpu_placement,
            ..scheduler::Config::default()
        };
        settings.core(0)
    }
}

/// A file, or standard input.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    if path.as_os_str() == "-" {
        let mut text = String::new();
        return match std::io::stdin().read_to_string(&mut text) {
            Ok(_) => Ok(text),
            Err(error) => Err(Failure::input(format!("standard input: {error}"))),
        };
    }
    std::fs::read_to_string(path)
        .map_err(|error| Failure::input(format!("{} cannot be read: {error}", path.display())))
}

/// Everything that the scheduler watches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    pub(crate) pods: Vec<Pod>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) gpu_nodes: Vec<GpuNode>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) groups: Vec<PodGroup>,
    pub(crate) topologies: Vec<Topology>,
    pub(crate) classes: Vec<PriorityClass>,
}

impl Objects {
    /// One list of each kind.
    pub(crate) async fn list(cluster: &Cluster) -> Result<Self, Failure> {
        let (pods, nodes, gpu_nodes, queues, groups, topologies, classes) = tokio::try_join!(
            cluster.list_known(),
            cluster.list_known(),
            cluster.list_known(),
            cluster.list_known(),
            cluster.list(),
            cluster.list(),
            cluster.list(),
        )?;
        Ok(Self {
            pods,
            nodes,
            gpu_nodes,
            queues,
            groups,
            topologies,
            classes,
        })
    }
}

/// A core that nobody acts for.
#[derive(Debug)]
pub(crate) struct Shadow {
    config: scheduler_core::Config,
    /// The name in the specs of our pods.
    pub(crate) scheduler: String,
    world: World,
    core: Core,
    pub(crate) now: Time,
    /// What could not be used of the input.
    pub(crate) problems: Vec<String>,
}

impl Shadow {
    /// From objects, as the scheduler takes them in.
    pub(crate) fn of_objects(
        objects: Objects,
        config: scheduler_core::Config,
        scheduler: &str,
        now: Time,
    ) -> Self {
        let mut shadow = Self {
            core: Core::new(config.clone()),
            config,
            scheduler: scheduler.to_owned(),
            world: World::new(scheduler),
            now,
            problems: Vec::new(),
        };
        shadow.apply(Event::Tick(now));
        // Classes come first: a pod's priority is its class's.
        shadow.take_all(objects.classes, Fact::Class);
        let states: Vec<NodeState> = objects
            .gpu_nodes
            .iter()
            .filter(|node| node.status.is_some())
            .map(state)
            .collect();
        shadow.take_all(objects.nodes, Fact::Node);
        shadow.take_all(objects.gpu_nodes, Fact::GpuNode);
        shadow.take_all(objects.queues, Fact::Queue);
        shadow.take_all(objects.topologies, Fact::Topology);
        shadow.take_all(objects.groups, Fact::Group);
        shadow.take_all(objects.pods, Fact::Pod);
        for state in states {
            let node = state.node.clone();
            let (events, _) = shadow.world.hear(Heard::State { node, state });
            for event in events {
                shadow.apply(event);
            }
        }
        shadow
    }

    /// From a snapshot.
    pub(crate) fn of_text(
        text: &str,
        config: scheduler_core::Config,
        scheduler: &str,
    ) -> Result<Self, String> {
        let mut shadow = Self::of_events(Vec::new(), config, scheduler);
        shadow.feed(text)?;
        Ok(shadow)
    }

    fn of_events(events: Vec<Event>, config: scheduler_core::Config, scheduler: &str) -> Self {
        let mut shadow = Self {
            core: Core::new(config.clone()),
            config,
            scheduler: scheduler.to_owned(),
            world: World::new(scheduler),
            now: Time(0),
            problems: Vec::new(),
        };
        for event in events {
            if let Event::Tick(time) = event {
                shadow.now = shadow.now.max(time);
            }
            shadow.apply(event);
        }
        // Events carry the values of classes, not the classes.
        for (name, value) in CLASSES {
            let mut class = PriorityClass::default();
            class.metadata.name = Some(name.to_owned());
            class.value = Some(value);
            shadow.take(Fact::Class(Seen::There(Box::new(class))));
        }
        shadow
    }

    /// An equal one that only places what fits, and evicts nobody.
    pub(crate) fn without_evictions(&self) -> Self {
        let config = scheduler_core::Config {
            actions: vec![Step::Allocate],
            ..self.config.clone()
        };
        Self::of_events(self.events(), config, &self.scheduler)
    }

    /// An equal one, to try things on.
    pub(crate) fn copy(&self) -> Self {
        Self::of_events(self.events(), self.config.clone(), &self.scheduler)
    }

    fn take_all<K>(&mut self, objects: Vec<K>, of: fn(Seen<K>) -> Fact) {
        self.take(of(Seen::Listing));
        for object in objects {
            self.take(of(Seen::There(Box::new(object))));
        }
        self.take(of(Seen::Listed));
    }

    /// One more fact, as the scheduler would take it in. Answers the events that it made.
    pub(crate) fn take(&mut self, fact: Fact) -> Vec<Event> {
        let events = self.world.take(fact);
        events.iter().cloned().for_each(|event| self.apply(event));
        events
    }

    /// One more event.
    pub(crate) fn apply(&mut self, event: Event) {
        let problems = self.core.apply(event);
        self.problems
            .extend(problems.iter().map(ToString::to_string));
    }

    /// More events, as text.
    pub(crate) fn feed(&mut self, text: &str) -> Result<(), String> {
        for event in text::read(text).map_err(|error| error.to_string())? {
            if let Event::Tick(time) = event {
                self.now = self.now.max(time);
            }
            self.apply(event);
        }
        Ok(())
    }

    /// The state as the event list that rebuilds it.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.core.snapshot()
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// The tree of queues, in order of name.
    pub(crate) fn queues(&mut self) -> Vec<QueueView> {
        self.core.queues()
    }

    /// Decides once.
    pub(crate) fn decide(&mut self) -> Decision {
        self.core.decide(self.now)
    }

    /// Decides until nothing more happens: every binding is taken by the API server, every
    /// evicted pod leaves at once and is made anew by its controller. Answers the decision
    /// of each round.
    pub(crate) fn settle(&mut self) -> Vec<Decision> {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let decision = self.decide();
            let over = decision.actions.is_empty() && !decision.cut_short;
            let mut evicted = BTreeSet::new();
            for action in &decision.actions {
                self.apply(Event::Outcome(Outcome {
                    decision: action.decision(),
                    result: OutcomeResult::Confirmed,
                }));
                if let Action::Evict(evict) = action {
                    evicted.insert(evict.pod.clone());
                }
            }
            if !evicted.is_empty() {
                self.make_anew(&evicted);
            }
            rounds.push(decision);
            if over {
                break;
            }
        }
        rounds
    }

    fn make_anew(&mut self, evicted: &BTreeSet<PodUid>) {
        let gone = self.events().into_iter().filter_map(|event| match event {
            Event::Pod(pod) if evicted.contains(&pod.uid) => Some(pod),
            _ => None,
        });
        let gone: Vec<_> = gone.collect();
        for mut pod in gone {
            self.apply(Event::PodGone(pod.uid.clone()));
            pod.uid = PodUid::new(format!("{}{ANEW}", pod.uid));
            pod.phase = Phase::Pending;
            pod.created = self.now;
            self.apply(Event::Pod(pod));
        }
    }
}

/// What an agent would say by stream, from what it wrote.
fn state(node: &GpuNode) -> NodeState {
    let status = node.status.clone().unwrap_or_default();
    let allowance = node.spec.context_allowance_mib;
    let allowance = allowance.map_or(CONTEXT_ALLOWANCE, |mib| mib.0);
    let offering = status.conditions.iter().find(|c| c.type_ == "Offering");
    let not_offering = match offering {
        Some(condition) if condition.status == "True" => String::new(),
        Some(condition) => condition.message.clone(),
        None => "its agent has not reported yet".to_owned(),
    };
    let mut shares: BTreeMap<(String, String), Share> = BTreeMap::new();
    let mut strangers = Vec::new();
    for card in &status.gpus {
        for grant in &card.grants {
            let (namespace, name) = grant.pod.split_once('/').unwrap_or(("", &grant.pod));
            let share = shares
                .entry((grant.pod_uid.clone(), grant.container.clone()))
                .or_insert_with(|| Share {
                    pod_uid: grant.pod_uid.clone(),
                    pod_namespace: namespace.to_owned(),
                    pod_name: name.to_owned(),
                    container: grant.container.clone(),
                    memory_mib: grant.memory_mib.0,
                    compute_percent: grant.compute_percent.into(),
                    mode: card
                        .mode
                        .map_or_else(String::new, |m| m.as_str().to_owned()),
                    phase: grant.phase.clone(),
                    ..Share::default()
                });
            share.gpu_uuids.push(card.uuid.clone());
        }
        strangers.extend(card.strangers.iter().map(|stranger| Stranger {
            gpu_uuid: card.uuid.clone(),
            pid: stranger.pid,
            command: stranger.command.clone(),
            memory_mib: stranger.memory_mib.0,
            ..Stranger::default()
        }));
    }
    let clients = clients(&status.driver_version);
    let gpus = status.gpus.iter().map(|card| Gpu {
        uuid: card.uuid.clone(),
        index: card.index,
        product: card.product.clone(),
        memory_total_mib: card.total_mib.0,
        memory_reserved_mib: card.reserved_mib.0,
        memory_used_mib: card.used_mib.0,
        memory_granted_mib: card.granted_mib.0,
        memory_grantable_mib: card.grantable_mib.0,
        mode: card
            .mode
            .map_or_else(String::new, |m| m.as_str().to_owned()),
        switchable_modes: card
            .switchable_modes
            .iter()
            .map(|mode| mode.as_str().to_owned())
            .collect(),
        ready: card.ready,
        mps_state: card.mps.clone(),
        health: card.health.clone(),
        health_reason: card.health_reason.clone(),
        numa_node: card.numa.and_then(|n| i32::try_from(n).ok()).unwrap_or(-1),
        nvlink_peers: card.nvlink_peers.clone(),
        client_slots: clients,
        // The admin's word, which the agent repeats a moment later.
        cordoned: (node.spec.gpus.iter()).any(|policy| policy.uuid == card.uuid && policy.cordoned),
        context_allowance_mib: allowance,
        ..Gpu::default()
    });
    NodeState {
        node: node.name_any(),
        node_uid: String::new(),
        gpus: gpus.collect(),
        shares: shares.into_values().collect(),
        strangers,
        not_offering,
        driver_version: status.driver_version.clone(),
    }
}

/// MPS clients that a card takes under a driver.
fn clients(driver: &str) -> u32 {
    let branch = driver.split('.').next().and_then(|text| text.parse().ok());
    let (since, more) = MORE_CLIENTS;
    if branch.is_some_and(|branch: u32| branch >= since) {
        more
    } else {
        CLIENTS
    }
}

/// Milliseconds since 1970.
pub(crate) fn clock() -> Time {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_says_how_many_clients_a_card_takes() {
        for (driver, expected) in [("590.44.01", 60), ("570.86", 48), ("", 48), ("615.1", 60)] {
            assert_eq!(clients(driver), expected, "{driver}");
        }
    }

    #[test]
    fn what_agents_wrote_is_read_as_if_they_had_said_it() {
        let mut nodes = crate::inventory::tests::nodes();
        nodes[0].spec.gpus = vec![api::gpu_node::GpuPolicy {
            uuid: "GPU-1".into(),
            cordoned: true,
            ..Default::default()
        }];
        let objects = Objects {
            gpu_nodes: nodes,
            ..Objects::default()
        };
        let config = scheduler_core::Config::default();
        let shadow = Shadow::of_objects(objects, config, "kai-scheduler", Time(5));
        let text = text::write(&shadow.events());
        for line in [
            "card GPU-0 product=\"NVIDIA L4\" total=23034 reserved=34",
            "card GPU-1 index=1",
            "strangers=512",
            "cordoned",
            "not-offering=\"another device plugin serves nvidia.com/gpu\"",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        let again = Shadow::of_text(&text, scheduler_core::Config::default(), "kai-scheduler");
        assert_eq!(text::write(&again.unwrap().events()), text);
    }
}
