//! Packing in a steady state: pods arrive and leave, and a pod without room waits.
//!
//! Pods are drawn from the list, with replacement, at a rate at which the running pods would
//! request a given part of all GPUs if no pod had to wait. They arrive as a Poisson process and
//! stay for their lifetime from their start. The cluster starts full: with the pods that would run
//! at a random time, and the rest of their lifetimes. Pending pods are tried again whenever a pod
//! leaves, first come, first served, and none blocks those behind. Every policy gets the same pods
//! at the same times.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)] // Milliseconds of hours, and thousandths of some thousand GPUs.

use aliquot_tests::random::SplitMix64;

use crate::baseline::{BaselinePolicy, Held, Rule};
use crate::floor::Floor;
use crate::trace::{Order, Trace};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// The mean of drawn lifetimes, and the longest that is taken from the trace, milliseconds.
pub(crate) const LIFETIME: u64 = 3_600_000;
/// In these, at the start, nothing is counted.
const WARM_UP: u64 = LIFETIME;
/// How often the bound is computed while it is counted: it takes a second.
const BOUNDS: u64 = 4;

/// How long pods stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Lifetimes {
    /// Drawn, exponential, whatever the pod: the running pods are distributed as the list.
    Exponential,
    /// The trace's, with a maximum of an hour: the running pods are mostly the longest.
    Trace,
}

/// What is played.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub lifetimes: Lifetimes,
    /// Requested fraction of all GPUs.
    pub load: f64,
    /// Measured for this multiple of [`LIFETIME`].
    pub lengths: u64,
    /// A pod that does not start at once is rejected permanently; else it waits.
    pub refuse: bool,
}

/// The result of a pod.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Starts(usize),
    /// It was moved, and may start again.
    Stops(usize),
}

/// A policy that places arriving and leaving pods.
pub(crate) trait Placer {
    /// The pod of that row of the list is there, at that time, with that number.
    fn comes(&mut self, now: u64, pod: usize, row: usize) -> Vec<Change>;
    /// It has run for its lifetime, or is refused.
    fn leaves(&mut self, now: u64, pod: usize) -> Vec<Change>;
    /// Pods that were moved.
    fn moved(&self) -> u64 {
        0
    }
}

/// What came of one run. Parts of all GPUs, in the mean over the time that counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub unallocated: f64,
    /// Of the time.
    pub some_pod_waits: f64,
    /// The requests of pending pods.
    pub waiting: f64,
    /// The part of the unallocated GPUs that pending pods request, if they were one pool.
    pub wanted: f64,
    /// What would be unallocated if no pod ever waited and GPUs were one pool: the fluid bound.
    pub fluid: f64,
    /// What is unallocated at least, over all packings of the running pods on cards.
    pub floor: f64,
    /// Moves for each pod that came.
    pub moves: f64,
}

/// A pod of a run.
#[derive(Clone, Copy, Debug)]
struct PodStay {
    row: usize,
    comes: u64,
    lasts: u64,
}

/// The pods of a run, in their order.
fn visits(trace: &Trace, plan: &Plan, seed: u64) -> Vec<PodStay> {
    let mut random = SplitMix64::new(seed);
    let length = |row: usize, random: &mut SplitMix64| match plan.lifetimes {
        Lifetimes::Exponential => random.exponential(LIFETIME as f64),
        Lifetimes::Trace => {
            let listed = trace.pods[row].lifetime.unwrap_or(0.0) * 1000.0;
            listed.clamp(1.0, LIFETIME as f64)
        }
    };
    let gpus = |row: usize| trace.shapes[trace.pods[row].shape].gpus() as f64;
    let mean = |of: &dyn Fn(usize) -> f64| {
        (0..trace.pods.len()).map(of).sum::<f64>() / trace.pods.len() as f64
    };
    let lasts = |row: usize| match plan.lifetimes {
        Lifetimes::Exponential => LIFETIME as f64,
        Lifetimes::Trace => length(row, &mut SplitMix64::new(0)),
    };
    let rate = plan.load * trace.capacity() as f64 / mean(&|row| gpus(row) * lasts(row));
    let mut visits = Vec::new();
    // The pods at the start: long lifetimes are more likely, at a random point.
    let there = random.poisson(rate * mean(&lasts));
    for _ in 0..there {
        let row = loop {
            let row = random.below(trace.pods.len());
            if random.part() * LIFETIME as f64 <= lasts(row) {
                break row;
            }
        };
        let whole = length(row, &mut random);
        let rest = match plan.lifetimes {
            Lifetimes::Exponential => whole,
            Lifetimes::Trace => whole * random.part(),
        };
        visits.push(PodStay {
            row,
            comes: 0,
            lasts: rest.max(1.0) as u64,
        });
    }
    let end = (WARM_UP + plan.lengths * LIFETIME) as f64;
    let mut now = random.exponential(1.0 / rate);
    while now < end {
        let row = random.below(trace.pods.len());
        visits.push(PodStay {
            row,
            comes: now as u64,
            lasts: length(row, &mut random).max(1.0) as u64,
        });
        now += random.exponential(1.0 / rate);
    }
    visits
}

/// What is there, and sums over the time that counts.
struct RunTotals<'a> {
    trace: &'a Trace,
    visits: &'a [PodStay],
    now: u64,
    from: u64,
    end: u64,
    /// Thousandths of GPUs.
    running: u64,
    waiting: u64,
    waits: u64,
    /// Of the pods that would run if none waited.
    ideal: u64,
    /// By pod: what is left of its lifetime, or when it leaves.
    left: BTreeMap<usize, StayState>,
    sums: Outcome,
    moved_before: u64,
    came: u64,
    next_floor: u64,
    floors: Vec<f64>,
}

/// A pod that is there.
#[derive(Clone, Copy, Debug)]
enum StayState {
    /// Its run time, from its start.
    Waits(u64),
    /// Until then.
    Runs(u64),
}

impl RunTotals<'_> {
    fn gpus(&self, pod: usize) -> u64 {
        let row = self.visits[pod].row;
        self.trace.shapes[self.trace.pods[row].shape].gpus()
    }

    /// Time passes, with all as it is.
    fn pass(&mut self, until: u64) {
        let capacity = self.trace.capacity();
        let length = until.min(self.end).saturating_sub(self.now.max(self.from)) as f64;
        let part = |gpus: u64| gpus as f64 / capacity as f64 * length;
        let idle = capacity - self.running;
        let sums = &mut self.sums;
        sums.unallocated += part(idle);
        sums.waiting += part(self.waiting);
        sums.wanted += part(idle.min(self.waiting));
        sums.fluid += part(capacity.saturating_sub(self.ideal));
        if self.waits > 0 {
            sums.some_pod_waits += length;
        }
        self.now = until;
        if until >= self.next_floor && until < self.end {
            self.next_floor += (self.end - self.from) / BOUNDS;
            let there = self.left.keys().map(|pod| self.visits[*pod].row);
            self.floors.push(Floor::of(self.trace, there).of_anybody());
        }
    }

    fn change(&mut self, changes: Vec<Change>, ends: &mut BinaryHeap<Reverse<(u64, usize)>>) {
        for change in changes {
            match change {
                Change::Starts(pod) => {
                    let Some(StayState::Waits(lasts)) = self.left.get(&pod).copied() else {
                        panic!("pod {pod} starts and does not wait");
                    };
                    self.left.insert(pod, StayState::Runs(self.now + lasts));
                    ends.push(Reverse((self.now + lasts, pod)));
                    self.running += self.gpus(pod);
                    self.waiting -= self.gpus(pod);
                    self.waits -= 1;
                }
                Change::Stops(pod) => {
                    let Some(StayState::Runs(end)) = self.left.get(&pod).copied() else {
                        panic!("pod {pod} stops and does not run");
                    };
                    self.left.insert(pod, StayState::Waits(end - self.now));
                    self.running -= self.gpus(pod);
                    self.waiting += self.gpus(pod);
                    self.waits += 1;
                }
            }
        }
    }

    fn outcome(mut self, moved: u64) -> Outcome {
        let all = (self.end - self.from) as f64;
        let sums = &mut self.sums;
        for sum in [
            &mut sums.unallocated,
            &mut sums.waiting,
            &mut sums.wanted,
            &mut sums.fluid,
            &mut sums.some_pod_waits,
        ] {
            *sum /= all;
        }
        sums.floor = self.floors.iter().sum::<f64>() / self.floors.len().max(1) as f64 / 100.0;
        sums.moves = (moved - self.moved_before) as f64 / self.came.max(1) as f64;
        self.sums
    }
}

/// Plays one order's pods.
pub(crate) fn run(trace: &Trace, plan: &Plan, seed: u64, placer: &mut dyn Placer) -> Outcome {
    let visits = visits(trace, plan, seed);
    let end = WARM_UP + plan.lengths * LIFETIME;
    let mut book = RunTotals {
        trace,
        visits: &visits,
        now: 0,
        from: WARM_UP,
        end,
        running: 0,
        waiting: 0,
        waits: 0,
        ideal: 0,
        left: BTreeMap::new(),
        sums: Outcome::default(),
        moved_before: 0,
        came: 0,
        next_floor: WARM_UP,
        floors: Vec::new(),
    };
    // When pods leave; of a pod that was moved also when it would have left.
    let mut ends: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    // When they would have left if no pod waited.
    let mut ideal_ends: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut coming = visits.iter().enumerate().peekable();
    loop {
        let comes = coming.peek().map(|(_, visit)| visit.comes);
        let leaves = ends.peek().map(|Reverse((time, _))| *time);
        let ideal = ideal_ends.peek().map(|Reverse((time, _))| *time);
        let Some(now) = [comes, leaves, ideal].into_iter().flatten().min() else {
            break;
        };
        if now >= end {
            break;
        }
        if book.now < WARM_UP && now >= WARM_UP {
            book.moved_before = placer.moved();
        }
        book.pass(now);
        if ideal == Some(now) {
            let pod = ideal_ends.pop().map_or(0, |Reverse((_, pod))| pod);
            book.ideal -= book.gpus(pod);
        } else if leaves == Some(now) {
            let pod = ends.pop().map_or(0, |Reverse((_, pod))| pod);
            if !matches!(book.left.get(&pod), Some(StayState::Runs(end)) if *end == now) {
                continue;
            }
            book.left.remove(&pod);
            book.running -= book.gpus(pod);
            let changes = placer.leaves(now, pod);
            book.change(changes, &mut ends);
        } else if let Some((pod, visit)) = coming.next() {
            book.came += u64::from(now >= WARM_UP);
            book.left.insert(pod, StayState::Waits(visit.lasts));
            book.waiting += book.gpus(pod);
            book.waits += 1;
            book.ideal += book.gpus(pod);
            ideal_ends.push(Reverse((now + visit.lasts, pod)));
            let changes = placer.comes(now, pod, visit.row);
            book.change(changes, &mut ends);
            if plan.refuse && matches!(book.left.get(&pod), Some(StayState::Waits(_))) {
                book.left.remove(&pod);
                book.waiting -= book.gpus(pod);
                book.waits -= 1;
                let changes = placer.leaves(now, pod);
                book.change(changes, &mut ends);
            }
        }
    }
    book.pass(end);
    book.outcome(placer.moved())
}

/// One of the paper's policies, with its pending pods.
pub(crate) struct Queueing<'a> {
    paper: BaselinePolicy<'a>,
    /// By number: the row, and where it is.
    running: BTreeMap<usize, (usize, Held)>,
    /// Rows, first come first.
    waiting: BTreeMap<usize, usize>,
}

impl<'a> Queueing<'a> {
    pub(crate) fn new(trace: &'a Trace, order: &'a Order, rule: Rule) -> Self {
        Self {
            paper: BaselinePolicy::new(trace, order, rule),
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }
}

impl Placer for Queueing<'_> {
    fn comes(&mut self, _now: u64, pod: usize, row: usize) -> Vec<Change> {
        match self.paper.put(row) {
            Some(held) => {
                self.running.insert(pod, (row, held));
                vec![Change::Starts(pod)]
            }
            None => {
                self.waiting.insert(pod, row);
                Vec::new()
            }
        }
    }

    fn leaves(&mut self, _now: u64, pod: usize) -> Vec<Change> {
        let Some((row, held)) = self.running.remove(&pod) else {
            self.waiting.remove(&pod);
            return Vec::new();
        };
        // No pending pod fits anywhere else.
        let at = self.paper.take_out(row, held);
        let mut changes = Vec::new();
        let waiting: Vec<(usize, usize)> = self.waiting.iter().map(|(a, b)| (*a, *b)).collect();
        for (pod, row) in waiting {
            if self.paper.fits(at, row)
                && let Some(held) = self.paper.put(row)
            {
                self.waiting.remove(&pod);
                self.running.insert(pod, (row, held));
                changes.push(Change::Starts(pod));
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Node, Pod, Shape};
    use scheduler_core::Placement;

    /// Twenty nodes of two cards, and pods of a whole one and of 0.6.
    fn small() -> (Trace, Order) {
        let node = |index: usize| Node {
            name: format!("node-{index:02}"),
            cpu: 1_000_000,
            memory_mib: 1 << 20,
            cards: 2,
            model: "model".into(),
        };
        let shape = |milli| Shape {
            cpu: 1,
            milli,
            cards: 1,
            models: String::new(),
        };
        let pod = |index: usize| Pod {
            name: format!("pod-{index}"),
            shape: index,
            memory_mib: 1,
            lifetime: Some(600.0),
        };
        let trace = Trace {
            nodes: (0..20).map(node).collect(),
            pods: (0..2).map(pod).collect(),
            shapes: vec![shape(1000), shape(600)],
            counts: vec![1, 1],
            orders: Vec::new(),
        };
        let order = Order {
            arrivals: Vec::new(),
            nodes: (0..20).collect(),
        };
        (trace, order)
    }

    fn plan(load: f64, refuse: bool) -> Plan {
        Plan {
            lifetimes: Lifetimes::Exponential,
            load,
            lengths: 2,
            refuse,
        }
    }

    #[test]
    fn where_there_is_room_nobody_waits_and_what_is_idle_is_the_fluid_bound() {
        let (trace, order) = small();
        for lifetimes in [Lifetimes::Exponential, Lifetimes::Trace] {
            let plan = Plan {
                lifetimes,
                ..plan(0.2, false)
            };
            let mut fgd = Queueing::new(&trace, &order, Rule::Fgd);
            let came = run(&trace, &plan, 7, &mut fgd);
            assert!(came.some_pod_waits < 1e-9, "{came:?}");
            assert!((came.unallocated - came.fluid).abs() < 1e-9, "{came:?}");
            assert!((came.unallocated - 0.8).abs() < 0.1, "{came:?}");
        }
    }

    #[test]
    fn beyond_what_cards_hold_pods_wait_and_the_core_serves_them_as_the_paper_does() {
        let (trace, order) = small();
        let mut fgd = Queueing::new(&trace, &order, Rule::Fgd);
        let paper = run(&trace, &plan(1.5, false), 7, &mut fgd);
        let mut core =
            crate::steady_core::SteadyCore::new(&trace, &order, Placement::Binpack, None);
        let ours = run(&trace, &plan(1.5, false), 7, &mut core);
        for came in [paper, ours] {
            assert!(came.some_pod_waits > 0.9, "{came:?}");
            assert!(came.waiting > 0.2, "{came:?}");
            // A card holds one of 0.6 and nothing beside it.
            assert!(came.unallocated > 0.1 && came.unallocated < 0.3, "{came:?}");
            assert!(came.fluid < came.unallocated, "{came:?}");
        }
        assert!((paper.unallocated - ours.unallocated).abs() < 0.02);
        // Rejected pods do not wait: less is requested, and more is idle.
        let mut fgd = Queueing::new(&trace, &order, Rule::Fgd);
        let refused = run(&trace, &plan(1.5, true), 7, &mut fgd);
        assert!(refused.waiting < 1e-9 && refused.unallocated > paper.unallocated);
    }
}
