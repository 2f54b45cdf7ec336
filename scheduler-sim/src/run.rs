//! One seed, from beginning to end.

use crate::event::WorldEvent;
use crate::node::Node;
use crate::time::Ms;
use crate::world::World;
use scheduler::Config;
use scheduler::config::Strategy;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Once;

/// Before anything happens.
const QUIET: Ms = 4000;
/// Within this everything is at rest after the faults have stopped.
const REST: Ms = 420_000;
/// Time within which everything is removed after its deletion.
const CLEARED: Ms = 240_000;
/// The time in which a new process becomes the leader and writes everything that differs.
const AGAIN: Ms = 60_000;
/// A cluster is at rest if nothing has changed for this time. It is longer than any pod runs that
/// ends by itself.
const STILL: Ms = 60_000;
/// Time between two checks.
const LOOK: Ms = 10_000;
/// Steps of a run.
const STEPS: u32 = 60;

/// How a run is run.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Steps until the faults stop; as many as the seed says when unset.
    pub steps: Option<u32>,
    /// The trace's text is kept.
    pub keep: bool,
    /// Something goes wrong.
    pub faults: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            steps: None,
            keep: false,
            faults: true,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Of which seed.
    pub seed: u64,
    /// Steps that were taken.
    pub steps: u32,
    /// A violated condition.
    pub violations: Vec<String>,
    /// Bindings that were carried out.
    pub bound: usize,
    /// Evictions that were decided.
    pub evicted: usize,
    /// Virtual milliseconds.
    pub lasted: Ms,
    /// The longest until everything was at rest.
    pub rest: Ms,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Digest of the trace.
    pub digest: String,
    /// Its text, where it was kept.
    pub trace: Option<String>,
}

thread_local! {
    /// Panics of this thread, also those that a task's owner takes for the task's own.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}
static HOOK: Once = Once::new();

pub(crate) fn watch_panics() {
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()));
        }));
    });
    PANICS.take();
}

/// What panicked since [`watch_panics`].
pub(crate) fn panics() -> Vec<String> {
    PANICS.take()
}

/// Runs a seed.
pub fn run(seed: u64, shape: Shape) -> Report {
    watch_panics();
    // Backoffs of watches take their jitter from here.
    fastrand::seed(seed);
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let replicas = rng.usize(1..=3);
    let mut world = World::new(seed, config(&mut rng), replicas, shape.keep);
    world.minor = rng.u32(34..=36);
    for at in 0..rng.usize(2..=4) {
        let cards: Vec<u64> = (0..rng.usize(1..=3)).map(|_| 16_384).collect();
        world.nodes.push(Node::new(at, &cards));
    }
    world.furnish();
    for at in 0..replicas {
        let pause = rng.u64(1..2000);
        world.soon(pause, WorldEvent::Start(at));
    }
    world.announce();
    world.run(QUIET);
    if shape.faults {
        world.spoil();
    }
    let most = rng.u32(STEPS / 4..=STEPS);
    let steps = shape.steps.unwrap_or(most).min(most);
    let mut taken = 0;
    while taken < steps && world.violations.is_empty() {
        let pause = if shape.faults {
            world.step()
        } else {
            world.act();
            world.announce();
            500
        };
        taken += 1;
        world.check_cards();
        let until = world.now + pause;
        world.run(until);
    }
    world.heal();
    let begin = world.now;
    settle(&mut world, REST, World::unrest);
    let rest = world.now - begin;
    if world.violations.is_empty() {
        say_the_same_again(&mut world);
    }
    if world.violations.is_empty() {
        world.clear_away();
        settle(&mut world, CLEARED, World::leftovers);
    }
    for panic in panics() {
        world.violated(format!("panicked: {panic}"));
    }
    Report {
        seed,
        steps: taken,
        bound: world.bound.len(),
        evicted: world.evictions.len(),
        lasted: world.now,
        rest,
        faults: world.faults.clone(),
        digest: world.trace.digest(),
        trace: world.trace.text().map(str::to_owned),
        violations: world.violations,
    }
}

/// Replaces all processes of the scheduler. The new ones know only what objects say, and must not
/// write anything else into them.
fn say_the_same_again(world: &mut World) {
    let mut before = world.said();
    let deadline = world.now + REST;
    // Some pods end by themselves, and their objects change until then.
    while world.now < deadline && world.violations.is_empty() {
        world.run(world.now + STILL);
        let now = world.said();
        if now == before {
            break;
        }
        before = now;
    }
    for at in 0..world.replicas.len() {
        world.kill(at);
        world.soon(100, WorldEvent::Start(at));
    }
    world.run(world.now + AGAIN);
    settle(world, REST, World::unrest);
    if world.violations.is_empty() {
        for line in world.said_otherwise(&before) {
            world.violated(format!("said otherwise after a restart: {line}"));
        }
    }
}

/// Runs until nothing is left by `what`, which takes no longer than `most`.
fn settle(world: &mut World, most: Ms, what: fn(&mut World) -> Vec<String>) {
    let deadline = world.now + most;
    while world.violations.is_empty() {
        let next = world.now + LOOK;
        world.run(next);
        let left = what(world);
        if left.is_empty() || !world.violations.is_empty() {
            return;
        }
        if world.now >= deadline {
            // The leader's inputs, for readers of the trace.
            let snapshot = world.leader().and_then(|at| world.snapshot(at));
            for line in snapshot.unwrap_or_default().lines() {
                world.say(|| format!("snapshot: {line}"));
            }
            for line in left {
                world.violated(format!("after {} s: {line}", most / 1000));
            }
        }
    }
}

fn config(rng: &mut fastrand::Rng) -> Config {
    let strategies = [Strategy::Binpack, Strategy::Spread, Strategy::Fragmentation];
    Config {
        leader_elect: true,
        verify: true,
        gpu_placement: strategies[rng.usize(0..3)],
        cpu_placement: strategies[rng.usize(0..2)],
        respect_disruption_budgets: rng.bool(),
        default_staleness_grace_period_s: 15,
        volume_binding_timeout_s: 20,
        writes_at_once: [2, 8, 64][rng.usize(0..3)],
        keep_empty_nodes: rng.u32(0..2),
        consolidation_min_age_s: [0, 30][rng.usize(0..2)],
        consolidate_bare_pods: rng.bool(),
        ..Config::default()
    }
}

/// The fewest steps with which a run of this seed fails, and that run. `None`: it does not.
pub fn shortest(seed: u64) -> Option<Report> {
    let full = run(seed, Shape::default());
    if full.violations.is_empty() {
        return None;
    }
    let mut best = full.steps;
    let fails = |steps| {
        let shape = Shape {
            steps: Some(steps),
            ..Shape::default()
        };
        !run(seed, shape).violations.is_empty()
    };
    // Halves first; what fails with fewer steps need not fail with more, so that each is tried.
    let mut low = 0;
    while low < best {
        let middle = low + (best - low) / 2;
        if fails(middle) {
            best = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(run(
        seed,
        Shape {
            steps: Some(best),
            keep: true,
            ..Shape::default()
        },
    ))
}
