//! A small world beside a core: nodes with cards, pods with shares, claims and rules about each other,
//! and what happens to them.
//!
//! In: numbers that choose among what may happen. Out: what the core was told and what it decided, as
//! text; after each event the core's invariants hold.

use crate::storage::{self, claim, volumes};
use crate::{by_claim, pod_rules};
use proptest::prelude::*;
use scheduler_core::ids::{ClaimUid, ContainerName, DecisionId, GpuUuid, NodeName, PodUid};
use scheduler_core::model::{
    Allocation, Amount, Ask, Card, ClaimRef, ContainerAsk, ContainerGrant, Fence, Mode, Node,
    NodeCards, Phase, Pod, ProductQuota, ProductUnit, Queue, Share,
};
use scheduler_core::units::{Bound, Bytes, CpuMilli, Duration, Mib, NanoGpu, Time};
use scheduler_core::{
    Action, Bind, Config, Core, Decision, Event, EvictRequest, Outcome, OutcomeResult, Refusal,
    text,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) fn node(index: u8, cards: u8, gpus: u8) -> Vec<Event> {
    let name = format!("n{index}");
    let mut node = Node::named(&name);
    node.cpu = CpuMilli(8000);
    node.memory = Bytes(8 << 30);
    node.pods = 6;
    node.managed = cards > 0;
    node.gpus = u32::from(gpus);
    node.labels = pod_rules::node_labels(index, cards);
    if index % 3 == 2 {
        node.labels.insert(Node::PRODUCT_LABEL.into(), "U".into());
    }
    storage::limit(&mut node, index);
    let mut events = vec![Event::Node(node)];
    if cards > 0 {
        let each = (0..cards).map(|card| self::card(index, card));
        events.push(Event::Cards(NodeCards::offered(&name, Mode::Mps, each)));
    }
    events
}

pub(crate) fn card(node: u8, index: u8) -> Card {
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

pub(crate) fn pod(index: u8, kind: u8, size: u16) -> Pod {
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
            let second = ContainerAsk {
                container: ContainerName::new("second"),
                init: kind > 220,
                ask,
            };
            // After another container, which is a sidecar then, or before it.
            let place = usize::from(kind <= 230);
            pod.gpus.insert(place, second);
        }
    }
    if size % 2 == 0 {
        by_claim::stand_in(&mut pod);
    }
    pod
}

/// What a pod's grants take of each card at one time: of any container, with those before it that go
/// on. A card that it has whole counts once.
pub(crate) fn at_once(pod: &Pod, grants: &[ContainerGrant]) -> BTreeMap<GpuUuid, u64> {
    let mut most = BTreeMap::new();
    for grant in grants {
        let place = |grant: &ContainerGrant| {
            let mut asks = pod.gpus.iter();
            asks.position(|ask| ask.container == grant.container)
        };
        let goes_on = |other: &&ContainerGrant| {
            place(other) < place(grant) && place(other).is_some_and(|at| !pod.gpus[at].init)
        };
        for card in &grant.cards {
            let before = grants.iter().filter(goes_on);
            let before = before.filter(|other| other.cards.contains(card));
            let sum = grant.memory.0 + before.map(|other| other.memory.0).sum::<u64>();
            let most = most.entry(card.clone()).or_insert(0);
            *most = sum.max(*most);
        }
    }
    most
}

/// One thing that happens; numbers choose among what is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) what: u8,
    pub(crate) which: u8,
    pub(crate) size: u16,
}

pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
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
pub(crate) struct World {
    pub(crate) core: Core,
    pub(crate) now: u64,
    pub(crate) nodes: BTreeMap<NodeName, Node>,
    pub(crate) pods: BTreeMap<PodUid, Pod>,
    /// Claims that have devices.
    pub(crate) allocated: BTreeMap<ClaimUid, Allocation>,
    pub(crate) open: Vec<Action>,
    /// Open decisions of pods that are gone, or were seen waiting after they were seen bound.
    pub(crate) before: BTreeSet<DecisionId>,
    /// Pods that were ever told to leave.
    pub(crate) told: BTreeSet<PodUid>,
    /// Everything that went in and came out, as text.
    pub(crate) log: String,
}

impl World {
    pub(crate) fn new(nodes: &[(u8, u8)], most_counted: u64) -> Self {
        Self::of(nodes, pod_rules::counting(most_counted))
    }

    pub(crate) fn of(nodes: &[(u8, u8)], config: Config) -> Self {
        let mut world = Self {
            core: Core::new(config),
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
        // Of the nodes without another label.
        queue.products = vec![ProductQuota {
            product: "T".into(),
            unit: ProductUnit::Gpus,
            quota: Some(Bound::Exactly(1_000_000_000)),
            limit: Bound::Exactly(3_500_000_000),
        }];
        world.tell(Event::Queue(queue));
        world
    }

    pub(crate) fn tell(&mut self, event: Event) {
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
    pub(crate) fn forget_binding(&mut self, pod: &PodUid) {
        let of_it = |action: &&Action| matches!(action, Action::Bind(bind) if bind.pod == *pod);
        let open = self.open.iter().filter(of_it);
        self.before.extend(open.map(Action::decision));
    }

    pub(crate) fn show(&mut self, mut pod: Pod) {
        let known = self.pods.get(&pod.uid);
        if pod.phase == Phase::Pending && known.is_some_and(|known| known.phase != Phase::Pending) {
            self.forget_binding(&pod.uid);
        }
        if pod.phase == Phase::Pending {
            for claim in &mut pod.devices {
                claim.own &= !self.allocated.contains_key(&claim.uid);
            }
        }
        self.pods.insert(pod.uid.clone(), pod.clone());
        self.tell(Event::Pod(Box::new(pod)));
    }

    pub(crate) fn decide(&mut self) -> Decision {
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
    pub(crate) fn show_claims(&mut self, claims: impl Iterator<Item = Allocation>) {
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
    pub(crate) fn leave_claims(&mut self, pod: &Pod, size: u16) {
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

    pub(crate) fn bound(&mut self, bind: &Bind, running: bool) {
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

    pub(crate) fn step(&mut self, step: Step) {
        let which = usize::from(step.which);
        let some_pod = self
            .pods
            .keys()
            .nth(which % self.pods.len().max(1))
            .cloned();
        match step.what % 16 {
            0..=4 => {
                let mut pod = pod(step.which % 24, (step.size >> 8) as u8, step.size);
                // They are immutable.
                if let Some(known) = self.pods.get(&pod.uid) {
                    pod.namespace = Arc::clone(&known.namespace);
                    pod.claims.clone_from(&known.claims);
                }
                self.show(pod);
            }
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

pub(crate) fn run(nodes: &[(u8, u8)], steps: &[Step], most_counted: u64) -> World {
    run_with(nodes, steps, pod_rules::counting(most_counted))
}

pub(crate) fn run_with(nodes: &[(u8, u8)], steps: &[Step], config: Config) -> World {
    let mut world = World::of(nodes, config);
    for step in steps {
        world.step(*step);
    }
    world.now += 1;
    world.decide();
    world
}

pub(crate) fn nodes() -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec((any::<u8>(), any::<u8>()), 1..4)
}
