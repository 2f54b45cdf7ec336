//! Clusters full of shares: searches for room that find nothing.
//!
//! What is known without a search, and what is remembered from one decision to the next,
//! only skips work: with `Config::verify` the core searches all the same, and a debug
//! assertion fails where room is found, so that every case here proves it. And a core that
//! was rebuilt decides as the one that lived, and gives every pod the reason that the other
//! gave last.
#![allow(clippy::unwrap_used)] // A test from its first line to its last.

use crate::cases::tried_less;
use proptest::prelude::*;
use scheduler_core::ids::{PodUid, QueueName};
use scheduler_core::model::{
    Amount, Ask, Card, ContainerAsk, Fence, Mode, Node, NodeCards, Phase, Pod, Queue, Share, Weight,
};
use scheduler_core::units::{Bound, Bytes, CpuMilli, Duration, Mib, NanoGpu, Time};
use scheduler_core::{
    Action, Bind, Config, Core, Decision, Event, EvictCause, Outcome, OutcomeResult, Plugin,
    ReasonKind, Rest, Workers, text,
};
use std::collections::BTreeMap;
use std::sync::Arc;

const CARD: u64 = 48;

#[derive(Clone, Debug)]
struct Wish {
    queue: usize,
    /// MiB; none: a whole GPU.
    mib: u64,
    part: bool,
    priority: i32,
    preemptible: bool,
    cpu: u64,
    /// Only on the first node.
    first: bool,
}

#[derive(Clone, Debug)]
struct Case {
    /// Cards of each node.
    nodes: Vec<u32>,
    /// The second node takes no share whose fence a tenant can take out.
    fenced: bool,
    /// GPUs of each queue, in quarters; `None`: no bound.
    quotas: Vec<Option<u64>>,
    /// Most jobs that a consolidation moves.
    moved: Option<u32>,
    min_runtime: u64,
    /// Queues have priorities, by which one takes from another within quotas.
    by_priority: bool,
    /// Of the plugins that order jobs, those that are switched off.
    without: Vec<Plugin>,
    /// Nodes are for pods with GPUs and without by labels: the second is for neither.
    workers: bool,
    /// In each turn: new pods, and which running pods have ended.
    turns: Vec<(Vec<Wish>, Vec<prop::sample::Index>)>,
}

fn wish() -> impl Strategy<Value = Wish> {
    let mib = prop_oneof![
        4 => prop::sample::select(vec![8_u64, 12, 20]),
        2 => 5_u64..30,
        1 => Just(0),
    ];
    (
        any::<usize>(),
        mib,
        0_u8..5,
        0_i32..3,
        0_u8..6,
        prop::sample::select(vec![100_u64, 100, 1500]),
        0_u8..6,
    )
        .prop_map(|(queue, mib, part, priority, fixed, cpu, first)| Wish {
            queue,
            mib,
            part: part == 0,
            priority,
            preemptible: fixed > 0,
            cpu,
            first: first == 0,
        })
}

fn case() -> impl Strategy<Value = Case> {
    let quota = prop_oneof![3 => (0_u64..8).prop_map(Some), 1 => Just(None)];
    let turn = (
        prop::collection::vec(wish(), 0..10),
        prop::collection::vec(any::<prop::sample::Index>(), 0..3),
    );
    (
        (prop::collection::vec(1_u32..4, 1..4), any::<bool>()),
        prop::collection::vec(quota, 1..4),
        prop_oneof![2 => Just(Some(16)), 1 => Just(Some(3)), 1 => Just(None)],
        prop_oneof![3 => Just(0), 1 => Just(30_000_u64)],
        any::<bool>(),
        (
            prop::sample::subsequence(vec![Plugin::Priority, Plugin::Elastic], 0..=2),
            any::<bool>(),
        ),
        prop::collection::vec(turn, 2..6),
    )
        .prop_map(
            |((nodes, fenced), quotas, moved, min_runtime, by_priority, rules, turns)| Case {
                nodes,
                fenced,
                quotas,
                moved,
                min_runtime,
                by_priority,
                without: rules.0,
                workers: rules.1,
                turns,
            },
        )
}

fn config(case: &Case) -> Config {
    Config {
        consolidation_jobs: case.moved,
        reclaim_min_runtime: Duration(case.min_runtime),
        preempt_min_runtime: Duration(case.min_runtime),
        queue_priority_in_quota: case.by_priority,
        without: case.without.iter().copied().collect(),
        workers: case.workers.then(Workers::default),
        ..Config::verified()
    }
}

struct World {
    core: Core,
    pods: BTreeMap<PodUid, Pod>,
    /// What each pod was told last about why it waits.
    told: BTreeMap<PodUid, ReasonKind>,
    born: u32,
    log: String,
}

impl World {
    fn new(case: &Case) -> Self {
        let mut world = Self {
            core: Core::new(config(case)),
            pods: BTreeMap::new(),
            told: BTreeMap::new(),
            born: 0,
            log: String::new(),
        };
        for (index, count) in case.nodes.iter().enumerate() {
            let name = format!("n{index}");
            let mut node = Node::named(&name);
            node.cpu = CpuMilli(8000);
            node.memory = Bytes(1 << 30);
            node.pods = 20;
            node.gpus = *count;
            node.managed = true;
            node.labels
                .insert(Arc::from("index"), Arc::from(index.to_string()));
            if index != 1 {
                let Workers { gpu, cpu } = Workers::default();
                node.labels.extend([(gpu, "".into()), (cpu, "".into())]);
            }
            world.tell(Event::Node(node));
            let each = (0..*count).map(|card| Card {
                minimum_fence: (case.fenced && index == 1).then_some(Fence::ServerLimit),
                ..Card::named(&format!("GPU-{index}-{card}"), card, "T", CARD)
            });
            world.tell(Event::Cards(NodeCards::offered(&name, Mode::Mps, each)));
        }
        for (priority, (index, quota)) in (100..).zip(case.quotas.iter().enumerate()) {
            let mut queue = Queue::unlimited(&format!("q{index}"));
            queue.created = Time(index as u64);
            queue.gpu.weight = Weight(1_000_000);
            if case.by_priority {
                queue.priority = priority;
            }
            if let Some(quota) = quota {
                queue.gpu.quota = Bound::Exactly(quota * NanoGpu::ONE.0 / 4);
            }
            world.tell(Event::Queue(queue));
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

    fn bear(&mut self, case: &Case, wish: &Wish, now: u64) {
        let mut pod = Pod::named(&format!("p{:03}", self.born));
        self.born += 1;
        pod.queue = QueueName::new(format!("q{}", wish.queue % case.quotas.len()));
        pod.priority = wish.priority;
        pod.preemptibility = wish.preemptible.into();
        pod.created = Time(now);
        pod.cpu = CpuMilli(wish.cpu);
        let ask = match (wish.mib, wish.part) {
            (0, _) => Ask::Whole(1),
            (mib, part) => Ask::Share(Share::of(if part {
                Amount::Fraction(NanoGpu(mib * NanoGpu::ONE.0 / CARD))
            } else {
                Amount::Memory(Mib(mib))
            })),
        };
        pod.gpus.push(ContainerAsk::of("main", ask));
        if wish.first {
            pod.nodes
                .selector
                .insert(Arc::from("index"), Arc::from("0"));
        }
        self.show(pod);
    }

    /// Decides as a core does that knows nothing but the snapshot.
    fn decide(&mut self, case: &Case, now: u64) -> Decision {
        let mut rebuilt = Core::new(config(case));
        let snapshot = self.core.snapshot();
        let before = text::write(&snapshot);
        for event in snapshot {
            rebuilt.apply(event);
        }
        let decision = self.core.decide(Time(now));
        let other = rebuilt.decide(Time(now));
        self.log.push_str(&text::decision(&decision));
        assert_eq!(said(&decision), said(&other), "{}", self.log);
        assert_eq!(decision.wake_at, other.wake_at, "{}", self.log);
        // The one that lived says what is new, the other one everything.
        self.told.extend(reasons(&decision));
        let bound = |uid: &PodUid| {
            let mut actions = decision.actions.iter();
            actions.any(|action| matches!(action, Action::Bind(bind) if bind.pod == *uid))
        };
        let waits = |uid: &PodUid| {
            let pod = self.pods.get(uid);
            pod.is_some_and(|pod| pod.phase == Phase::Pending) && !bound(uid)
        };
        self.told.retain(|uid, _| waits(uid));
        let all: BTreeMap<PodUid, ReasonKind> = reasons(&other).collect();
        for (uid, kind) in &all {
            assert_eq!(self.told.get(uid), Some(kind), "{uid}\n{}", self.log);
        }
        // A pod whose binding was taken back for another gets its reason in the next decision.
        if decision.actions.is_empty() {
            let waiting = self.pods.keys().filter(|uid| waits(uid));
            let waiting: Vec<&PodUid> = waiting.collect();
            let heard: Vec<&PodUid> = all.keys().collect();
            assert_eq!(waiting, heard, "{}\nof\n{before}", self.log);
        }
        decision
    }

    fn execute(&mut self, decision: &Decision, now: u64) {
        for action in &decision.actions {
            self.tell(Event::Outcome(Outcome {
                decision: action.decision(),
                result: OutcomeResult::Confirmed,
            }));
            match action {
                Action::Bind(bind) => {
                    let mut pod = self.pods[&bind.pod].clone();
                    pod.phase = Phase::Running(bind.placement());
                    self.show(pod);
                }
                Action::Evict(evict) => {
                    // It comes back as a new one and waits.
                    let mut pod = self.pods.remove(&evict.pod).unwrap();
                    self.tell(Event::PodGone(evict.pod.clone()));
                    pod.uid = PodUid::new(format!("p{:03}", self.born));
                    self.born += 1;
                    pod.created = Time(now);
                    pod.phase = Phase::Pending;
                    self.show(pod);
                }
            }
        }
    }
}

fn reasons(decision: &Decision) -> impl Iterator<Item = (PodUid, ReasonKind)> {
    let reasons = decision.reasons.iter();
    reasons.map(|reason| (reason.pod.clone(), reason.kind))
}

/// The decisions, by pod.
fn said(decision: &Decision) -> Vec<(PodUid, Option<EvictCause>, String)> {
    let of = |bind: &Bind| format!("{} {:?}", bind.node, bind.grants);
    let actions = decision.actions.iter();
    actions
        .map(|action| match action {
            Action::Bind(bind) => (bind.pod.clone(), None, of(bind)),
            Action::Evict(evict) => {
                let favoured = format!("{:?}", evict.in_favour_of);
                (evict.pod.clone(), Some(evict.cause), favoured)
            }
        })
        .collect()
}

proptest! {
    #![proptest_config(tried_less(256))]

    #[test]
    fn what_is_known_without_a_search_is_what_a_search_finds(case in case()) {
        let mut world = World::new(&case);
        let mut now = 0;
        for (wishes, gone) in &case.turns {
            for wish in wishes {
                world.bear(&case, wish, now);
            }
            for index in gone {
                let runs: Vec<PodUid> = world
                    .pods
                    .values()
                    .filter(|pod| matches!(pod.phase, Phase::Running(_)))
                    .map(|pod| pod.uid.clone())
                    .collect();
                if !runs.is_empty() {
                    let uid = index.get(&runs).clone();
                    world.pods.remove(&uid);
                    world.tell(Event::PodGone(uid));
                }
            }
            for _ in 0..2 {
                now += 20_000;
                let decision = world.decide(&case, now);
                world.execute(&decision, now);
            }
        }
    }
}

/// A small cluster of which every card has two shares of 20 MiB and 8 MiB left, and 30
/// shares of 12 MiB that wait in two queues and priorities.
#[test]
fn shares_that_fit_nowhere_cost_no_step() {
    let case = Case {
        fenced: false,
        nodes: vec![3, 3],
        quotas: vec![Some(12), Some(12)],
        moved: Some(16),
        min_runtime: 0,
        by_priority: false,
        without: Vec::new(),
        workers: false,
        turns: Vec::new(),
    };
    let wish = |queue, mib, priority| Wish {
        queue,
        mib,
        part: false,
        priority,
        preemptible: true,
        cpu: 100,
        first: false,
    };
    let mut world = World::new(&case);
    for index in 0..12 {
        world.bear(&case, &wish(index, 20, 1), 0);
    }
    let decision = world.decide(&case, 1000);
    assert_eq!(decision.actions.len(), 12, "{}", world.log);
    world.execute(&decision, 1000);
    for index in 0..30 {
        let priority = i32::from(index % 3 == 0);
        world.bear(&case, &wish(index, 12, priority), 2000);
    }
    let decision = world.decide(&case, 3000);
    assert_eq!((decision.steps, decision.actions.len()), (0, 0));
    assert_eq!(decision.reasons.len(), 30, "all are told why");
    // 28 MiB are free then: two of them.
    let gone = PodUid::new("p003");
    world.pods.remove(&gone);
    world.tell(Event::PodGone(gone));
    let decision = world.decide(&case, 4000);
    assert_eq!(decision.actions.len(), 2, "{}", world.log);
    assert!(decision.steps < 30, "{} steps", decision.steps);
}

/// One card with two shares of a queue that deserves nothing, and a share of a queue that
/// deserves the card.
fn owed(moved: Option<u32>) -> (Case, World) {
    let case = Case {
        fenced: false,
        nodes: vec![1],
        quotas: vec![Some(4), Some(0)],
        moved,
        min_runtime: 0,
        by_priority: false,
        without: Vec::new(),
        workers: false,
        turns: Vec::new(),
    };
    let mut world = World::new(&case);
    for queue in [1, 1, 0] {
        let wish = Wish {
            queue,
            mib: 20,
            part: false,
            priority: 1,
            preemptible: true,
            cpu: 100,
            first: false,
        };
        if queue == 0 {
            let decision = world.decide(&case, 1000);
            world.execute(&decision, 1000);
        }
        world.bear(&case, &wish, 0);
    }
    (case, world)
}

#[test]
fn a_search_that_is_cut_short_comes_back_with_more_and_holds_up_nobody() {
    let (case, mut world) = owed(Some(16));
    let decision = world.decide(&case, 2000);
    let [Action::Evict(evict)] = &decision.actions[..] else {
        panic!("{}", world.log);
    };
    let of = evict.in_favour_of.clone().unwrap();

    let (case, mut world) = owed(Some(16));
    world.tell(Event::Rest(Rest {
        of: of.clone(),
        cause: EvictCause::Reclaim,
        until: Time(2000),
        steps: 1,
    }));
    let search_backoffs = |world: &World| -> Vec<(u64, u64)> {
        let events = world.core.snapshot().into_iter();
        let search_backoffs = events.filter_map(|event| match event {
            Event::Rest(rest) => Some((rest.until.0, rest.steps)),
            _ => None,
        });
        search_backoffs.collect()
    };
    assert!(world.decide(&case, 1500).actions.is_empty());
    let (mut now, mut tries) = (2000, 0);
    loop {
        let decision = world.decide(&case, now);
        if !decision.actions.is_empty() {
            break;
        }
        tries += 1;
        assert!(tries < 20, "{}", world.log);
        let [(until, steps)] = search_backoffs(&world)[..] else {
            panic!("{}", world.log);
        };
        assert_eq!(steps, 1 << tries, "{}", world.log);
        assert_eq!(decision.wake_at, Some(Time(until)));
        // It is not tried before, whatever happens, and pods that fit are placed.
        let small = Wish {
            queue: 0,
            mib: 1,
            part: false,
            priority: 1,
            preemptible: true,
            cpu: 1,
            first: false,
        };
        world.bear(&case, &small, now);
        let decision = world.decide(&case, until - 1);
        assert_eq!(decision.actions.len(), 1, "{}", world.log);
        world.execute(&decision, until - 1);
        assert_eq!(search_backoffs(&world), [(until, steps)]);
        now = until;
    }
    assert!(tries > 1, "one step was enough");
    assert_eq!(search_backoffs(&world), []);
}
