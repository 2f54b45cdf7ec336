//! The state of the cycle, which the pages show.

/// The state of a cycle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The kinds of objects that were not listed yet.
    pub missing: Vec<&'static str>,
    /// True if this replica leads and acts.
    pub leading: bool,
    /// The number of connected agents.
    pub agents: usize,
}
