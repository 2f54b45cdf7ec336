//! The events that agents cause.

use proto::telemetry::{NodeState, Refusal};

/// An event that a node's agent sends, or causes by its silence.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentEvent {
    /// The agent has sent its whole state.
    State {
        /// The name of the node, from the token that the agent sent.
        node: String,
        /// The state that was sent.
        state: NodeState,
    },
    /// The agent does not honour a grant.
    Refusal {
        /// The name of the node, from the token that the agent sent.
        node: String,
        /// The refusal that was sent.
        refusal: Refusal,
    },
    /// The agent's stream has ended, and no other has begun. Its last report stands, but the
    /// kubelet may be without its plugin and would permanently reject a pod.
    Disconnected {
        /// The name of the node.
        node: String,
    },
    /// The agent has sent no message for 15 s.
    Lost {
        /// The name of the node.
        node: String,
    },
}

impl AgentEvent {
    /// Returns the name of the node.
    pub fn node(&self) -> &str {
        match self {
            Self::State { node, .. }
            | Self::Refusal { node, .. }
            | Self::Disconnected { node }
            | Self::Lost { node } => node,
        }
    }
}
