//! One stream's rules. Pure.
//!
//! Sequence numbers start at 1 and rise by one; the first message is a state; states
//! speak of the token's node alone; the agent does not change within a stream.

use super::Heard;
use proto::telemetry::AgentMessage;
use proto::telemetry::agent_message::Body;
use tonic::Status;

/// What was heard so far on one stream.
#[derive(Debug)]
pub(super) struct Session {
    node: String,
    instance: String,
    taken: u64,
}

impl Session {
    /// A stream that speaks for this node.
    pub(super) fn new(node: String) -> Self {
        Self {
            node,
            instance: String::new(),
            taken: 0,
        }
    }

    /// Takes one message in; what is new in it, if anything.
    ///
    /// # Errors
    /// The stream's end, with the rule that it broke.
    pub(super) fn take(&mut self, message: AgentMessage) -> Result<Option<Heard>, Status> {
        let due = self.taken + 1;
        if message.sequence != due {
            return Err(Status::aborted(format!(
                "sequence {} where {due} was due",
                message.sequence
            )));
        }
        let first = self.taken == 0;
        if first {
            self.instance.clone_from(&message.agent_instance);
        } else if self.instance != message.agent_instance {
            return Err(Status::aborted("another agent speaks on this stream"));
        }
        let node = || self.node.clone();
        let heard = match message.body {
            Some(Body::State(state)) if state.node != self.node => {
                return Err(Status::permission_denied(format!(
                    "the token is of node {}, the state of node {}",
                    self.node, state.node
                )));
            }
            Some(Body::State(state)) => Some(Heard::State {
                node: node(),
                state,
            }),
            _ if first => {
                return Err(Status::failed_precondition(
                    "the first message of a stream is a state",
                ));
            }
            Some(Body::Refusal(refusal)) => Some(Heard::Refusal {
                node: node(),
                refusal,
            }),
            Some(Body::Heartbeat(_)) => None,
            // A newer agent's message: nothing that we know of.
            None => None,
        };
        self.taken = due;
        Ok(heard)
    }

    /// The number of the last message that was taken in.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::telemetry::{Heartbeat, NodeState, Refusal};
    use tonic::Code;

    fn message(sequence: u64, body: Body) -> AgentMessage {
        AgentMessage {
            sequence,
            agent_instance: "a".into(),
            body: Some(body),
        }
    }

    fn state(node: &str) -> Body {
        Body::State(NodeState {
            node: node.into(),
            ..NodeState::default()
        })
    }

    fn after_first() -> Session {
        let mut session = Session::new("n1".into());
        let heard = session.take(message(1, state("n1"))).expect("taken");
        assert!(matches!(heard, Some(Heard::State { node, .. }) if node == "n1"));
        session
    }

    #[test]
    fn messages_in_order_are_taken_in() {
        let mut session = after_first();
        assert_eq!(
            session
                .take(message(2, Body::Heartbeat(Heartbeat {})))
                .expect("taken"),
            None
        );
        let refusal = session
            .take(message(3, Body::Refusal(Refusal::default())))
            .expect("taken");
        assert!(matches!(refusal, Some(Heard::Refusal { .. })));
        assert_eq!(session.taken(), 3);
    }

    #[test]
    fn a_gap_or_a_repeat_ends_the_stream_and_takes_nothing_in() {
        for wrong in [0, 1, 3, u64::MAX] {
            let mut session = after_first();
            let ended = session
                .take(message(wrong, state("n1")))
                .expect_err("out of order");
            assert_eq!(ended.code(), Code::Aborted, "{wrong}");
            assert_eq!(session.taken(), 1);
        }
        let mut fresh = Session::new("n1".into());
        assert!(fresh.take(message(2, state("n1"))).is_err());
    }

    #[test]
    fn a_state_of_another_node_ends_the_stream() {
        let ended = after_first()
            .take(message(2, state("n2")))
            .expect_err("another node");
        assert_eq!(ended.code(), Code::PermissionDenied);
        assert!(ended.message().contains("n1") && ended.message().contains("n2"));
    }

    #[test]
    fn nothing_is_believed_before_a_state() {
        for body in [
            Body::Heartbeat(Heartbeat {}),
            Body::Refusal(Refusal::default()),
        ] {
            let ended = Session::new("n1".into())
                .take(message(1, body))
                .expect_err("no state");
            assert_eq!(ended.code(), Code::FailedPrecondition);
        }
    }

    #[test]
    fn an_agent_does_not_change_within_a_stream() {
        let mut other = message(2, state("n1"));
        other.agent_instance = "b".into();
        assert_eq!(
            after_first().take(other).expect_err("another agent").code(),
            Code::Aborted
        );
    }
}
