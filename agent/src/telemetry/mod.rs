//! What this node reports to others. Turning it off changes no container.
//!
//! In the order of the data's way:
//! - [`report`]: pure: the node's state → the message for schedulers.
//! - [`refusals`]: pure: grants that were not honoured, kept while a scheduler may need them.
//! - [`stream`]: one connection to one scheduler; [`endpoints`]: which schedulers there are.
//! - [`status`]: pure: the node's state → the `GpuNode`'s status; [`publish`] writes it.
//! - [`metrics`]: counters, and gauges read at each scrape; [`http`] serves them, [`listener`] to few at once.
//! - [`pace`]: when to try again.

pub mod endpoints;
pub mod http;
pub mod listener;
pub mod metrics;
pub mod pace;
pub mod publish;
pub mod refusals;
pub mod report;
pub mod status;
pub mod stream;

use crate::Config;
use crate::node::{Note, State};
use metrics::{Meters, NodeCollector};
use prometheus_client::registry::Registry;
use refusals::Refusals;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::info;

/// What telemetry reads.
#[allow(missing_debug_implementations, reason = "the client has none")]
pub struct TelemetryInputs {
    /// Paths and endpoints.
    pub config: Arc<Config>,
    /// For the `GpuNode`'s status.
    pub client: kube::Client,
    /// What the agent knows.
    pub state: watch::Receiver<Arc<State>>,
    /// What happened once.
    pub notes: channel::Receiver<Note>,
    /// The lengths of the agent's channels.
    pub lengths: channel::Lengths,
    /// Ends it.
    pub stop: CancellationToken,
}

/// Why telemetry ended. The process ends with it.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The port is taken, or the address is not ours.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// As configured.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A part of it panicked.
    #[error("a telemetry task failed: {0}")]
    Failed(#[source] tokio::task::JoinError),
}

/// Streams, status, metrics and health, until `stop`.
///
/// # Errors
/// See [`TelemetryError`]. Peers that cannot be reached are no error.
pub async fn run(inputs: TelemetryInputs) -> Result<(), TelemetryError> {
    let TelemetryInputs {
        config,
        client,
        state,
        notes,
        lengths,
        stop,
    } = inputs;
    let start = Instant::now();
    let mut registry = Registry::default();
    let meters = Arc::new(Meters::new(&mut registry, &lengths));
    let collector = NodeCollector {
        state: state.clone(),
    };
    registry.register_collector(Box::new(collector));
    let (refusals_out, refusals) = watch::channel(Refusals::default());
    let mut tasks = JoinSet::new();
    // If one part fails, all end.
    let end = stop.child_token();
    tasks.spawn(take_notes(
        notes,
        refusals_out,
        Arc::clone(&meters),
        start,
        end.clone(),
    ));
    if let Some(address) = config.listen {
        let listen = |source| TelemetryError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        info!(%address, "metrics and health");
        let pages = http::Pages {
            registry: Arc::new(registry),
            state: state.clone(),
        };
        let stop = end.clone();
        tasks.spawn(async move {
            // Ends only by its shutdown: errors of connections are their own.
            let _ = axum::serve(listener::Bounded::new(listener), http::router(pages))
                .with_graceful_shutdown(stop.cancelled_owned())
                .await;
        });
    }
    tasks.spawn(publish::run(
        config.node_name.clone(),
        client,
        state.clone(),
        Arc::clone(&meters),
        start,
        end.clone(),
    ));
    if let Some(endpoint) = config.telemetry_endpoint.clone() {
        let server_name = config
            .telemetry_server_name
            .clone()
            .unwrap_or_else(|| endpoints::host(&endpoint));
        let sources = stream::Sources {
            config,
            instance: pace::instance(),
            state,
            refusals,
            meters,
            start,
            server_name,
        };
        tasks.spawn(endpoints::run(sources, endpoint, end.clone()));
    }
    let mut result = Ok(());
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            result = Err(TelemetryError::Failed(error));
            end.cancel();
        }
    }
    result
}

/// The same for an agent that waits for the previous one: it is alive and ready, and has nothing to
/// show. Until `stop`.
///
/// # Errors
/// The address cannot be had.
pub fn standby(
    config: &Config,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + use<>, TelemetryError> {
    let listener = match config.listen {
        None => None,
        Some(address) => {
            let listen = |source| TelemetryError::Listen { address, source };
            let listener = std::net::TcpListener::bind(address).map_err(listen)?;
            listener.set_nonblocking(true).map_err(listen)?;
            Some(TcpListener::from_std(listener).map_err(listen)?)
        }
    };
    Ok(async move {
        match listener {
            None => stop.cancelled().await,
            Some(listener) => {
                let _ = axum::serve(listener::Bounded::new(listener), http::standby())
                    .with_graceful_shutdown(stop.cancelled_owned())
                    .await;
            }
        }
    })
}

/// Counts what happened, and keeps refusals for the streams.
async fn take_notes(
    mut notes: channel::Receiver<Note>,
    refusals: watch::Sender<Refusals>,
    meters: Arc<Meters>,
    start: Instant,
    stop: CancellationToken,
) {
    loop {
        let note = tokio::select! {
            () = stop.cancelled() => return,
            note = notes.recv() => note,
        };
        let Some(note) = note else {
            // No sender is left; the streams still have a state to show.
            stop.cancelled().await;
            return;
        };
        meters.note(&note);
        if let Note::Refused(refusal) = &note {
            let refusal = report::refusal(refusal);
            refusals.send_modify(|refusals| refusals.add(start.elapsed(), refusal));
        }
    }
}
