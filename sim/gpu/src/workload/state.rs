//! The state of a running script: the contexts and the memory that it holds.

use crate::client::Driver;
use crate::client::process::{CudaProcess, Environment, Route};
use crate::paths::Root;

/// A running script.
pub(super) struct Workload {
    pub(super) root: Root,
    pub(super) env: Environment,
    pub(super) route: Route,
    pub(super) process: Option<CudaProcess>,
    /// The connections to the driver that hold memory past CUDA.
    pub(super) others: Vec<Driver>,
    pub(super) allocations: Vec<(u64, u64)>,
    pub(super) keep_going: bool,
    pub(super) failed: bool,
}
