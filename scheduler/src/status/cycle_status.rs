//! Where the cycle is, as the pages show it.

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
