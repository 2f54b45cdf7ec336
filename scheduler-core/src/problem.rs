//! Errors in events. They never fail the core: the rest is applied.

use crate::ids::{ContainerName, DecisionId, GpuUuid, GroupName, NodeName, PodUid, QueueName};
use std::fmt;
use std::sync::Arc;

/// Something in an event that could not be used, or that contradicts what was known.
/// The shell logs it once and counts it; no answer is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Two cards of one node have one UUID; the later is left out.
    DuplicateCard {
        /// On which node.
        node: NodeName,
        /// Which card.
        card: GpuUuid,
    },
    /// The agents of two nodes name one card. Nothing is placed on it through this node until the
    /// other's agent is lost or names it no more.
    CardElsewhere {
        /// The node that does not have it.
        node: NodeName,
        /// The card.
        card: GpuUuid,
        /// The node that has it.
        owner: NodeName,
    },
    /// More is reserved or grantable than the card has; cut to what it has.
    CardMemory {
        /// On which node.
        node: NodeName,
        /// Which card.
        card: GpuUuid,
    },
    /// The queue's chain of parents comes back to it; it and its kin get nothing.
    QueueCycle(QueueName),
    /// The queue's parent does not exist (yet); it and its kin get nothing.
    QueueOrphan(QueueName),
    /// More queues are above it than [`crate::model::Queue::MAX_DEPTH`] allows; it and those
    /// below it get nothing.
    QueueDepth(QueueName),
    /// The group's tree has two sets of one name, or no set at all.
    GroupTree(GroupName),
    /// An invalid request: no devices, a fraction above 1, an overflow.
    BadRequest {
        /// Whose.
        pod: PodUid,
        /// Of which container.
        container: ContainerName,
        /// The error, one short sentence.
        what: Arc<str>,
    },
    /// A bound pod names a card that its node does not have (any more).
    UnknownCard {
        /// Whose.
        pod: PodUid,
        /// Which card.
        card: GpuUuid,
    },
    /// A bound pod asks for cards on a managed node and its grant names none: it counts
    /// as holding nothing, the agent refuses it.
    NoGrant {
        /// Whose.
        pod: PodUid,
        /// Where.
        node: NodeName,
    },
    /// Bound pods hold more of the card than it can grant; nothing more is placed there.
    OverCommitted {
        /// On which node.
        node: NodeName,
        /// Which card.
        card: GpuUuid,
    },
    /// An outcome or refusal of a decision that is not open (any more).
    UnknownDecision(DecisionId),
    /// An event about something that was never announced.
    Unknown {
        /// `node`, `queue`, `group`, `pod` or `topology`.
        what: &'static str,
        /// Its name.
        name: Arc<str>,
    },
    /// A number too large to be added up; the object is left out.
    Overflow {
        /// `node`, `pod`, ...
        what: &'static str,
        /// Its name.
        name: Arc<str>,
    },
    /// A tick that goes back in time.
    TimeWentBack,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DuplicateCard { node, card } => {
                write!(
                    f,
                    "card {card} of node {node} is there twice, the later is left out"
                )
            }
            Self::CardElsewhere { node, card, owner } => write!(
                f,
                "card {card} of node {node} is on node {owner} as well, whose agent is connected: \
                 nothing is placed on it through node {node}"
            ),
            Self::CardMemory { node, card } => write!(
                f,
                "card {card} of node {node} says that more is reserved or grantable than it has"
            ),
            Self::QueueCycle(queue) => write!(f, "queue {queue} is its own ancestor"),
            Self::QueueOrphan(queue) => write!(f, "the parent of queue {queue} does not exist"),
            Self::QueueDepth(queue) => write!(
                f,
                "queue {queue} is more than {} levels deep",
                crate::model::Queue::MAX_DEPTH
            ),
            Self::GroupTree(group) => {
                write!(
                    f,
                    "pod group {group} has two sub-groups of one name, or none"
                )
            }
            Self::BadRequest {
                pod,
                container,
                what,
            } => write!(f, "container {container} of pod {pod}: {what}"),
            Self::UnknownCard { pod, card } => {
                write!(
                    f,
                    "pod {pod} is bound to card {card}, which its node does not have"
                )
            }
            Self::NoGrant { pod, node } => write!(
                f,
                "pod {pod} asks for GPUs and is bound to node {node} without a grant"
            ),
            Self::OverCommitted { node, card } => write!(
                f,
                "pods hold more of card {card} of node {node} than it can grant"
            ),
            Self::UnknownDecision(decision) => write!(f, "decision {decision} is not open"),
            Self::Unknown { what, name } => write!(f, "{what} {name} is not known"),
            Self::Overflow { what, name } => {
                write!(f, "{what} {name} has a number that is too large")
            }
            Self::TimeWentBack => f.write_str("time went back"),
        }
    }
}
