//! Metrics, health and the state, as pages.
//!
//! - `meters`: counters and times; `pages`: `/metrics`, `/healthz`, `/readyz`,
//!   `/snapshot`, `/explain`, `/observed`.
//!
//! Reads, changes nothing.

mod meters;
mod pages;

pub use meters::Meters;
pub use pages::{Pages, router};

/// Where the cycle is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Kinds of objects that were not listed yet.
    pub missing: Vec<&'static str>,
    /// This replica acts.
    pub leading: bool,
    /// Agents that are heard.
    pub agents: usize,
}
