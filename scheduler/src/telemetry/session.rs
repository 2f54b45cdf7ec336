//! One stream's rules. Pure.
//!
//! Sequence numbers start at 1 and rise by one; the first message is a state; states are about the
//! token's node only; the agent does not change within a stream.

use super::event::AgentEvent;
use proto::telemetry::agent_message::Body;
use proto::telemetry::{AgentMessage, NodeState};
use tonic::Status;

/// Four times what the largest machines have.
const MOST_CARDS: usize = 64;
/// Of Kubernetes' names and NVIDIA's UUIDs none is longer.
const LONGEST_NAME: usize = 253;
/// 16 TiB in MiB, some fifty times the largest card.
const MOST_MEMORY: u64 = 1 << 24;

/// What one stream has received so far.
#[derive(Debug)]
pub(super) struct Session {
    node: String,
    instance: String,
    taken: u64,
}

impl Session {
    /// A stream for this node.
    pub(super) fn new(node: String) -> Self {
        Self {
            node,
            instance: String::new(),
            taken: 0,
        }
    }

    /// Processes one message; returns what is new in it, if anything.
    ///
    /// # Errors
    /// The stream's end, with the rule that it broke.
    pub(super) fn take(&mut self, message: AgentMessage) -> Result<Option<AgentEvent>, Status> {
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
            Some(Body::State(state)) => {
                well_formed(&state).map_err(Status::invalid_argument)?;
                Some(AgentEvent::State {
                    node: node(),
                    state,
                })
            }
            _ if first => {
                return Err(Status::failed_precondition(
                    "the first message of a stream is a state",
                ));
            }
            Some(Body::Refusal(refusal)) => Some(AgentEvent::Refusal {
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

    /// The number of the last processed message.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }
}

/// What no agent means, whatever its release: it would be believed of cards or pods that it
/// does not name.
fn well_formed(state: &NodeState) -> Result<(), String> {
    for gpus in [&state.gpus, &state.slices] {
        if gpus.len() > MOST_CARDS {
            return Err(format!("{} cards on one node", gpus.len()));
        }
    }
    for gpu in state.gpus.iter().chain(&state.slices) {
        if gpu.uuid.is_empty() || gpu.uuid.len() > LONGEST_NAME {
            return Err(format!("card {} has no UUID, or no short one", gpu.index));
        }
        if gpu.memory_total_mib > MOST_MEMORY {
            return Err(format!(
                "{}: {} MiB of memory",
                gpu.uuid, gpu.memory_total_mib
            ));
        }
    }
    for share in &state.shares {
        let named = [&share.pod_uid, &share.container];
        if named
            .iter()
            .any(|name| name.is_empty() || name.len() > LONGEST_NAME)
        {
            return Err(format!(
                "a share of pod {}/{} without pod UID or container",
                short(&share.pod_namespace),
                short(&share.pod_name)
            ));
        }
    }
    Ok(())
}

/// Of text from an untrusted source.
fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::telemetry::{Heartbeat, Refusal};
    use tonic::Code;

    fn message(sequence: u64, body: Body) -> AgentMessage {
        AgentMessage {
            sequence,
            agent_instance: "a".into(),
            release: proto::names::RELEASE.to_owned(),
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
        assert!(matches!(heard, Some(AgentEvent::State { node, .. }) if node == "n1"));
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
        assert!(matches!(refusal, Some(AgentEvent::Refusal { .. })));
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
    fn what_no_agent_means_ends_the_stream_and_names_what_it_is() {
        use proto::telemetry::{Gpu, Share};
        let gpu = |uuid: &str, memory| Gpu {
            uuid: uuid.into(),
            memory_total_mib: memory,
            ..Gpu::default()
        };
        let unnamed = Share {
            pod_name: "p\n\u{1b}".into(),
            ..Share::default()
        };
        for (gpus, shares, word) in [
            (vec![gpu("", 1)], vec![], "no UUID"),
            (vec![gpu(&"x".repeat(300), 1)], vec![], "no short one"),
            (
                vec![gpu("GPU-1", u64::MAX)],
                vec![],
                "GPU-1: 18446744073709551615 MiB",
            ),
            (vec![gpu("GPU-1", 1); 65], vec![], "65 cards"),
            (vec![], vec![unnamed], "pod /p without"),
        ] {
            let mut session = Session::new("n1".into());
            let state = NodeState {
                node: "n1".into(),
                gpus,
                shares,
                ..NodeState::default()
            };
            let ended = session
                .take(message(1, Body::State(state)))
                .expect_err("malformed");
            assert_eq!(ended.code(), Code::InvalidArgument);
            assert!(ended.message().contains(word), "{ended}");
            assert_eq!(session.taken(), 0);
        }
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
