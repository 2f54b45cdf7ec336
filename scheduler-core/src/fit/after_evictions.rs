//! Could a pod fit on a node if every permitted victim were evicted? An upper bound for all sets of
//! victims.
//!
//! Input: the state, a request, a node, and the permitted victims. Output: yes or no. Changes
//! nothing. All other pods stay. Every rule here is one of [`super::node`] or weaker: with less on a
//! node and its cards, none of them refuses what it accepted before. A "no" therefore means that no
//! set of victims helps on this node; a "yes" means perhaps.

use crate::fit::{card, numa, resources, rules};
use crate::model::{Ask, Front, Mode};
use crate::state::card_use::CardSums;
use crate::state::keys::{NodeKey, TaskKey};
use crate::state::rows::NodeRow;
use crate::state::spec::counted_gpus;
use crate::state::spec_row::SpecRow;
use crate::state::task_cell::Status;
use crate::state::{State, footprint};

/// What the ones that stay hold of the node.
#[derive(Default)]
struct Remaining {
    cpu: u128,
    memory: u128,
    pods: u128,
    /// Whole GPUs that are only counted.
    gpus: u128,
    /// Of each resource that is asked for, in its order.
    extended: Vec<u128>,
    /// A port that it wants is taken.
    ports: bool,
    /// Of each card, in the node's order.
    cards: Vec<CardSums>,
}

/// False: it does not fit as long as the pods stay that may not be evicted.
pub(crate) fn could_fit(
    state: &State,
    spec: &SpecRow,
    key: NodeKey,
    may_go: &dyn Fn(TaskKey) -> bool,
) -> bool {
    let Some(row) = state.nodes.get(key) else {
        return false;
    };
    let Some(node) = &row.node else {
        return false;
    };
    if rules::rules(row, &spec.spec, spec.is_gpu_work()).is_err()
        || spec.wants_gpus() && rules::mig_strategy(row, spec).is_err()
        || !state.volumes.could_serve(&spec.spec.claims, key)
        || !state.could_serve_devices(&spec.spec, key, Front::Plugin)
    {
        return false;
    }
    // As `front_of` has it.
    let by_claim = spec.either > 0
        && node.gpus == 0
        && state.could_serve_devices(&spec.spec, key, Front::Claim);
    let front = if by_claim {
        Front::Claim
    } else {
        Front::Plugin
    };
    if !numa::could_admit(state, &spec.spec, key, front) {
        return false;
    }
    let of_plugin = spec.gpus_by(front);
    let on_cards = of_plugin > 0 || spec.shares;
    let silent = node.managed && row.agent.is_none();
    let offers = node.managed
        && row
            .agent
            .as_ref()
            .is_some_and(|agent| agent.not_offering.is_none());
    if on_cards && silent || spec.shares && !offers {
        return false;
    }
    let remaining = remaining(state, spec, key, row, may_go);
    let has = |has: u64, taken: u128, wanted: u64| {
        wanted == 0 || taken + u128::from(wanted) <= u128::from(has)
    };
    let asked = spec.spec.extended.iter().zip(&remaining.extended);
    !remaining.ports
        && has(node.pods, remaining.pods, 1)
        && has(node.cpu.0, remaining.cpu, spec.spec.cpu.0)
        && has(node.memory.0, remaining.memory, spec.spec.memory.0)
        && asked.into_iter().all(|((name, amount), taken)| {
            let there = node.extended.get(name).copied().unwrap_or(0);
            resources::is_token(node, name) || has(there, *taken, *amount)
        })
        && (of_plugin == 0 || whole(state, row, &remaining) >= i128::from(of_plugin))
        && spec.spec.gpus.iter().all(|ask| match &ask.ask {
            Ask::Whole(_) => true,
            Ask::Share(share) => {
                let default = row
                    .agent
                    .as_ref()
                    .map_or(Mode::Mps, |agent| agent.default_mode);
                let would_do = row
                    .cards
                    .iter()
                    .zip(&remaining.cards)
                    .filter(|(key, beside)| {
                        state.cards.get(**key).is_some_and(|card| {
                            card::modes(share, card, default)
                                .into_iter()
                                .any(|mode| card::share(state, card, **beside, share, mode).is_ok())
                        })
                    });
                would_do.count() >= share.devices as usize
            }
        })
}

/// Whole GPUs that would be free.
fn whole(state: &State, row: &NodeRow, remaining: &Remaining) -> i128 {
    let managed = row.node.as_ref().is_some_and(|node| node.managed);
    let there = if managed {
        row.cards
            .iter()
            .zip(&remaining.cards)
            .filter(|(key, beside)| {
                let card = state.cards.get(**key);
                beside.holds() == 0 && card.is_some_and(|card| card::whole_in_time(state, card))
            })
            .count()
    } else {
        row.node.as_ref().map_or(0, |node| node.gpus as usize)
    };
    i128::try_from(there).unwrap_or(0) - i128::try_from(remaining.gpus).unwrap_or(i128::MAX)
}

fn remaining(
    state: &State,
    spec: &SpecRow,
    key: NodeKey,
    row: &NodeRow,
    may_go: &dyn Fn(TaskKey) -> bool,
) -> Remaining {
    let mut remaining = Remaining {
        extended: vec![0; spec.spec.extended.len()],
        cards: vec![CardSums::default(); row.cards.len()],
        ..Remaining::default()
    };
    for task in state.index.pods_on(key) {
        let (Some(cell), Some(own)) = (
            state.cells.tasks.get(task),
            state
                .tasks
                .get(task)
                .and_then(|row| state.specs.get(row.spec)),
        ) else {
            continue;
        };
        let stands = cell.status.is_allocated() || cell.status == Status::Stuck;
        if cell.node != Some(key) || !stands || cell.status.is_allocated() && may_go(task) {
            continue;
        }
        remaining.cpu += u128::from(own.spec.cpu.0);
        remaining.memory += u128::from(own.spec.memory.0);
        remaining.pods += 1;
        remaining.gpus += u128::from(counted_gpus(&own.spec, cell.front, cell.holds()));
        for (name, sum) in spec.spec.extended.keys().zip(&mut remaining.extended) {
            *sum += u128::from(own.spec.extended.get(name).copied().unwrap_or(0));
        }
        let mut ports = own.spec.ports.iter();
        remaining.ports |=
            ports.any(|port| spec.spec.ports.iter().any(|own| own.conflicts_with(port)));
        for (card, takes) in footprint::of_pod(cell.holds()) {
            let at = row.cards.iter().position(|own| *own == card);
            if let Some(sums) = at.and_then(|at| remaining.cards.get_mut(at)) {
                *sums = sums.plus(takes.sums);
            }
        }
    }
    remaining
}
