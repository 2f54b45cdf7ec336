//! What must hold after every event and every decision: sums are what the tasks add up to, indexes
//! say what the cells say, and our decisions grant no card beyond its memory.

mod devices;
mod products;
mod sums;

use crate::action::{Action, Decision};
use crate::fit::card as fit;
use crate::groups;
use crate::ids::GroupName;
use crate::model::Preemptibility;
use crate::state::State;
use crate::state::job_row::JobRow;
use crate::state::keys::{JobKey, TaskKey};
use crate::state::task_cell::{Status, TaskCell};
use std::collections::{BTreeMap, BTreeSet};

/// Every contradiction, one sentence each.
pub(crate) fn check(state: &State) -> Vec<String> {
    let mut wrong: Vec<String> = state.outputs.contradictions.iter().cloned().collect();
    indexes(state, &mut wrong);
    sums::check(state, &mut wrong);
    products::check(state, &mut wrong);
    devices::check(state, &mut wrong);
    wrong
}

fn indexes(state: &State, wrong: &mut Vec<String>) {
    if state.tasks.len() != state.cells.tasks.len() || state.tasks.len() != state.names.tasks.len()
    {
        wrong.push("tasks, cells and names are not the same number".to_owned());
    }
    let mut names = state.names.jobs.iter();
    let is_its = |(name, key): (&GroupName, &JobKey)| {
        let row = state.jobs.get(*key);
        row.is_some_and(|row| row.name == *name)
    };
    if state.jobs.len() != state.names.jobs.len() || !names.all(is_its) {
        wrong.push("jobs and their names are not the same".to_owned());
    }
    let queues = state.names.queues.values();
    let queues = queues.filter_map(|key| state.queues.get(*key));
    let in_tree = queues.filter(|row| !row.chain.is_empty());
    if !state.changes.queues
        && !in_tree
            .map(|row| row.place)
            .is_sorted_by(|one, other| one < other)
    {
        wrong.push("queues are out of the order of their names".to_owned());
    }
    let waits = |cell: &TaskCell| cell.status == Status::Pending;
    let waiting = state.cells.tasks.iter().filter(|(_, cell)| waits(cell));
    let waiting = waiting.count();
    let indexed = state.index.pending.len();
    let is_waiting = |task: &TaskKey| state.cells.tasks.get(*task).is_some_and(waits);
    if waiting != indexed || !state.index.pending.iter().all(is_waiting) {
        wrong.push(format!("{waiting} tasks wait, the index has {indexed}"));
    }
    for (key, cell) in &state.cells.tasks {
        if cell.status == Status::Detached {
            wrong.push("a task is left detached".to_owned());
        }
        if let Some(node) = cell.node
            && !state
                .index
                .on_node
                .get(node)
                .is_some_and(|tasks| tasks.contains(&key))
        {
            wrong.push("a task is missing on its node".to_owned());
        }
        if (cell.status == Status::Assumed) != cell.decision.is_some() {
            wrong.push("an assumed task has no decision, or another has one".to_owned());
        }
    }
    let mut stand: BTreeMap<crate::state::keys::JobKey, u32> = BTreeMap::new();
    for (key, cell) in &state.cells.tasks {
        if let Some(row) = state.tasks.get(key)
            && let Some(job) = row.job
            && cell.status.is_allocated()
            && state.preemptibility(row) != Preemptibility::NonPreemptible
            // Pods of a deleted group may stay placed for a while: the group is in no queue.
            && state.jobs.get(job).is_some_and(|row| row.queue.is_some())
        {
            *stand.entry(job).or_default() += 1;
        }
    }
    let listed: BTreeMap<_, u32> = state
        .index
        .standing
        .values()
        .flat_map(BTreeMap::values)
        .flatten()
        .map(|job| {
            (
                *job,
                state.index.placed_at.get(*job).map_or(0, |at| at.pods),
            )
        })
        .collect();
    if stand != listed {
        wrong.push("jobs with standing pods are not those that are listed".to_owned());
    }
    let standing: usize = state.index.on_node.values().map(BTreeSet::len).sum();
    let placed = state
        .cells
        .tasks
        .iter()
        .filter(|(_, cell)| cell.node.is_some())
        .count();
    if standing != placed {
        wrong.push(format!("{placed} tasks are placed, nodes list {standing}"));
    }
    if state
        .specs
        .values()
        .map(|row| row.users as usize)
        .sum::<usize>()
        != state.tasks.len()
    {
        wrong.push("request signatures have other users than tasks".to_owned());
    }
    let untold = |job: &JobRow| {
        let view = groups::view(state, job);
        let digest = view.map(|view| groups::digest(job, &view));
        !job.single && !job.is_changed && job.taken != digest
    };
    if state.jobs.values().any(untold) {
        wrong.push("a group has changed and is not among those that have".to_owned());
    }
    if state.in_trial() {
        wrong.push("a trial was left open".to_owned());
    }
}

/// Cards of this decision are within their memory.
pub(crate) fn check_decided(state: &State, decision: &Decision) -> Vec<String> {
    let mut wrong = Vec::new();
    products::check_decided(state, decision, &mut wrong);
    devices::check_decided(state, decision, &mut wrong);
    for action in &decision.actions {
        let Action::Bind(bind) = action else {
            continue;
        };
        for uuid in bind.grants.iter().flat_map(|grant| &grant.cards) {
            let node = state.names.nodes.get(&bind.node).copied();
            let Some((row, used)) = node
                .and_then(|node| state.names.cards.on(uuid, node))
                .and_then(|key| Some((state.cards.get(key)?, *state.cells.cards.get(key)?)))
            else {
                wrong.push(format!("card {uuid} is granted and not known"));
                continue;
            };
            if let Some(owner) = fit::elsewhere(state, row) {
                wrong.push(format!(
                    "card {uuid} is granted through {}, and {owner} has it",
                    bind.node
                ));
            }
            if !fit::within(row, used) {
                wrong.push(format!("card {uuid} is granted beyond what it has"));
            }
            if used.held.modes.iter().filter(|count| **count > 0).count() != 1 {
                wrong.push(format!("card {uuid} is in two modes"));
            }
        }
    }
    wrong
}
