//! What an answer is, and what it says of a missing right or agent.

use serde_json::Value;

/// The response.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::page) enum Answer {
    /// This.
    Json(Value),
    /// There is no such thing, as far as the reader may know.
    Absent,
    /// The reader may not see it; which right is missing.
    Denied(&'static str),
}

pub(super) const NO_CARDS: &str = "you may not list gpunodes.aliquot.dev";
pub(super) const NO_AGENT: &str = "its agent is disconnected";
pub(super) const NO_QUEUES: &str = "you may not list queues.scheduling.run.ai";
