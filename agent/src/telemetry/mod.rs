//! Telemetry: streams, `GpuNode` status, metrics, health.

use crate::Config;
use crate::node::{Note, State};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// What telemetry reads.
#[allow(missing_debug_implementations)]
pub struct Inputs {
    /// Paths and endpoints.
    pub config: Arc<Config>,
    /// For the `GpuNode`'s status.
    pub client: kube::Client,
    /// What the agent knows.
    pub state: watch::Receiver<Arc<State>>,
    /// What happened once.
    pub notes: mpsc::UnboundedReceiver<Note>,
    /// Ends it.
    pub stop: CancellationToken,
}

/// Why telemetry ended.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {}

/// Takes in notes until `stop`.
///
/// # Errors
/// None yet.
pub async fn run(mut inputs: Inputs) -> Result<(), TelemetryError> {
    loop {
        tokio::select! {
            Some(_) = inputs.notes.recv() => {}
            () = inputs.stop.cancelled() => return Ok(()),
        }
    }
}
