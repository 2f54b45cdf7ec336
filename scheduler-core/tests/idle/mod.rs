//! What must hold for idle pods, whoever waits. A small cluster is full most of the time; each decision
//! is carried out at once, and an evicted pod comes back as a new pending pod of its group.
#![allow(clippy::unwrap_used)] // A test from its first line to its last.

use crate::cases::tried;
use proptest::prelude::*;
use scheduler_core::ids::{GroupName, PodUid, QueueName};
use scheduler_core::model::{
    Ask, Card, ContainerAsk, Grace, Mode, Node, NodeCards, Phase, Pod, PodGroup, Preemptibility,
    Queue,
};
use scheduler_core::units::{Bound, Bytes, CpuMilli, Duration, Time};
use scheduler_core::{
    Action, Activity, Config, Core, Event, EvictCause, Outcome, OutcomeResult, text,
};
use std::collections::BTreeMap;

/// The rule of queue `q`: three decisions.
const AFTER: Duration = Duration::seconds(60);
/// Jobs of this priority never give way.
const EXEMPT: i32 = 125;

#[derive(Clone, Debug)]
struct Job {
    pods: u32,
    priority: i32,
    /// Queue `q` has a rule, `r` has none.
    has_rule: bool,
    is_fixed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive(usize),
    End(usize),
    Rest(usize),
    Work(usize),
    Decide,
}

fn job() -> impl Strategy<Value = Job> {
    let priority = prop_oneof![Just(50), Just(75), Just(100), Just(EXEMPT)];
    (1_u32..3, priority, prop::bool::weighted(0.7), any::<bool>()).prop_map(
        |(pods, priority, has_rule, is_fixed)| Job {
            pods,
            priority,
            has_rule,
            is_fixed,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => any::<usize>().prop_map(Step::Arrive),
        1 => any::<usize>().prop_map(Step::End),
        3 => any::<usize>().prop_map(Step::Rest),
        1 => any::<usize>().prop_map(Step::Work),
        4 => Just(Step::Decide),
    ]
}

struct World<'a> {
    jobs: &'a [Job],
    core: Core,
    now: Time,
    /// With their job.
    pods: BTreeMap<PodUid, (usize, Pod)>,
    idle: BTreeMap<PodUid, Time>,
    /// The jobs that gave way, and when.
    gave_way: BTreeMap<usize, Time>,
    born: u32,
    log: String,
}

fn group(job: usize) -> GroupName {
    GroupName::new(format!("default/j{job}"))
}

impl<'a> World<'a> {
    fn new(jobs: &'a [Job]) -> Self {
        let mut world = World {
            jobs,
            core: Core::new(Config::verified()),
            now: Time(0),
            pods: BTreeMap::new(),
            idle: BTreeMap::new(),
            gave_way: BTreeMap::new(),
            born: 0,
            log: String::new(),
        };
        let mut node = Node::named("n0");
        (node.cpu, node.memory) = (CpuMilli(64_000), Bytes(64 << 30));
        (node.pods, node.managed, node.gpus) = (110, true, 3);
        world.tell(Event::Node(node));
        let each = (0..3).map(|card| Card::named(&format!("GPU-{card}"), card, "T", 1000));
        let cards = NodeCards::offered("n0", Mode::TimeSlicing, each);
        world.tell(Event::Cards(cards));
        for (name, has_rule) in [("q", true), ("r", false)] {
            let mut queue = Queue::unlimited(name);
            queue.gpu.quota = Bound::Exactly(1_000_000_000);
            queue.idle_after = has_rule.then_some(Grace::For(AFTER));
            queue.idle_exempt_from = has_rule.then_some(EXEMPT);
            world.tell(Event::Queue(queue));
        }
        world
    }

    fn tell(&mut self, event: Event) {
        self.log
            .push_str(&text::write(std::slice::from_ref(&event)));
        assert!(self.core.apply(event).is_empty(), "{}", self.log);
    }

    fn arrive(&mut self, index: usize) {
        if self.pods.values().any(|(job, _)| *job == index) {
            return;
        }
        let job = &self.jobs[index];
        let group = PodGroup {
            queue: QueueName::new(if job.has_rule { "q" } else { "r" }),
            priority: job.priority,
            preemptibility: if job.is_fixed {
                Preemptibility::NonPreemptible
            } else {
                Preemptibility::Preemptible
            },
            created: self.now,
            ..PodGroup::named(group(index).as_str(), job.pods)
        };
        self.tell(Event::Group(group));
        for _ in 0..job.pods {
            self.bear(index);
        }
    }

    fn bear(&mut self, index: usize) {
        let mut pod = Pod::named(&format!("p{:03}", self.born));
        self.born += 1;
        pod.created = self.now;
        pod.group = Some(group(index));
        pod.gpus.push(ContainerAsk::of("main", Ask::Whole(1)));
        self.tell(Event::Pod(Box::new(pod.clone())));
        self.pods.insert(pod.uid.clone(), (index, pod));
    }

    fn end(&mut self, index: usize) {
        let of_job = self.pods.iter().filter(|(_, (job, _))| *job == index);
        let gone: Vec<PodUid> = of_job.map(|(uid, _)| uid.clone()).collect();
        for uid in gone {
            self.pods.remove(&uid);
            self.idle.remove(&uid);
            self.tell(Event::PodGone(uid));
        }
    }

    fn say(&mut self, which: usize, idle_since: Option<Time>) {
        let runs =
            |(_, (_, pod)): &(&PodUid, &(usize, Pod))| matches!(pod.phase, Phase::Running(_));
        let running: Vec<PodUid> = (self.pods.iter().filter(runs))
            .map(|(uid, _)| uid.clone())
            .collect();
        let Some(pod) = running.get(which % running.len().max(1)).cloned() else {
            return;
        };
        match idle_since {
            Some(since) => drop(self.idle.entry(pod.clone()).or_insert(since)),
            None => drop(self.idle.remove(&pod)),
        }
        let idle_since = self.idle.get(&pod).copied();
        self.tell(Event::Activity(Activity { pod, idle_since }));
    }

    /// Applies the documented rule to what the world knows.
    fn gives_way(&self, index: usize) -> bool {
        let job = &self.jobs[index];
        let mut pods = self.pods.iter().filter(|(_, (job, _))| *job == index);
        job.has_rule
            && job.priority < EXEMPT
            && pods.all(|(uid, _)| {
                let since = self.idle.get(uid);
                since.is_some_and(|since| since.after(AFTER) <= self.now)
            })
    }

    /// Returns true if the job gave way less than [`AFTER`] ago.
    fn is_back(&self, index: usize) -> bool {
        let at = self.gave_way.get(&index);
        at.is_some_and(|at| self.now < at.after(AFTER))
    }

    fn decide(&mut self) {
        self.now = self.now.after(Duration::seconds(20));
        let mut rebuilt = Core::new(Config::verified());
        for event in self.core.snapshot() {
            rebuilt.apply(event);
        }
        let decision = self.core.decide(self.now);
        self.log.push_str(&text::decision(&decision));
        assert_eq!(
            rebuilt.decide(self.now).actions,
            decision.actions,
            "{}",
            self.log
        );
        let evicted = decision.actions.iter().filter_map(|action| match action {
            Action::Evict(evict) => Some(evict),
            Action::Bind(_) => None,
        });
        let mut gave_way = Vec::new();
        for evict in evicted {
            if !matches!(evict.cause, EvictCause::Preempt | EvictCause::Reclaim) {
                continue;
            }
            let index = self.pods[&evict.pod].0;
            let victim = &self.jobs[index];
            let winner = evict.in_favour_of.as_ref();
            let winner = (0..self.jobs.len()).find(|job| Some(&group(*job)) == winner);
            let winner = winner.unwrap();
            let is_idle = self.gives_way(index);
            assert_eq!(
                evict.message.contains("was idle"),
                is_idle,
                "{} {}",
                evict.pod,
                self.log
            );
            if is_idle {
                gave_way.push(index);
            } else {
                assert!(!victim.is_fixed, "{} {}", evict.pod, self.log);
                let outranked = victim.priority < self.jobs[winner].priority;
                let outranked = outranked || evict.cause == EvictCause::Reclaim;
                assert!(outranked, "{} {}", evict.pod, self.log);
            }
            let is_back = self.is_back(winner);
            assert!(!is_back, "j{winner} came back by force {}", self.log);
        }
        let bound = decision.actions.iter().filter_map(|action| match action {
            Action::Bind(bind) => Some(self.pods[&bind.pod].0),
            Action::Evict(_) => None,
        });
        let bound: Vec<usize> = bound.collect();
        for index in bound.iter().filter(|job| self.is_back(**job)) {
            let job = &self.jobs[*index];
            let first = self.pods.values().find(|(other, pod)| {
                let theirs = &self.jobs[*other];
                pod.phase == Phase::Pending
                    && !bound.contains(other)
                    && !self.is_back(*other)
                    && !theirs.is_fixed
                    && theirs.has_rule == job.has_rule
                    && theirs.pods <= job.pods
            });
            assert!(first.is_none(), "j{index} comes last {}", self.log);
        }
        for index in gave_way {
            self.gave_way.insert(index, self.now);
        }
        for action in decision.actions {
            self.tell(Event::Outcome(Outcome {
                decision: action.decision(),
                result: OutcomeResult::Confirmed,
            }));
            match action {
                Action::Evict(evict) => {
                    let (job, _) = self.pods.remove(&evict.pod).unwrap();
                    self.idle.remove(&evict.pod);
                    self.tell(Event::PodGone(evict.pod));
                    self.bear(job);
                }
                Action::Bind(bind) => {
                    let pod = &mut self.pods.get_mut(&bind.pod).unwrap().1;
                    pod.phase = Phase::Running(bind.placement());
                    let pod = pod.clone();
                    self.tell(Event::Pod(Box::new(pod)));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(tried(256))]

    /// The rule of idle pods evicts no job that works. A job that it evicted comes back after others, and
    /// without evictions, until its time is over.
    #[test]
    fn only_idle_jobs_give_way_and_none_comes_back_by_force(
        jobs in prop::collection::vec(job(), 2..6),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut world = World::new(&jobs);
        for step in steps {
            let now = world.now;
            match step {
                Step::Arrive(which) => world.arrive(which % jobs.len()),
                Step::End(which) => world.end(which % jobs.len()),
                Step::Rest(which) => world.say(which, Some(now)),
                Step::Work(which) => world.say(which, None),
                Step::Decide => world.decide(),
            }
        }
    }
}
