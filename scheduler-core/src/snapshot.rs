//! The state as the event list that rebuilds it.

use crate::cycle::commit;
use crate::event::{
    Activity, Backoff, CardPause, Event, Evicted, Evicting, Given, Life, Namespace, Outcome,
    OutcomeResult, Picked, Rest,
};
use crate::model::{NodeCards, Phase, Placement, Pod, PodRules};
use crate::state::job_row::GroupRow;
use crate::state::keys::{JobKey, TaskKey};
use crate::state::rows::{Seen, TaskRow};
use crate::state::task_cell::{Status, TaskCell};
use crate::state::{Progress, State};
use std::sync::Arc;

/// Each event once, in a defined order. They are not collected: those of a large cluster take
/// several times the state's memory.
pub(crate) fn events(state: &State, mut each: impl FnMut(Event)) {
    each(Event::Tick(state.now));
    each(Event::Sequence(state.open.sequence));
    for topology in state.topologies.values() {
        each(Event::Topology(topology.clone()));
    }
    for (name, labels) in &state.cells.pod_counts.namespaces {
        each(Event::Namespace(Namespace {
            name: Arc::clone(name),
            labels: labels.clone(),
        }));
    }
    let mut lost = Vec::new();
    let mut pauses = Vec::new();
    for (name, key) in &state.names.nodes {
        let Some(row) = state.nodes.get(*key) else {
            continue;
        };
        if let Some(node) = &row.node {
            each(Event::Node(node.clone()));
        }
        let cards: Vec<_> = row
            .cards
            .iter()
            .filter_map(|card| state.cards.get(*card)?.card.clone())
            .collect();
        if row.agent.is_some() || !cards.is_empty() || row.topology_manager.is_some() {
            each(Event::Cards(NodeCards {
                node: name.clone(),
                default_mode: row
                    .agent
                    .as_ref()
                    .map_or(crate::model::Mode::Mps, |agent| agent.default_mode),
                not_offering: row
                    .agent
                    .as_ref()
                    .and_then(|agent| agent.not_offering.clone()),
                cards,
                topology_manager: row.topology_manager.as_deref().cloned(),
            }));
            if row.agent.is_none() {
                lost.push(Event::AgentLost(name.clone()));
            }
        }
        for card in &row.cards {
            if let Some(row) = state.cards.get(*card)
                && let Some(pause) = &row.pause
                && let Some(until) = pause.until
            {
                pauses.push(Event::CardPause(CardPause {
                    node: name.clone(),
                    card: row.uuid.clone(),
                    refusals: pause.refusals,
                    until,
                    reason: Arc::clone(&pause.reason),
                }));
            }
        }
    }
    let queues = state.names.queues.values();
    queues
        .filter_map(|key| state.queues.get(*key)?.queue.clone())
        .for_each(|queue| each(Event::Queue(queue)));
    let jobs = state.names.jobs.values();
    jobs.filter_map(|key| {
        let row = state.jobs.get(*key)?;
        Some(row.group.as_ref()?.to_group(row.name.clone()))
    })
    .for_each(|group| each(Event::Group(group)));
    for volume in state.volumes.rows() {
        each(Event::Volume(volume.clone()));
    }
    for row in state.devices.pools() {
        each(Event::Devices(row.pool.clone()));
    }
    for allocation in state.devices.allocated() {
        each(Event::Allocated(allocation.clone()));
    }
    let mut after = Vec::new();
    for key in state.tasks_by_uid() {
        let Some(row) = state.tasks.get(key) else {
            continue;
        };
        let cell = state.cell(key);
        if let Some(pod) = pod(state, row, &cell) {
            each(Event::Pod(Box::new(pod)));
        }
        if let Some(refused) = &row.rare.refused {
            after.push(Event::Refused(refused.refusal.clone()));
        }
        after.extend(assumed(state, key, row, &cell).into_iter().flatten());
        after.extend(
            row.rare
                .evict_request
                .as_deref()
                .cloned()
                .map(Event::EvictRequest),
        );
        after.extend(state.idle_since(key).map(|since| {
            Event::Activity(Activity {
                pod: row.uid.of_pod(),
                idle_since: Some(since),
            })
        }));
        after.extend(evicting(state, row));
        after.extend(pause(row));
    }
    after.into_iter().for_each(&mut each);
    let mut given: Vec<_> = state.volumes.in_use().iter().collect();
    given.sort_unstable_by_key(|(claim, _)| *claim);
    for (claim, used) in given {
        if let Some(node) = state.nodes.get(used.node) {
            each(Event::Given(Given {
                claim: claim.clone(),
                node: node.name.clone(),
                volume: used.volume.clone(),
            }));
        }
    }
    picked(state).into_iter().for_each(&mut each);
    // Pauses after refusals are overwritten with their current state.
    pauses.into_iter().for_each(&mut each);
    lost.into_iter().for_each(&mut each);
    let jobs = state.names.jobs.values();
    jobs.filter_map(|key| life(state, *key)).for_each(&mut each);
    // After the queues, which end them.
    for (by, last) in &state.pauses.evicted {
        each(Event::Evicted(Evicted {
            by: by.clone(),
            active: last.active,
            times: last.times,
            until: last.until,
        }));
    }
    for ((of, cause), rest) in &state.pauses.searches {
        each(Event::Rest(Rest {
            of: of.clone(),
            cause: *cause,
            until: rest.until,
            steps: rest.allowance,
        }));
    }
}

/// Devices picked for claims that the API server does not show yet.
fn picked(state: &State) -> Vec<Event> {
    let mut picked: Vec<Picked> = state
        .devices
        .holds()
        .iter()
        .filter(|(slot, _)| !slot.again)
        .filter_map(|(slot, hold)| {
            let picked = hold.picked.as_ref()?;
            Some(Picked {
                claim: slot.claim.clone(),
                devices: Arc::clone(&picked.devices),
                nodes: picked.nodes.clone(),
            })
        })
        .collect();
    picked.sort_unstable_by(|one, other| one.claim.cmp(&other.claim));
    picked.into_iter().map(Event::Picked).collect()
}

/// What a job's group does not say of it.
fn life(state: &State, key: JobKey) -> Option<Event> {
    let row = state.jobs.get(key)?;
    let group = row.group.as_ref();
    let said = (
        group.and_then(|group| group.last_start.get()),
        group.and_then(GroupRow::stale_since),
        group.and_then(GroupRow::last_evicted),
        group.map(GroupRow::succeeded),
        None,
    );
    let known = (
        row.last_start.get(),
        row.stale_since.get(),
        row.last_evicted(),
        Some(row.succeeded()).filter(|known| group.is_some() || !known.is_empty()),
        state.gave_way(key),
    );
    let unreported = !state.outputs.unreported.is_empty()
        && state.outputs.unreported.contains(&row.name.clone());
    let same = said == known;
    (!same || unreported).then(|| {
        Event::Life(Life {
            of: row.name.clone(),
            last_start: known.0,
            stale_since: known.1,
            last_evicted: known.2,
            gave_way: known.4,
            succeeded: known.3.cloned().unwrap_or_default(),
            unreported,
        })
    })
}

/// A binding under way, and its answer where that has come.
fn assumed(
    state: &State,
    key: TaskKey,
    row: &TaskRow,
    cell: &TaskCell,
) -> Option<impl Iterator<Item = Event>> {
    let decision = match cell.status {
        Status::Assumed => *cell.decision.clone()?,
        // Evicted before it was seen bound: it holds its place until its deletion is seen. The
        // event for that comes after; if its binding is over, it takes the decision over.
        Status::Releasing if row.seen == Seen::Pending && row.rare.refused.is_none() => {
            state.open.binding_of(key).or(row.rare.evicting)?
        }
        _ => return None,
    };
    let spec = &state.specs.get(row.spec)?.spec;
    let bind = commit::bind(state, key, cell.node?, cell, spec, decision)?;
    let answered = state
        .open
        .get(&decision)
        .is_some_and(|open| open.evicts.is_none() && open.progress == Progress::Answered);
    let answer = answered.then_some(Event::Outcome(Outcome {
        decision,
        result: OutcomeResult::Confirmed,
    }));
    Some(std::iter::once(Event::Assumed(Box::new(bind))).chain(answer))
}

fn evicting(state: &State, row: &TaskRow) -> Option<Event> {
    let decision = row.rare.evicting?;
    let open = state.open.get(&decision);
    Some(Event::Evicting(Evicting {
        decision,
        pod: row.uid.of_pod(),
        cause: open
            .and_then(|open| open.evicts)
            .unwrap_or(crate::action::EvictCause::GrantRefused),
        in_favour_of: open.and_then(|open| open.in_favour_of.clone()),
        settled: open.is_none(),
        stays: row
            .rare
            .refused
            .as_ref()
            .is_some_and(|refused| refused.stays),
    }))
}

fn pause(row: &TaskRow) -> Option<Event> {
    if row.rare.pause.is_none() && row.rare.avoid.is_empty() {
        return None;
    }
    let pause = row.rare.pause.as_ref();
    Some(Event::Backoff(Backoff {
        pod: row.uid.of_pod(),
        refusals: pause.map_or(0, |pause| pause.refusals),
        until: pause.and_then(|pause| pause.until),
        reason: pause.map_or_else(|| Arc::from(""), |pause| Arc::clone(&pause.reason)),
        in_favour_of: pause.and_then(|pause| pause.in_favour_of.clone()),
        avoid: row.rare.avoid.clone(),
    }))
}

/// A pod as in its last event.
pub(crate) fn pod(state: &State, row: &TaskRow, cell: &TaskCell) -> Option<Pod> {
    let spec = &state.specs.get(row.spec)?.spec;
    let key = state.task_of(row.uid.clone())?;
    let placement = || {
        let (node, grants) = match &row.rare.refused {
            Some(refused) => (refused.node, refused.grants.clone()),
            None => (cell.node?, commit::grants(state, cell.holds())),
        };
        Some(Placement {
            node: state.nodes.get(node)?.name.clone(),
            grants,
            decision: row.rare.granted_by,
            front: cell.front,
        })
    };
    let phase = match row.seen {
        Seen::Pending => Phase::Pending,
        Seen::Bound => Phase::Bound(placement()?),
        Seen::Running => Phase::Running(placement()?),
        Seen::Releasing => Phase::Releasing(placement()),
        Seen::Stuck => Phase::Stuck(placement()?),
        Seen::Succeeded => Phase::Succeeded,
        Seen::Failed => Phase::Failed,
    };
    Some(Pod {
        uid: row.uid.of_pod(),
        namespace: Arc::clone(&row.facts.namespace),
        name: Arc::clone(&row.name),
        ours: row.facts.ours,
        queue: row.facts.queue.clone(),
        group: state.group_name(row),
        sub_group: row.facts.set.clone(),
        priority: row.facts.priority,
        preemptibility: row.facts.preemptibility,
        safe_to_evict: row.facts.safe_to_evict,
        never_preempts: row.facts.never_preempts,
        immovable: row.facts.immovable,
        created: row.created,
        task_order: row.facts.task_order,
        labels: row.labels.to_labels(),
        cpu: spec.cpu,
        memory: spec.memory,
        extended: spec.extended.clone(),
        gpus: spec.gpus.clone(),
        aligned: spec.aligned.clone(),
        claims: spec.claims.clone(),
        devices: state.devices.of(key).to_vec(),
        attachments: spec.attachments.clone(),
        nodes: spec.rules.clone(),
        tolerations: spec.tolerations.clone(),
        pods: spec
            .others
            .as_ref()
            .map_or_else(PodRules::default, |others| others.rules.clone()),
        ports: spec.ports.clone(),
        gated: row.gated,
        unsupported: spec.unsupported.clone(),
        lacks: spec.lacks.clone(),
        phase,
    })
}
