//! What agents say of their nodes: the server end of their streams.
//!
//! - `caller`: a token → the node that it is bound to, by the API server.
//! - `session`: pure: one stream's rules: whose node, which order.
//! - `rate`: pure: addresses whose tokens are not reviewed for a while.
//! - `presence`: the current stream of each node, and nodes that fell silent.
//! - `event`: a fact from a node; `agent_events`: reports that are not applied yet, bounded per node; `meters`: its metrics.
//! - `server`: gRPC around them.
//!
//! Observes, never commands: agents receive only acknowledgements.

mod agent_events;
mod caller;
mod event;
mod meters;
mod presence;
mod rate;
mod server;
mod session;

use crate::serve::Endpoint;
use crate::trust::Trust;
use caller::Callers;
use presence::Presence;
use proto::telemetry::telemetry_server::TelemetryServer;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

pub use agent_events::{AgentEventReceiver, AgentEventSender, channel};
pub use event::AgentEvent;
pub use meters::AgentMeters;
pub(crate) use rate::Refusals;

/// Bytes of one message. Sixteen cards with 48 shares each are below 512 KiB, and the emptiest
/// message becomes structs of some two hundred times its length.
const MAX_MESSAGE: usize = 1 << 20;

/// Why the telemetry service ended.
#[derive(Debug, thiserror::Error)]
#[error("the telemetry service cannot be served: {0}")]
pub struct TelemetryError(#[from] std::io::Error);

/// Serves agents until `stop`.
///
/// # Errors
/// The listener broke.
pub async fn run(
    endpoint: Endpoint,
    trust: Trust,
    client: kube::Client,
    namespace: String,
    heard: AgentEventSender,
    meters: Arc<AgentMeters>,
    stop: CancellationToken,
) -> Result<(), TelemetryError> {
    let service = server::Service {
        callers: Callers::new(client, &namespace),
        presence: Presence::new(heard.clone()),
        heard,
        meters,
        stop: stop.clone(),
    };
    let server =
        TelemetryServer::from_arc(Arc::new(service)).max_decoding_message_size(MAX_MESSAGE);
    let routes = Routes::new(server).into_axum_router();
    Ok(trust.certificates().serve(endpoint, routes, stop).await?)
}

#[cfg(test)]
mod tests;
