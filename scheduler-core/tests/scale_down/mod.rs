//! Clusters whose nodes an autoscaler may remove, after pods have come and gone.
//!
//! In: a case, of which pods come and go in turns. Out: how often a node was emptied. Each pod that is
//! evicted has a controller that makes it again at once. Checked: one node is emptied at a time and
//! completely, no pod that comes again waits, or goes where no other pod was, and it ends.

use proptest::prelude::*;
use scheduler_core::ids::{PodUid, QueueName};
use scheduler_core::model::{
    Amount, Ask, Card, ContainerAsk, Mode, Node, NodeCards, Phase, Placement, Pod, Queue, Share,
};
use scheduler_core::units::{Bytes, CpuMilli, Duration, Mib, NanoGpu, Time};
use scheduler_core::{
    Action, Config, Core, Decision, Event, EvictCause, Outcome, OutcomeResult, ScaleDown, text,
};
use std::collections::{BTreeMap, BTreeSet};

const CARD: u64 = 48;
/// Of a workload until it may be moved.
const DELAY: u64 = 60_000;

#[derive(Clone, Debug)]
struct PodCase {
    queue: usize,
    ask: Ask,
    cpu: u64,
    safe_to_evict: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Cards of each node, and whether it may be removed.
    nodes: Vec<(u32, bool)>,
    /// Pods that come, and how many of the oldest end.
    turns: Vec<(Vec<PodCase>, usize)>,
    most: u32,
}

fn pod() -> impl Strategy<Value = PodCase> {
    let mib = prop::sample::select(vec![6_u64, 12, 16, 24, 32]);
    let ask = prop_oneof![
        1 => (1_u32..3).prop_map(Ask::Whole),
        2 => mib.prop_map(|mib| Ask::Share(Share::of(Amount::Memory(Mib(mib))))),
        1 => (1_u64..4).prop_map(|part| {
            Ask::Share(Share::of(Amount::Fraction(NanoGpu(part * NanoGpu::ONE.0 / 4))))
        }),
    ];
    let cpu = prop_oneof![3 => Just(100_u64), 1 => Just(3000)];
    (0_usize..2, ask, cpu, prop::bool::weighted(0.9)).prop_map(|(queue, ask, cpu, safe)| PodCase {
        queue,
        ask,
        cpu,
        safe_to_evict: safe,
    })
}

pub(crate) fn case() -> impl Strategy<Value = Case> {
    let turn = (prop::collection::vec(pod(), 0..6), 0_usize..4);
    (
        prop::collection::vec((1_u32..5, prop::bool::weighted(0.8)), 2..6),
        prop::collection::vec(turn, 2..5),
        1_u32..6,
    )
        .prop_map(|(nodes, turns, most)| Case { nodes, turns, most })
}

struct World {
    core: Core,
    pods: BTreeMap<PodUid, Pod>,
    made: u32,
    now: Time,
    log: String,
}

fn at(pod: &Pod) -> Option<&Placement> {
    match &pod.phase {
        Phase::Running(at) | Phase::Releasing(Some(at)) => Some(at),
        _ => None,
    }
}

impl World {
    fn new(case: &Case) -> Self {
        let mut world = Self {
            core: Core::new(Config {
                scale_down: Some(ScaleDown {
                    delay: Duration(DELAY),
                    pods: case.most,
                }),
                ..Config::verified()
            }),
            pods: BTreeMap::new(),
            made: 0,
            now: Time(0),
            log: String::new(),
        };
        for (index, (cards, removable)) in case.nodes.iter().enumerate() {
            let name = format!("n{index}");
            world.tell(Event::Node(Node {
                cpu: CpuMilli(8000),
                memory: Bytes(1 << 30),
                pods: 20,
                gpus: *cards,
                managed: true,
                removable: *removable,
                ..Node::named(&name)
            }));
            let card = |card| Card::named(&format!("GPU-{index}-{card}"), card, "T", CARD);
            let cards = NodeCards::offered(&name, Mode::Mps, (0..*cards).map(card));
            world.tell(Event::Cards(cards));
        }
        for queue in ["q0", "q1"] {
            world.tell(Event::Queue(Queue::unlimited(queue)));
        }
        world
    }

    fn tell(&mut self, event: Event) {
        self.log
            .push_str(&text::write(std::slice::from_ref(&event)));
        let problems = self.core.apply(event);
        assert!(problems.is_empty(), "{problems:?}\n{}", self.log);
    }

    fn show(&mut self, pod: Pod) {
        self.pods.insert(pod.uid.clone(), pod.clone());
        self.tell(Event::Pod(Box::new(pod)));
    }

    fn remove(&mut self, uid: PodUid) {
        self.pods.remove(&uid);
        self.tell(Event::PodGone(uid));
    }

    fn make(&mut self, mut pod: Pod) -> PodUid {
        self.made += 1;
        pod.uid = PodUid::new(format!("p{:03}", self.made));
        pod.name = pod.uid.as_str().into();
        pod.created = Time(self.now.0 + u64::from(self.made));
        pod.phase = Phase::Pending;
        let uid = pod.uid.clone();
        self.show(pod);
        uid
    }

    fn arrive(&mut self, case: &PodCase) {
        let mut pod = Pod::named("");
        pod.queue = QueueName::new(format!("q{}", case.queue));
        pod.cpu = CpuMilli(case.cpu);
        pod.safe_to_evict = case.safe_to_evict;
        pod.gpus.push(ContainerAsk::of("main", case.ask.clone()));
        self.make(pod);
    }

    /// Decides, and does what was decided.
    fn decide(&mut self) -> Decision {
        self.tell(Event::Tick(self.now));
        let decision = self.core.decide(self.now);
        self.log.push_str(&text::decision(&decision));
        assert_eq!(self.core.violations(), Vec::<String>::new(), "{}", self.log);
        for action in &decision.actions {
            let result = OutcomeResult::Confirmed;
            let decision = action.decision();
            self.tell(Event::Outcome(Outcome { decision, result }));
            let (Action::Bind(scheduler_core::Bind { pod, .. })
            | Action::Evict(scheduler_core::Evict { pod, .. })) = action;
            let mut pod = self.pods[pod].clone();
            pod.phase = match (action, pod.phase) {
                (Action::Bind(bind), _) => Phase::Running(bind.placement()),
                (Action::Evict(_), Phase::Running(at)) => Phase::Releasing(Some(at)),
                (Action::Evict(_), other) => other,
            };
            self.show(pod);
        }
        decision
    }

    fn nodes_in_use(&self) -> BTreeSet<String> {
        let stays = |pod: &&Pod| matches!(pod.phase, Phase::Running(_));
        let placed = self.pods.values().filter(stays).filter_map(at);
        placed.map(|at| at.node.to_string()).collect()
    }

    /// The pods of one node are evicted, come again and run.
    fn move_all(&mut self, evicted: &[PodUid]) {
        let node = |world: &Self, uid: &PodUid| at(&world.pods[uid]).unwrap().node.to_string();
        let emptied = node(self, &evicted[0]);
        let others = self.nodes_in_use();
        for uid in evicted {
            assert_eq!(node(self, uid), emptied, "{}", self.log);
        }
        assert!(!others.contains(&emptied), "a pod is left\n{}", self.log);
        // Nothing else is moved before they have come again.
        self.now = Time(self.now.0 + DELAY);
        assert!(self.decide().actions.is_empty(), "{}", self.log);
        let again: Vec<Pod> = evicted.iter().map(|uid| self.pods[uid].clone()).collect();
        let again: Vec<PodUid> = again.into_iter().map(|pod| self.make(pod)).collect();
        self.decide();
        for uid in &again {
            let pod = &self.pods[uid];
            let at = at(pod).map(|at| at.node.to_string());
            let is_in_use = at.as_ref().is_some_and(|at| others.contains(at));
            assert!(is_in_use, "{uid} is on {at:?}\n{}", self.log);
        }
        for uid in evicted {
            self.remove(uid.clone());
        }
    }
}

/// How often a node was emptied.
pub(crate) fn run(case: &Case) -> u32 {
    let mut world = World::new(case);
    for (pods, ended) in &case.turns {
        for pod in pods {
            world.arrive(pod);
        }
        world.decide();
        let oldest: Vec<PodUid> = world.pods.keys().take(*ended).cloned().collect();
        for uid in oldest {
            world.remove(uid);
        }
    }
    let waits: Vec<PodUid> = (world.pods.values())
        .filter(|pod| pod.phase == Phase::Pending)
        .map(|pod| pod.uid.clone())
        .collect();
    for uid in waits {
        world.remove(uid);
    }
    let mut emptied = 0;
    loop {
        world.now = Time(world.now.0 + 2 * DELAY);
        let decision = world.decide();
        let evicted: Vec<PodUid> = (decision.actions.iter())
            .map(|action| match action {
                Action::Evict(evict) if evict.cause == EvictCause::ScaleDown => evict.pod.clone(),
                other => panic!("{other:?}\n{}", world.log),
            })
            .collect();
        if evicted.is_empty() {
            return emptied;
        }
        assert!(evicted.len() <= case.most as usize, "{}", world.log);
        emptied += 1;
        assert!(emptied < case.nodes.len() as u32, "no end\n{}", world.log);
        world.move_all(&evicted);
    }
}
