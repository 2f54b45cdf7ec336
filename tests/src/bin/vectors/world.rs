//! The world around the core in a case: pods on their nodes, and the events between rounds.

use crate::dra::{self, Held};
use crate::end::say;
use crate::recorded::{Case, NOW, card_name};
use crate::task_state::{State, TaskState};
use scheduler_core::ids::{ContainerName, GpuUuid};
use scheduler_core::model::{Amount, Ask, ContainerGrant, Mode, Phase, Placement, PodGroup};
use scheduler_core::units::{Mib, NanoGpu, Percent, Time};
use scheduler_core::{Action, Core, Decision, Event, Outcome, OutcomeResult, text};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// The time between two rounds in milliseconds, as in KAI's cycle; after it, a pause between
/// evictions for one job is over.
const ROUND: u64 = 1000;

/// How the core gets to a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CoreLifecycle {
    /// A new core from the facts of each round.
    Rebuilt,
    /// One core that gets the changes.
    Lived,
    /// The same, but that in each round it is a new core from the snapshot of the last one, as
    /// text.
    Restored,
}

/// Messages while a case is played.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Verbosity {
    /// What was decided.
    pub(crate) trace: bool,
    /// How long it took.
    pub(crate) time: bool,
}

/// Plays a case. The state after the last round's actions, by uid.
pub(crate) fn play(case: &Case, way: CoreLifecycle, tell: Verbosity) -> BTreeMap<String, State> {
    let mut stands = place(case);
    let mut held = dra::at_start(&case.claims, &case.facts, &stands);
    let mut facts = case.facts.clone();
    let mut core = fresh(case, &facts, &stands, &held);
    let mut after = BTreeMap::new();
    let mut now = NOW;
    for round in 0..case.rounds {
        if way == CoreLifecycle::Rebuilt && round > 0 {
            core = fresh(case, &facts, &stands, &held);
        }
        if way == CoreLifecycle::Restored && round > 0 {
            core = restored(case, &core);
        }
        let start = Instant::now();
        let decision = core.decide(Time(now));
        now += ROUND;
        if tell.time {
            say(&format!(
                "{way:?} round {round}: {:?}, {} steps, {} actions",
                start.elapsed(),
                decision.steps,
                decision.actions.len()
            ));
        }
        if tell.trace {
            say(&format!(
                "-- {way:?} round {round}\n{}",
                text::decision(&decision)
            ));
        }
        let stamped = stamp(&mut facts, &decision);
        let decided = outcome(&stands, &decision);
        after = states(&decided);
        for pod in core.groups().iter().flat_map(|group| group.core.iter()) {
            if let Some(state) = after.get_mut(&**pod) {
                state.core = true;
            }
        }
        stands = feed_back(&decided);
        for action in &decision.actions {
            if let Action::Bind(bind) = action {
                let claims = bind.devices.iter();
                held.extend(claims.map(|claim| {
                    let has = (Arc::clone(&claim.devices), claim.nodes.clone());
                    (claim.name.to_string(), has)
                }));
            }
        }
        let freed = dra::free(&case.claims, &mut held, &stands);
        if way != CoreLifecycle::Rebuilt {
            for group in stamped {
                let _ = core.apply(Event::Group(group));
            }
            report(&mut core, &decision, &stands);
            for event in dra::shown(&case.claims, &held, &stands)
                .into_iter()
                .chain(freed)
            {
                let _ = core.apply(event);
            }
        }
    }
    after
}

fn restored(case: &Case, core: &Core) -> Core {
    let snapshot = text::write(&core.snapshot());
    let mut core = Core::new(case.config.clone());
    for event in text::read(&snapshot).into_iter().flatten() {
        let _ = core.apply(event);
    }
    core
}

/// Writes to the groups what the shell would write, and returns the groups that have changed.
fn stamp(facts: &mut [Event], decision: &Decision) -> Vec<PodGroup> {
    let mut changed = Vec::new();
    for event in facts {
        let Event::Group(group) = event else {
            continue;
        };
        let before = group.clone();
        for (name, at) in &decision.started {
            if *name == group.name {
                group.last_start = Some(*at);
            }
        }
        for (name, since) in &decision.stale {
            if *name == group.name {
                group.stale_since = *since;
            }
        }
        for (name, at) in &decision.delayed {
            if *name == group.name {
                group.last_evicted = Some(*at);
            }
        }
        if before != *group {
            changed.push(group.clone());
        }
    }
    changed
}

fn fresh(case: &Case, facts: &[Event], stands: &[TaskState], held: &Held) -> Core {
    let mut core = Core::new(case.config.clone());
    for event in facts {
        let _ = core.apply(event.clone());
    }
    for event in dra::shown(&case.claims, held, stands) {
        let _ = core.apply(event);
    }
    for stand in stands {
        let _ = core.apply(shown(stand));
    }
    core
}

/// The placements at the start: names of shared GPUs become cards, whole GPUs take what is left. A
/// pod that asks for neither holds no card, whatever names it has: a few cases give names to such
/// pods, which KAI does not count.
fn place(case: &Case) -> Vec<TaskState> {
    let mut stands: Vec<TaskState> = case
        .tasks
        .iter()
        .map(|task| TaskState {
            task: task.clone(),
            status: task.status.clone(),
            node: task.node.clone(),
            cards: Vec::new(),
            memory: 0,
        })
        .collect();
    let mut named: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut used: BTreeSet<String> = BTreeSet::new();
    for stand in stands
        .iter_mut()
        .filter(|stand| stand.holds() && stand.task.shares > 0)
    {
        let node = stand.node.clone().unwrap_or_default();
        for group in stand.task.groups.clone() {
            let key = (node.clone(), group.clone());
            let card = match named.get(&key) {
                Some(card) => card.clone(),
                None => {
                    let Some(card) = free(case, &node, &used) else {
                        continue;
                    };
                    named.insert(key, card.clone());
                    card
                }
            };
            used.insert(card.clone());
            stand.cards.push(card);
        }
        let total = case
            .facts
            .iter()
            .find_map(|event| match event {
                Event::Cards(cards) if cards.node.as_str() == node => {
                    cards.cards.first().map(|card| card.total.0)
                }
                _ => None,
            })
            .unwrap_or(100);
        stand.memory = match stand.task.pod.gpus.first().map(|ask| &ask.ask) {
            Some(Ask::Share(share)) => match share.amount {
                Amount::Memory(mib) => mib.0,
                Amount::Fraction(part) => u64::try_from(
                    u128::from(part.0) * u128::from(total) / u128::from(NanoGpu::ONE.0),
                )
                .unwrap_or(0),
            },
            _ => 0,
        };
    }
    for stand in stands
        .iter_mut()
        .filter(|stand| stand.holds() && stand.task.whole > 0)
    {
        let node = stand.node.clone().unwrap_or_default();
        for _ in 0..stand.task.whole {
            if let Some(card) = free(case, &node, &used) {
                used.insert(card.clone());
                stand.cards.push(card);
            }
        }
    }
    stands
}

fn free(case: &Case, node: &str, used: &BTreeSet<String>) -> Option<String> {
    let count = case.cards.get(node).copied().unwrap_or(0);
    (0..count)
        .map(|index| card_name(node, index))
        .find(|card| !used.contains(card))
}

/// A placement as the API server shows it.
fn shown(stand: &TaskState) -> Event {
    let mut pod = stand.task.pod.clone();
    let placement = || {
        let whole = stand.task.whole > 0;
        Placement {
            node: stand.node.as_deref().unwrap_or_default().into(),
            grants: if stand.cards.is_empty() {
                Vec::new()
            } else {
                vec![ContainerGrant {
                    container: ContainerName::new("main"),
                    cards: stand.cards.iter().map(GpuUuid::new).collect(),
                    memory: Mib(stand.memory),
                    burst: None,
                    compute: Percent::FULL,
                    mode: if whole {
                        Mode::Exclusive
                    } else {
                        Mode::TimeSlicing
                    },
                    note: None,
                    asked: stand.task.pod.gpus.iter().find_map(|ask| match &ask.ask {
                        Ask::Share(share) => Some(share.amount),
                        Ask::Whole(_) => None,
                    }),
                }]
            },
            decision: None,
            front: scheduler_core::model::Front::Plugin,
        }
    };
    pod.phase = match stand.status.as_str() {
        "Running" => Phase::Running(placement()),
        "Bound" => Phase::Bound(placement()),
        "Releasing" => Phase::Releasing(Some(placement())),
        "StuckInReleasing" => Phase::Stuck(placement()),
        "Succeeded" => Phase::Succeeded,
        "Failed" => Phase::Failed,
        _ => Phase::Pending,
    };
    Event::Pod(Box::new(pod))
}

/// What the round's decision makes of the world, action by action.
fn outcome(stands: &[TaskState], decision: &Decision) -> Vec<TaskState> {
    let mut after: Vec<TaskState> = stands.to_vec();
    let index: BTreeMap<String, usize> = after
        .iter()
        .enumerate()
        .map(|(index, stand)| (stand.task.pod.uid.to_string(), index))
        .collect();
    for action in &decision.actions {
        match action {
            Action::Evict(evict) => {
                if let Some(index) = index.get(evict.pod.as_str()) {
                    "Releasing".clone_into(&mut after[*index].status);
                }
            }
            Action::Bind(bind) => {
                if let Some(index) = index.get(bind.pod.as_str()) {
                    let stand = &mut after[*index];
                    "Binding".clone_into(&mut stand.status);
                    stand.node = Some(bind.node.to_string());
                    let cards = bind.grants.iter().flat_map(|grant| &grant.cards);
                    stand.cards = cards.map(ToString::to_string).collect();
                    stand.memory = bind.grants.first().map_or(0, |grant| grant.memory.0);
                }
            }
        }
    }
    for promise in &decision.promises {
        if let Some(index) = index.get(promise.pod.as_str()) {
            let stand = &mut after[*index];
            "Pipelined".clone_into(&mut stand.status);
            stand.node = Some(promise.node.to_string());
            stand.cards = promise.cards.iter().map(ToString::to_string).collect();
            stand.memory = 0;
        }
    }
    after
}

fn states(stands: &[TaskState]) -> BTreeMap<String, State> {
    stands
        .iter()
        .map(|stand| {
            let stands_somewhere = !["Pending", "Gated"].contains(&stand.status.as_str());
            let state = State {
                status: stand.status.clone(),
                node: stand.node.clone().filter(|_| stands_somewhere),
                cards: if stands_somewhere {
                    stand.cards.clone()
                } else {
                    Vec::new()
                },
                core: false,
            };
            (stand.task.pod.uid.to_string(), state)
        })
        .collect()
}

fn feed_back(after: &[TaskState]) -> Vec<TaskState> {
    let mut stands = after.to_vec();
    for stand in &mut stands {
        match stand.status.as_str() {
            "Binding" => "Running".clone_into(&mut stand.status),
            "Releasing" if stand.task.delete_on_evict => {}
            "Releasing" | "Pipelined" => {
                "Pending".clone_into(&mut stand.status);
                stand.node = None;
                stand.cards.clear();
            }
            _ => {}
        }
    }
    stands
}

/// Reports outcomes and changes to a running core.
fn report(core: &mut Core, decision: &Decision, after: &[TaskState]) {
    for action in &decision.actions {
        let _ = core.apply(Event::Outcome(Outcome {
            decision: action.decision(),
            result: OutcomeResult::Confirmed,
        }));
    }
    for stand in after {
        let _ = core.apply(shown(stand));
    }
}
