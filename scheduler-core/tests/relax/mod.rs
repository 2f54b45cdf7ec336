//! Small clusters that are full of whole GPUs and shares, of several queues and priorities, with
//! evicted pods that have not left yet.
//!
//! In: a case from which a cluster is built, and what arrives and ends in each turn. Out: how often
//! each relaxation ruled a search out. With `Config::verify` the core has each followed by the search.
//!
//! The kubelets admit pods in an order of their own, and choose the cards of whole GPUs. Of some pods
//! the cards are known one turn later: until then two pods seem to hold one card.

use proptest::prelude::*;
use scheduler_core::ids::{GpuUuid, GroupName, PodUid, QueueName};
use scheduler_core::model::{
    Amount, Ask, Card, ContainerAsk, ContainerGrant, Mode, Node, NodeCards, Phase, Placement, Pod,
    PodGroup, ProductQuota, ProductUnit, Queue, Share,
};
use scheduler_core::units::{Bound, Bytes, CpuMilli, Mib, NanoGpu, Time};
use scheduler_core::{Action, Bind, Config, Core, Event, Evict, Outcome, OutcomeResult, text};
use std::collections::{BTreeMap, BTreeSet};

const CARD: u64 = 48;

/// Pods of one group that ask for the same.
#[derive(Clone, Debug)]
struct Job {
    queue: usize,
    pods: u32,
    min: u32,
    ask: Ask,
    cpu: u64,
    priority: i32,
    preemptible: bool,
}

/// A cluster, and what arrives and how many pods end in each turn.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Cards of each node.
    nodes: Vec<u32>,
    /// GPUs of each queue; the last two have a department of their own.
    quotas: Vec<Option<u64>>,
    /// Quota and limit of each queue, of the product of every other node; the last is the
    /// department's.
    products: Vec<Option<(Option<u64>, Option<u64>)>>,
    turns: Vec<(Vec<Job>, usize)>,
    /// Of the pods in the order of their admission: the agent says at once which cards a pod got.
    heard: Vec<bool>,
    /// Whole GPUs may get a card that a share of the same decision was to have.
    races: bool,
}

fn job() -> impl Strategy<Value = Job> {
    // Sizes that fill a card exactly, in several ways.
    let mib = prop::sample::select(vec![12_u64, 16, 24, 32]);
    let ask = prop_oneof![
        3 => (1_u32..5).prop_map(Ask::Whole),
        1 => mib.prop_map(|mib| Ask::Share(Share::of(Amount::Memory(Mib(mib))))),
        1 => (1_u64..4).prop_map(|part| {
            Ask::Share(Share::of(Amount::Fraction(NanoGpu(part * NanoGpu::ONE.0 / 4))))
        }),
    ];
    let cpu = prop_oneof![3 => Just(100_u64), 1 => Just(3000)];
    (0_usize..4, 1_u32..4, 1_u32..4, ask, cpu, 0_i32..3, 0_u8..4).prop_map(
        |(queue, pods, min, ask, cpu, priority, kind)| Job {
            queue,
            pods,
            min: min.min(pods),
            ask,
            cpu,
            priority: 50 + priority,
            preemptible: kind > 0,
        },
    )
}

pub(crate) fn case() -> impl Strategy<Value = Case> {
    let quota = prop_oneof![3 => (0_u64..4).prop_map(Some), 1 => Just(None)];
    let product = (
        prop::option::of(0_u64..4),
        prop::option::weighted(0.3, 0_u64..5),
    );
    let product = prop_oneof![2 => Just(None), 1 => product.prop_map(Some)];
    let turn = (prop::collection::vec(job(), 0..5), 0_usize..3);
    (
        prop::collection::vec(1_u32..5, 1..4),
        prop::collection::vec(quota, 4),
        prop_oneof![Just(vec![None; 5]), prop::collection::vec(product, 5)],
        any::<bool>(),
        prop::collection::vec(turn, 2..6),
        prop_oneof![Just(Vec::new()), prop::collection::vec(any::<bool>(), 1..8)],
        any::<bool>(),
    )
        .prop_map(
            |(nodes, quotas, products, no_shares, mut turns, heard, races)| {
                for job in turns.iter_mut().flat_map(|(jobs, _)| jobs) {
                    if no_shares && matches!(job.ask, Ask::Share(_)) {
                        job.ask = Ask::Whole(1);
                    }
                }
                Case {
                    nodes,
                    quotas,
                    products,
                    turns,
                    heard,
                    races,
                }
            },
        )
}

#[derive(Default)]
struct World {
    pods: BTreeMap<PodUid, Pod>,
    log: String,
    admitted: usize,
    /// The cards of whole GPUs, as the kubelet gave them.
    given: BTreeMap<PodUid, Vec<GpuUuid>>,
    /// Whose cards the agent has yet to name.
    unheard: Vec<PodUid>,
    /// Shares whose card has become another pod's: the agent refuses them.
    refused: Vec<PodUid>,
}

impl World {
    fn tell(&mut self, core: &mut Core, event: Event) {
        self.log
            .push_str(&text::write(std::slice::from_ref(&event)));
        let problems = core.apply(event);
        assert!(problems.is_empty(), "{problems:?}\n{}", self.log);
    }

    fn show(&mut self, core: &mut Core, pod: Pod) {
        self.pods.insert(pod.uid.clone(), pod.clone());
        self.tell(core, Event::Pod(Box::new(pod)));
    }

    fn build(&mut self, core: &mut Core, case: &Case) {
        for (index, cards) in case.nodes.iter().enumerate() {
            let name = format!("n{index}");
            let node = Node {
                cpu: CpuMilli(8000),
                memory: Bytes(1 << 30),
                pods: 20,
                gpus: *cards,
                managed: true,
                ..Node::named(&name)
            };
            self.tell(core, Event::Node(node));
            let product = ["T", "U"][index % 2];
            let card = |card| Card::named(&format!("GPU-{index}-{card}"), card, product, CARD);
            let cards = NodeCards::offered(&name, Mode::Mps, (0..*cards).map(card));
            self.tell(core, Event::Cards(cards));
        }
        let products = |at: usize| -> Vec<ProductQuota> {
            let unit = [ProductUnit::Gpus, ProductUnit::Memory][at % 2];
            let exactly = |gpus: u64| match unit {
                ProductUnit::Gpus => Bound::Exactly(gpus * NanoGpu::ONE.0),
                ProductUnit::Memory => Bound::Exactly(gpus * CARD),
            };
            let row = |(quota, limit): (Option<u64>, Option<u64>)| ProductQuota {
                product: "U".into(),
                unit,
                quota: quota.map(exactly),
                limit: limit.map_or(Bound::Unlimited, exactly),
            };
            case.products[at].map(row).into_iter().collect()
        };
        let mut department = Queue::unlimited("department");
        department.products = products(4);
        self.tell(core, Event::Queue(department));
        for (index, quota) in case.quotas.iter().enumerate() {
            let mut queue = Queue::unlimited(&format!("q{index}"));
            queue.parent = (index > 1).then(|| QueueName::new("department"));
            queue.products = products(index);
            if let Some(quota) = quota {
                queue.gpu.quota = Bound::Exactly(quota * NanoGpu::ONE.0);
            }
            self.tell(core, Event::Queue(queue));
        }
    }

    fn arrive(&mut self, core: &mut Core, job: &Job, name: &str, now: Time) {
        let group = GroupName::new(format!("default/{name}"));
        self.tell(
            core,
            Event::Group(PodGroup {
                queue: QueueName::new(format!("q{}", job.queue)),
                priority: job.priority,
                preemptibility: job.preemptible.into(),
                created: now,
                ..PodGroup::named(group.as_str(), job.min)
            }),
        );
        for index in 0..job.pods {
            let mut pod = Pod::named(&format!("{name}-{index}"));
            pod.created = now;
            pod.cpu = CpuMilli(job.cpu);
            pod.group = Some(group.clone());
            pod.gpus.push(ContainerAsk::of("main", job.ask.clone()));
            self.show(core, pod);
        }
    }

    /// The agent names the cards that it has not named, and refuses shares; pods that were evicted
    /// a turn ago leave, and the first ones that run end.
    fn end(&mut self, core: &mut Core, ended: usize) {
        for uid in std::mem::take(&mut self.unheard) {
            self.name_cards(core, &uid);
        }
        for uid in std::mem::take(&mut self.refused) {
            self.pods.remove(&uid);
            self.tell(core, Event::PodGone(uid));
        }
        let leaves = |pod: &&Pod| matches!(pod.phase, Phase::Releasing(_));
        let runs = |pod: &&Pod| matches!(pod.phase, Phase::Running(_));
        let leave = self.pods.values().filter(leaves);
        let end = self.pods.values().filter(runs).take(ended);
        let gone: Vec<PodUid> = leave.chain(end).map(|pod| pod.uid.clone()).collect();
        for uid in gone {
            self.pods.remove(&uid);
            self.given.remove(&uid);
            self.tell(core, Event::PodGone(uid));
        }
    }

    /// The kubelets admit these pods, the last one first, and give whole GPUs the first cards that
    /// are free.
    fn admit(&mut self, core: &mut Core, bound: &[PodUid], case: &Case) {
        if case.heard.is_empty() {
            return;
        }
        let has_whole = |pod: &Pod| {
            grants(pod)
                .iter()
                .any(|grant| grant.mode == Mode::Exclusive)
        };
        let mut taken: BTreeSet<GpuUuid> = BTreeSet::new();
        for (uid, pod) in &self.pods {
            if let Some(given) = self.given.get(uid) {
                taken.extend(given.iter().cloned());
            } else if !(bound.contains(uid) && (case.races || has_whole(pod))) {
                taken.extend(grants(pod).iter().flat_map(|grant| grant.cards.clone()));
            }
        }
        for uid in bound.iter().rev() {
            let pod = &self.pods[uid];
            let Some(at) = placement(pod).filter(|_| has_whole(pod)) else {
                continue;
            };
            let of_node = |name: &usize| format!("n{name}") == at.node.as_str();
            let node = (0..case.nodes.len()).find(of_node).unwrap();
            let wanted: usize = at.grants.iter().map(|grant| grant.cards.len()).sum();
            let cards =
                (0..case.nodes[node]).map(|card| GpuUuid::new(format!("GPU-{node}-{card}")));
            let given: Vec<GpuUuid> = cards
                .filter(|card| !taken.contains(card))
                .take(wanted)
                .collect();
            assert_eq!(
                given.len(),
                wanted,
                "the kubelet refuses {uid}\n{}",
                self.log
            );
            taken.extend(given.iter().cloned());
            self.given.insert(uid.clone(), given);
            self.unheard.push(uid.clone());
        }
        for uid in bound.iter().filter(|uid| !self.given.contains_key(*uid)) {
            let lost = |card: &GpuUuid| self.given.values().flatten().any(|given| given == card);
            let mut cards = grants(&self.pods[uid])
                .iter()
                .flat_map(|grant| &grant.cards);
            if cards.any(lost) {
                self.refused.push(uid.clone());
            }
        }
        for uid in std::mem::take(&mut self.unheard) {
            let heard = case.heard[self.admitted % case.heard.len()];
            self.admitted += 1;
            if heard {
                self.name_cards(core, &uid);
            } else {
                self.unheard.push(uid);
            }
        }
    }

    fn name_cards(&mut self, core: &mut Core, uid: &PodUid) {
        let (Some(pod), Some(given)) = (self.pods.get(uid), self.given.get(uid)) else {
            return;
        };
        let (mut pod, mut given) = (pod.clone(), given.iter().cloned());
        let (Phase::Running(at) | Phase::Releasing(Some(at))) = &mut pod.phase else {
            return;
        };
        for grant in &mut at.grants {
            grant.cards = given.by_ref().take(grant.cards.len()).collect();
        }
        self.show(core, pod);
    }

    fn decide(&mut self, core: &mut Core, now: Time, case: &Case) -> BTreeMap<&'static str, u64> {
        let decision = core.decide(now);
        self.log.push_str(&text::decision(&decision));
        assert_eq!(core.violations(), Vec::<String>::new(), "{}", self.log);
        let mut bound = Vec::new();
        for action in &decision.actions {
            let outcome = Outcome {
                decision: action.decision(),
                result: OutcomeResult::Confirmed,
            };
            self.tell(core, Event::Outcome(outcome));
            let (Action::Bind(Bind { pod, .. }) | Action::Evict(Evict { pod, .. })) = action;
            if let Action::Bind(_) = action {
                bound.push(pod.clone());
            }
            let mut pod = self.pods[pod].clone();
            pod.phase = match (action, pod.phase) {
                (Action::Bind(bind), _) => Phase::Running(bind.placement()),
                (Action::Evict(_), Phase::Running(at)) => Phase::Releasing(Some(at)),
                (Action::Evict(_), other) => other,
            };
            self.show(core, pod);
        }
        self.admit(core, &bound, case);
        decision.ruled_out
    }
}

fn placement(pod: &Pod) -> Option<&Placement> {
    match &pod.phase {
        Phase::Running(at) | Phase::Releasing(Some(at)) => Some(at),
        _ => None,
    }
}

fn grants(pod: &Pod) -> &[ContainerGrant] {
    placement(pod).map_or(&[], |at| &at.grants)
}

/// How often each relaxation ruled something out.
pub(crate) fn run(case: &Case) -> BTreeMap<&'static str, u64> {
    let mut core = Core::new(Config::verified());
    let mut world = World::default();
    let mut ruled_out = BTreeMap::new();
    world.build(&mut core, case);
    for (turn, (jobs, ended)) in (0_u32..).zip(&case.turns) {
        let now = Time(u64::from(turn) * 20_000);
        world.end(&mut core, *ended);
        for (index, job) in jobs.iter().enumerate() {
            world.arrive(&mut core, job, &format!("j{turn}{index}"), now);
        }
        for (name, times) in world.decide(&mut core, now, case) {
            *ruled_out.entry(name).or_default() += times;
        }
    }
    ruled_out
}
