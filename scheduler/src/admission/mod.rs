//! What a pod of ours becomes before it exists, or why it does not.
//!
//! - `amend`: pure: a pod → the same with its token and amount, or one sentence.
//! - `review`: an `AdmissionReview` → its answer.
//! - `configuration`: the `MutatingWebhookConfiguration`, kept as it must be.
//!
//! `failurePolicy: Fail`, for pods that name our scheduler alone: without the webhook no
//! such pod is made, and every other pod is.

mod amend;
mod configuration;
mod review;

pub use amend::{AmendError, amended};
pub use configuration::Reach;

use crate::trust::Trust;
use axum::Router;
use axum::routing::{get, post};
use configuration::Configuration;
use tokio_util::sync::CancellationToken;

/// Where reviews are sent.
const PATH: &str = "/mutate-pods";

/// What admission needs to know.
#[derive(Debug)]
pub struct Settings {
    /// Where it listens.
    pub listener: std::net::TcpListener,
    /// How the API server comes here.
    pub reach: Reach,
    /// Our namespace.
    pub namespace: String,
    /// Pods that name this scheduler are ours.
    pub scheduler_name: String,
    /// Namespaces that are left alone, beside `kube-system` and ours.
    pub exempt_namespaces: Vec<String>,
}

/// Why admission ended.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// The listener broke.
    #[error("the webhook cannot be served: {0}")]
    Serve(#[from] std::io::Error),
}

/// Serves the webhook and keeps its configuration, until `stop`.
///
/// # Errors
/// The listener broke.
pub async fn run(
    settings: Settings,
    trust: Trust,
    client: kube::Client,
    stop: CancellationToken,
) -> Result<(), AdmissionError> {
    let configuration = Configuration::new(&settings, trust.ca_pem());
    let routes = Router::new()
        .route(PATH, post(review::answer))
        .route("/healthz", get(async || "ok"));
    let end = stop.child_token();
    let _guard = end.clone().drop_guard();
    // What serves comes first: a configuration without a server refuses pods.
    tokio::select! {
        biased;
        ended = trust.serve(settings.listener, routes, stop) => Ok(ended?),
        () = configuration.keep(client, end) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
