//! The end of a decision: turns the final state of every cell into actions, once.
//!
//! Input: the [`super::plan::Plan`] and the cells. Output: bindings with their cards, evictions, and
//! started groups. Each action gets an id, in the order in which it was last decided. Promises are
//! reported and then released.

use crate::action::{Action, Bind, ClaimBinding, Evict, Promise, Received};
use crate::cycle::Cycle;
use crate::cycle::plan::{Eviction, Planned};
use crate::ids::{DecisionId, NodeUid};
use crate::model::{Ask, ContainerGrant, Front};
use crate::state::hold::Hold;
use crate::state::keys::{NodeKey, TaskKey};
use crate::state::mig::mig_slices;
use crate::state::spec::{Spec, whole_gpus};
use crate::state::task_cell::{Status, TaskCell};
use crate::state::{OpenDecision, Progress, State};
use std::sync::Arc;

impl Cycle<'_> {
    pub(super) fn commit(&mut self) {
        for (task, word) in self.plan.take_planned() {
            match word {
                Planned::Bind => self.commit_binding(task),
                Planned::Evict(eviction) => self.commit_eviction(task, eviction),
            }
        }
        for (job, before) in self.plan.take_starts() {
            let stands = self.gang(job).tasks().any(|(_, status)| {
                let has_place = status.is_allocated();
                has_place && status != Status::Promised
            });
            let now = self.state.now;
            let Some(row) = self.state.jobs.get_mut(job) else {
                continue;
            };
            if !stands {
                row.last_start = before.into();
            } else if row.group.is_some() {
                self.decision.started.push((row.name.clone(), now));
            }
        }
    }

    fn next_id(&mut self) -> DecisionId {
        self.state.open.sequence += 1;
        DecisionId {
            epoch: self.config.epoch,
            sequence: self.state.open.sequence,
        }
    }

    fn commit_binding(&mut self, task: TaskKey) {
        let cell = self.state.cell(task);
        let row = self.state.tasks.get(task);
        let spec = row.and_then(|row| self.state.specs.get(row.spec));
        let Some((node, spec)) = cell.node.zip(spec) else {
            return;
        };
        let spec = Arc::clone(&spec.spec);
        let id = self.next_id();
        let Some(bind) = bind(self.state, task, node, &cell, &spec, id) else {
            return;
        };
        self.state.name_decision(task, id);
        self.state.open.insert(
            id,
            OpenDecision {
                task,
                evicts: None,
                in_favour_of: None,
                progress: Progress::Sent,
            },
        );
        self.state.outputs.said.remove(&task);
        if let Some(row) = self.state.tasks.get_mut(task)
            && let Some(rare) = row.rare.if_any()
        {
            // Another node has no say of it any more.
            let wish = &mut rare.evict_request;
            wish.take_if(|wish| wish.node != bind.node);
        }
        self.decision.actions.push(Action::Bind(bind));
    }

    fn commit_eviction(&mut self, task: TaskKey, eviction: Eviction) {
        let id = self.next_id();
        let Some(row) = self.state.tasks.get_mut(task) else {
            return;
        };
        row.rare.noted().evicting = Some(id);
        let (pod, namespace, name) = (
            row.uid.of_pod(),
            Arc::clone(&row.facts.namespace),
            Arc::clone(&row.name),
        );
        let row = self.state.tasks.get(task);
        let group = row.and_then(|row| self.state.group_name(row));
        let (job, now) = (row.and_then(|row| row.job), self.state.now);
        if let Some(job) = job.filter(|job| self.state.gives_way(*job))
            && eviction.cause.takes_idle_jobs()
        {
            self.state.note_gave_way(job, now);
        }
        if let Some(row) = job.and_then(|job| self.state.jobs.get_mut(job))
            && let Some(group) = &row.group
            && group.spec.preemption_delay.0 > 0
            && row.last_evicted() != Some(now)
        {
            row.past_mut().last_evicted = Some(now);
            self.decision.delayed.push((row.name.clone(), now));
        }
        self.state.open.insert(
            id,
            OpenDecision {
                task,
                evicts: Some(eviction.cause),
                in_favour_of: eviction.in_favour_of.clone(),
                progress: Progress::Sent,
            },
        );
        self.decision.actions.push(Action::Evict(Evict {
            decision: id,
            pod,
            namespace,
            name,
            group,
            cause: eviction.cause,
            message: eviction.message,
            in_favour_of: eviction.in_favour_of,
        }));
    }

    /// Reports promises and drops them: pending pods stay pending, evicted pods leave.
    pub(super) fn release_promises(&mut self) {
        let promised = self.plan.promised();
        if !promised.is_empty() {
            // What did not fit beside a promise may fit without it.
            self.state.changes.capacity += 1;
        }
        for task in promised {
            let cell = self.state.cell(task);
            let (Status::Promised, Some(node)) = (cell.status, cell.node) else {
                continue;
            };
            if let (Some(row), Some(node)) =
                (self.state.tasks.get(task), self.state.nodes.get(node))
            {
                self.decision.promises.push(Promise {
                    pod: row.uid.of_pod(),
                    namespace: Arc::clone(&row.facts.namespace),
                    name: Arc::clone(&row.name),
                    node: node.name.clone(),
                    cards: cell
                        .holds()
                        .iter()
                        .filter_map(|hold| Some(self.state.cards.get(hold.card)?.uuid.clone()))
                        .collect(),
                });
            }
            let to = match &cell.leaving {
                None => TaskCell::of(Status::Pending),
                Some(leaving) => TaskCell {
                    status: Status::Releasing,
                    node: Some(leaving.node),
                    front: leaving.front,
                    holds: leaving.holds.clone(),
                    decision: None,
                    leaving: None,
                },
            };
            self.state.transition(task, to);
        }
    }
}

/// The action for a task that is placed, or about to be placed, on a node as the cell says. `None`:
/// there is no such task or node.
pub(crate) fn bind(
    state: &State,
    task: TaskKey,
    node: NodeKey,
    cell: &TaskCell,
    spec: &Spec,
    decision: DecisionId,
) -> Option<Bind> {
    let row = state.tasks.get(task)?;
    let on = state.nodes.get(node)?;
    // A deleted node has no UID any more; earlier decisions are still reported.
    let node_uid = on.node.as_ref().map(|node| node.uid.clone());
    let received = if spec.gpus.iter().any(|ask| matches!(ask.ask, Ask::Share(_))) {
        Received::Fraction
    } else if whole_gpus(spec) > 0 && cell.front == Front::Plugin {
        Received::Regular
    } else if spec
        .extended
        .iter()
        .any(|(name, _)| mig_slices(name.as_str()) > 0)
    {
        Received::MigInstance
    } else {
        Received::Nothing
    };
    let grants = grants(state, cell.holds());
    let charged = Some(row).filter(|_| !grants.is_empty());
    let queue = charged
        .and_then(|row| state.jobs.get(row.job?)?.queue)
        .and_then(|queue| state.queues.get(queue))
        .map(|queue| queue.name.clone());
    let unbound = spec.claims.iter().filter(|claim| !claim.bound);
    let claims = unbound.map(|claim| ClaimBinding {
        uid: claim.uid.clone(),
        name: Arc::clone(&claim.name),
        volume: state.volumes.of(&claim.uid).cloned(),
    });
    Some(Bind {
        decision,
        pod: row.uid.of_pod(),
        namespace: Arc::clone(&row.facts.namespace),
        name: Arc::clone(&row.name),
        node: on.name.clone(),
        node_uid: node_uid.unwrap_or_else(|| NodeUid::new("")),
        grants,
        claims: claims.collect(),
        devices: state.devices.bindings(task, cell.front),
        received,
        front: cell.front,
        queue,
        group: state.group_name(row),
    })
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
            grant.burst = grant
                .burst
                .zip(hold.burst)
                .map(|(one, other)| one.min(other));
        } else {
            grants.push(ContainerGrant {
                container: hold.container.clone(),
                cards: vec![card],
                memory: hold.limit,
                burst: hold.burst,
                compute: hold.compute,
                mode: hold.mode,
                note: hold.note.clone(),
                asked: hold.asked,
            });
        }
    }
    grants
}
