//! A running script, and what it holds.

use crate::client::Driver;
use crate::client::process::{CudaProcess, Environment, Route};
use crate::paths::Root;

/// A running script.
pub(super) struct Workload {
    pub(super) root: Root,
    pub(super) env: Environment,
    pub(super) route: Route,
    pub(super) process: Option<CudaProcess>,
    /// What holds memory past CUDA.
    pub(super) others: Vec<Driver>,
    pub(super) allocations: Vec<(u64, u64)>,
    pub(super) keep_going: bool,
    pub(super) failed: bool,
}
