//! `/metrics`, `/healthz`, `/readyz`.
//!
//! In: the registry, the node's state. Out: text. Reads, changes nothing.

use super::metrics::CONTENT_TYPE;
use crate::node::State;
use axum::Router;
use axum::extract::State as Extract;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use tokio::sync::watch;

/// The endpoints.
#[derive(Clone, Debug)]
pub struct Pages {
    /// All metrics.
    pub registry: Arc<Registry>,
    /// The node.
    pub state: watch::Receiver<Arc<State>>,
}

/// The three pages.
pub fn router(pages: Pages) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(pages)
}

/// Of an agent that waits for another one to end.
pub fn standby() -> Router {
    let well = || async { "ok: waits until the node's other agent has ended\n" };
    Router::new()
        .route("/healthz", get(well))
        .route("/readyz", get(well))
}

async fn metrics(Extract(pages): Extract<Pages>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &pages.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The process serves and its state has an owner.
async fn healthz(Extract(pages): Extract<Pages>) -> Response {
    if pages.state.has_changed().is_ok() {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the state has no owner\n").into_response()
    }
}

async fn readyz(Extract(pages): Extract<Pages>) -> Response {
    let missing = missing(&pages.state.borrow());
    if missing.is_empty() {
        "ok\n".into_response()
    } else {
        let text = format!("{}\n", missing.join("\n"));
        (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
    }
}

/// What the agent still waits for. A node that offers nothing and says so is ready: an
/// agent that is taken out of service would say nothing.
fn missing(state: &State) -> Vec<&'static str> {
    let mut missing = Vec::new();
    if !state.ready.cluster {
        missing.push("waits for the API server: pods, Node, trust");
    }
    if state.not_offering.is_none() {
        if !state.ready.nvml {
            missing.push("waits for NVML");
        }
        if !state.ready.registered {
            missing.push("waits for the kubelet to take our registration");
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_offers_nothing_and_says_so_is_ready() {
        let mut state = State::default();
        assert_eq!(missing(&state).len(), 3);
        state.ready.cluster = true;
        state.not_offering = Some("the driver does not answer".into());
        assert!(missing(&state).is_empty());
        state.not_offering = None;
        assert_eq!(missing(&state).len(), 2);
        state.ready.nvml = true;
        state.ready.registered = true;
        assert!(missing(&state).is_empty());
    }
}
