//! A small cluster, as the scheduler has it: one node with an agent and two cards.

use proto::telemetry::{Gpu, NodeState};
use scheduler::convert::World;
use scheduler::shard::{Live, Shard};
use scheduler::telemetry::AgentEvent;
use scheduler::watch::{Fact, Seen};
use scheduler_core::units::Time;
use scheduler_core::{Config, Core, Event, text};
use serde_json::json;

/// The name of the node.
pub(super) const NODE: &str = "n1";
/// The name of the scheduler.
pub(super) const SCHEDULER: &str = proto::names::kai::SCHEDULER_NAME;

/// World and core, both of the same events.
pub(super) struct Cluster {
    pub(super) world: World,
    pub(super) core: Core,
}

impl Cluster {
    /// The node, its cards, a queue.
    pub(super) fn new() -> Self {
        let settings = scheduler::Config::default();
        let shard = Shard::of_all(&settings, settings.core(0));
        let mut cluster = Self {
            world: World::new(SCHEDULER)
                .with_storage_listed()
                .of_shard(&shard.pool, Some(Live::new(&shard, None))),
            core: Core::new(Config::verified()),
        };
        let node = json!({"metadata": {"name": NODE, "uid": "nu1"}, "status": {
            "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110", "aliquot.dev/gpu-share": "64"},
            "conditions": [{"type": "Ready", "status": "True"}]}});
        let node = serde_json::from_value(node).expect("a node");
        cluster.take(Fact::Node(Seen::There(Box::new(node))));
        let queue = json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
            "metadata": {"name": "default-queue"}, "spec": {"resources": {
                "gpu": {"quota": -1, "limit": -1, "overQuotaWeight": 1}, "cpu": {"quota": -1, "limit": -1},
                "memory": {"quota": -1, "limit": -1}}}});
        let queue = serde_json::from_value(queue).expect("a queue");
        cluster.take(Fact::Queue(Seen::There(Box::new(queue))));
        cluster.hear(AgentEvent::State {
            node: NODE.to_owned(),
            state: state(),
        });
        cluster
    }

    /// A fact, through the core.
    pub(super) fn take(&mut self, fact: Fact) -> Vec<Event> {
        let events = self.world.take(fact);
        self.apply(events)
    }

    /// An agent's word, through the core.
    pub(super) fn hear(&mut self, heard: AgentEvent) -> Vec<Event> {
        let events = self.world.hear(heard);
        self.apply(events)
    }

    fn apply(&mut self, events: Vec<Event>) -> Vec<Event> {
        for event in &events {
            self.core.apply(event.clone());
        }
        events
    }

    /// A decision, and that the core's snapshot can be written.
    pub(super) fn decide(&mut self) {
        self.core.decide(Time(1_000));
        let _ = told(&self.core.snapshot());
    }
}

/// Events as text, read again, are the same.
pub(super) fn returns(events: &[Event]) {
    let written = text::write(events);
    let read = text::read(&written).unwrap_or_else(|error| panic!("{error}\n{written}"));
    assert_eq!(
        text::write(&read),
        written,
        "events do not come back from their text"
    );
}

/// Events can be written and read again. Names that the API server has not validated may not be
/// representable as text; that is an error, and nothing worse.
pub(super) fn told(events: &[Event]) -> Result<Vec<Event>, text::TextError> {
    text::read(&text::write(events))
}

/// What the node's agent says of it.
pub(super) fn state() -> NodeState {
    let card = |index: u32| Gpu {
        uuid: format!("GPU-{index}"),
        index,
        product: "T".into(),
        memory_total_mib: 16_000,
        memory_reserved_mib: 500,
        memory_grantable_mib: 15_500,
        switchable_modes: ["exclusive", "mps", "mps-isolated", "time-slicing"]
            .map(str::to_owned)
            .to_vec(),
        ready: true,
        health: "Healthy".into(),
        numa_node: -1,
        client_slots: 48,
        kubelet_pool: "whole".into(),
        ..Gpu::default()
    };
    NodeState {
        node: NODE.into(),
        node_uid: "nu1".into(),
        gpus: vec![card(0), card(1)],
        driver_version: "570.86".into(),
        ..NodeState::default()
    }
}
