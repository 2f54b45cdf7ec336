//! The same run through the scheduler's core: each arrival is an event, a decision says
//! where it goes, and a pod that is not placed at once is gone again.
//!
//! The core does not know the pods that will arrive: `fragmentation` uses the existing ones. Nodes
//! are named by their rank, so that equals go to the lowest.

use crate::replay::Policy;
use crate::trace::{Order, Shape, Trace};
use scheduler_core::ids::{NodeName, PodUid, QueueName};
use scheduler_core::model::{
    Amount, Ask, Card, ContainerAsk, Mode, Node, NodeCards, NodeTerm, Operator, Pod, Queue,
    Requirement, Share,
};
use scheduler_core::units::{Bytes, CpuMilli, NanoGpu, Time};
use scheduler_core::{Action, Config, Core, Event, Outcome, OutcomeResult, Placement, Step};
use std::collections::HashMap;
use std::sync::Arc;

/// MiB of each card, so that every thousandth is a whole number.
const CARD: u64 = 100_000;
const MIB: u64 = 1 << 20;
const MODEL: &str = "model";

/// A core with the trace's nodes.
pub(crate) struct CoreReplay<'a> {
    trace: &'a Trace,
    pub(crate) core: Core,
    pub(crate) nodes: HashMap<NodeName, usize>,
}

impl<'a> CoreReplay<'a> {
    pub(crate) fn new(trace: &'a Trace, order: &Order, placement: Placement) -> Self {
        let config = Config {
            actions: vec![Step::Allocate],
            gpu_placement: placement,
            cpu_placement: placement,
            ..Config::default()
        };
        Self::of(trace, order, config)
    }

    pub(crate) fn of(trace: &'a Trace, order: &Order, config: Config) -> Self {
        let mut core = Core::new(config);
        let mut nodes = HashMap::new();
        let mut events = vec![Event::Queue(Queue::unlimited("queue"))];
        for (rank, index) in order.nodes.iter().enumerate() {
            let has = &trace.nodes[*index];
            let mut node = Node::named(&format!("{rank:04}"));
            node.labels.insert(Arc::from(MODEL), Arc::from(&*has.model));
            node.cpu = CpuMilli(has.cpu);
            node.memory = Bytes(has.memory_mib * MIB);
            node.pods = 100_000;
            node.gpus = u32::try_from(has.cards).unwrap_or(u32::MAX);
            node.managed = true;
            nodes.insert(node.name.clone(), *index);
            let cards = (0..node.gpus).map(|index| {
                let uuid = format!("GPU-{rank:04}-{index}");
                let mut card = Card::named(&uuid, index, &has.model, CARD);
                card.client_slots = 0;
                card
            });
            let name = node.name.as_str();
            events.push(Event::Cards(NodeCards::offered(
                name,
                Mode::TimeSlicing,
                cards,
            )));
            events.push(Event::Node(node));
        }
        for event in events {
            tell(&mut core, event);
        }
        Self { trace, core, nodes }
    }
}

/// The core accepts every event here.
pub(crate) fn tell(core: &mut Core, event: Event) {
    let problems = core.apply(event);
    assert!(problems.is_empty(), "{problems:?}");
}

fn asks(shape: &Shape) -> Vec<ContainerAsk> {
    let ask = match (shape.cards, shape.milli) {
        (0, _) => return Vec::new(),
        (cards, 1000..) => Ask::Whole(u32::try_from(cards).unwrap_or(u32::MAX)),
        (_, milli) => Ask::Share(Share::of(Amount::Fraction(NanoGpu(
            u64::from(milli) * NanoGpu::ONE.0 / 1000,
        )))),
    };
    vec![ContainerAsk::of("main", ask)]
}

impl CoreReplay<'_> {
    /// The pod of that row of the list.
    pub(crate) fn pod(&self, arrival: usize, row: usize) -> Pod {
        let listed = &self.trace.pods[row];
        let shape = &self.trace.shapes[listed.shape];
        let mut pod = Pod::named(&format!("{arrival:06}"));
        pod.queue = QueueName::new("queue");
        pod.cpu = CpuMilli(shape.cpu);
        pod.memory = Bytes(listed.memory_mib * MIB);
        pod.gpus = asks(shape);
        pod.created = Time(arrival as u64);
        if !shape.models.is_empty() {
            let models = shape.models.split('|').map(Arc::from).collect();
            pod.nodes.terms = Some(vec![NodeTerm {
                labels: vec![Requirement {
                    key: Arc::from(MODEL),
                    operator: Operator::In(models),
                }],
                name: Vec::new(),
            }]);
        }
        pod
    }
}

impl Policy for CoreReplay<'_> {
    fn place(&mut self, arrival: usize, row: usize) -> Option<usize> {
        let pod = self.pod(arrival, row);
        let uid: PodUid = pod.uid.clone();
        tell(&mut self.core, Event::Pod(Box::new(pod)));
        let decision = self.core.decide(Time(arrival as u64));
        let mut node = None;
        for action in &decision.actions {
            let Action::Bind(bind) = action else {
                continue;
            };
            node = self.nodes.get(&bind.node).copied();
            tell(
                &mut self.core,
                Event::Outcome(Outcome {
                    decision: bind.decision,
                    result: OutcomeResult::Confirmed,
                }),
            );
        }
        if node.is_none() {
            tell(&mut self.core, Event::PodGone(uid));
        }
        node
    }
}
