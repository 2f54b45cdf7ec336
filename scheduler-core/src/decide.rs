//! One decision: who goes where, now.
//!
//! In: the state. Out: a [`Decision`], and the state as if its actions had succeeded.
//! 1. Pauses that are over end.
//! 2. Pods whose grant an agent refused for good are evicted.
//! 3. Waiting pods, in order, are each given the best place that there is.
//! 4. Those that stay have a reason; changed reasons are returned.
//!
//! A request signature that fits nowhere is not looked at again until something was
//! freed or changed ([`State::loosened`]).

use crate::action::{Action, Bind, Decision, Evict, EvictCause, PodReason, ReasonKind, Received};
use crate::core::Config;
use crate::explain::MAX_LINE;
use crate::fit::{self, Seat};
use crate::ids::DecisionId;
use crate::model::{Ask, ContainerGrant};
use crate::reason::{self, NodeVerdict};
use crate::score;
use crate::state::cell::{Status, TaskCell};
use crate::state::rows::{Hold, NoFit, NodeKey, Spec, SpecKey, TaskKey, TaskRow};
use crate::state::{OpenDecision, State};
use std::sync::Arc;

/// What one decide leaves for the next.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// [`State::stirred`] at the last decide: nothing to do while it has not moved.
    stirred: Option<u64>,
}

/// Decides.
pub(crate) fn decide(state: &mut State, config: &Config, memory: &mut Memory) -> Decision {
    state.end_due_pauses();
    let mut decision = Decision::default();
    if memory.stirred != Some(state.stirred) {
        evict_refused(state, config, &mut decision);
        allocate(state, config, &mut decision);
        memory.stirred = Some(state.stirred);
    }
    decision.wake_at = wake_at(state);
    decision
}

/// The next pause that ends.
fn wake_at(state: &State) -> Option<crate::units::Time> {
    let task = state.task_pauses.first().map(|(until, _)| *until);
    let card = state.card_pauses.first().map(|(until, _)| *until);
    task.into_iter().chain(card).min()
}

fn evict_refused(state: &mut State, config: &Config, decision: &mut Decision) {
    for (_, task) in std::mem::take(&mut state.to_evict) {
        let Some((uid, namespace, name, refusal)) = state.tasks.get(task).and_then(|row| {
            let refused = row.refused.as_ref()?;
            Some((
                row.uid.clone(),
                Arc::clone(&row.namespace),
                Arc::clone(&row.name),
                refused.refusal.clone(),
            ))
        }) else {
            continue;
        };
        let id = next_id(state, config);
        state.open.insert(
            id,
            OpenDecision {
                task,
                evicts: Some(EvictCause::GrantRefused),
                settled: false,
                timed_out: false,
            },
        );
        let message = format!(
            "Pod {name} was taken off node {}: {}",
            refusal.node, refusal.reason
        );
        decision.actions.push(Action::Evict(Evict {
            decision: id,
            pod: uid,
            namespace,
            name,
            cause: EvictCause::GrantRefused,
            message: Arc::from(message),
            in_favour_of: None,
        }));
    }
}

pub(crate) fn next_id(state: &mut State, config: &Config) -> DecisionId {
    state.sequence += 1;
    DecisionId {
        epoch: config.epoch,
        sequence: state.sequence,
    }
}

fn allocate(state: &mut State, config: &Config, decision: &mut Decision) {
    let waiting: Vec<TaskKey> = state.pending.iter().map(|(_, task)| *task).collect();
    for task in waiting {
        let Some(row) = state.tasks.get(task) else {
            continue;
        };
        let spec_key = row.spec;
        let said = match hindrance(state, row) {
            Some(said) => said,
            None => match place(state, config, task, spec_key, decision) {
                Ok(bind) => {
                    decision.actions.push(Action::Bind(bind));
                    continue;
                }
                Err(line) => (ReasonKind::Unschedulable, line),
            },
        };
        say(state, task, said, decision);
    }
    decision
        .reasons
        .sort_by(|one, other| one.pod.cmp(&other.pod));
}

/// Why a pod is not even tried.
pub(crate) fn hindrance(state: &State, row: &TaskRow) -> Option<(ReasonKind, Arc<str>)> {
    let spec = state.specs.get(row.spec).map(|row| &row.spec)?;
    let said = |kind, line: String| Some((kind, Arc::from(reason::cut(line, MAX_LINE))));
    if row.gated {
        return said(
            ReasonKind::Gated,
            "Scheduling is blocked by the pod's scheduling gates".to_owned(),
        );
    }
    if let Some(bad) = &spec.bad {
        return said(ReasonKind::BadRequest, bad.to_string());
    }
    if !spec.unsupported.is_empty() {
        return said(
            ReasonKind::Unsupported,
            format!(
                "The pod uses rules that are not supported: {}",
                spec.unsupported.join(", ")
            ),
        );
    }
    let job = row.job.and_then(|job| state.jobs.get(job))?;
    if !job.single && job.group.is_none() {
        return said(
            ReasonKind::GroupDoesNotExist,
            format!("Pod group '{}' does not exist", job.name),
        );
    }
    let queue = job.group.as_ref().map_or(&row.queue, |group| &group.queue);
    if !state.queue_exists(queue) {
        return said(
            ReasonKind::QueueDoesNotExist,
            format!("Queue '{queue}' does not exist"),
        );
    }
    if let Some(pause) = &row.pause
        && pause.until.is_none_or(|until| until > state.now)
    {
        return said(
            ReasonKind::Backoff,
            format!("Binding was refused: {}", pause.reason),
        );
    }
    None
}

/// Gives a pod the best place there is, or says why there is none.
fn place(
    state: &mut State,
    config: &Config,
    task: TaskKey,
    spec_key: SpecKey,
    decision: &mut Decision,
) -> Result<Bind, Arc<str>> {
    let Some(spec_row) = state.specs.get(spec_key) else {
        return Err(Arc::from(""));
    };
    if let Some(no_fit) = spec_row
        .no_fit
        .as_ref()
        .filter(|no_fit| no_fit.at == state.loosened)
    {
        return Err(Arc::clone(&no_fit.line));
    }
    let spec = Arc::clone(&spec_row.spec);
    let avoid = state
        .tasks
        .get(task)
        .map(|row| row.avoid.clone())
        .unwrap_or_default();
    decision.steps += state.nodes.len() as u64;
    let best = state
        .node_names
        .iter()
        .filter_map(|(name, key)| {
            let seat = fit::node(state, &spec, *key, &config.bases).ok()?;
            let score = score::node(state, &spec, *key, &seat);
            Some(((!avoid.contains(name), score), *key, seat))
        })
        // The first of equals: nodes come in order of name.
        .reduce(|best, next| if next.0 > best.0 { next } else { best });
    match best {
        Some((_, node, seat)) => Ok(take(state, config, task, node, seat, &spec)),
        None => {
            let line = no_fit_line(state, config, &spec);
            let at = state.loosened;
            if let Some(row) = state.specs.get_mut(spec_key) {
                row.no_fit = Some(NoFit {
                    at,
                    line: Arc::clone(&line),
                });
            }
            Err(line)
        }
    }
}

/// Why a request fits on no node, in one line.
pub(crate) fn no_fit_line(state: &State, config: &Config, spec: &Spec) -> Arc<str> {
    let verdicts: Vec<(&str, NodeVerdict)> = state
        .node_names
        .iter()
        .filter(|(_, key)| state.nodes.get(**key).is_some_and(|row| row.node.is_some()))
        .filter_map(|(name, key)| {
            let no = fit::node(state, spec, *key, &config.bases).err()?;
            Some((name.as_str(), no))
        })
        .collect();
    Arc::from(reason::join(&verdicts, MAX_LINE))
}

fn take(
    state: &mut State,
    config: &Config,
    task: TaskKey,
    node: NodeKey,
    seat: Seat,
    spec: &Spec,
) -> Bind {
    let id = next_id(state, config);
    let bind = bind(state, task, node, &seat.holds, spec, id);
    state.transition(
        task,
        TaskCell {
            status: Status::Assumed,
            node: Some(node),
            holds: (!seat.holds.is_empty()).then(|| Arc::from(seat.holds)),
            decision: Some(id),
        },
    );
    state.open.insert(
        id,
        OpenDecision {
            task,
            evicts: None,
            settled: false,
            timed_out: false,
        },
    );
    if let Some(row) = state.tasks.get_mut(task) {
        row.said = None;
    }
    bind
}

/// The action for a task that stands, or is about to stand, on a node with those holds.
pub(crate) fn bind(
    state: &State,
    task: TaskKey,
    node: NodeKey,
    holds: &[Hold],
    spec: &Spec,
    decision: DecisionId,
) -> Bind {
    let (uid, namespace, name) = state.tasks.get(task).map_or_else(
        || (crate::ids::PodUid::new(""), Arc::from(""), Arc::from("")),
        |row| {
            (
                row.uid.clone(),
                Arc::clone(&row.namespace),
                Arc::clone(&row.name),
            )
        },
    );
    let (node_name, node_uid) = state.nodes.get(node).map_or_else(
        || (crate::ids::NodeName::new(""), crate::ids::NodeUid::new("")),
        |row| {
            let uid = row.node.as_ref().map(|node| node.uid.clone());
            (
                row.name.clone(),
                uid.unwrap_or_else(|| crate::ids::NodeUid::new("")),
            )
        },
    );
    let received = if spec.gpus.iter().any(|ask| matches!(ask.ask, Ask::Share(_))) {
        Received::Fraction
    } else if crate::state::transition::whole_gpus(spec) > 0 {
        Received::Regular
    } else {
        Received::Nothing
    };
    Bind {
        decision,
        pod: uid,
        namespace,
        name,
        node: node_name,
        node_uid,
        grants: grants(state, holds),
        received,
    }
}

/// Holds as the content of a grant: one entry per container, its cards in the node's
/// order.
pub(crate) fn grants(state: &State, holds: &[Hold]) -> Vec<ContainerGrant> {
    let mut grants: Vec<ContainerGrant> = Vec::new();
    for hold in holds {
        let Some(card) = state.cards.get(hold.card).map(|row| row.uuid.clone()) else {
            continue;
        };
        if let Some(grant) = grants
            .iter_mut()
            .find(|grant| grant.container == hold.container)
        {
            grant.cards.push(card);
            grant.memory = grant.memory.min(hold.limit);
        } else {
            grants.push(ContainerGrant {
                container: hold.container.clone(),
                cards: vec![card],
                memory: hold.limit,
                compute: hold.compute,
                mode: hold.mode,
                note: hold.note.clone(),
            });
        }
    }
    grants
}

/// Reports a reason when it is not the one that was reported last.
fn say(state: &mut State, task: TaskKey, said: (ReasonKind, Arc<str>), decision: &mut Decision) {
    let Some(row) = state.tasks.get(task) else {
        return;
    };
    if row.said.as_ref() == Some(&said) {
        return;
    }
    let mark = state
        .group_of(row)
        .is_none_or(|group| group.mark_unschedulable);
    decision.reasons.push(PodReason {
        pod: row.uid.clone(),
        namespace: Arc::clone(&row.namespace),
        name: Arc::clone(&row.name),
        mark,
        kind: said.0,
        line: Arc::clone(&said.1),
    });
    if let Some(row) = state.tasks.get_mut(task) {
        row.said = Some(said);
    }
}
