//! Seeded worlds in which all run times are known, and what is estimated there at several times
//! against what happens.
//!
//! The world goes on by itself: it takes a core's decisions, starts containers some seconds later, and
//! ends pods when they have run for as long as they say. It shares no code with the forecast.

use super::*;
use scheduler_core::{Outcome, OutcomeResult};
use std::fmt::Write as _;

/// `splitmix64`.
struct Chance(u64);

impl Chance {
    /// A number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }

    /// One of these.
    fn one<T: Copy>(&mut self, all: &[T]) -> T {
        let at = usize::try_from(self.below(all.len() as u64)).unwrap();
        all[at]
    }
}

struct World {
    core: Core,
    now: Time,
    chance: Chance,
    runs: BTreeMap<PodUid, RunTime>,
    ends: BTreeSet<(Time, PodUid)>,
    starts: BTreeMap<PodUid, Time>,
    created: u64,
    /// Pods may not be evicted.
    firm: bool,
}

impl World {
    /// Some nodes with four GPUs each, and three queues, one of them with a limit.
    fn new(seed: u64) -> Self {
        let mut chance = Chance(seed);
        let nodes = 2 + chance.below(4);
        let mut events = String::from(
            "tick 100000000\n\
            queue a gpu=8000000000/-1/1 priority=100\n\
            queue b gpu=4000000000/-1/2 priority=100\n\
            queue c gpu=2000000000/4000000000/1 priority=100\n",
        );
        for node in 0..nodes {
            let _ = writeln!(
                events,
                "node n{node} cpu=64000 memory=274877906944 pods=110 gpus=4"
            );
        }
        Self {
            core: core(&events),
            now: NOW,
            chance,
            runs: BTreeMap::new(),
            ends: BTreeSet::new(),
            starts: BTreeMap::new(),
            created: 0,
            firm: false,
        }
    }

    /// A workload of one pod, or a gang, comes. Pods run between one minute and four hours.
    fn arrive(&mut self) {
        self.created += 1;
        let name = format!("w{}", self.created);
        let queue = self.chance.one(&["a", "b", "c"]);
        let pods = if self.chance.below(4) == 0 {
            2 + self.chance.below(3)
        } else {
            1
        };
        let gpus = self.chance.one(&[1, 1, 1, 2, 2, 4]);
        let seconds = 60 << self.chance.below(8);
        let length = Span::seconds(seconds + self.chance.below(seconds));
        let mut events = String::new();
        let mut group = String::new();
        let firm = if self.firm { "non-preemptible" } else { "" };
        if pods > 1 {
            let _ = writeln!(
                events,
                "group ns/{name} queue={queue} {firm}\n  set default min={pods}"
            );
            group = format!("group=ns/{name}");
        }
        for pod in 0..pods {
            let uid = format!("{name}-{pod}");
            let created = self.now.0;
            let _ = writeln!(
                events,
                "pod {uid} ns=ns queue={queue} {group} {firm} created={created} gpus.main={gpus}"
            );
            let run = RunTime {
                length,
                basis: Basis::Said,
                started: None,
            };
            self.runs.insert(PodUid::new(uid), run);
        }
        for event in text::read(&events).unwrap() {
            assert_eq!(self.core.apply(event), []);
        }
    }

    /// Decides, carries the decision out, and returns when the core wants to decide again.
    fn decide(&mut self) -> Option<Time> {
        loop {
            let decision = self.core.decide(self.now);
            let mut evicted = Vec::new();
            for action in &decision.actions {
                let outcome = Outcome {
                    decision: action.decision(),
                    result: OutcomeResult::Confirmed,
                };
                self.core.apply(Event::Outcome(outcome));
                match action {
                    Action::Bind(bind) => {
                        let mut pod = self.core.pod(&bind.pod).unwrap();
                        pod.phase = Phase::Running(bind.placement());
                        self.core.apply(Event::Pod(Box::new(pod)));
                        let started = self.now.after(Span::seconds(self.chance.below(5)));
                        let run = self.runs.get_mut(&bind.pod).unwrap();
                        run.started = Some(started);
                        self.ends
                            .insert((started.after(run.length), bind.pod.clone()));
                        self.starts.entry(bind.pod.clone()).or_insert(self.now);
                    }
                    Action::Evict(evict) => evicted.push(evict.pod.clone()),
                }
            }
            // Pods that were evicted are created again, and run for their whole time again.
            for uid in evicted {
                let mut pod = self.core.pod(&uid).unwrap();
                self.core.apply(Event::PodGone(uid.clone()));
                self.ends.retain(|(_, one)| *one != uid);
                let run = RunTime {
                    started: None,
                    ..self.runs[&uid]
                };
                pod.uid = PodUid::new(format!("{uid}x"));
                pod.phase = Phase::Pending;
                pod.created = self.now;
                self.runs.insert(pod.uid.clone(), run);
                self.core.apply(Event::Pod(Box::new(pod)));
            }
            if decision.actions.is_empty() && !decision.cut_short {
                return decision.wake_at.filter(|at| *at > self.now);
            }
        }
    }

    /// Goes on to the next thing that happens, or to `until`. False: nothing happens any more.
    fn step(&mut self, until: Option<Time>) -> bool {
        let again = self.decide();
        let end = self.ends.first().map(|(end, _)| *end);
        // The core alone does not keep the world going.
        if end.is_none() && until.is_none() {
            return false;
        }
        let next = again.into_iter().chain(end).chain(until).min().unwrap();
        self.now = self.now.max(next);
        while let Some((end, uid)) = self.ends.first().cloned()
            && end <= self.now
        {
            self.ends.pop_first();
            let mut pod = self.core.pod(&uid).unwrap();
            pod.phase = Phase::Succeeded;
            self.core.apply(Event::Pod(Box::new(pod)));
        }
        true
    }

    /// Lets workloads come for a while, each some minutes after the one before.
    fn live(&mut self, workloads: u64, apart: u64) {
        for _ in 0..workloads {
            self.arrive();
            let until = self.now.after(Span::seconds(self.chance.below(apart * 60)));
            while self.now < until {
                self.step(Some(until));
            }
        }
    }

    fn forecast(&self, decisions: u32) -> Forecast {
        let budget = Budget {
            decisions,
            ..budget()
        };
        forecast(self.core.fork(), &self.runs, self.now, budget)
    }

    /// Lets everything end.
    fn end(&mut self) {
        while self.step(None) {}
    }
}

/// How far estimates were off, each as a part of the wait that was left when it was made.
#[derive(Default)]
struct Errors(Vec<f64>);

impl Errors {
    #[allow(clippy::cast_precision_loss)] // Milliseconds of some days.
    fn note(&mut self, forecast: &Forecast, world: &World) {
        for (uid, estimate) in &forecast.pods {
            let real = world.starts.get(uid).copied();
            match estimate {
                Estimate::About { time, .. } => {
                    let Some(real) = real else {
                        self.0.push(f64::INFINITY);
                        continue;
                    };
                    let wait = real.since(forecast.made).0.max(1);
                    let off = real.0.abs_diff(time.0);
                    self.0.push(off as f64 / wait as f64);
                }
                Estimate::NotBefore { time } => {
                    let real = real.unwrap_or(Time(u64::MAX));
                    assert!(*time <= real, "{uid} started at {real:?}: {estimate:?}");
                }
                Estimate::Unknown { unknown } => {
                    assert_eq!(*unknown, 0, "all run times are known");
                    assert_eq!(real, None, "{uid}: {estimate:?}");
                }
            }
        }
    }

    fn median(mut self) -> (f64, usize) {
        self.0.sort_by(f64::total_cmp);
        let count = self.0.len();
        println!("median error {:.3} of {count} estimates", self.0[count / 2]);
        (self.0[count / 2], count)
    }
}

#[test]
fn half_of_the_estimates_are_less_than_a_tenth_of_the_wait_off() {
    let mut errors = Errors::default();
    for seed in 0..60 {
        let mut world = World::new(seed);
        world.live(30, 5);
        let forecast = world.forecast(20_000);
        assert!(!forecast.cut_short, "{forecast:?}");
        world.end();
        errors.note(&forecast, &world);
    }
    let (median, count) = errors.median();
    assert!(count > 300, "{count}");
    assert!(median < 0.1, "{median} of {count}");
}

/// Workloads that come later take some of the room, which no estimate can know.
#[test]
fn workloads_that_come_later_put_estimates_off_by_little() {
    for (later, most) in [(1, 0.1), (3, 0.2), (20, 0.5)] {
        let mut errors = Errors::default();
        for seed in 100..160 {
            let mut world = World::new(seed);
            world.live(30, 5);
            let forecast = world.forecast(20_000);
            world.live(later, 20);
            world.end();
            errors.note(&forecast, &world);
        }
        let (median, count) = errors.median();
        assert!(count > 300, "{count}");
        assert!(median < most, "{median} of {count}");
    }
}

#[test]
fn no_pod_starts_before_a_time_that_was_called_too_early() {
    let mut told = 0;
    for seed in 200..260 {
        let mut world = World::new(seed);
        world.firm = seed % 2 == 0;
        world.live(30, 5);
        let forecasts: Vec<Forecast> = [2, 5, 12].map(|most| world.forecast(most)).into();
        world.end();
        for forecast in forecasts {
            Errors::default().note(&forecast, &world);
            let not_before = |one: &&Estimate| matches!(one, Estimate::NotBefore { time } if *time > forecast.made);
            told += forecast.pods.values().filter(not_before).count();
        }
    }
    assert!(told > 200, "{told}");
}
