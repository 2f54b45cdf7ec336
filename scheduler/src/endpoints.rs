//! Where requests come in: the addresses that a scheduler listens at.

use crate::config::{Config, Role};
use crate::run::RunError;
use crate::serve::Endpoint;
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// Where a scheduler listens. Bound apart, so that an embedder can take free ports and
/// know them.
#[derive(Debug)]
pub struct Listeners {
    /// Admission.
    pub webhook: TcpListener,
    /// Agents.
    pub telemetry: TcpListener,
    /// Metrics, health, state.
    pub metrics: Option<TcpListener>,
    /// The status page.
    pub page: Option<TcpListener>,
}

/// As [`Listeners`], by whatever way requests come.
#[derive(Debug)]
pub struct Endpoints {
    /// Admission.
    pub webhook: Endpoint,
    /// Agents.
    pub telemetry: Endpoint,
    /// Metrics, health, state.
    pub metrics: Option<Endpoint>,
    /// The status page.
    pub page: Option<TcpListener>,
}

impl From<Listeners> for Endpoints {
    fn from(listeners: Listeners) -> Self {
        Self {
            webhook: Endpoint::Port(listeners.webhook),
            telemetry: Endpoint::Port(listeners.telemetry),
            metrics: listeners.metrics.map(Endpoint::Port),
            page: listeners.page,
        }
    }
}

impl Listeners {
    /// At the addresses that the flags say.
    ///
    /// # Errors
    /// One of them is taken.
    pub async fn bind(config: &Config) -> Result<Self, RunError> {
        // An observer serves neither, and must not be in the way of the process that does;
        // admission has no telemetry and no page.
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let schedules = !config.observe && config.role != Role::Admission;
        let (webhook, telemetry) = match (config.observe, schedules) {
            (true, _) => (nowhere, nowhere),
            (false, true) => (config.webhook, config.telemetry),
            (false, false) => (config.webhook, nowhere),
        };
        Ok(Self {
            webhook: listen(webhook).await?,
            telemetry: listen(telemetry).await?,
            metrics: match config.metrics {
                Some(address) => Some(listen(address).await?),
                None => None,
            },
            page: match config.page {
                Some(address) if schedules => Some(listen(address).await?),
                _ => None,
            },
        })
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, RunError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| RunError::Listen { address, source })
}
