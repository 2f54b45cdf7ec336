//! A part of this process: a task that runs until all stop, and why one ends before.

use crate::admission::AdmissionError;
use crate::{lease, preflight, scale_up, shard, telemetry, trust};
use std::io;
use std::net::SocketAddr;

/// Why a scheduler ended without a request.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An address cannot be listened at.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No client can be created from the configuration of the API server.
    #[error("the API server cannot be reached: {0}")]
    Access(#[from] kube::Error),
    /// The configuration file.
    #[error(transparent)]
    Config(#[from] shard::ConfigError),
    /// The file of node templates.
    #[error(transparent)]
    NodeTemplates(#[from] scale_up::TemplateError),
    /// No room for another scheduler.
    #[error(transparent)]
    Neighbour(#[from] preflight::PreflightError),
    /// Admission would not find it.
    #[error(
        "--role=scheduler needs --leader-elect=true: admission finds the scheduler by its lease"
    )]
    NoLease,
    /// Keys or certificates.
    #[error(transparent)]
    Trust(#[from] trust::TrustError),
    /// The webhook.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The agents' server.
    #[error(transparent)]
    Telemetry(#[from] telemetry::TelemetryError),
    /// The lease went to another replica.
    #[error(transparent)]
    Lease(#[from] lease::LeaseError),
    /// The pages.
    #[error("metrics and health cannot be served: {0}")]
    Pages(#[source] io::Error),
    /// A part ended that never ends by itself.
    #[error("{0} ended")]
    Ended(&'static str),
    /// A part panicked.
    #[error("a task failed: {0}")]
    Failed(#[source] tokio::task::JoinError),
}

/// What a task says when it ends.
pub(crate) type Part = Result<&'static str, RunError>;

pub(crate) async fn named(name: &'static str, part: impl Future<Output = ()>) -> Part {
    part.await;
    Ok(name)
}
