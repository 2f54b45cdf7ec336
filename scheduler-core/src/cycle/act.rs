//! What was decided becomes actions: bindings with their cards, evictions, promises.

use super::Cycle;
use crate::action::{Action, Bind, ClaimBinding, Evict, EvictCause, Promise, Received};
use crate::fit::choose_whole;
use crate::ids::{DecisionId, NodeName, NodeUid};
use crate::model::{Ask, ContainerGrant};
use crate::state::cell::{Status, TaskCell};
use crate::state::rows::{Hold, JobKey, NodeKey, Refused, Spec, TaskKey};
use crate::state::{Known, OpenDecision, State};
use std::sync::Arc;

impl Cycle<'_> {
    fn next_id(&mut self) -> DecisionId {
        self.state.sequence += 1;
        DecisionId {
            epoch: self.config.epoch,
            sequence: self.state.sequence,
        }
    }

    /// A placement that is kept: whole GPUs are chosen, the binding is an action.
    pub(super) fn bind(&mut self, task: TaskKey) {
        let cell = self.state.cell(task);
        let Some((node, spec_key)) = cell
            .node
            .zip(self.state.tasks.get(task).map(|row| row.spec))
        else {
            return;
        };
        let Some(spec) = self.state.specs.get(spec_key) else {
            return;
        };
        let mut holds = choose_whole(self.state, spec, node);
        holds.extend(cell.holds().iter().cloned());
        let spec = Arc::clone(&spec.spec);
        let id = self.next_id();
        let Some(bind) = bind(self.state, task, node, &holds, &spec, id) else {
            return;
        };
        self.state.transition(
            task,
            TaskCell {
                holds: (!holds.is_empty()).then(|| Arc::from(holds)),
                decision: Some(id),
                ..cell
            },
        );
        self.state.open.insert(
            id,
            OpenDecision {
                task,
                evicts: None,
                in_favour_of: None,
                known: Known::Sent,
            },
        );
        if let Some(row) = self.state.tasks.get_mut(task) {
            row.said = None;
            if let Some(rare) = row.rare.if_any() {
                // Another node has no say of it any more.
                let wish = &mut rare.evict_request;
                wish.take_if(|wish| wish.node != bind.node);
            }
        }
        self.decision.actions.push(Action::Bind(bind));
    }

    /// A promise that is kept for the rest of this decision.
    pub(super) fn promise(&mut self, task: TaskKey) {
        if !self.promised.contains(&task) {
            self.promised.push(task);
        }
    }

    /// True for a binding that this very decision has decided: nobody has acted on it.
    pub(super) fn is_ours(&self, decision: Option<DecisionId>) -> bool {
        decision.is_some_and(|id| id.epoch == self.config.epoch && id.sequence > self.since)
    }

    /// Takes a binding of this decision back. (KAI binds such a pod and deletes it at
    /// once.)
    pub(super) fn withdraw(&mut self, task: TaskKey, decision: Option<DecisionId>) {
        let Some(id) = decision else {
            return;
        };
        self.withdrawn.insert(task);
        self.state.loosened += 1;
        self.state.open.remove(&id);
        self.decision
            .actions
            .retain(|action| action.decision() != id);
        let Some(job) = self.state.tasks.get(task).and_then(|row| row.job) else {
            return;
        };
        let stands = self
            .gang(job)
            .tasks()
            .any(|(_, status)| status.is_allocated() && status != Status::Promised);
        let Some(index) = self.starts.iter().position(|(started, _)| *started == job) else {
            return;
        };
        if !stands && let Some(row) = self.state.jobs.get_mut(job) {
            row.last_start = self.starts.swap_remove(index).1;
            let name = &row.name;
            self.decision.started.retain(|(started, _)| started != name);
        }
    }

    /// An eviction that is kept. A victim that was promised another place keeps the
    /// promise for the rest of this decision. False where nobody has to leave: the pod's
    /// binding was withdrawn, or it only had a promise.
    pub(super) fn evict(
        &mut self,
        task: TaskKey,
        for_job: Option<JobKey>,
        cause: EvictCause,
        message: &str,
    ) -> bool {
        let cell = self.state.cell(task);
        let bound = match &cell.leaving {
            Some(leaving) => leaving.decision,
            None => cell.decision,
        };
        if self.is_ours(bound) {
            let to = match cell.status {
                Status::Promised => TaskCell {
                    leaving: None,
                    ..cell
                },
                _ => TaskCell::of(Status::Pending),
            };
            self.state.transition(task, to);
            self.withdraw(task, bound);
            return false;
        }
        match (cell.status, &cell.leaving) {
            (Status::Victim, Some(leaving)) => {
                let to = TaskCell {
                    status: Status::Releasing,
                    node: Some(leaving.node),
                    holds: leaving.holds.clone(),
                    decision: None,
                    leaving: None,
                };
                self.state.transition(task, to);
            }
            (Status::Victim, None) => {
                // It was only promised a place: it waits on.
                self.state.transition(task, TaskCell::of(Status::Pending));
                self.resay_evict(task, for_job, cause, message);
                return false;
            }
            (Status::Promised, Some(_)) => {}
            (Status::Bound | Status::Running | Status::Assumed, _) => {
                let to = TaskCell {
                    status: Status::Releasing,
                    decision: None,
                    ..cell
                };
                self.state.transition(task, to);
            }
            _ => return false,
        }
        // What the victim leaves may be promised to somebody.
        self.state.loosened += 1;
        let said = self
            .state
            .tasks
            .get(task)
            .is_some_and(|row| self.is_ours(row.rare.evicting));
        if !said {
            self.say_evict(task, for_job, cause, message);
        } else if cell.status == Status::Victim {
            self.resay_evict(task, for_job, cause, message);
        }
        true
    }

    /// A victim that stays where it is. An eviction of this decision is taken back: for
    /// an earlier job it was sent elsewhere, and now its old place is free again. (KAI
    /// has deleted such a pod by then.)
    pub(super) fn unsay_evict(&mut self, task: TaskKey) {
        let Some(row) = self.state.tasks.get(task) else {
            return;
        };
        let Some(id) = row.rare.evicting.filter(|id| self.is_ours(Some(*id))) else {
            return;
        };
        if let Some(row) = self.state.tasks.get_mut(task) {
            row.rare.noted().evicting = None;
        }
        self.state.open.remove(&id);
        self.decision
            .actions
            .retain(|action| action.decision() != id);
    }

    /// A pod that was to move for one job loses the place that it was promised to another:
    /// the eviction is for that one, by its rule.
    fn resay_evict(
        &mut self,
        task: TaskKey,
        for_job: Option<JobKey>,
        cause: EvictCause,
        message: &str,
    ) {
        let said = self.state.tasks.get(task).and_then(|row| row.rare.evicting);
        let Some(id) = said.filter(|id| self.is_ours(Some(*id))) else {
            return;
        };
        let in_favour_of = for_job
            .and_then(|job| self.state.jobs.get(job))
            .map(|row| row.name.clone());
        for action in &mut self.decision.actions {
            if let Action::Evict(evict) = action
                && evict.decision == id
                && evict.cause == EvictCause::Consolidation
            {
                evict.cause = cause;
                evict.message = Arc::from(message);
                evict.in_favour_of.clone_from(&in_favour_of);
                self.state.open.insert(
                    id,
                    OpenDecision {
                        task,
                        evicts: Some(cause),
                        in_favour_of: in_favour_of.clone(),
                        known: Known::Sent,
                    },
                );
            }
        }
    }

    fn say_evict(
        &mut self,
        task: TaskKey,
        for_job: Option<JobKey>,
        cause: EvictCause,
        message: &str,
    ) {
        let id = self.next_id();
        let Some(row) = self.state.tasks.get_mut(task) else {
            return;
        };
        row.rare.noted().evicting = Some(id);
        let (uid, namespace, name) = (
            row.uid.clone(),
            Arc::clone(&row.facts.namespace),
            Arc::clone(&row.name),
        );
        let row = self.state.tasks.get(task);
        let group = row.and_then(|row| self.state.group_name(row)).cloned();
        let in_favour_of = for_job
            .and_then(|job| self.state.jobs.get(job))
            .map(|row| row.name.clone());
        self.state.open.insert(
            id,
            OpenDecision {
                task,
                evicts: Some(cause),
                in_favour_of: in_favour_of.clone(),
                known: Known::Sent,
            },
        );
        self.decision.actions.push(Action::Evict(Evict {
            decision: id,
            pod: uid,
            namespace,
            name,
            group,
            cause,
            message: Arc::from(message),
            in_favour_of,
        }));
    }

    /// Pods whose grants an agent refused for good, or that it wants gone. The former hold
    /// nothing any more; the latter hold what they hold until they are gone.
    pub(super) fn evict_unwanted(&mut self) {
        for (_, task) in std::mem::take(&mut self.state.to_evict) {
            let Some(row) = self.state.tasks.get(task) else {
                continue;
            };
            let message = |node: &NodeName, reason: &str| {
                format!("Pod {} was taken off node {node}: {reason}", row.name)
            };
            let node = self.state.cell(task).node;
            let node = node.and_then(|node| self.state.nodes.get(node));
            match (&row.rare.evict_request, row.rare.refused.as_deref()) {
                // A refused pod that has no controller is left as it is. One that its agent
                // wants gone goes all the same.
                (Some(request), Some(_)) => {
                    let message = message(&request.node, &request.reason);
                    self.say_evict(task, None, EvictCause::AgentRequest, &message);
                }
                (None, Some(Refused { refusal, .. })) => {
                    let message = message(&refusal.node, &refusal.reason);
                    self.say_evict(task, None, EvictCause::GrantRefused, &message);
                }
                (Some(request), None) => match node {
                    // The agent knows of its binding before the watch.
                    None => {
                        let uid = row.uid.clone();
                        self.state.to_evict.insert((uid, task));
                    }
                    Some(node) if node.name == request.node => {
                        let message = message(&request.node, &request.reason);
                        self.evict(task, None, EvictCause::AgentRequest, &message);
                    }
                    Some(_) => {}
                },
                (None, None) => {}
            }
        }
    }

    /// Reports promises and lets go of them: who waits waits, who is evicted leaves.
    pub(super) fn let_go_of_promises(&mut self) {
        if !self.promised.is_empty() {
            // What did not fit beside a promise may fit without it.
            self.state.loosened += 1;
        }
        for task in std::mem::take(&mut self.promised) {
            let cell = self.state.cell(task);
            let (Status::Promised, Some(node)) = (cell.status, cell.node) else {
                continue;
            };
            if let (Some(row), Some(node)) =
                (self.state.tasks.get(task), self.state.nodes.get(node))
            {
                self.decision.promises.push(Promise {
                    pod: row.uid.clone(),
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
                    holds: leaving.holds.clone(),
                    decision: None,
                    leaving: None,
                },
            };
            self.state.transition(task, to);
        }
    }
}

/// The action for a task that stands, or is about to stand, on a node with those holds.
/// `None`: there is no such task or node.
pub(crate) fn bind(
    state: &State,
    task: TaskKey,
    node: NodeKey,
    holds: &[Hold],
    spec: &Spec,
    decision: DecisionId,
) -> Option<Bind> {
    let row = state.tasks.get(task)?;
    let on = state.nodes.get(node)?;
    // A node that is gone has no UID any more; what was decided before is told all the same.
    let node_uid = on.node.as_ref().map(|node| node.uid.clone());
    let received = if spec.gpus.iter().any(|ask| matches!(ask.ask, Ask::Share(_))) {
        Received::Fraction
    } else if crate::state::transition::whole_gpus(spec) > 0 {
        Received::Regular
    } else {
        Received::Nothing
    };
    let grants = grants(state, holds);
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
        pod: row.uid.clone(),
        namespace: Arc::clone(&row.facts.namespace),
        name: Arc::clone(&row.name),
        node: on.name.clone(),
        node_uid: node_uid.unwrap_or_else(|| NodeUid::new("")),
        grants,
        claims: claims.collect(),
        devices: state.devices.bindings(task),
        received,
        queue,
        group: state.group_name(row).cloned(),
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
