//! Gives a pod the place that was found for it.

use crate::cycle::Cycle;
use crate::cycle::plan::Way;
use crate::cycle::scenario::Scenario;
use crate::fit::{self, Assignment};
use crate::model::Mode;
use crate::state::hold::Hold;
use crate::state::keys::{NodeKey, TaskKey};
use crate::state::task_cell::{Leaving, Status, TaskCell};
use std::sync::Arc;

impl Cycle<'_> {
    /// Assigns the pod: bound, promised, or, for a victim that returns to where it
    /// was, spared. False when it cannot be spared.
    pub(super) fn assign(
        &mut self,
        task: TaskKey,
        node: NodeKey,
        assignment: Assignment,
        way: Way,
    ) -> bool {
        let cell = self.state.cell(task);
        let holds: Option<Arc<[Hold]>> =
            (!assignment.holds.is_empty()).then(|| Arc::from(assignment.holds));
        if let Some(leaving) = cell.leaving.clone()
            && leaving.node == node
            && leaving.front == assignment.front
            && same_cards(holds.as_deref(), &leaving)
            && self.state.can_keep_its_devices(task)
        {
            return self.spare(task, &leaving);
        }
        let status = if way == Way::Real && assignment.now {
            Status::Assumed
        } else {
            Status::Promised
        };
        self.state.transition(
            task,
            TaskCell {
                status,
                node: Some(node),
                front: assignment.front,
                holds,
                decision: None,
                leaving: cell.leaving,
            },
        );
        true
    }

    /// Returns victims to their own cards where these still have room for them. The simulation puts
    /// a victim on the fullest card of its node, which may be the one that is promised to the job
    /// for which it was taken; it would restart there for nothing. This is done once all pods have
    /// a place, because a victim that kept its card from the start might leave the job without one.
    pub(super) fn return_to_own_cards(&mut self, scenario: &Scenario) {
        let mut moved = scenario.tasks();
        // One that returns leaves a card on which another one may have stood.
        loop {
            let before = moved.len();
            moved.retain(|task| !self.is_back_on_own_cards(*task));
            if moved.is_empty() || moved.len() == before {
                return;
            }
        }
    }

    /// Returns whether the pod was given other cards of its node, and now has its own ones again.
    fn is_back_on_own_cards(&mut self, task: TaskKey) -> bool {
        let cell = self.state.cell(task);
        let is_beside = |leaving: &Arc<Leaving>| {
            cell.status == Status::Promised && cell.node == Some(leaving.node)
        };
        cell.leaving.as_ref().is_some_and(is_beside) && self.goes_back(task)
    }

    /// Returns a victim to the place that it is leaving, if that still has room for it. Else nothing
    /// is changed.
    pub(super) fn goes_back(&mut self, task: TaskKey) -> bool {
        let Some(leaving) = self.state.cell(task).leaving else {
            return false;
        };
        let Some(spec) = self.state.tasks.get(task).map(|row| row.spec) else {
            return false;
        };
        let mark = self.state.mark();
        self.make_victim(task);
        self.state.refresh_domains(spec);
        let spec = self.state.specs.get(spec);
        let fits = spec.is_some_and(|spec| fit::fits_back(self.state, spec, &leaving));
        if fits && self.state.can_keep_its_devices(task) && self.spare(task, &leaving) {
            self.state.keep(mark);
            return true;
        }
        self.state.rollback(mark);
        false
    }

    /// A victim goes back to where it was. Promises that were made on its cards move to
    /// others of the node, which are as many.
    fn spare(&mut self, task: TaskKey, leaving: &Leaving) -> bool {
        let mark = self.state.mark();
        self.state.transition(
            task,
            TaskCell {
                status: leaving.was,
                node: Some(leaving.node),
                front: leaving.front,
                holds: leaving.holds.clone(),
                decision: leaving.decision.map(Box::new),
                leaving: None,
            },
        );
        if !self.state.has_its_devices(task) {
            self.state.rollback(mark);
            return false;
        }
        for hold in leaving.holds() {
            let conflict = self.state.cells.cards.get(hold.card).is_some_and(|used| {
                let after = used.after();
                used.promised.holds() > 0
                    && after.modes.iter().filter(|count| **count > 0).count() > 1
            });
            if conflict && !self.move_promises(leaving.node, hold.card) {
                self.state.rollback(mark);
                return false;
            }
        }
        self.state.keep(mark);
        true
    }

    /// Moves every promise on a card to another card of the node, of the same size (a fraction
    /// is worth something else on another), where no share stays.
    fn move_promises(&mut self, node: NodeKey, from: crate::state::keys::CardKey) -> bool {
        let Some(row) = self.state.nodes.get(node) else {
            return false;
        };
        let promised = self
            .state
            .cells
            .cards
            .get(from)
            .map(|used| used.promised)
            .unwrap_or_default();
        let memory = |key| self.state.cards.get(key).map(fit::card::memory);
        let modes = Mode::ALL
            .into_iter()
            .zip(promised.modes)
            .filter(|(_, holds)| *holds > 0)
            .map(|(mode, _)| mode);
        let Some(to) = row.cards.iter().copied().find(|key| {
            let free = self
                .state
                .cells
                .cards
                .get(*key)
                .is_some_and(|used| used.is_leaving() && used.promised.holds() == 0);
            *key != from
                && free
                && memory(*key) == memory(from)
                && self.state.cards.get(*key).is_some_and(|card| {
                    fit::card::whole_in_time(self.state, card)
                        && modes.clone().all(|mode| {
                            card.card
                                .as_ref()
                                .is_some_and(|card| card.switchable.contains(&mode))
                        })
                })
        }) else {
            return false;
        };
        let promised: Vec<TaskKey> = self
            .state
            .index
            .pods_on(node)
            .filter(|task| self.state.cell(*task).status == Status::Promised)
            .collect();
        for task in promised {
            let cell = self.state.cell(task);
            if cell.node != Some(node) || !cell.holds().iter().any(|hold| hold.card == from) {
                continue;
            }
            let holds: Vec<Hold> = cell
                .holds()
                .iter()
                .cloned()
                .map(|mut hold| {
                    if hold.card == from {
                        hold.card = to;
                    }
                    hold
                })
                .collect();
            self.state.transition(
                task,
                TaskCell {
                    holds: Some(Arc::from(holds)),
                    ..cell
                },
            );
        }
        true
    }
}

/// A share that would sit on the cards that it is leaving; whole GPUs are all alike.
fn same_cards(holds: Option<&[Hold]>, leaving: &Leaving) -> bool {
    let Some(holds) = holds else {
        return true;
    };
    let cards = |holds: &[Hold]| {
        let mut cards: Vec<_> = holds
            .iter()
            .filter(|hold| hold.mode != crate::model::Mode::Exclusive)
            .map(|hold| (hold.container.clone(), hold.card))
            .collect();
        cards.sort();
        cards
    };
    cards(holds) == cards(leaving.holds())
}
