//! Outcomes of actions, and refusals by agents.

use crate::action::Bind;
use crate::apply::pod::holds;
use crate::config::Config;
use crate::cycle::commit;
use crate::event::{Backoff, CardPause, EvictRequest, Evicting, Outcome, OutcomeResult, Refusal};
use crate::ids::GroupName;
use crate::problem::Problem;
use crate::state::keys::{CardKey, NodeKey, TaskKey};
use crate::state::rows::{Pause, Refused, Seen};
use crate::state::task_cell::{Status, TaskCell};
use crate::state::uid::Uid;
use crate::state::{OpenDecision, Progress, State};
use crate::units::{Duration, Time};
use std::sync::Arc;

pub(super) fn outcome(
    state: &mut State,
    config: &Config,
    outcome: Outcome,
    problems: &mut Vec<Problem>,
) {
    let Some(open) = state.open.get_mut(&outcome.decision) else {
        problems.push(Problem::UnknownDecision(outcome.decision));
        return;
    };
    let task = open.task;
    let (evicts, in_favour_of) = (open.evicts, open.in_favour_of.clone());
    match outcome.result {
        OutcomeResult::Confirmed => {
            // An evicted pod stays on its way out until it is seen gone, or waiting.
            if evicts.is_some() || open.progress == Progress::Seen {
                state.open.remove(&outcome.decision);
            } else {
                open.progress = Progress::Answered;
            }
        }
        OutcomeResult::Stays => {
            state.open.remove(&outcome.decision);
            stays(state, task);
        }
        OutcomeResult::Refused { reason, retryable } => {
            state.open.remove(&outcome.decision);
            if let Some(cause) = evicts {
                evict_again(state, task);
                if cause.makes_room() {
                    postpone_eviction(state, config, task, in_favour_of, reason);
                }
                return state.changes.wake();
            }
            let cell = state.cells.tasks.get(task).cloned().unwrap_or_default();
            if cell.status == Status::Assumed && cell.decision.as_deref() == Some(&outcome.decision)
            {
                take_back(state, config, task, &cell, reason, retryable);
            }
        }
    }
    state.changes.wake();
}

/// A pod that a disruption budget protects now: it is tried again after a pause, and in the
/// meantime other victims are searched.
fn postpone_eviction(
    state: &mut State,
    config: &Config,
    task: TaskKey,
    in_favour_of: Option<GroupName>,
    reason: Arc<str>,
) {
    // It has not been evicted: other victims are tried at once.
    let favoured = in_favour_of.as_ref();
    if let Some(last) = favoured.and_then(|job| state.pauses.evicted.get_mut(job)) {
        last.times = last.times.saturating_sub(1);
        last.until = state.now;
    }
    let refusals = refusals(state, task);
    let until = Some(state.now.after(pause_length(config, refusals)));
    set_pause(
        state,
        task,
        Pause {
            refusals,
            until,
            reason,
            in_favour_of,
        },
    );
}

/// How many there were in a row, with the one that is counted now.
fn refusals(state: &State, task: TaskKey) -> u32 {
    let row = state.tasks.get(task);
    row.and_then(|row| row.rare.pause.as_ref())
        .map_or(1, |pause| pause.refusals.saturating_add(1))
}

/// A refused binding: its resources are free again, and its node is avoided for a while.
fn take_back(
    state: &mut State,
    config: &Config,
    task: TaskKey,
    cell: &TaskCell,
    reason: Arc<str>,
    retryable: bool,
) {
    state.transition(task, TaskCell::of(Status::Pending));
    let node = cell
        .node
        .and_then(|node| state.nodes.get(node))
        .map(|row| row.name.clone());
    let now = state.now;
    let refusals = refusals(state, task);
    if let Some(row) = state.tasks.get_mut(task) {
        if let Some(node) = node {
            let avoid = &mut row.rare.noted().avoid;
            avoid.retain(|known| *known != node);
            avoid.push(node);
        }
        let until = retryable.then(|| now.after(pause_length(config, refusals)));
        set_pause(
            state,
            task,
            Pause {
                refusals,
                until,
                reason,
                in_favour_of: None,
            },
        );
    }
    for hold in cell.holds() {
        state.release_card(hold.card);
    }
    if let Some(node) = cell.node {
        state.release_node(node);
    }
    state.changes.capacity_grew();
}

fn pause_length(config: &Config, refusals: u32) -> Duration {
    let doublings = refusals.saturating_sub(1).min(32);
    let length = config.backoff_first.0.saturating_mul(1 << doublings);
    Duration(length.min(config.backoff_longest.0))
}

fn set_pause(state: &mut State, task: TaskKey, pause: Pause) {
    state.changes.hindered += 1;
    state.end_pause(task);
    if let Some(until) = pause.until {
        state.pauses.tasks.insert((until, task));
    }
    if let Some(row) = state.tasks.get_mut(task) {
        row.rare.noted().pause = Some(Box::new(pause));
    }
}

fn set_card_pause(state: &mut State, card: CardKey, pause: Pause) {
    let Some(row) = state.cards.get_mut(card) else {
        return;
    };
    if let Some(until) = row.pause.as_ref().and_then(|pause| pause.until) {
        state.pauses.cards.remove(&(until, card));
    }
    if let Some(until) = pause.until {
        state.pauses.cards.insert((until, card));
    }
    row.pause = Some(pause);
    let node = row.node;
    state.touch_node(node);
}

/// An agent wants a pod gone: the next decision evicts it.
pub(super) fn evict_request(state: &mut State, request: EvictRequest, problems: &mut Vec<Problem>) {
    let Some(task) = state.task_of(&request.pod) else {
        problems.push(Problem::Unknown {
            what: "pod",
            name: request.pod.shared(),
        });
        return;
    };
    let on = state.cell(task).node;
    let on = on.and_then(|node| Some(&state.nodes.get(node)?.name));
    let row = state.tasks.get(task);
    let refused = row.and_then(|row| Some(&row.rare.refused.as_ref()?.refusal.node));
    if on.or(refused).is_some_and(|node| *node != request.node) {
        // Another node's report does not count, and does not replace the pod's own node's.
        return;
    }
    if let Some(row) = state.tasks.get_mut(task) {
        state.index.to_evict.insert((Uid::from(&request.pod), task));
        row.rare.noted().evict_request = Some(Box::new(request));
    }
    state.changes.wake();
}

/// An eviction that did not happen: the pod keeps its place. The job that needed the room is tried
/// again.
fn evict_again(state: &mut State, task: TaskKey) {
    let Some(row) = state.tasks.get_mut(task) else {
        return;
    };
    if let Some(rare) = row.rare.if_any() {
        rare.evicting = None;
    }
    if row.rare.refused.is_some() {
        let uid = row.uid.clone();
        state.index.to_evict.insert((uid, task));
        return;
    }
    if row.rare.evict_request.is_some() {
        let uid = row.uid.clone();
        state.index.to_evict.insert((uid, task));
    }
    let (status, decision) = match row.seen {
        Seen::Bound => (Status::Bound, None),
        Seen::Running => (Status::Running, None),
        // Its binding is still under way.
        Seen::Pending => match state.open.binding_of(task) {
            Some(decision) => (Status::Assumed, Some(decision)),
            None => return,
        },
        _ => return,
    };
    let cell = state.cell(task);
    if cell.status == Status::Releasing {
        let to = TaskCell {
            status,
            decision: decision.map(Box::new),
            ..cell
        };
        state.transition(task, to);
    }
}

/// From a snapshot: an eviction under way.
pub(super) fn evicting(state: &mut State, evicting: &Evicting, problems: &mut Vec<Problem>) {
    let Some(task) = state.task_of(&evicting.pod) else {
        problems.push(Problem::Unknown {
            what: "pod",
            name: evicting.pod.shared(),
        });
        return;
    };
    if let Some(row) = state.tasks.get_mut(task) {
        row.rare.noted().evicting = Some(evicting.decision);
    }
    let cell = state.cell(task);
    if matches!(
        cell.status,
        Status::Bound | Status::Running | Status::Assumed
    ) {
        state.transition(
            task,
            TaskCell {
                status: Status::Releasing,
                decision: None,
                ..cell
            },
        );
    }
    if let Some(row) = state.tasks.get(task) {
        let uid = row.uid.clone();
        state.index.to_evict.remove(&(uid, task));
    }
    if evicting.stays {
        stays(state, task);
    }
    // Of a pod that was never seen bound, this stood for its binding.
    state.open.remove(&evicting.decision);
    if !evicting.settled {
        state.open.insert(
            evicting.decision,
            OpenDecision {
                task,
                evicts: Some(evicting.cause),
                in_favour_of: evicting.in_favour_of.clone(),
                progress: Progress::Sent,
            },
        );
    }
}

pub(super) fn refusal(
    state: &mut State,
    config: &Config,
    refusal: Refusal,
    problems: &mut Vec<Problem>,
) {
    let Some(task) = state.task_of(&refusal.pod) else {
        problems.push(Problem::Unknown {
            what: "pod",
            name: refusal.pod.shared(),
        });
        return;
    };
    let cell = state.cells.tasks.get(task).cloned().unwrap_or_default();
    let here = cell
        .node
        .and_then(|node| state.nodes.get(node))
        .is_some_and(|row| row.name == refusal.node);
    // The agent keeps trying; or the refusal is of a placement that is no more.
    if !refusal.last_word
        || !here
        || state
            .tasks
            .get(task)
            .is_none_or(|row| row.rare.refused.is_some())
    {
        return;
    }
    let Some(node) = cell.node else {
        return;
    };
    for hold in cell.holds() {
        let refusals = state
            .cards
            .get(hold.card)
            .and_then(|row| row.pause.as_ref())
            .map_or(1, |pause| pause.refusals.saturating_add(1));
        let until = Some(state.now.after(pause_length(config, refusals)));
        set_card_pause(
            state,
            hold.card,
            Pause {
                refusals,
                until,
                reason: Arc::clone(&refusal.reason),
                in_favour_of: None,
            },
        );
    }
    stop_holding(state, task, node, &cell, refusal);
}

/// From a snapshot: a permanent refusal that was applied.
pub(super) fn refused(state: &mut State, refusal: Refusal, problems: &mut Vec<Problem>) {
    let Some(task) = state.task_of(&refusal.pod) else {
        problems.push(Problem::Unknown {
            what: "pod",
            name: refusal.pod.shared(),
        });
        return;
    };
    let cell = state.cell(task);
    let node = state.node(&refusal.node);
    stop_holding(state, task, node, &cell, refusal);
}

/// The pod holds no cards any more, and is to be evicted.
fn stop_holding(
    state: &mut State,
    task: TaskKey,
    node: NodeKey,
    cell: &TaskCell,
    refusal: Refusal,
) {
    let uid = Uid::from(&refusal.pod);
    let grants = commit::grants(state, cell.holds());
    if let Some(row) = state.tasks.get_mut(task) {
        row.rare.noted().refused = Some(Box::new(Refused {
            refusal,
            grants,
            node,
            stays: false,
        }));
    }
    state.transition(
        task,
        TaskCell {
            status: Status::Releasing,
            node: Some(node),
            front: cell.front,
            holds: None,
            decision: None,
            leaving: None,
        },
    );
    state.index.to_evict.insert((uid, task));
    for hold in cell.holds() {
        state.release_card(hold.card);
    }
    state.changes.capacity_grew();
}

/// A refused pod is not deleted: its CPU, memory and GPUs on the node are promised to no other pod.
fn stays(state: &mut State, task: TaskKey) {
    let row = state.tasks.get_mut(task);
    let Some(row) = row.filter(|row| row.seen != Seen::Releasing) else {
        return;
    };
    let rare = row.rare.if_any();
    let Some(refused) = rare.and_then(|rare| rare.refused.as_mut()) else {
        return;
    };
    refused.stays = true;
    let cell = state.cell(task);
    if cell.status == Status::Releasing {
        let status = Status::Stuck;
        state.transition(task, TaskCell { status, ..cell });
        state.changes.capacity_grew();
    }
}

/// From a snapshot: a binding under way.
pub(super) fn assumed(
    state: &mut State,
    config: &Config,
    bind: &Bind,
    problems: &mut Vec<Problem>,
) {
    let Some(task) = state.task_of(&bind.pod) else {
        problems.push(Problem::Unknown {
            what: "pod",
            name: bind.pod.shared(),
        });
        return;
    };
    let node = state.node(&bind.node);
    let row = state.tasks.get(task);
    let spec = row.and_then(|row| state.specs.get(row.spec));
    let Some(spec) = spec.map(|row| Arc::clone(&row.spec)) else {
        return;
    };
    let whose = (&bind.pod, spec.gpus.as_slice());
    let holds = holds(state, config, whose, node, &bind.grants, problems);
    state.transition(
        task,
        TaskCell {
            status: Status::Assumed,
            node: Some(node),
            front: bind.front,
            holds: (!holds.is_empty()).then(|| Arc::from(holds)),
            decision: Some(Box::new(bind.decision)),
            leaving: None,
        },
    );
    state.open.insert(
        bind.decision,
        OpenDecision {
            task,
            evicts: None,
            in_favour_of: None,
            progress: Progress::Sent,
        },
    );
    state.open.sequence = state.open.sequence.max(bind.decision.sequence);
}

/// From a snapshot: a pause.
pub(super) fn backoff(state: &mut State, backoff: Backoff, problems: &mut Vec<Problem>) {
    let Some(task) = state.task_of(&backoff.pod) else {
        problems.push(Problem::Unknown {
            what: "pod",
            name: backoff.pod.shared(),
        });
        return;
    };
    if let Some(row) = state.tasks.get_mut(task) {
        row.rare.noted().avoid = backoff.avoid;
    }
    if backoff.refusals > 0 {
        set_pause(
            state,
            task,
            Pause {
                refusals: backoff.refusals,
                until: backoff.until,
                reason: backoff.reason,
                in_favour_of: backoff.in_favour_of,
            },
        );
    }
    state.changes.wake();
}

/// From a snapshot: a card's pause.
pub(super) fn card_pause(state: &mut State, pause: CardPause, problems: &mut Vec<Problem>) {
    let node = state.names.nodes.get(&pause.node).copied();
    let Some(card) = node.and_then(|node| state.names.cards.on(&pause.card, node)) else {
        problems.push(Problem::Unknown {
            what: "card",
            name: pause.card.shared(),
        });
        return;
    };
    set_card_pause(
        state,
        card,
        Pause {
            refusals: pause.refusals,
            until: Some(pause.until),
            reason: pause.reason,
            in_favour_of: None,
        },
    );
    state.changes.wake();
}

impl State {
    /// Ends a task's pause, where it has one.
    pub(crate) fn end_pause(&mut self, task: TaskKey) {
        let rare = self.tasks.get_mut(task).and_then(|row| row.rare.if_any());
        let Some(pause) = rare.and_then(|rare| rare.pause.take()) else {
            return;
        };
        self.changes.hindered += 1;
        if let Some(until) = pause.until {
            self.pauses.tasks.remove(&(until, task));
        }
    }

    /// Whether an eviction of it was refused, and it is not time to ask again.
    pub(crate) fn is_eviction_postponed(&self, task: TaskKey) -> bool {
        let row = self.tasks.get(task);
        let pause = row.and_then(|row| row.rare.pause.as_ref());
        pause.is_some_and(|pause| pause.until.is_none_or(|until| until > self.now))
            && self.cell(task).status.is_allocated()
    }

    /// Pauses that end at or before now are over. True where one was a card's.
    pub(crate) fn end_due_pauses(&mut self) {
        let now: Time = self.now;
        while let Some((until, task)) = self.pauses.tasks.first().copied()
            && until <= now
        {
            self.pauses.tasks.remove(&(until, task));
            self.changes.hindered += 1;
            self.changes.wake();
        }
        while let Some((until, card)) = self.pauses.cards.first().copied()
            && until <= now
        {
            self.pauses.cards.remove(&(until, card));
            if let Some(node) = self.cards.get(card).map(|row| row.node) {
                self.touch_node(node);
            }
            self.changes.capacity_grew();
        }
    }
}

#[cfg(test)]
mod tests;
