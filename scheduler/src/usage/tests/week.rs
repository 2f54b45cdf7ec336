//! A week of virtual time: two queues of equal weight on 16 GPUs, the core deciding.

use super::*;
use scheduler_core::ids::{PodUid, QueueName};
use scheduler_core::model::{
    Ask, Card, ContainerAsk, Mode, Node, NodeCards, Phase, Pod, PodGroup, Queue,
};
use scheduler_core::units::{Bound, Bytes, CpuMilli};
use scheduler_core::{Action, Config, Core, Event, Outcome, OutcomeResult};

const GPUS: u32 = 16;
/// Minutes between two decisions.
const STEP: u64 = 20;
/// Minutes that a job runs, on two GPUs.
const JOB: u64 = 120;

struct Week {
    core: Core,
    latest: LatestUsage,
    observed: ObservedUsage,
    settings: Settings,
    /// With its queue and when it ends, where it runs.
    pods: BTreeMap<PodUid, (Pod, Option<u64>)>,
    minute: u64,
    born: u32,
    /// GPU-minutes of `a` and `b`.
    held: [u64; 2],
}

impl Week {
    fn new(params: Value) -> Self {
        let settings = settings(json!({"clientType": "in-memory", "usageParams": params}));
        let mut week = Self {
            core: Core::new(Config::default()),
            latest: LatestUsage::default(),
            observed: ObservedUsage::default(),
            settings,
            pods: BTreeMap::new(),
            minute: 0,
            born: 0,
            held: [0; 2],
        };
        let mut node = Node::named("n");
        (node.cpu, node.memory, node.pods) = (CpuMilli(64_000), Bytes(64 << 30), 110);
        (node.managed, node.gpus) = (true, GPUS);
        week.tell(Event::Node(node));
        let cards = (0..GPUS).map(|at| Card::named(&format!("GPU-{at}"), at, "T", 1000));
        week.tell(Event::Cards(NodeCards::offered(
            "n",
            Mode::TimeSlicing,
            cards,
        )));
        for name in ["a", "b"] {
            let mut queue = Queue::unlimited(name);
            queue.gpu.quota = Bound::Exactly(0);
            let queue = week.latest.queue(queue);
            week.tell(Event::Queue(queue));
        }
        week
    }

    fn tell(&mut self, event: Event) {
        assert_eq!(self.core.apply(event), []);
    }

    fn now(&self) -> Time {
        second(MONDAY + self.minute * 60)
    }

    fn job(&mut self, queue: &str) {
        let name = format!("{queue}{:05}", self.born);
        self.born += 1;
        let mut group = PodGroup::named(&format!("default/{name}"), 1);
        group.queue = QueueName::new(queue);
        group.created = self.now();
        let mut pod = Pod::named(&name);
        pod.created = self.now();
        pod.queue = QueueName::new(queue);
        pod.group = Some(group.name.clone());
        pod.gpus.push(ContainerAsk::of("main", Ask::Whole(2)));
        self.tell(Event::Group(group));
        self.wait(pod);
    }

    fn wait(&mut self, mut pod: Pod) {
        pod.phase = Phase::Pending;
        self.tell(Event::Pod(Box::new(pod.clone())));
        self.pods.insert(pod.uid.clone(), (pod, None));
    }

    fn end(&mut self, uid: &PodUid) -> Pod {
        let (pod, _) = self.pods.remove(uid).unwrap();
        self.tell(Event::PodGone(uid.clone()));
        pod
    }

    /// Twenty minutes; past use counts if `counts`.
    fn step(&mut self, counts: bool) {
        self.minute += STEP;
        let over = |(uid, (_, end)): (&PodUid, &(Pod, Option<u64>))| {
            end.filter(|end| *end <= self.minute).map(|_| uid.clone())
        };
        let over: Vec<PodUid> = self.pods.iter().filter_map(over).collect();
        for uid in over {
            let pod = self.end(&uid);
            self.tell(Event::GroupGone(pod.group.unwrap()));
        }
        if counts {
            let uses = Arc::new(self.observed.uses(&self.settings, self.now()));
            let mut queues = self.latest.set(Some(&self.settings.clone()));
            queues.extend(self.latest.elapse(self.now()));
            let told = UsageResult {
                settings: self.latest.settings().unwrap().clone(),
                at: self.now(),
                result: Ok(uses),
            };
            queues.extend(self.latest.take(told));
            for queue in queues {
                self.tell(Event::Queue(queue));
            }
        }
        for _ in 0..4 {
            let now = self.now();
            let decision = self.core.decide(now);
            if decision.actions.is_empty() {
                break;
            }
            for action in decision.actions {
                self.tell(Event::Outcome(Outcome {
                    decision: action.decision(),
                    result: OutcomeResult::Confirmed,
                }));
                match action {
                    Action::Bind(bind) => {
                        let (mut pod, _) = self.pods.remove(&bind.pod).unwrap();
                        pod.phase = Phase::Running(bind.placement());
                        self.tell(Event::Pod(Box::new(pod.clone())));
                        self.pods.insert(bind.pod, (pod, Some(self.minute + JOB)));
                    }
                    Action::Evict(evict) => {
                        let mut pod = self.end(&evict.pod);
                        pod.uid = PodUid::new(format!("{}-", pod.uid));
                        self.wait(pod);
                    }
                }
            }
        }
        let views = self.core.queues();
        let held = views.iter().map(|view| (&view.queue, view.held));
        self.observed.sample(self.now(), held, self.core.capacity());
        for (pod, end) in self.pods.values() {
            let queue = usize::from(pod.queue.as_str() == "b");
            self.held[queue] += if end.is_some() { 2 * STEP } else { 0 };
        }
    }

    /// Queue `a` begins a burst of 384 GPU-hours at midnight, `b` at noon.
    fn bursts(mut self, counts: bool) -> [u64; 2] {
        while self.minute < 7 * 24 * 60 {
            for (queue, at) in [("a", 0), ("b", 12 * 60)] {
                if self.minute % (24 * 60) == at {
                    (0..96).for_each(|_| self.job(queue));
                }
            }
            self.step(counts);
        }
        self.held
    }
}

/// How much more of all GPU-hours one queue had, in thousandths.
fn lead(held: [u64; 2]) -> u64 {
    held[0].abs_diff(held[1]) * 1000 / (held[0] + held[1])
}

#[test]
fn queues_that_alternate_bursts_end_a_week_with_equal_gpu_hours() {
    let params = json!({"windowSize": "1w"});
    let held = Week::new(params.clone()).bursts(true);
    assert!(
        held.iter().sum::<u64>() > 16 * 7 * 24 * 60 * 95 / 100,
        "{held:?}"
    );
    assert!(lead(held) < 25, "{held:?}");
    let without = Week::new(params).bursts(false);
    assert!(
        lead(without) > 50,
        "the one that was first keeps what it had: {without:?}"
    );
}

#[test]
fn a_queue_that_idles_and_returns_gets_what_kais_formula_says() {
    let mut week = Week::new(json!({"windowSize": "1w"}));
    (0..100).for_each(|_| week.job("a"));
    // For half of this time the cluster is idle.
    week.step(true);
    while week.minute < 24 * 60 {
        week.step(true);
    }
    let waits: Vec<PodUid> = week.pods.keys().cloned().collect();
    for uid in waits {
        week.end(&uid);
    }
    while week.minute < 48 * 60 {
        week.step(true);
    }
    (0..20).for_each(|_| week.job("a"));
    (0..20).for_each(|_| week.job("b"));
    week.step(true);
    let views = week.core.queues();
    let used = [views[0].usage[0], views[1].usage[0]];
    assert!(near(used[0], 0.5, 0.02) && used[1] == 0, "{used:?}");
    // n = 1/2, k = 1: a has 1/2 + (1/2 - 1/2) = 1/2, b has 1/2 + (1/2 - 0) = 1, of 16 GPUs.
    let fair = views
        .iter()
        .map(|view| view.fair.unwrap()[0])
        .collect::<Vec<_>>();
    assert_eq!(fair, [5_000_000_000, 11_000_000_000]);
    let running = |name: &str| {
        let of = |(pod, end): &&(Pod, Option<u64>)| pod.queue.as_str() == name && end.is_some();
        week.pods.values().filter(of).count()
    };
    // Jobs of two GPUs: the pair that neither share has in full goes to `b`.
    assert_eq!((running("a"), running("b")), (2, 6));
}
