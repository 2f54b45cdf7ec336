//! What a cycle found no room for, for the tasks that plan new nodes and MIG layouts.

use super::Cycle;
use crate::mig_layout;
use crate::scale_up::{self, Look};
use scheduler_core::{Action, Decision};
use std::time::Duration;
use tokio::time::Instant;

impl Cycle {
    /// Time between two looks: shorter when a pod that a node was asked for has its place. Until
    /// the next plan, the node's placeholder asks for one node too many. Nothing is decided during
    /// a look, so looks take a tenth of the time at most.
    pub(super) fn look_pace(&self, decision: &Decision) -> Duration {
        let Some(line) = &self.scale_up else {
            return scale_up::PACE;
        };
        let asked = line.asked.borrow();
        let is_asked = |action: &Action| matches!(action, Action::Bind(bind) if asked.0.contains_key(&bind.pod));
        if decision.actions.iter().any(is_asked) {
            scale_up::PACE_AFTER_BIND.max(self.look_took * 10)
        } else {
            scale_up::PACE
        }
    }

    /// Hands on what the last decision found no room for.
    pub(super) fn look(&mut self) {
        self.look_at = None;
        self.looked = Instant::now();
        if let Some(line) = &self.scale_up {
            let most = scale_up::MOST_PODS;
            let look = Look {
                shortage: self.core.shortage(&line.groups, most, line.card),
                config: self.core.config().clone(),
            };
            line.looks.send_replace(Some(look));
            self.look_took = self.looked.elapsed();
        }
        self.look_for_slices();
    }

    /// The same of slices of cards in MIG mode, where cards may be given others.
    fn look_for_slices(&mut self) {
        let Some(line) = &self.layouts else {
            return;
        };
        let cards = self.world.mig_cards();
        if cards.is_empty() {
            line.looks.send_if_modified(|look| look.take().is_some());
            return;
        }
        let nodes = cards.iter().map(|card| card.node.clone()).collect();
        let most = mig_layout::MOST_PODS;
        let look = mig_layout::Look {
            shortage: self.core.slice_shortage(&nodes, most, scale_up::ANY_CARD),
            cards,
            config: self.core.config().clone(),
        };
        line.looks.send_replace(Some(look));
    }

    /// Another replica asks for nodes.
    pub(super) fn look_away(&mut self) {
        self.look_at = None;
        self.forecast_at = None;
        if let Some(line) = &self.scale_up {
            line.looks.send_replace(None);
        }
        if let Some(line) = &self.layouts {
            line.looks.send_replace(None);
        }
    }
}
