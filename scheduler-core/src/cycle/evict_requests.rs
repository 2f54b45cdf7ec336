//! Evictions that do not depend on scheduling: an agent has refused the pod's grant permanently, or
//! has asked for the pod to be evicted.

use super::Cycle;
use crate::action::EvictCause;
use crate::ids::NodeName;
use crate::state::rows::Refused;

impl Cycle<'_> {
    /// Pods whose grants an agent refused permanently, or whose eviction it requests. The former
    /// hold nothing any more; the latter keep what they hold until they have ended.
    pub(super) fn evict_unwanted(&mut self) {
        for (_, task) in std::mem::take(&mut self.state.index.to_evict) {
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
                    self.evict_as_it_is(task, EvictCause::AgentRequest, &message);
                }
                (None, Some(Refused { refusal, .. })) => {
                    let message = message(&refusal.node, &refusal.reason);
                    self.evict_as_it_is(task, EvictCause::GrantRefused, &message);
                }
                (Some(request), None) => match node {
                    // The agent knows of its binding before the watch.
                    None => {
                        let uid = row.uid.clone();
                        self.state.index.to_evict.insert((uid, task));
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
}
