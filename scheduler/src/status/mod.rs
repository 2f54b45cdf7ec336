//! Metrics, health and the state, as pages.
//!
//! - `meters`: counters and times; `kai`: under KAI's names; `pages`: `/metrics`, `/healthz`,
//!   `/readyz`, `/readyz/scheduling`, `/snapshot`, `/explain`, `/observed`, `/report`; `requests`:
//!   counts requests to the API server.
//!
//! Reads, changes nothing.

mod kai;
mod meters;
mod pages;
mod requests;

pub use kai::Victim;
pub use meters::Meters;
pub use pages::{Pages, router};
pub use requests::counted;

/// Where the cycle is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Kinds of objects that were not listed yet.
    pub missing: Vec<&'static str>,
    /// This replica acts.
    pub leading: bool,
    /// Connected agents.
    pub agents: usize,
}
