//! What must hold for every sequence of events.
#![allow(
    clippy::unwrap_used,
    clippy::manual_is_multiple_of,
    clippy::cast_possible_truncation
)] // A test from its first line to its last.

mod by_claim;
mod cases;
mod pod_rules;
mod relax;
mod storage;

use cases::tried;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use scheduler_core::ids::{ClaimUid, ContainerName, DecisionId, GpuUuid, NodeName, PodUid};
use scheduler_core::model::{
    Allocation, Amount, Ask, Card, ClaimRef, ContainerAsk, Fence, Mode, Node, NodeCards, Phase,
    Pod, Queue, Share,
};
use scheduler_core::units::{Bytes, CpuMilli, Duration, Mib, NanoGpu, Time};
use scheduler_core::{
    Action, Bind, Config, Core, Decision, Event, EvictCause, EvictRequest, Outcome, OutcomeResult,
    Refusal, text,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use storage::{claim, volumes};

fn node(index: u8, cards: u8, gpus: u8) -> Vec<Event> {
    let name = format!("n{index}");
    let mut node = Node::named(&name);
    node.cpu = CpuMilli(8000);
    node.memory = Bytes(8 << 30);
    node.pods = 6;
    node.managed = cards > 0;
    node.gpus = u32::from(gpus);
    node.labels = pod_rules::node_labels(index, cards);
    storage::limit(&mut node, index);
    let mut events = vec![Event::Node(node)];
    if cards > 0 {
        let each = (0..cards).map(|card| self::card(index, card));
        events.push(Event::Cards(NodeCards::offered(&name, Mode::Mps, each)));
    }
    events
}

fn card(node: u8, index: u8) -> Card {
    let total = [15_360, 46_068, 100][usize::from(index) % 3];
    let mut card = Card::named(&format!("GPU-{node}-{index}"), u32::from(index), "T", total);
    card.reserved = Mib(total / 100);
    card.grantable = Mib(total - total / 100);
    card.allowance = Mib(512);
    card.numa = Some(u32::from(index / 2));
    card.nvlink_peers = vec![GpuUuid::new(format!("GPU-{node}-{}", index ^ 1))];
    card.client_slots = 3;
    // Policies are of nodes: one wants a fence, one has a driver that is one.
    card.minimum_fence = (node % 3 == 1).then_some(Fence::ServerLimit);
    card.driver_limits = node % 3 == 2;
    card
}

fn pod(index: u8, kind: u8, size: u16) -> Pod {
    let mut pod = Pod::named(&format!("p{index:02}"));
    pod.created = Time(u64::from(index) % 4);
    pod.priority = i32::from(index % 3);
    pod.cpu = CpuMilli(u64::from(size % 1500));
    pod.memory = Bytes(1 << 20);
    let share = |amount, devices, mode| {
        Ask::Share(Share {
            amount,
            // One in three may use more than is kept for it.
            burst: match amount {
                Amount::Memory(mib) if size % 3 == 0 => Some(Amount::Memory(Mib(mib.0 * 2))),
                Amount::Fraction(_) if size % 3 == 0 => {
                    Some(Amount::Fraction(NanoGpu(950_000_000)))
                }
                _ => None,
            },
            devices,
            compute: None,
            mode,
        })
    };
    let size = u64::from(size);
    pod.claims
        .extend((0..=size % 3).filter(|_| kind % 2 == 0).map(|more| {
            let which = u64::from(index) + more;
            claim((which % 7) as u8)
        }));
    pod_rules::give(&mut pod, kind, size);
    by_claim::give(&mut pod, kind, size);
    let ask = match kind % 7 {
        0 => None,
        1 => Some(Ask::Whole(1 + u32::from(kind) % 3)),
        2 => Some(share(Amount::Memory(Mib(1 + size)), 1, None)),
        3 => Some(share(
            Amount::Fraction(NanoGpu(50_000_000 + size * 10_000)),
            1,
            None,
        )),
        4 => Some(share(
            Amount::Fraction(NanoGpu(500_000_000)),
            1,
            Some(Mode::TimeSlicing),
        )),
        5 => Some(share(Amount::Memory(Mib(50)), 2, None)),
        _ => Some(share(Amount::Fraction(NanoGpu(250_000_000)), 1, None)),
    };
    if let Some(ask) = ask {
        pod.gpus.push(ContainerAsk::of("main", ask.clone()));
        if kind > 200 {
            pod.gpus.push(ContainerAsk {
                container: ContainerName::new("second"),
                init: kind > 230,
                ask,
            });
        }
    }
    if size % 2 == 0 {
        by_claim::stand_in(&mut pod);
    }
    pod
}

/// One thing that happens; numbers choose among what is there.
#[derive(Clone, Copy, Debug)]
struct Step {
    what: u8,
    which: u8,
    size: u16,
}

fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(
        (any::<u8>(), any::<u8>(), any::<u16>()).prop_map(|(what, which, size)| Step {
            what,
            which,
            size,
        }),
        1..most,
    )
}

/// The world beside the core: what was asked of it, and what it shows.
struct World {
    core: Core,
    now: u64,
    nodes: BTreeMap<NodeName, Node>,
    pods: BTreeMap<PodUid, Pod>,
    /// Claims that have devices.
    allocated: BTreeMap<ClaimUid, Allocation>,
    open: Vec<Action>,
    /// Open decisions of pods that are gone, or were seen waiting after they were seen bound.
    before: BTreeSet<DecisionId>,
    /// Pods that were ever told to leave.
    told: BTreeSet<PodUid>,
    /// Everything that went in and came out, as text.
    log: String,
}

impl World {
    fn new(nodes: &[(u8, u8)], most_counted: u64) -> Self {
        let mut world = Self {
            core: Core::new(pod_rules::counting(most_counted)),
            now: 0,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            allocated: BTreeMap::new(),
            open: Vec::new(),
            before: BTreeSet::new(),
            told: BTreeSet::new(),
            log: String::new(),
        };
        for (index, (cards, gpus)) in nodes.iter().enumerate() {
            for event in node(u8::try_from(index).unwrap(), cards % 5, gpus % 4) {
                world.tell(event);
            }
        }
        for volume in volumes() {
            world.tell(Event::Volume(volume));
        }
        for index in 0..3 {
            world.tell(Event::Devices(by_claim::pool(index, 0)));
        }
        world.tell(Event::Devices(by_claim::network()));
        let mut queue = Queue::unlimited("default-queue");
        // Longer by a second than goes by before a rebuilt core is compared.
        queue.preempt_min_runtime = Some(Duration(101_000));
        world.tell(Event::Queue(queue));
        world
    }

    fn tell(&mut self, event: Event) {
        self.log
            .push_str(&text::write(std::slice::from_ref(&event)));
        match &event {
            Event::Node(node) => drop(self.nodes.insert(node.name.clone(), node.clone())),
            Event::NodeGone(name) => drop(self.nodes.remove(name)),
            _ => {}
        }
        let _ = self.core.apply(event);
        assert_eq!(self.core.violations(), Vec::<String>::new());
    }

    /// Whatever comes of it, the pod of that name is not placed there.
    fn forget_binding(&mut self, pod: &PodUid) {
        let of_it = |action: &&Action| matches!(action, Action::Bind(bind) if bind.pod == *pod);
        let open = self.open.iter().filter(of_it);
        self.before.extend(open.map(Action::decision));
    }

    fn show(&mut self, pod: Pod) {
        let known = self.pods.get(&pod.uid);
        if pod.phase == Phase::Pending && known.is_some_and(|known| known.phase != Phase::Pending) {
            self.forget_binding(&pod.uid);
        }
        self.pods.insert(pod.uid.clone(), pod.clone());
        self.tell(Event::Pod(Box::new(pod)));
    }

    fn decide(&mut self) -> Decision {
        let placed = pod_rules::placed(&self.pods, &self.open, &self.before);
        let decision = self.core.decide(Time(self.now));
        assert_eq!(self.core.violations(), Vec::<String>::new());
        for action in &decision.actions {
            if let Action::Evict(evict) = action {
                self.told.insert(evict.pod.clone());
            }
        }
        if let Some(wrong) =
            pod_rules::breaks(&self.nodes, placed, &self.pods, &self.told, &decision)
        {
            panic!("{wrong}\n{}{}", self.log, text::decision(&decision));
        }
        self.log.push_str(&text::decision(&decision));
        self.open.extend(decision.actions.iter().cloned());
        decision
    }

    /// The API server shows the claims of a pod that is bound or was, or shows them as before.
    fn show_claims(&mut self, claims: impl Iterator<Item = Allocation>) {
        for claim in claims {
            let known = self.allocated.get(&claim.claim);
            let known = known.filter(|known| !known.leaving).cloned();
            let mut claim = known.unwrap_or(claim);
            let uses = |pod: &&Pod| {
                let stands = matches!(
                    pod.phase,
                    Phase::Bound(_) | Phase::Running(_) | Phase::Releasing(Some(_))
                );
                stands && pod.devices.iter().any(|one| one.uid == claim.claim)
            };
            let consumers = self.pods.values().filter(uses).count();
            claim.consumers = u32::try_from(consumers).unwrap();
            self.allocated.insert(claim.claim.clone(), claim.clone());
            self.tell(Event::Allocated(claim));
        }
    }

    /// A pod is gone: its claims are about to lose their devices, or have lost them, where it was
    /// the last.
    fn leave_claims(&mut self, pod: &Pod, size: u16) {
        for claim in &pod.devices {
            let Some(mut known) = self.allocated.remove(&claim.uid) else {
                continue;
            };
            let uses = |pod: &Pod| pod.devices.iter().any(|one| one.uid == claim.uid);
            let stay = self.pods.values().filter(|pod| uses(pod)).count();
            known.consumers = u32::try_from(stay).unwrap();
            known.leaving = stay == 0;
            if known.leaving && size % 2 == 0 {
                self.tell(Event::Freed(claim.uid.clone()));
                continue;
            }
            self.allocated.insert(claim.uid.clone(), known.clone());
            self.tell(Event::Allocated(known));
        }
    }

    fn bound(&mut self, bind: &Bind, running: bool) {
        let Some(mut pod) = self.pods.get(&bind.pod).cloned() else {
            return;
        };
        if pod.phase != Phase::Pending {
            return;
        }
        // The claims of a pod that runs are bound.
        if running {
            pod.claims.retain(|claim| claim.exclusive);
            for claim in &mut pod.claims {
                (claim.bound, claim.wants) = (true, None);
            }
            for bound in &bind.claims {
                let mut kept =
                    volumes().filter(|volume| Some(&volume.name) == bound.volume.as_ref());
                if let Some(mut volume) = kept.next() {
                    volume.kept_for = Some(ClaimRef {
                        name: Arc::clone(&bound.name),
                        uid: Some(bound.uid.clone()),
                    });
                    self.tell(Event::Volume(volume));
                }
            }
        }
        let early = bind.decision.sequence % 2 == 0;
        if early {
            self.show_claims(by_claim::allocations(bind));
        }
        let placed = bind.placement();
        pod.phase = if running {
            Phase::Running(placed)
        } else {
            Phase::Bound(placed)
        };
        self.show(pod);
        if !early {
            self.show_claims(by_claim::allocations(bind));
        }
    }

    fn step(&mut self, step: Step) {
        let which = usize::from(step.which);
        let some_pod = self
            .pods
            .keys()
            .nth(which % self.pods.len().max(1))
            .cloned();
        match step.what % 16 {
            0..=4 => self.show(pod(step.which % 24, (step.size >> 8) as u8, step.size)),
            5 | 6 => {
                self.now += u64::from(step.which) * 10;
                self.decide();
            }
            7..=9 if !self.open.is_empty() => {
                let action = self.open.remove(which % self.open.len());
                if step.size % 5 == 1 {
                    // The answer is late: the pod may be seen bound long before it.
                    if let (true, Action::Bind(bind)) = (step.size % 2 == 0, &action) {
                        self.bound(bind, false);
                    }
                    self.open.push(action);
                    return;
                }
                let result = match step.size % 5 {
                    0 => OutcomeResult::Refused {
                        reason: Arc::from("no"),
                        retryable: step.size % 2 == 0,
                    },
                    _ => OutcomeResult::Confirmed,
                };
                let confirmed = result == OutcomeResult::Confirmed;
                let seen_first = step.size % 3 == 0;
                if let (true, true, Action::Bind(bind)) = (confirmed, seen_first, &action) {
                    self.bound(bind, false);
                }
                self.tell(Event::Outcome(Outcome {
                    decision: action.decision(),
                    result,
                }));
                if let (true, Action::Bind(bind)) = (confirmed, &action) {
                    self.bound(bind, step.size % 2 == 0);
                }
            }
            10 => {
                if let Some(uid) = some_pod {
                    let pod = self.pods.remove(&uid);
                    self.forget_binding(&uid);
                    self.tell(Event::PodGone(uid));
                    if let Some(pod) = pod {
                        self.leave_claims(&pod, step.size);
                    }
                }
            }
            11 => {
                if let Some(mut pod) = some_pod.and_then(|uid| self.pods.get(&uid).cloned()) {
                    pod.phase = match pod.phase {
                        Phase::Bound(placement) | Phase::Running(placement) => {
                            Phase::Releasing(Some(placement))
                        }
                        other => other,
                    };
                    self.show(pod);
                }
            }
            12 => {
                let pod = some_pod.and_then(|uid| self.pods.get(&uid));
                if let Some(pod) = pod
                    && let Phase::Running(placement) = &pod.phase
                {
                    let request = EvictRequest {
                        pod: pod.uid.clone(),
                        node: placement.node.clone(),
                        reason: Arc::from("XID 79"),
                    };
                    self.tell(Event::EvictRequest(request));
                } else if let Some(pod) = pod
                    && let Phase::Bound(placement) = &pod.phase
                {
                    let refusal = Refusal {
                        pod: pod.uid.clone(),
                        node: placement.node.clone(),
                        decision: placement.decision,
                        reason: Arc::from("the card has less"),
                        last_word: step.size % 3 > 0,
                    };
                    self.tell(Event::Refusal(refusal));
                }
            }
            13 => {
                let name = format!("n{}", step.which % 3);
                self.tell(match step.size % 3 {
                    0 => Event::AgentLost(name.as_str().into()),
                    1 => Event::NodeGone(name.as_str().into()),
                    _ => pod_rules::namespace(step.size),
                });
            }
            14 => {
                let index = step.which % 3;
                for event in node(index, 1 + (step.size % 4) as u8, 0) {
                    self.tell(event);
                }
                let volume = volumes().nth(which % 7).unwrap();
                self.tell(match step.size % 3 {
                    0 => Event::VolumeGone(volume.name),
                    _ => Event::Volume(volume),
                });
                let pool = by_claim::pool(index, step.size / 3);
                self.tell(match step.size % 16 {
                    0 => Event::DevicesGone(pool.name),
                    _ => Event::Devices(pool),
                });
            }
            _ => {
                let index = step.which % 3;
                let mut cards: Vec<Card> = (0..4).map(|card| self::card(index, card)).collect();
                let changed = &mut cards[usize::from(step.size % 4)];
                match step.size % 3 {
                    0 => changed.unhealthy = Some(Arc::from("XID 79")),
                    1 => changed.cordoned = true,
                    _ => changed.ready = false,
                }
                let name = format!("n{index}");
                self.tell(Event::Cards(NodeCards::offered(&name, Mode::Mps, cards)));
            }
        }
    }
}

fn run(nodes: &[(u8, u8)], steps: &[Step], most_counted: u64) -> World {
    let mut world = World::new(nodes, most_counted);
    for step in steps {
        world.step(*step);
    }
    world.now += 1;
    world.decide();
    world
}

fn nodes() -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec((any::<u8>(), any::<u8>()), 1..4)
}

proptest! {
    #![proptest_config(tried(256))]

    /// And however many matches of selectors are counted: then a reason may be told as it was
    /// when the pod had its turn. The world checks every invariant, too.
    #[test]
    fn the_same_events_give_the_same_actions(nodes in nodes(), steps in steps(60), few in 0_u8..12) {
        let few = few.checked_sub(1).map_or(u64::MAX, u64::from);
        let (all, few, same) = (run(&nodes, &steps, u64::MAX).log, run(&nodes, &steps, few).log, few == u64::MAX);
        let told = |line: &&str| same || !line.starts_with("waits ");
        prop_assert!(all.lines().filter(told).eq(few.lines().filter(told)), "{}\n{}", all, few);
    }

    #[test]
    fn a_core_rebuilt_from_its_snapshot_decides_as_the_one_that_lived(nodes in nodes(), steps in steps(60), more in steps(6)) {
        let mut lived = run(&nodes, &steps, 5);
        let snapshot = lived.core.snapshot();
        let mut rebuilt = Core::new(Config::verified());
        for event in snapshot.clone() {
            let _ = rebuilt.apply(event);
        }
        prop_assert_eq!(text::write(&rebuilt.snapshot()), text::write(&snapshot));
        // Every pod is seen once more, as after a watch has restarted.
        for pod in lived.pods.values() {
            let event = Event::Pod(Box::new(pod.clone()));
            let _ = rebuilt.apply(event.clone());
            let _ = lived.core.apply(event);
        }
        for step in more {
            // Pods that have not been seen yet, and time.
            let event = Event::Pod(Box::new(pod(100 + step.which % 24, step.what, step.size)));
            let _ = rebuilt.apply(event.clone());
            let _ = lived.core.apply(event);
        }
        let now = Time(lived.now + 100_000);
        let (one, two) = (rebuilt.decide(now), lived.core.decide(now));
        let said = |decision: &Decision| -> Vec<(PodUid, String, String)> {
            decision.actions.iter().filter_map(|action| match action {
                Action::Bind(bind) => Some((bind.pod.clone(), bind.node.to_string(), format!("{:?} {:?} {:?}", bind.grants, bind.claims, bind.devices))),
                // Those that are under way are decided again.
                Action::Evict(evict) if evict.cause == EvictCause::GrantRefused => None,
                Action::Evict(evict) => Some((evict.pod.clone(), evict.cause.as_str().to_owned(), format!("{:?}", evict.in_favour_of))),
            }).collect()
        };
        prop_assert_eq!(said(&one), said(&two), "{}\nsnapshot\n{}", lived.log, text::write(&snapshot));
        for uid in lived.pods.keys() {
            prop_assert_eq!(rebuilt.explain(uid), lived.core.explain(uid), "{}\nsnapshot\n{}\n{}\n{}", lived.log, text::write(&snapshot), text::decision(&one), text::decision(&two));
        }
    }

    #[test]
    fn snapshots_survive_their_text(nodes in nodes(), steps in steps(40)) {
        let snapshot = run(&nodes, &steps, 5).core.snapshot();
        let written = text::write(&snapshot);
        let read = text::read(&written);
        prop_assert_eq!(read, Ok(snapshot), "{}", written);
    }

    #[test]
    fn the_order_of_independent_events_makes_no_difference(
        nodes in nodes(),
        pods in prop::collection::vec((any::<u8>(), any::<u16>()), 1..12),
        order in prop::collection::vec(any::<u32>(), 32),
    ) {
        // Some pods are already placed; which and where comes from a first core.
        let mut first = World::new(&nodes, 5);
        for (index, (kind, size)) in pods.iter().enumerate() {
            first.show(pod(u8::try_from(index).unwrap(), *kind, *size));
            if index == pods.len() / 2 {
                first.decide();
                for action in std::mem::take(&mut first.open) {
                    if let Action::Bind(bind) = action {
                        first.bound(&bind, true);
                    }
                }
            }
        }
        let mut events: Vec<Event> = first.core.snapshot().into_iter().filter(|event| {
            matches!(event, Event::Node(_) | Event::Cards(_) | Event::Queue(_) | Event::Volume(_) | Event::Namespace(_) | Event::Pod(_) | Event::Devices(_) | Event::Allocated(_))
        }).collect();
        let decide = |events: &[Event]| {
            let mut core = Core::new(Config::verified());
            for event in events {
                let _ = core.apply(event.clone());
            }
            text::decision(&core.decide(Time(1)))
        };
        let straight = decide(&events);
        for (index, swap) in order.iter().enumerate() {
            let length = events.len();
            events.swap(index % length, *swap as usize % length);
        }
        prop_assert_eq!(decide(&events), straight);
    }

    /// Sums of limits over cards, and claims of volumes, from what was decided alone.
    #[test]
    fn nothing_is_given_more_than_it_has(nodes in nodes(), pods in prop::collection::vec((any::<u8>(), any::<u16>()), 1..24)) {
        let mut world = World::new(&nodes, 5);
        for (index, (kind, size)) in pods.iter().enumerate() {
            world.show(pod(u8::try_from(index).unwrap(), *kind, *size));
        }
        let mut sums: BTreeMap<GpuUuid, u64> = BTreeMap::new();
        let mut whole: BTreeMap<GpuUuid, u32> = BTreeMap::new();
        let (mut bound, mut owners) = (BTreeMap::new(), BTreeMap::new());
        let mut claims: BTreeMap<ClaimUid, Allocation> = BTreeMap::new();
        for action in world.decide().actions {
            let Action::Bind(bind) = action else { continue };
            for claim in by_claim::allocations(&bind) {
                let same = claims.entry(claim.claim.clone()).or_insert_with(|| claim.clone());
                prop_assert_eq!(&same.devices, &claim.devices);
            }
            for claim in &bind.claims {
                let wanted = (0..7).map(self::claim).find(|one| one.uid == claim.uid).unwrap().wants;
                let at = (bind.node.clone(), claim.volume.clone());
                prop_assert_eq!(bound.entry(claim.uid.clone()).or_insert_with(|| at.clone()), &at);
                prop_assert_eq!(wanted.is_some(), claim.volume.is_some());
                if let (Some(want), Some(volume)) = (wanted, &claim.volume) {
                    let owner = owners.entry(volume.clone()).or_insert_with(|| claim.uid.clone());
                    prop_assert_eq!(&*owner, &claim.uid);
                    let volume = volumes().find(|one| one.name == *volume).unwrap();
                    prop_assert!(volume.shape.size >= want.shape.size);
                    prop_assert!(volume.nodes.is_none() || volume.name.as_str()[1..2] == bind.node.as_str()[1..]);
                }
            }
            let mut of_pod = Vec::new();
            for grant in &bind.grants {
                let mut cards = grant.cards.clone();
                cards.sort();
                cards.dedup();
                prop_assert_eq!(cards.len(), grant.cards.len(), "distinct cards");
                for card in &grant.cards {
                    if grant.mode == Mode::Exclusive {
                        if !of_pod.contains(card) {
                            *whole.entry(card.clone()).or_default() += 1;
                            of_pod.push(card.clone());
                        }
                    } else {
                        *sums.entry(card.clone()).or_default() += grant.memory.0;
                    }
                }
            }
        }
        for (uuid, sum) in &sums {
            let parts: Vec<u8> = uuid.as_str().split('-').skip(1).map(|part| part.parse().unwrap()).collect();
            prop_assert!(*sum <= card(parts[0], parts[1]).grantable.0);
            prop_assert!(!whole.contains_key(uuid), "whole and shared at once");
        }
        prop_assert!(whole.values().all(|pods| *pods == 1));
        let pools: Vec<_> = (0..3).map(|node| by_claim::pool(node, 0)).chain([by_claim::network()]).collect();
        let claims: Vec<Allocation> = claims.into_values().collect();
        prop_assert_eq!(by_claim::beyond(&pools, &claims), None);
        for uuid in claims.iter().flat_map(|claim| &*claim.devices).filter_map(|one| one.device.as_str().strip_suffix("/card")) {
            let card = GpuUuid::new(format!("GPU-{}-0", uuid.rsplit('n').next().unwrap()));
            prop_assert!(!sums.contains_key(&card) && !whole.contains_key(&card), "granted and claimed: {}", card);
        }
    }

    /// A pod that fits alone on an idle cluster is placed there.
    #[test]
    fn what_fits_alone_is_placed(nodes in nodes(), kind in any::<u8>(), size in any::<u16>()) {
        let mut world = World::new(&nodes, 5);
        let pod = pod(1, kind, size);
        let uid = pod.uid.clone();
        world.show(pod);
        let fits = world.core.explain(&uid).unwrap().nodes.iter().any(|node| node.fits);
        prop_assert_eq!(world.decide().actions.len() == 1, fits);
    }
}

/// Each relaxation in the list rules something out in these clusters, and the full search, which
/// the core runs then, finds nothing.
#[test]
fn what_a_relaxation_rules_out_no_search_finds() {
    let ruled_out = RefCell::new(BTreeMap::<&str, u64>::new());
    let tried = TestRunner::new(tried(512)).run(&relax::case(), |case| {
        for (name, times) in relax::run(&case) {
            *ruled_out.borrow_mut().entry(name).or_default() += times;
        }
        Ok(())
    });
    tried.unwrap();
    let ruled_out = ruled_out.into_inner();
    for name in scheduler_core::relaxations() {
        assert!(ruled_out.contains_key(name), "{name} not in {ruled_out:?}");
    }
}
