//! The world around the core in a case: pods where they stand, what is fed back between
//! rounds.

use crate::case::{Case, NOW, Task, card_name};
use scheduler_core::ids::{ContainerName, GpuUuid};
use scheduler_core::model::{Amount, Ask, ContainerGrant, Mode, Phase, Placement};
use scheduler_core::units::{Mib, NanoGpu, Percent, Time};
use scheduler_core::{Action, Core, Decision, Event, Outcome, OutcomeResult, text};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// How the core gets to a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A new core from the facts of each round.
    Rebuilt,
    /// One core that is told what changed.
    Lived,
    /// The same, but that in each round it is a new core from the snapshot of the last one, as
    /// text.
    Restored,
}

/// One task after a round, before anything is fed back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) status: String,
    pub(crate) node: Option<String>,
    /// Shared GPUs, by group name.
    pub(crate) groups: Vec<String>,
}

/// A pod in the world.
#[derive(Clone)]
struct Stand {
    task: Task,
    status: String,
    node: Option<String>,
    cards: Vec<String>,
    /// Names of the groups that it holds on these cards; empty for whole GPUs.
    groups: Vec<String>,
    memory: u64,
}

/// What is said while a case is played.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tell {
    /// What was decided.
    pub(crate) trace: bool,
    /// How long it took.
    pub(crate) time: bool,
}

/// Plays a case. The state after the last round's actions, by uid.
pub(crate) fn play(case: &Case, way: Way, tell: Tell) -> BTreeMap<String, State> {
    let mut stands = place(case);
    let mut core = fresh(case, &stands);
    let mut names = 0;
    let mut after = BTreeMap::new();
    for round in 0..case.rounds {
        if way == Way::Rebuilt && round > 0 {
            core = fresh(case, &stands);
        }
        if way == Way::Restored && round > 0 {
            core = restored(case, &core);
        }
        let start = Instant::now();
        let decision = core.decide(Time(NOW));
        if tell.time {
            crate::say(&format!(
                "{way:?} round {round}: {:?}, {} steps, {} actions",
                start.elapsed(),
                decision.steps,
                decision.actions.len()
            ));
        }
        if tell.trace {
            crate::say(&format!(
                "-- {way:?} round {round}\n{}",
                text::decision(&decision)
            ));
        }
        let decided = outcome(&mut stands, &decision, &mut names);
        after = states(&decided);
        let last = stands;
        stands = feed_back(&decided);
        if way != Way::Rebuilt {
            report(&mut core, &decision, &last, &stands);
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

fn fresh(case: &Case, stands: &[Stand]) -> Core {
    let mut core = Core::new(case.config.clone());
    for event in &case.facts {
        let _ = core.apply(event.clone());
    }
    for stand in stands {
        let _ = core.apply(shown(stand));
    }
    core
}

/// Where everybody stands at the start: names of shared GPUs become cards, whole GPUs
/// take what is left.
fn place(case: &Case) -> Vec<Stand> {
    let mut stands: Vec<Stand> = case
        .tasks
        .iter()
        .map(|task| Stand {
            task: task.clone(),
            status: task.status.clone(),
            node: task.node.clone(),
            cards: Vec::new(),
            groups: Vec::new(),
            memory: 0,
        })
        .collect();
    let mut named: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut used: BTreeSet<String> = BTreeSet::new();
    let holds = |stand: &Stand| {
        ["Running", "Releasing", "StuckInReleasing", "Bound"].contains(&stand.status.as_str())
    };
    for stand in stands
        .iter_mut()
        .filter(|stand| holds(stand) && !stand.task.groups.is_empty())
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
            stand.groups.push(group);
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
        .filter(|stand| holds(stand) && stand.task.whole > 0)
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

/// A stand as the API server shows it.
fn shown(stand: &Stand) -> Event {
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

/// What the round's decision makes of the world.
fn outcome(stands: &mut [Stand], decision: &Decision, names: &mut usize) -> Vec<Stand> {
    let mut after: Vec<Stand> = stands.to_vec();
    let index: BTreeMap<String, usize> = after
        .iter()
        .enumerate()
        .map(|(index, stand)| (stand.task.pod.uid.to_string(), index))
        .collect();
    for action in &decision.actions {
        if let Action::Evict(evict) = action
            && let Some(index) = index.get(evict.pod.as_str())
        {
            after[*index].status = "Releasing".to_owned();
        }
    }
    for action in &decision.actions {
        let Action::Bind(bind) = action else {
            continue;
        };
        let Some(index) = index.get(bind.pod.as_str()) else {
            continue;
        };
        let cards: Vec<String> = bind
            .grants
            .iter()
            .flat_map(|grant| &grant.cards)
            .map(ToString::to_string)
            .collect();
        let memory = bind.grants.first().map_or(0, |grant| grant.memory.0);
        arrive(
            &mut after,
            *index,
            "Binding",
            bind.node.as_str(),
            cards,
            memory,
            names,
        );
    }
    for promise in &decision.promises {
        if let Some(index) = index.get(promise.pod.as_str()) {
            let cards = promise.cards.iter().map(ToString::to_string).collect();
            arrive(
                &mut after,
                *index,
                "Pipelined",
                promise.node.as_str(),
                cards,
                0,
                names,
            );
        }
    }
    after
}

/// A pod gets its place; its shared GPUs join a group or open one.
fn arrive(
    after: &mut [Stand],
    index: usize,
    status: &str,
    node: &str,
    cards: Vec<String>,
    memory: u64,
    names: &mut usize,
) {
    let is_share = after[index].task.whole == 0;
    let mut groups = Vec::new();
    for card in cards.iter().filter(|_| is_share) {
        let known = after.iter().enumerate().find_map(|(other, stand)| {
            let stays =
                ["Running", "Bound", "Binding", "Pipelined"].contains(&stand.status.as_str());
            let at = stand.cards.iter().position(|held| held == card)?;
            (other != index && stays)
                .then(|| stand.groups.get(at).cloned())
                .flatten()
        });
        groups.push(known.unwrap_or_else(|| {
            *names += 1;
            format!("opened-{names}")
        }));
    }
    let stand = &mut after[index];
    status.clone_into(&mut stand.status);
    stand.node = Some(node.to_owned());
    stand.cards = cards;
    stand.groups = groups;
    stand.memory = memory;
}

fn states(stands: &[Stand]) -> BTreeMap<String, State> {
    // Groups opened by the run are numbered per node, in task order.
    let mut given: BTreeSet<String> = stands
        .iter()
        .flat_map(|stand| stand.task.groups.clone())
        .collect();
    let mut renamed: BTreeMap<String, String> = BTreeMap::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    given.retain(|name| !name.starts_with("opened-"));
    let mut states = BTreeMap::new();
    for stand in stands {
        let groups = stand
            .groups
            .iter()
            .map(|group| {
                if !group.starts_with("opened-") {
                    return group.clone();
                }
                let node = stand.node.clone().unwrap_or_default();
                renamed
                    .entry(group.clone())
                    .or_insert_with(|| {
                        let count = counts.entry(node.clone()).or_default();
                        let name = format!("new{count}@{node}");
                        *count += 1;
                        name
                    })
                    .clone()
            })
            .collect();
        let stands_somewhere = !["Pending", "Gated"].contains(&stand.status.as_str());
        states.insert(
            stand.task.pod.uid.to_string(),
            State {
                status: stand.status.clone(),
                node: stand.node.clone().filter(|_| stands_somewhere),
                groups: if stands_somewhere { groups } else { Vec::new() },
            },
        );
    }
    states
}

fn feed_back(after: &[Stand]) -> Vec<Stand> {
    let mut stands = after.to_vec();
    for stand in &mut stands {
        match stand.status.as_str() {
            "Binding" => "Running".clone_into(&mut stand.status),
            "Releasing" if stand.task.delete_on_evict => {}
            "Releasing" | "Pipelined" => {
                "Pending".clone_into(&mut stand.status);
                stand.node = None;
                stand.cards.clear();
                stand.groups.clear();
            }
            _ => {}
        }
    }
    stands
}

/// Tells a living core how its actions ended and what changed.
fn report(core: &mut Core, decision: &Decision, before: &[Stand], after: &[Stand]) {
    for action in &decision.actions {
        let _ = core.apply(Event::Outcome(Outcome {
            decision: action.decision(),
            result: OutcomeResult::Confirmed,
        }));
    }
    for (old, new) in before.iter().zip(after) {
        let _ = old;
        let _ = core.apply(shown(new));
    }
}
