//! Pod groups come, change and go.

use crate::event::Life;
use crate::gang::default_set;
use crate::ids::{GroupName, QueueName};
use crate::model::{PodGroup, SubGroup};
use crate::problem::Problem;
use crate::state::job_row::GroupRow;
use crate::state::keys::JobKey;
use crate::state::rows::{Seen, TaskRow};
use crate::state::{DetachedPod, State};
use std::collections::BTreeSet;

pub(super) fn upsert(state: &mut State, group: PodGroup, problems: &mut Vec<Problem>) {
    let mut names = BTreeSet::new();
    let mut twice = false;
    collect(&group.root, &mut names, &mut twice, 0);
    if twice || names.is_empty() {
        problems.push(Problem::GroupTree(group.name.clone()));
    }
    let key = state.job(&group.name, false);
    let known = state.jobs.get(key).and_then(|row| row.group.as_ref());
    if known.is_some_and(|known| known.to_group(group.name.clone()) == group) {
        return;
    }
    change(state, key, Some(group));
}

pub(super) fn gone(state: &mut State, name: &GroupName, problems: &mut Vec<Problem>) {
    let Some(key) = state.job_of(name) else {
        problems.push(Problem::Unknown {
            what: "group",
            name: name.shared(),
        });
        return;
    };
    change(state, key, None);
    state.release_job(key);
}

/// As a snapshot says it.
pub(super) fn life(state: &mut State, life: &Life) {
    let Some(key) = state.job_of(&life.of) else {
        return;
    };
    if let Some(row) = state.jobs.get_mut(key) {
        row.last_start = life.last_start.into();
        row.stale_since = life.stale_since.into();
        if life.last_evicted.is_some() || !life.succeeded.is_empty() {
            let past = row.past_mut();
            past.last_evicted = life.last_evicted;
            past.succeeded.clone_from(&life.succeeded);
        }
    }
    if let Some(at) = life.gave_way {
        state.note_gave_way(key, at);
    }
    state.check_staleness(key);
    state.refresh_core(key);
    if life.unreported {
        state.outputs.unreported.insert(life.of.clone());
    }
}

/// Notes that a pod of the job is gone. A succeeded one is counted as such. Once its last pod is
/// gone, the job begins again, as a workload does that its controller restarts.
pub(super) fn member_gone(state: &mut State, key: JobKey, pod: &TaskRow) {
    let Some(row) = state.jobs.get_mut(key) else {
        return;
    };
    let needs_more = match &row.group {
        Some(group) => !group.spec.needs_one(),
        None => !row.single,
    };
    if row.tasks.is_empty() {
        if !row.succeeded().is_empty() {
            row.past_mut().succeeded.clear();
        }
    } else if pod.seen == Seen::Succeeded && needs_more {
        let set = pod.facts.set.clone().unwrap_or_else(default_set);
        let gone = row.past_mut().succeeded.entry(set).or_default();
        *gone = gone.saturating_add(1);
    }
    if row.owes_succeeded() {
        state.outputs.unreported.insert(row.name.clone());
    }
    state.refresh_core(key);
    state.check_staleness(key);
}

fn collect(
    group: &SubGroup,
    names: &mut BTreeSet<crate::ids::SetName>,
    twice: &mut bool,
    depth: u32,
) {
    // Deeper than anyone nests by hand; a tree that came in as data has no cycles.
    if depth > 64 {
        *twice = true;
        return;
    }
    for set in &group.sets {
        *twice |= !names.insert(set.name.clone());
    }
    for inner in &group.groups {
        collect(inner, names, twice, depth + 1);
    }
}

/// A group's facts decide its tasks' order and queue: they are lifted out and put back.
fn change(state: &mut State, key: JobKey, group: Option<PodGroup>) {
    let lifted = detach(state, key);
    let queue = match &group {
        Some(group) => Some(group.queue.clone()),
        None => queue_of_pods(state, key),
    };
    if let Some(row) = state.jobs.get_mut(key) {
        let said = group.as_ref().and_then(|group| group.last_start);
        row.last_start = said.max(row.last_start.get()).into();
        let said = group.as_ref().and_then(|group| group.stale_since);
        row.stale_since = said.or(row.stale_since.get()).into();
        let said = group.as_ref().and_then(|group| group.last_evicted);
        if said > row.last_evicted() {
            row.past_mut().last_evicted = said;
        }
        // The object's counts are taken only when the group first appears. Later the core's counts
        // are newer: the object may lack pods that have gone since it was written.
        if row.group.is_none() {
            for (set, said) in group.iter().flat_map(|group| &group.succeeded) {
                let known = row.past_mut().succeeded.entry(set.clone()).or_default();
                *known = (*known).max(*said);
            }
        }
        row.group = group.map(|group| {
            let mut group = GroupRow::of(group);
            group.spec = state.interner.group(group.spec);
            group
        });
        if row.owes_succeeded() {
            state.outputs.unreported.insert(row.name.clone());
        }
    }
    state.set_job_queue(key, queue.as_ref());
    put_back(state, lifted);
    state.group_changed(key);
    state.check_staleness(key);
    state.changes.capacity_grew();
}

/// A pod of the job came, changed or went. While the job's group does not exist, its placed pods
/// count against the quota of the queue that they were granted in. So deleting the group of
/// running pods frees no quota.
pub(super) fn charge_by_pods(state: &mut State, key: JobKey) {
    let row = state.jobs.get(key);
    if row.is_none_or(|row| row.single || row.group.is_some()) {
        return;
    }
    let queue = queue_of_pods(state, key);
    let charged = row.and_then(|row| state.queues.get(row.queue?));
    if charged.map(|row| &row.name) == queue.as_ref() {
        return;
    }
    let lifted = detach(state, key);
    state.set_job_queue(key, queue.as_ref());
    put_back(state, lifted);
    state.changes.capacity_grew();
}

/// The queue of the first of its placed pods.
fn queue_of_pods(state: &State, key: JobKey) -> Option<QueueName> {
    let tasks = &state.jobs.get(key)?.tasks;
    let stands = |row: &TaskRow| {
        matches!(
            row.seen,
            Seen::Bound | Seen::Running | Seen::Releasing | Seen::Stuck
        )
    };
    let mut rows = tasks.iter().filter_map(|task| state.tasks.get(*task));
    rows.find(|row| stands(row))
        .map(|row| row.facts.queue.clone())
}

fn detach(state: &mut State, key: JobKey) -> Vec<DetachedPod> {
    let tasks = state.jobs.get(key).map(|row| row.tasks.clone());
    let tasks = tasks.unwrap_or_default().into_iter();
    tasks.map(|task| state.detach(task)).collect()
}

/// The other way round: the first one knew best what a claim of several pods had.
fn put_back(state: &mut State, lifted: Vec<DetachedPod>) {
    for lifted in lifted.into_iter().rev() {
        state.put_back(lifted);
    }
}
