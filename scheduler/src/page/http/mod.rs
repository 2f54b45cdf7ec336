//! HTTP: the page's files without authentication, its data for accounts that the API server
//! authenticates.
//!
//! - `state`: what handlers have, and what a request that fails gets.
//! - `queries`: answered by the rows' owner; `upstream`: requests to the API server, Prometheus and
//!   the core.
//!
//! Every response has an `ETag`: if nothing changed, the next response has no body.

mod queries;
mod state;
mod upstream;

pub(super) use state::HttpState;

use axum::Router;
use axum::extract::{ConnectInfo, State as Extract};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use state::{Refusal, shown, tagged};
use std::net::SocketAddr;

/// CSP: same origin only, nothing inline, no framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Path, kind, content.
const FILES: [(&str, &str, &str); 12] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("../assets/index.html"),
    ),
    (
        "/page.css",
        "text/css; charset=utf-8",
        include_str!("../assets/page.css"),
    ),
    (
        "/icon.svg",
        "image/svg+xml",
        include_str!("../assets/icon.svg"),
    ),
    (
        "/app.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/app.js"),
    ),
    (
        "/dom.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/dom.js"),
    ),
    (
        "/list.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/list.js"),
    ),
    (
        "/views.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/views.js"),
    ),
    (
        "/fleet.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/fleet.js"),
    ),
    (
        "/chart.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/chart.js"),
    ),
    (
        "/now.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/now.js"),
    ),
    (
        "/pod.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/pod.js"),
    ),
    (
        "/pages.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/pages.js"),
    ),
];

/// All routes.
pub(super) fn routes(state: HttpState) -> Router {
    let mut routes = Router::new();
    for (path, kind, text) in FILES {
        let file = async move |headers: HeaderMap| tagged(&headers, kind, text.to_owned());
        routes = routes.route(path, get(file));
    }
    let data = queries::routes().merge(upstream::routes());
    routes
        .merge(data.route_layer(from_fn_with_state(state.clone(), judged)))
        .with_state(state)
        .layer(from_fn(guarded))
}

/// Reviews the token of a request before the request is read further; handlers find the verdict
/// cached.
async fn judged(
    Extract(state): Extract<HttpState>,
    request: axum::extract::Request,
    next: Next,
) -> Result<Response, Refusal> {
    if let Some(callers) = &state.callers {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let peer = peer.map(|ConnectInfo(peer)| peer.ip());
        callers.rights(shown(request.headers())?, peer).await?;
    }
    Ok(next.run(request).await)
}

async fn guarded(request: axum::extract::Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Never from a cache without asking: rights change.
        (header::CACHE_CONTROL, "private, no-cache"),
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}
