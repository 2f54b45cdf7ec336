//! HTTP: the page's files without authentication, its data for accounts that the API server
//! authenticates.
//!
//! - `queries`: answered by the rows' owner; `upstream`: requests to the API server, Prometheus and
//!   the core.
//!
//! Every response has an `ETag`: if nothing changed, the next response has no body.

mod queries;
mod upstream;

use super::answer::{Answer, Pods, Query, Rights};
use super::caller::{CallerError, Callers};
use super::rows::PendingQuery;
use crate::cycle::Question;
use crate::page_link::PageLink;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{ConnectInfo, Query as Parameters, State as Extract};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc, oneshot};

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

/// The sources of data, and the account.
#[derive(Clone)]
pub(super) struct HttpState {
    /// `None`: all readers may see everything.
    pub(super) callers: Option<Arc<Callers>>,
    /// To the API server, as this scheduler.
    pub(super) client: kube::Client,
    /// To the rows' owner.
    pub(super) asked: mpsc::Sender<PendingQuery>,
    /// To the cycle.
    pub(super) questions: mpsc::Sender<Question>,
    /// Name of this scheduler in pods' specs.
    pub(super) scheduler: Arc<str>,
    /// URL of Prometheus, where there is one.
    pub(super) prometheus: Option<Arc<str>>,
    /// Links of a pod's page to other tools.
    pub(super) links: Arc<[PageLink]>,
    /// One request is tried at a time: each takes a copy of the core.
    pub(super) trials: Arc<Semaphore>,
}

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

/// The error of a request.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = axum::Json(json!({"error": self.1}));
        let mut response = (self.0, body).into_response();
        if self.0 == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<CallerError> for Refusal {
    fn from(error: CallerError) -> Self {
        let code = match &error {
            CallerError::Unknown(_) => StatusCode::UNAUTHORIZED,
            CallerError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            CallerError::TooMany => StatusCode::TOO_MANY_REQUESTS,
        };
        Self(code, error.to_string())
    }
}

fn ended() -> Refusal {
    Refusal(
        StatusCode::SERVICE_UNAVAILABLE,
        "this scheduler is stopping".to_owned(),
    )
}

impl HttpState {
    async fn rights(&self, headers: &HeaderMap) -> Result<Rights, Refusal> {
        let Some(callers) = &self.callers else {
            return Ok(Rights::all());
        };
        let (token, mut rights) = callers.rights(shown(headers)?, None).await?;
        if rights.pods != Pods::All {
            let (to, answer) = oneshot::channel();
            let asked = self.asked.send(PendingQuery::Namespaces(to)).await;
            asked.map_err(|_| ended())?;
            let wanted = answer.await.map_err(|_| ended())?;
            rights.pods = Pods::In(callers.namespaces(token, wanted).await?);
        }
        Ok(rights)
    }

    async fn may_list_events(&self, headers: &HeaderMap, namespace: &str) -> Result<bool, Refusal> {
        let Some(callers) = &self.callers else {
            return Ok(true);
        };
        let (token, _) = callers.rights(shown(headers)?, None).await?;
        Ok(callers.events(token, namespace).await?)
    }

    async fn ask(&self, headers: &HeaderMap, query: Query) -> Result<Value, Refusal> {
        let rights = self.rights(headers).await?;
        let (to, answer) = oneshot::channel();
        let asked = self
            .asked
            .send(PendingQuery::Query(query, rights, to))
            .await;
        asked.map_err(|_| ended())?;
        match answer.await.map_err(|_| ended())? {
            Answer::Json(value) => Ok(value),
            Answer::Absent => Err(Refusal(
                StatusCode::NOT_FOUND,
                "it is not there any more, or you may not list it".to_owned(),
            )),
            Answer::Denied(why) => Err(Refusal(StatusCode::FORBIDDEN, why.to_owned())),
        }
    }

    async fn answer(&self, headers: &HeaderMap, query: Query) -> Result<Response, Refusal> {
        let value = self.ask(headers, query).await?;
        Ok(tagged(headers, "application/json", value.to_string()))
    }
}

type Answered = Result<Response, Refusal>;

/// The parameters of a request.
fn read<P>(parameters: Result<Parameters<P>, QueryRejection>) -> Result<P, Refusal> {
    let bad = |error: QueryRejection| Refusal(StatusCode::BAD_REQUEST, error.body_text());
    parameters.map(|Parameters(read)| read).map_err(bad)
}

/// The token of a request.
fn shown(headers: &HeaderMap) -> Result<&str, Refusal> {
    bearer(headers).ok_or_else(|| {
        // A token for this audience opens no other door.
        let audience = proto::names::page::AUDIENCE;
        let text = format!(
            "a Kubernetes token is needed: `kubectl create token ACCOUNT --audience {audience}` makes one"
        );
        Refusal(StatusCode::UNAUTHORIZED, text)
    })
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The body, unless the caller has it already.
fn tagged(headers: &HeaderMap, kind: &'static str, body: String) -> Response {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    let tag = format!("\"{:016x}\"", hasher.finish());
    let has = headers
        .get(header::IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok());
    if has == Some(tag.as_str()) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response();
    }
    let about = [(header::CONTENT_TYPE, kind.to_owned()), (header::ETAG, tag)];
    (about, body).into_response()
}
