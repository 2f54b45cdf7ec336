//! Evictions for a job that gains nothing by them, in a cluster where other things happen all the
//! time: they are repeated after pauses that double.

use super::{Case, Job, Leaf, World, case};
use crate::cases::tried;
use proptest::prelude::*;
use scheduler_core::ids::{NodeName, PodUid};
use scheduler_core::model::{Front, Phase, Placement, Pod, Preemptibility};
use scheduler_core::{Action, Event};
use std::collections::{BTreeMap, BTreeSet};

/// Decisions in a row that evicted for a job, none of which found it with more pods.
struct Fruitless {
    running: usize,
    times: u32,
    since: u64,
}

impl World<'_> {
    /// A pod of another scheduler comes, and the one before it goes.
    fn happen(&mut self, round: u32) {
        let mut pod = Pod::named(&format!("other-{round}"));
        pod.ours = false;
        pod.phase = Phase::Running(Placement {
            node: NodeName::new("n0"),
            grants: Vec::new(),
            decision: None,
            front: Front::default(),
        });
        self.tell(Event::Pod(Box::new(pod)));
        if let Some(before) = round.checked_sub(1) {
            self.tell(Event::PodGone(PodUid::new(format!("other-{before}"))));
        }
    }

    /// The job that a pod is evicted for.
    fn favoured(&self, action: &Action) -> Option<usize> {
        let Action::Evict(evict) = action else {
            return None;
        };
        let name = evict.in_favour_of.as_ref()?;
        self.groups.iter().position(|group| group.name == *name)
    }

    /// Its pods have ended.
    fn end(&mut self, job: usize) {
        let ended: Vec<PodUid> = (self.pods.iter())
            .filter(|(_, (of, _))| *of == job)
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in ended {
            self.pods.remove(&uid);
            self.tell(Event::PodGone(uid));
        }
        let name = self.groups[job].name.clone();
        self.tell(Event::GroupGone(name));
    }

    fn running(&self, job: usize) -> usize {
        self.runs().filter(|one| *one == job).count()
    }
}

fn run(case: &Case) {
    let mut world = World::new(case);
    for job in 0..case.jobs.len() {
        world.arrive(job);
    }
    let mut fruitless: BTreeMap<usize, Fruitless> = BTreeMap::new();
    for round in 0..60 {
        world.happen(round);
        let decision = world.decide();
        let actions = decision.actions.iter();
        let favoured: BTreeSet<usize> = actions.filter_map(|one| world.favoured(one)).collect();
        world.execute(&decision);
        world.check();
        for job in favoured {
            let (running, since) = (world.running(job), world.now);
            let first = Fruitless {
                running,
                times: 0,
                since,
            };
            let last = fruitless.entry(job).or_insert(first);
            if running > last.running {
                *last = Fruitless {
                    running,
                    times: 0,
                    since,
                };
            }
            last.running = running;
            last.times += 1;
            let (times, seconds) = (last.times, (world.now - last.since) / 1000);
            // Ten bring it to the longest pause. As many more where it has its room, and then another
            // job takes it, whose own pauses begin then.
            assert!(
                1 << times.min(10) <= 4 + 4 * seconds && u64::from(times) <= 20 + seconds / 600,
                "pods are evicted for j{job} {times} times in {seconds} s\n{}",
                world.log
            );
        }
        // Nothing is left to do, or nothing before that time.
        match decision.wake_at {
            None if decision.actions.is_empty() => return,
            Some(at) if decision.actions.is_empty() => world.now = at.0.max(world.now),
            _ => {}
        }
    }
}

/// Random worlds seldom come to a second eviction in vain, so that more of them would tell little.
fn few() -> ProptestConfig {
    let all = tried(256);
    ProptestConfig {
        cases: all.cases.min(1000),
        ..all
    }
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn evictions_that_gain_nothing_become_rare_whatever_else_happens(case in case()) {
        run(&case);
    }
}

/// How many short jobs.
const SHORT: usize = 40;

/// Two GPUs, which a workload without quota uses. A gang of two has the quota, but each time that
/// they are freed for it, a short job of its own queue and of higher priority takes one of them, and
/// the workload comes back on the other. By KAI's rules the workload would lose a pod each time.
#[test]
fn short_jobs_that_take_the_room_cost_the_victims_little() {
    let none = (None, None);
    let leaf = |quota| Leaf {
        parent: 0,
        quota,
        over: None,
        priority: 100,
        product: none,
    };
    let job = |leaf, pods, min, priority| Job {
        leaf,
        pods,
        min,
        size: 4,
        priority,
        preemptibility: Preemptibility::Preemptible,
        wave: 0,
    };
    let mut jobs = vec![job(0, 2, 1, 50), job(1, 2, 2, 50)];
    jobs.extend((0..SHORT).map(|_| job(1, 1, 1, 75)));
    let case = Case {
        nodes: vec![2],
        parents: vec![0],
        products: vec![none],
        leaves: vec![leaf(0), leaf(8)],
        jobs,
    };
    let mut world = World::new(&case);
    let step = |world: &mut World| {
        let decision = world.decide();
        let gang = decision.actions.iter().map(|one| world.favoured(one));
        let evicts = gang.filter(|job| *job == Some(1)).count();
        world.execute(&decision);
        world.check();
        evicts
    };
    world.arrive(0);
    step(&mut world);
    world.arrive(1);
    let mut evictions = 0;
    for short in 2..2 + SHORT {
        evictions += step(&mut world);
        world.arrive(short);
        evictions += step(&mut world);
        world.end(short);
    }
    assert!((4..16).contains(&evictions), "{evictions}\n{}", world.log);
    // Without them, the gang gets its room.
    world.now += 60 * 60 * 1000;
    step(&mut world);
    step(&mut world);
    assert_eq!(world.running(1), 2, "{}", world.log);
}
