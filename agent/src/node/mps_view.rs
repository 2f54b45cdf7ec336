//! This is the agent's view of the MPS supervisor: its last accepted plan and its last observation.

use proto::mps::{Observation, Plan};
use std::collections::BTreeSet;

/// The state of the MPS supervisor, as the node's core knows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MpsView {
    /// The plan that it last accepted.
    pub applied: Plan,
    /// The part of that plan that the node has needed without a break since then. Anything else may
    /// be starting, running or ended, whatever was observed.
    pub holding: Plan,
    /// Its observation after that.
    pub seen: Observation,
    /// Why it cannot be reached; empty while it answers.
    pub unreachable: String,
    /// True once it has answered or could not be reached. Before that, a missing server says nothing.
    pub asked: bool,
}

impl MpsView {
    /// Applies a plan that the supervisor has accepted.
    pub(super) fn accepted(&mut self, plan: Plan) {
        self.holding.clone_from(&plan);
        self.applied = plan;
        self.unreachable.clear();
        self.asked = true;
    }

    /// Records that the supervisor cannot be reached. Its last observation stays, and may be newer
    /// than its last answer.
    pub(super) fn silent(&mut self, why: String) {
        self.unreachable = why;
        self.asked = true;
    }

    /// Returns true if an observation is not older than the one that is known. The supervisor's answers
    /// and its own reports arrive on two ways, so that one may overtake the other.
    pub(super) fn is_news(&self, seen: &Observation) -> bool {
        seen.supervisor_started != self.seen.supervisor_started || seen.step >= self.seen.step
    }

    /// Takes what the node needs now, and returns what of the accepted plan it has needed without a
    /// break. A server that was not needed for a time may be ending although it is needed again: the
    /// supervisor's next answer shows that.
    pub(super) fn needs(&mut self, plan: &Plan) -> &Plan {
        let holding = &mut self.holding;
        holding
            .servers
            .retain(|server| plan.servers.contains(server));
        holding.cards.retain(|card| plan.cards.contains(card));
        holding
    }

    /// Returns the pids of all servers.
    pub(super) fn server_pids(&self) -> BTreeSet<u32> {
        let servers = self.seen.servers.iter();
        servers.flat_map(|s| &s.server_pids).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::mps::Server;

    fn plan(mib: u64) -> Plan {
        let server = Server {
            name: "GPU-0".into(),
            default_memory_mib: mib,
            ..Server::default()
        };
        Plan {
            servers: vec![server],
            ..Plan::default()
        }
    }

    #[test]
    fn a_server_that_was_not_needed_for_a_moment_is_ready_once_the_supervisor_says_so_again() {
        let mut view = MpsView::default();
        view.accepted(plan(300));
        assert_eq!(*view.needs(&plan(300)), plan(300));
        // Its last share left, and another one came: the supervisor may be ending it.
        for other in [Plan::default(), plan(400)] {
            let _ = view.needs(&other);
            assert_eq!(*view.needs(&plan(300)), Plan::default());
            view.accepted(plan(300));
            assert_eq!(*view.needs(&plan(300)), plan(300));
        }
    }

    #[test]
    fn an_observation_is_news_unless_the_same_supervisor_made_it_before() {
        let observed = |supervisor_started, step| Observation {
            supervisor_started,
            step,
            ..Observation::default()
        };
        let view = MpsView {
            seen: observed(2, 5),
            ..MpsView::default()
        };
        for (started, step, expected) in [(2, 4, false), (2, 5, true), (2, 6, true), (3, 1, true)] {
            assert_eq!(view.is_news(&observed(started, step)), expected);
        }
    }
}
