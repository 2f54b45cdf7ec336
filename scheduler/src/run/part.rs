//! A part of this process is a task that runs until all parts stop. An error ends it before.

use crate::admission::AdmissionError;
use crate::{lease, preflight, scale_up, shard, telemetry, trust};
use std::io;
use std::net::SocketAddr;

/// The process ended for this reason, and nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An address cannot be listened at.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// No client can be created from the configuration of the API server.
    #[error("the API server cannot be reached: {0}")]
    Access(#[from] kube::Error),
    /// The configuration file cannot be used.
    #[error(transparent)]
    Config(#[from] shard::ConfigError),
    /// The file of node templates cannot be used.
    #[error(transparent)]
    NodeTemplates(#[from] scale_up::TemplateError),
    /// Another scheduler serves the same pods, or the cluster lacks what is needed.
    #[error(transparent)]
    Neighbour(#[from] preflight::PreflightError),
    /// Admission would not find the scheduler.
    #[error(
        "--role=scheduler needs --leader-elect=true: admission finds the scheduler by its lease"
    )]
    NoLease,
    /// Keys or certificates cannot be had.
    #[error(transparent)]
    Trust(#[from] trust::TrustError),
    /// The webhook cannot be served.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The server for agents cannot be started.
    #[error(transparent)]
    Telemetry(#[from] telemetry::TelemetryError),
    /// The lease went to another replica.
    #[error(transparent)]
    Lease(#[from] lease::LeaseError),
    /// The pages cannot be served.
    #[error("metrics and health cannot be served: {0}")]
    Pages(#[source] io::Error),
    /// A part ended that never ends by itself.
    #[error("{0} ended")]
    Ended(&'static str),
    /// A part panicked.
    #[error("a task failed: {0}")]
    Failed(#[source] tokio::task::JoinError),
}

/// A task ends with its name, or with an error.
pub(crate) type Part = Result<&'static str, RunError>;

pub(crate) async fn named(name: &'static str, part: impl Future<Output = ()>) -> Part {
    part.await;
    Ok(name)
}
