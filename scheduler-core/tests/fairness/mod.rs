//! What must hold for queues and gangs, whatever the work. A small world carries out each decision
//! at once: an evicted pod comes back as a new pending pod of its group.
#![allow(clippy::unwrap_used)] // A test from its first line to its last.

mod judge;
mod late;
mod repeated;
mod shares;
mod steps;

use crate::cases::tried;
use proptest::prelude::*;
use scheduler_core::ids::{GroupName, NodeName, PodUid, QueueName};
use scheduler_core::model::{
    Amount, Ask, Card, ContainerAsk, Mode, Node, NodeCards, Phase, Pod, PodGroup, Preemptibility,
    ProductQuota, ProductUnit, Queue, QueueResource, Share, Weight,
};
use scheduler_core::units::{Bound, Bytes, CpuMilli, NanoGpu, Time};
use scheduler_core::{
    Action, Bind, Config, Core, Decision, Event, EvictCause, Outcome, OutcomeResult, Step, text,
};
use std::collections::{BTreeMap, BTreeSet};

/// In quarters of a GPU, as every size here.
const QUARTER: u64 = 250_000_000;

#[derive(Clone, Debug)]
struct Leaf {
    parent: usize,
    quota: u64,
    /// Over the quota; `None`: no limit.
    over: Option<u64>,
    priority: i32,
    product: Product,
}

/// Quota of the product of every other node, and how much more the limit is.
type Product = (Option<u64>, Option<u64>);

#[derive(Clone, Debug)]
struct Job {
    leaf: usize,
    pods: u32,
    min: u32,
    size: u64,
    priority: i32,
    preemptibility: Preemptibility,
    wave: u64,
}

#[derive(Clone, Debug)]
struct Case {
    /// GPUs of each.
    nodes: Vec<u32>,
    /// Quota of each, beyond its leaves'.
    parents: Vec<u64>,
    products: Vec<Product>,
    leaves: Vec<Leaf>,
    jobs: Vec<Job>,
}

fn leaf() -> impl Strategy<Value = Leaf> {
    let over = prop_oneof![3 => Just(None), 1 => (0_u64..12).prop_map(Some)];
    (0_usize..2, 0_u64..17, over, 100_i32..102, product()).prop_map(
        |(parent, quota, over, priority, product)| Leaf {
            parent,
            quota,
            over,
            priority,
            product,
        },
    )
}

fn product() -> impl Strategy<Value = Product> {
    let quota = prop_oneof![2 => Just(None), 1 => (0_u64..17).prop_map(Some)];
    let over = prop_oneof![3 => Just(None), 1 => (0_u64..12).prop_map(Some)];
    (quota, over)
}

fn job() -> impl Strategy<Value = Job> {
    let size = prop_oneof![1 => Just(1_u64), 1 => Just(2), 4 => Just(4), 1 => Just(8)];
    let leaf = any::<usize>();
    (leaf, 1_u32..5, 1_u32..5, size, 0_i32..3, 0_u8..5, 0_u64..3).prop_map(
        |(leaf, pods, min, size, priority, kind, wave)| Job {
            leaf,
            pods,
            min: min.min(pods),
            size,
            priority: 50 + priority,
            preemptibility: match kind {
                0 => Preemptibility::NonPreemptible,
                1 => Preemptibility::SemiPreemptible,
                _ => Preemptibility::Preemptible,
            },
            wave,
        },
    )
}

fn case() -> impl Strategy<Value = Case> {
    (
        prop::collection::vec(1_u32..5, 1..4),
        prop::collection::vec(0_u64..5, 2),
        prop::collection::vec(product(), 2),
        prop::collection::vec(leaf(), 1..5),
        any::<bool>(),
        prop::collection::vec(job(), 1..10),
    )
        .prop_map(
            |(nodes, parents, mut products, mut leaves, none, mut jobs)| {
                if none {
                    products.fill((None, None));
                    for leaf in &mut leaves {
                        leaf.product = (None, None);
                    }
                }
                for job in &mut jobs {
                    job.leaf %= leaves.len();
                }
                Case {
                    nodes,
                    parents,
                    products,
                    leaves,
                    jobs,
                }
            },
        )
}

impl Job {
    /// How many of its pods that run count as non-preemptible.
    fn firm(&self, running: usize) -> usize {
        match self.preemptibility {
            Preemptibility::Preemptible => 0,
            Preemptibility::SemiPreemptible => running.min(self.min as usize),
            Preemptibility::NonPreemptible => running,
        }
    }
}

impl Case {
    fn quota(&self, parent: usize) -> u64 {
        let leaves = self.leaves.iter().filter(|leaf| leaf.parent == parent);
        self.parents[parent] + leaves.map(|leaf| leaf.quota).sum::<u64>()
    }
}

struct World<'a> {
    case: &'a Case,
    core: Core,
    now: u64,
    groups: Vec<PodGroup>,
    /// With their job.
    pods: BTreeMap<PodUid, (usize, Pod)>,
    /// Jobs of which a part was sent elsewhere and is not back yet.
    moving: BTreeSet<usize>,
    born: u32,
    log: String,
}

fn running(pod: &Pod, bind: &Bind) -> Pod {
    let mut pod = pod.clone();
    pod.phase = Phase::Running(bind.placement());
    pod
}

/// It runs on a node of the product.
fn has_product(pod: &Pod) -> bool {
    match &pod.phase {
        Phase::Running(at) => is_of_product(&at.node),
        _ => false,
    }
}

/// The pods that a decision binds or promises a place, and their nodes.
fn placed(decision: &Decision) -> impl Iterator<Item = (&PodUid, &NodeName)> {
    let bound = decision.actions.iter().filter_map(|action| match action {
        Action::Bind(bind) => Some((&bind.pod, &bind.node)),
        Action::Evict(_) => None,
    });
    let promised = decision.promises.iter();
    bound.chain(promised.map(|one| (&one.pod, &one.node)))
}

fn is_of_product(node: &NodeName) -> bool {
    node.as_str().ends_with(['1', '3'])
}

fn resource(quota: Bound, limit: Bound, weight: u64) -> QueueResource {
    QueueResource {
        quota,
        limit,
        weight: Weight(weight),
        usage: 0,
    }
}

/// What a queue says of the product, whose cards have 1000 MiB.
fn rows((quota, over): Product, unit: ProductUnit) -> Vec<ProductQuota> {
    let exactly = |quarters: u64| match unit {
        ProductUnit::Gpus => Bound::Exactly(quarters * QUARTER),
        ProductUnit::Memory => Bound::Exactly(quarters * 250),
    };
    let limit = limit((quota, over)).map_or(Bound::Unlimited, exactly);
    let row = ProductQuota {
        product: "U".into(),
        unit,
        quota: quota.map(exactly),
        limit,
    };
    let says = quota.is_some() || limit != Bound::Unlimited;
    says.then_some(row).into_iter().collect()
}

fn limit((quota, over): Product) -> Option<u64> {
    over.map(|over| quota.unwrap_or(0) + over)
}

impl<'a> World<'a> {
    fn new(case: &'a Case) -> Self {
        let mut world = World {
            case,
            core: Core::new(Config::verified()),
            now: 0,
            groups: Vec::new(),
            pods: BTreeMap::new(),
            moving: BTreeSet::new(),
            born: 0,
            log: String::new(),
        };
        for (index, gpus) in case.nodes.iter().enumerate() {
            let name = format!("n{index}");
            let mut node = Node::named(&name);
            node.cpu = CpuMilli(64_000);
            node.memory = Bytes(64 << 30);
            node.pods = 110;
            node.managed = true;
            node.gpus = *gpus;
            world.tell(Event::Node(node));
            let product = ["T", "U"][index % 2];
            let card = |card| Card::named(&format!("GPU-{index}-{card}"), card, product, 1000);
            let each = (0..*gpus).map(card);
            world.tell(Event::Cards(NodeCards::offered(
                &name,
                Mode::TimeSlicing,
                each,
            )));
        }
        for parent in 0..case.parents.len() {
            let mut queue = Queue::unlimited(&format!("d{parent}"));
            let quota = Bound::Exactly(case.quota(parent) * QUARTER);
            queue.gpu = resource(quota, Bound::Unlimited, 1_000_000);
            queue.products = rows(case.products[parent], ProductUnit::Gpus);
            world.tell(Event::Queue(queue));
        }
        for (index, leaf) in case.leaves.iter().enumerate() {
            let mut queue = Queue::unlimited(&format!("q{index}"));
            queue.parent = Some(QueueName::new(format!("d{}", leaf.parent)));
            queue.priority = leaf.priority;
            queue.created = Time(index as u64);
            let limit = leaf.over.map_or(Bound::Unlimited, |over| {
                Bound::Exactly((leaf.quota + over) * QUARTER)
            });
            queue.gpu = resource(Bound::Exactly(leaf.quota * QUARTER), limit, 1_000_000);
            let unit = [ProductUnit::Gpus, ProductUnit::Memory][index % 2];
            queue.products = rows(leaf.product, unit);
            world.tell(Event::Queue(queue));
        }
        world.groups = (0..case.jobs.len()).map(|job| world.group(job)).collect();
        world
    }

    fn group(&self, index: usize) -> PodGroup {
        let job = &self.case.jobs[index];
        PodGroup {
            queue: QueueName::new(format!("q{}", job.leaf)),
            priority: job.priority,
            preemptibility: job.preemptibility,
            created: Time(job.wave * 1000 + index as u64),
            ..PodGroup::named(&format!("default/j{index}"), job.min)
        }
    }

    fn tell(&mut self, event: Event) {
        self.log
            .push_str(&text::write(std::slice::from_ref(&event)));
        assert!(self.core.apply(event).is_empty(), "{}", self.log);
    }

    fn arrive(&mut self, job: usize) {
        self.tell(Event::Group(self.groups[job].clone()));
        for _ in 0..self.case.jobs[job].pods {
            self.bear(job);
        }
    }

    fn bear(&mut self, index: usize) {
        let job = &self.case.jobs[index];
        let mut pod = Pod::named(&format!("p{:03}", self.born));
        self.born += 1;
        pod.created = Time(self.now);
        pod.group = Some(self.groups[index].name.clone());
        let ask = if job.size >= 4 {
            Ask::Whole(u32::try_from(job.size / 4).unwrap())
        } else {
            Ask::Share(Share::of(Amount::Fraction(NanoGpu(job.size * QUARTER))))
        };
        pod.gpus.push(ContainerAsk::of("main", ask));
        self.tell(Event::Pod(Box::new(pod.clone())));
        self.pods.insert(pod.uid.clone(), (index, pod));
    }

    fn runs(&self) -> impl Iterator<Item = usize> {
        let running = |(_, pod): &&(usize, Pod)| matches!(pod.phase, Phase::Running(_));
        self.pods.values().filter(running).map(|(job, _)| *job)
    }

    /// What runs, of the jobs of which that is true.
    fn held(&self, of: impl Fn(&Job) -> bool) -> u64 {
        let jobs = self.runs().map(|job| &self.case.jobs[job]);
        jobs.filter(|job| of(job)).map(|job| job.size).sum()
    }

    /// Pods that run and count as non-preemptible: all of a non-preemptible job, and the first ones of
    /// a semi-preemptible job, up to its minimum.
    fn firm(&self) -> Vec<&(usize, Pod)> {
        let mut by_job: BTreeMap<usize, Vec<&(usize, Pod)>> = BTreeMap::new();
        for entry in self.pods.values() {
            if matches!(entry.1.phase, Phase::Running(_)) {
                by_job.entry(entry.0).or_default().push(entry);
            }
        }
        let mut all = Vec::new();
        for (job, mut pods) in by_job {
            pods.sort_by_key(|(_, pod)| (pod.created, pod.uid.clone()));
            pods.truncate(self.case.jobs[job].firm(pods.len()));
            all.extend(pods);
        }
        all
    }

    /// What these pods hold, of the jobs of which that is true.
    fn held_firm(&self, of: impl Fn(&Job) -> bool) -> u64 {
        let jobs = self
            .firm()
            .into_iter()
            .map(|(job, _)| &self.case.jobs[*job]);
        jobs.filter(|job| of(job)).map(|job| job.size).sum()
    }

    /// The same of the product of every other node.
    fn held_of_product(&self, of: impl Fn(&Job) -> bool) -> u64 {
        let pods = self.pods.values();
        let there = pods.filter(|(_, pod)| has_product(pod));
        let jobs = there.map(|(job, _)| &self.case.jobs[*job]);
        jobs.filter(|job| of(job)).map(|job| job.size).sum()
    }

    fn decide(&mut self) -> Decision {
        self.now += 20_000;
        let before = self.core.snapshot();
        let decision = self.core.decide(Time(self.now));
        self.log.push_str(&text::decision(&decision));
        self.judge(&decision);
        self.weigh(&before, &decision);
        self.follow(&before, &decision);
        decision
    }

    /// Does what was decided.
    fn execute(&mut self, decision: &Decision) {
        for action in &decision.actions {
            self.tell(Event::Outcome(Outcome {
                decision: action.decision(),
                result: OutcomeResult::Confirmed,
            }));
            match action {
                Action::Evict(evict) => {
                    let (job, _) = self.pods.remove(&evict.pod).unwrap();
                    self.tell(Event::PodGone(evict.pod.clone()));
                    if decision.promises.iter().any(|one| one.pod == evict.pod) {
                        self.moving.insert(job);
                    }
                    self.bear(job);
                }
                Action::Bind(bind) => {
                    let (_, pod) = self.pods.get_mut(&bind.pod).unwrap();
                    assert_eq!(pod.phase, Phase::Pending, "{}", self.log);
                    *pod = running(pod, bind);
                    let pod = pod.clone();
                    self.tell(Event::Pod(Box::new(pod)));
                }
            }
        }
        for index in 0..self.groups.len() {
            let group = &mut self.groups[index];
            let before = group.clone();
            if let Some((_, at)) = decision
                .started
                .iter()
                .find(|(name, _)| *name == group.name)
            {
                group.last_start = Some(*at);
            }
            if let Some((_, since)) = decision.stale.iter().find(|(name, _)| *name == group.name) {
                group.stale_since = *since;
            }
            if *group != before {
                let group = group.clone();
                self.tell(Event::Group(group));
            }
        }
    }

    /// Decides until nothing is left to do. Where the rules give the room of a victim to its own
    /// queue again, evictions for a workload go on, in the end ten minutes after one another
    /// (`cycle/history.rs`): at most seven in an hour.
    fn come_to_rest(&mut self) {
        const HOUR: u64 = 60 * 60 * 1000;
        let mut evictions: BTreeMap<Option<GroupName>, u32> = BTreeMap::new();
        let mut last_hour = u64::MAX;
        for round in 0.. {
            let decision = self.decide();
            if decision.actions.is_empty() || self.now > last_hour.saturating_add(HOUR) {
                break;
            }
            let favoured: BTreeSet<Option<GroupName>> = (decision.actions.iter())
                .filter_map(|action| match action {
                    Action::Evict(evict) if self.now > last_hour => {
                        Some(evict.in_favour_of.clone())
                    }
                    _ => None,
                })
                .collect();
            for job in favoured {
                *evictions.entry(job).or_default() += 1;
            }
            self.execute(&decision);
            self.check();
            // Most worlds are at rest by then.
            if round == 50 {
                last_hour = self.now + HOUR;
            }
        }
        assert!(
            evictions.values().all(|times| *times <= 7),
            "{evictions:?}: evictions go on for ever\n{}",
            self.log
        );
    }

    /// What must hold whenever everything that was decided has been done.
    fn check(&mut self) {
        assert_eq!(self.core.violations(), Vec::<String>::new());
        let mut running = vec![0; self.case.jobs.len()];
        self.runs().for_each(|job| running[job] += 1);
        for (index, running) in running.into_iter().enumerate() {
            let job = &self.case.jobs[index];
            let is_semi = job.preemptibility == Preemptibility::SemiPreemptible;
            let is_whole = running == 0 || running >= job.min;
            assert!(is_whole || !is_semi, "the core of {job:?} {}", self.log);
            if is_whole {
                self.moving.remove(&index);
            } else {
                assert!(self.moving.contains(&index), "{job:?} {}", self.log);
            }
        }
        for (index, leaf) in self.case.leaves.iter().enumerate() {
            let held = self.held(|job| job.leaf == index);
            let limit = leaf.over.map_or(u64::MAX, |over| leaf.quota + over);
            assert!(held <= limit, "q{index} {}", self.log);
            let firm = self.held_firm(|job| job.leaf == index);
            assert!(firm <= leaf.quota, "q{index} {}", self.log);
        }
        for parent in 0..self.case.parents.len() {
            let of = |job: &Job| self.case.leaves[job.leaf].parent == parent;
            let firm = self.held_firm(of);
            assert!(firm <= self.case.quota(parent), "d{parent} {}", self.log);
        }
        self.check_product();
    }
}

proptest! {
    #![proptest_config(tried(512))]

    /// Queues, gangs and victims, until nothing is left to do, or evictions have become rare.
    #[test]
    fn queues_and_gangs_are_kept_and_evictions_end(case in case()) {
        let mut world = World::new(&case);
        for wave in 0..3 {
            for job in 0..case.jobs.len() {
                if case.jobs[job].wave == wave {
                    world.arrive(job);
                }
            }
            if wave < 2 {
                let decision = world.decide();
                world.execute(&decision);
                world.check();
            }
        }
        world.come_to_rest();
    }

    /// A job that is placed on an empty cluster where it is alone is not delayed without end by
    /// other pending jobs.
    #[test]
    fn an_idle_cluster_places_somebody_where_somebody_fits(case in case()) {
        let alone = (0..case.jobs.len()).any(|job| {
            let mut world = World::new(&case);
            world.arrive(job);
            !world.decide().actions.is_empty()
        });
        let mut world = World::new(&case);
        (0..case.jobs.len()).for_each(|job| world.arrive(job));
        prop_assert_eq!(!world.decide().actions.is_empty(), alone, "{}", world.log);
    }
}
