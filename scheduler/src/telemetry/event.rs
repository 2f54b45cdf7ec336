//! What the rest of the scheduler hears of a node.

use proto::telemetry::{NodeState, Refusal};

/// A fact from a node.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentEvent {
    /// All that its agent knows.
    State {
        /// Whose token it was.
        node: String,
        /// As said.
        state: NodeState,
    },
    /// A grant that is not honoured there.
    Refusal {
        /// Whose token it was.
        node: String,
        /// As said.
        refusal: Refusal,
    },
    /// The agent's stream has ended, and no other has begun. Its last report stands, but the
    /// kubelet may be without its plugin and would permanently reject a pod.
    Disconnected {
        /// Which.
        node: String,
    },
    /// No message for 15 s.
    Lost {
        /// Which.
        node: String,
    },
}

impl AgentEvent {
    /// Whose word it is.
    pub fn node(&self) -> &str {
        match self {
            Self::State { node, .. }
            | Self::Refusal { node, .. }
            | Self::Disconnected { node }
            | Self::Lost { node } => node,
        }
    }
}
