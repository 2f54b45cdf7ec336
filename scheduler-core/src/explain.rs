//! Why a pod waits, per node and per card, recomputed on demand by the same `fit` that
//! decides.

use crate::action::ReasonKind;
use crate::ids::{GpuUuid, NodeName, PodUid};
use std::sync::Arc;

/// The longest reason line, in bytes: conditions and events keep it whole.
pub const MAX_LINE: usize = 1000;

/// Everything that can be said about where a pod may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Which pod.
    pub pod: PodUid,
    /// The kind of the leading reason; `None` when the pod does not wait.
    pub kind: Option<ReasonKind>,
    /// One line; empty when the pod does not wait.
    pub line: Arc<str>,
    /// Each node, in order of name.
    pub nodes: Vec<NodeVerdict>,
}

/// What one node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeVerdict {
    /// Which node.
    pub node: NodeName,
    /// True when the pod fits there now, queues left aside.
    pub fits: bool,
    /// Reasons of the node, KAI's wording; empty when it fits.
    pub reasons: Vec<Arc<str>>,
    /// Each card, in the node's order, where the pod asks for cards.
    pub cards: Vec<CardVerdict>,
}

/// What one card says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardVerdict {
    /// Which card.
    pub card: GpuUuid,
    /// True when it would do.
    pub fits: bool,
    /// For people, such as `GPU-1 (RTX 6000 Ada): 1000 of 46000 MiB free, 2000 needed`.
    pub line: Arc<str>,
}
