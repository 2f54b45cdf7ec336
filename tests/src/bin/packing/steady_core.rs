//! A steady state through the scheduler's core: arrivals and departures are events, a decision
//! follows each, and a pod without a place waits in the core's own queue.
//!
//! With a budget it may move: a pod is evicted and ends, its controller recreates it at once, and
//! what is left of its lifetime begins where it is bound. A search is made for a pod when it comes,
//! while the budget lasts, and not for a shape for which one found nothing a short while before.

use crate::consolidation::{AGAIN, Budget, ROUNDS};
use crate::core_replay::{CoreReplay, tell};
use crate::steady::{Change, Placer};
use crate::trace::{Order, Trace};
use scheduler_core::ids::{GroupName, PodUid};
use scheduler_core::model::{Phase, Pod};
use scheduler_core::units::Time;
use scheduler_core::{
    Action, Config, Event, EvictCause, Outcome, OutcomeResult, Placement, Rest, Step,
};
use std::collections::{BTreeMap, HashMap};

/// A core in which pods come and leave.
pub(crate) struct SteadyCore<'a> {
    through: CoreReplay<'a>,
    trace: &'a Trace,
    /// `None`: no pod is moved.
    budget: Option<Budget>,
    /// By uid: which pod, and as it is.
    pods: BTreeMap<PodUid, (usize, Pod)>,
    /// By number: its uid now.
    uids: BTreeMap<usize, PodUid>,
    /// Shapes for which a search found nothing, and after how many arrivals.
    infeasible: HashMap<usize, u64>,
    came: u64,
    moves: u64,
}

impl<'a> SteadyCore<'a> {
    pub(crate) fn new(
        trace: &'a Trace,
        order: &Order,
        placement: Placement,
        budget: Option<Budget>,
    ) -> Self {
        let mut config = Config {
            actions: vec![Step::Allocate],
            gpu_placement: placement,
            cpu_placement: placement,
            ..Config::default()
        };
        if let Some(budget) = budget {
            config.actions.push(Step::Consolidation);
            config.consolidation_jobs = None;
            config.budget = budget.steps;
        }
        Self {
            through: CoreReplay::of(trace, order, config),
            trace,
            budget,
            pods: BTreeMap::new(),
            uids: BTreeMap::new(),
            infeasible: HashMap::new(),
            came: 0,
            moves: 0,
        }
    }

    fn tell(&mut self, event: Event) {
        tell(&mut self.through.core, event);
    }

    #[allow(clippy::cast_precision_loss)]
    fn may_move(&self) -> bool {
        self.budget
            .is_some_and(|budget| (self.moves as f64) < budget.moves * self.came as f64)
    }

    /// No search for the pod from now on.
    fn rest(&mut self, uid: &PodUid) {
        if self.budget.is_some() {
            self.tell(Event::Rest(Rest {
                of: GroupName::new(format!("pod:{uid}")),
                cause: EvictCause::Consolidation,
                until: Time(u64::MAX),
                steps: 0,
            }));
        }
    }

    fn waits(&self, pod: usize) -> bool {
        let uid = self.uids.get(&pod);
        let known = uid.and_then(|uid| self.pods.get(uid));
        known.is_some_and(|(_, pod)| matches!(pod.phase, Phase::Pending))
    }

    /// Decides until nothing is left to do, and does it.
    fn settle(&mut self, now: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        for _ in 0..ROUNDS {
            let decision = self.through.core.decide(Time(now));
            let done = decision.actions.is_empty() && !decision.cut_short;
            for action in decision.actions {
                self.carry_out(now, action, &mut changes);
            }
            // A policy that places all at once and moves none has nothing to add.
            if done || self.budget.is_none() && !decision.cut_short {
                break;
            }
        }
        changes
    }

    fn carry_out(&mut self, now: u64, action: Action, changes: &mut Vec<Change>) {
        self.tell(Event::Outcome(Outcome {
            decision: action.decision(),
            result: OutcomeResult::Confirmed,
        }));
        match action {
            Action::Bind(bind) => {
                let (number, pod) = self.pods.get_mut(&bind.pod).expect("a known pod is bound");
                pod.phase = Phase::Running(bind.placement());
                changes.push(Change::Starts(*number));
                let pod = pod.clone();
                self.tell(Event::Pod(Box::new(pod)));
            }
            Action::Evict(evict) => {
                assert_eq!(evict.cause, EvictCause::Consolidation);
                self.moves += 1;
                let (number, mut pod) = self.pods.remove(&evict.pod).expect("who runs is moved");
                changes.push(Change::Stops(number));
                self.tell(Event::PodGone(evict.pod));
                pod.uid = PodUid::new(format!("{number:06}-{}", self.moves));
                pod.phase = Phase::Pending;
                pod.created = Time(now);
                self.uids.insert(number, pod.uid.clone());
                self.pods.insert(pod.uid.clone(), (number, pod.clone()));
                self.tell(Event::Pod(Box::new(pod)));
            }
        }
    }
}

impl Placer for SteadyCore<'_> {
    fn comes(&mut self, now: u64, number: usize, row: usize) -> Vec<Change> {
        self.came += 1;
        let mut pod = self.through.pod(number, row);
        pod.created = Time(now);
        let uid = pod.uid.clone();
        self.pods.insert(uid.clone(), (number, pod.clone()));
        self.uids.insert(number, uid.clone());
        self.tell(Event::Pod(Box::new(pod)));
        let shape = self.trace.pods[row].shape;
        let failed = self.infeasible.get(&shape);
        let searches = self.may_move() && failed.is_none_or(|at| at + AGAIN <= self.came);
        if !searches {
            self.rest(&uid);
        }
        let before = self.moves;
        let changes = self.settle(now);
        let moved = self.moves > before;
        if searches && !moved && self.waits(number) {
            self.infeasible.insert(shape, self.came);
        }
        // Nor for moved pods that wait.
        let stopped = changes.iter().filter_map(|change| match change {
            Change::Stops(pod) => Some(*pod),
            Change::Starts(_) => None,
        });
        let mut waiting: Vec<usize> = stopped.chain([number]).collect();
        waiting.retain(|pod| self.waits(*pod));
        for pod in waiting {
            let uid = self.uids[&pod].clone();
            self.rest(&uid);
        }
        changes
    }

    fn leaves(&mut self, now: u64, number: usize) -> Vec<Change> {
        let uid = self.uids.remove(&number).expect("it is there");
        self.pods.remove(&uid);
        self.tell(Event::PodGone(uid));
        self.settle(now)
    }

    fn moved(&self) -> u64 {
        self.moves
    }
}
