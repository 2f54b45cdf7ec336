//! The same run through the core with its consolidation: a pod that fits nowhere may be let
//! in by moving others, within a budget of moves for each pod that arrived.
//!
//! A move is as in a cluster: the pod is evicted and ends, its controller recreates it, and the
//! next decision binds it. One that finds no place again is counted as lost.
//!
//! No search is made while the budget is used up, nor for a shape for which one found
//! nothing a short while before.

use crate::core_replay::{CoreReplay, tell};
use crate::replay::Policy;
use crate::trace::{Order, Trace};
use scheduler_core::ids::{GroupName, PodUid};
use scheduler_core::model::{Phase, Pod};
use scheduler_core::units::Time;
use scheduler_core::{
    Action, Config, Event, EvictCause, Outcome, OutcomeResult, Placement, Rest, Step,
};
use std::collections::{BTreeMap, HashMap};

/// Decisions in a row for one arrival: the search, the places, and some more if moved pods are in
/// each other's way.
pub(crate) const ROUNDS: u64 = 8;

/// After this many arrivals a search is tried again for a shape for which nothing was found.
pub(crate) const AGAIN: u64 = 200;

/// How much may be moved, and how hard it is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Moves for each pod that arrived.
    pub moves: f64,
    /// Steps of a search.
    pub steps: u64,
}

/// A core that moves.
pub(crate) struct ConsolidatingCore<'a> {
    through: CoreReplay<'a>,
    trace: &'a Trace,
    budget: Budget,
    /// The placed pods.
    pods: BTreeMap<PodUid, Pod>,
    /// Shapes for which a search found nothing, and after how many arrivals.
    infeasible: HashMap<usize, u64>,
    /// The row of each arrival.
    rows: Vec<usize>,
    arrived: u64,
    moves: u64,
    /// Thousandths of GPUs.
    lost: u64,
}

impl<'a> ConsolidatingCore<'a> {
    pub(crate) fn new(trace: &'a Trace, order: &Order, budget: Budget) -> Self {
        let config = Config {
            actions: vec![Step::Allocate, Step::Consolidation],
            gpu_placement: Placement::Fragmentation,
            cpu_placement: Placement::Fragmentation,
            consolidation_jobs: None,
            budget: budget.steps,
            ..Config::default()
        };
        Self {
            through: CoreReplay::of(trace, order, config),
            trace,
            budget,
            pods: BTreeMap::new(),
            infeasible: HashMap::new(),
            rows: Vec::new(),
            arrived: 0,
            moves: 0,
            lost: 0,
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn may_move(&self) -> bool {
        (self.moves as f64) < self.budget.moves * self.arrived as f64
    }

    fn tell(&mut self, event: Event) {
        tell(&mut self.through.core, event);
    }

    /// Carries out the decisions. Returns the evicted pods, recreated.
    fn carry_out(&mut self, actions: Vec<Action>, waiting: &mut BTreeMap<PodUid, Pod>) {
        for action in actions {
            self.tell(Event::Outcome(Outcome {
                decision: action.decision(),
                result: OutcomeResult::Confirmed,
            }));
            match action {
                Action::Bind(bind) => {
                    let mut pod = waiting.remove(&bind.pod).expect("only who waits is bound");
                    pod.phase = Phase::Running(bind.placement());
                    self.pods.insert(bind.pod, pod.clone());
                    self.tell(Event::Pod(Box::new(pod)));
                }
                Action::Evict(evict) => {
                    assert_eq!(evict.cause, EvictCause::Consolidation);
                    self.moves += 1;
                    let mut pod = self
                        .pods
                        .remove(&evict.pod)
                        .expect("only who runs is moved");
                    self.tell(Event::PodGone(evict.pod));
                    pod.uid = PodUid::new(format!("{}-{}", pod.name, self.moves));
                    pod.phase = Phase::Pending;
                    pod.created = Time(self.now());
                    waiting.insert(pod.uid.clone(), pod.clone());
                    self.tell(Event::Pod(Box::new(pod)));
                }
            }
        }
    }

    fn now(&self) -> u64 {
        self.arrived * ROUNDS
    }

    fn node_of(&self, uid: &PodUid) -> Option<usize> {
        match &self.pods.get(uid)?.phase {
            Phase::Running(place) => self.through.nodes.get(&place.node).copied(),
            _ => None,
        }
    }
}

impl Policy for ConsolidatingCore<'_> {
    fn place(&mut self, arrival: usize, row: usize) -> Option<usize> {
        self.arrived += 1;
        self.rows.push(row);
        let mut pod = self.through.pod(arrival, row);
        pod.created = Time(self.now());
        let uid = pod.uid.clone();
        let shape = self.trace.pods[row].shape;
        self.tell(Event::Pod(Box::new(pod.clone())));
        let failed = self.infeasible.get(&shape);
        let searches = self.may_move() && failed.is_none_or(|at| at + AGAIN <= self.arrived);
        if !searches {
            self.tell(Event::Rest(Rest {
                of: GroupName::new(format!("pod:{uid}")),
                cause: EvictCause::Consolidation,
                until: Time(u64::MAX),
                steps: 0,
            }));
        }
        let before = self.moves;
        let mut waiting = BTreeMap::from([(uid.clone(), pod)]);
        for round in 0..ROUNDS {
            let decision = self.through.core.decide(Time(self.now() + round));
            let idle = decision.actions.is_empty();
            self.carry_out(decision.actions, &mut waiting);
            if waiting.is_empty() || idle {
                break;
            }
        }
        if self.moves == before && searches && waiting.contains_key(&uid) {
            self.infeasible.insert(shape, self.arrived);
        }
        for (gone, pod) in waiting {
            if gone != uid {
                let arrival: usize = pod.name.parse().expect("it is named by its arrival");
                let listed = &self.trace.pods[self.rows[arrival]];
                self.lost += self.trace.shapes[listed.shape].gpus();
            }
            self.tell(Event::PodGone(gone));
        }
        self.node_of(&uid)
    }

    fn moved(&self) -> (u64, u64) {
        (self.moves, self.lost)
    }
}
