//! HTTP: the page's files for everybody, its data for whom the API server knows.
//!
//! Every answer has an `ETag`: who looks again and nothing changed gets no body.

use super::answer::{
    Answer, CARD_COLUMNS, CARD_STATES, POD_COLUMNS, POD_STATES, Pods, Query, Rights, Span,
};
use super::caller::{CallerError, Callers};
use super::desk::Asked;
use crate::cycle::Question;
use axum::Router;
use axum::extract::{Path, Query as Parameters, State as Extract};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Nothing from elsewhere, nothing in line, in nobody's frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Path, kind, content.
const FILES: [(&str, &str, &str); 7] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("assets/index.html"),
    ),
    (
        "/page.css",
        "text/css; charset=utf-8",
        include_str!("assets/page.css"),
    ),
    (
        "/icon.svg",
        "image/svg+xml",
        include_str!("assets/icon.svg"),
    ),
    (
        "/app.js",
        "text/javascript; charset=utf-8",
        include_str!("assets/app.js"),
    ),
    (
        "/dom.js",
        "text/javascript; charset=utf-8",
        include_str!("assets/dom.js"),
    ),
    (
        "/list.js",
        "text/javascript; charset=utf-8",
        include_str!("assets/list.js"),
    ),
    (
        "/views.js",
        "text/javascript; charset=utf-8",
        include_str!("assets/views.js"),
    ),
];

#[derive(Clone, Debug)]
struct Door {
    /// `None`: whoever reaches it may see everything.
    callers: Option<Arc<Callers>>,
    asked: mpsc::Sender<Asked>,
    questions: mpsc::Sender<Question>,
}

/// All routes.
pub(super) fn routes(
    callers: Option<Callers>,
    asked: mpsc::Sender<Asked>,
    questions: mpsc::Sender<Question>,
) -> Router {
    let door = Door {
        callers: callers.map(Arc::new),
        asked,
        questions,
    };
    let mut routes = Router::new();
    for (path, kind, text) in FILES {
        let file = async move |headers: HeaderMap| tagged(&headers, kind, text.to_owned());
        routes = routes.route(path, get(file));
    }
    routes
        .route("/api/overview", get(overview))
        .route("/api/cards", get(cards))
        .route("/api/cards/{uuid}", get(card))
        .route("/api/queues", get(queues))
        .route("/api/pods", get(pods))
        .route("/api/pods/{uid}", get(pod))
        .route("/api/health", get(health))
        .with_state(door)
        .layer(from_fn(guarded))
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

/// What a request comes to when it comes to nothing.
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

impl Door {
    async fn rights(&self, headers: &HeaderMap) -> Result<Rights, Refusal> {
        let Some(callers) = &self.callers else {
            return Ok(Rights::all());
        };
        let token = bearer(headers).ok_or_else(|| {
            let text = "a Kubernetes token is needed: `kubectl create token ACCOUNT` makes one";
            Refusal(StatusCode::UNAUTHORIZED, text.to_owned())
        })?;
        let (token, mut rights) = callers.rights(token).await?;
        if rights.pods != Pods::All {
            let (to, answer) = oneshot::channel();
            let asked = self.asked.send(Asked::Namespaces(to)).await;
            asked.map_err(|_| ended())?;
            let wanted = answer.await.map_err(|_| ended())?;
            rights.pods = Pods::In(callers.namespaces(token, wanted).await?);
        }
        Ok(rights)
    }

    async fn ask(&self, headers: &HeaderMap, query: Query) -> Result<Value, Refusal> {
        let rights = self.rights(headers).await?;
        let (to, answer) = oneshot::channel();
        let asked = self.asked.send(Asked::Query(query, rights, to)).await;
        asked.map_err(|_| ended())?;
        match answer.await.map_err(|_| ended())? {
            Answer::Json(value) => Ok(value),
            Answer::Absent => Err(Refusal(
                StatusCode::NOT_FOUND,
                "it is not there, or not any more".to_owned(),
            )),
            Answer::Denied(why) => Err(Refusal(StatusCode::FORBIDDEN, why.to_owned())),
        }
    }

    async fn answer(&self, headers: &HeaderMap, query: Query) -> Result<Response, Refusal> {
        let value = self.ask(headers, query).await?;
        Ok(tagged(headers, "application/json", value.to_string()))
    }

    /// Where the pod could go, a line per node and card; nothing where the cycle is gone.
    async fn explain(&self, uid: &str) -> Option<String> {
        let (to, answer) = oneshot::channel();
        let question = Question::Explain(uid.into(), to);
        self.questions.send(question).await.ok()?;
        let text = answer.await.ok()??;
        // The first line is the reason, which is shown already.
        Some(text.split_once('\n')?.1.to_owned())
    }
}

type Answered = Result<Response, Refusal>;

async fn overview(Extract(door): Extract<Door>, headers: HeaderMap) -> Answered {
    door.answer(&headers, Query::Overview).await
}

async fn cards(
    Extract(door): Extract<Door>,
    headers: HeaderMap,
    span: Result<Parameters<Span>, axum::extract::rejection::QueryRejection>,
) -> Answered {
    let span = checked(span, &CARD_COLUMNS, &CARD_STATES)?;
    door.answer(&headers, Query::Cards(span)).await
}

async fn card(
    Extract(door): Extract<Door>,
    headers: HeaderMap,
    Path(uuid): Path<String>,
) -> Answered {
    door.answer(&headers, Query::Card(uuid)).await
}

async fn queues(Extract(door): Extract<Door>, headers: HeaderMap) -> Answered {
    door.answer(&headers, Query::Queues).await
}

async fn pods(
    Extract(door): Extract<Door>,
    headers: HeaderMap,
    span: Result<Parameters<Span>, axum::extract::rejection::QueryRejection>,
) -> Answered {
    let span = checked(span, &POD_COLUMNS, &POD_STATES)?;
    door.answer(&headers, Query::Pods(span)).await
}

async fn pod(
    Extract(door): Extract<Door>,
    headers: HeaderMap,
    Path(uid): Path<String>,
) -> Answered {
    let mut value = door.ask(&headers, Query::Pod(uid.clone())).await?;
    // Names of cards are for those who may see cards.
    if value["node"].is_null() && door.rights(&headers).await?.cards {
        value["explain"] = json!(door.explain(&uid).await);
    }
    Ok(tagged(&headers, "application/json", value.to_string()))
}

async fn health(Extract(door): Extract<Door>, headers: HeaderMap) -> Answered {
    door.answer(&headers, Query::Health).await
}

fn checked(
    span: Result<Parameters<Span>, axum::extract::rejection::QueryRejection>,
    columns: &[&str],
    states: &[&str],
) -> Result<Span, Refusal> {
    let bad = |text: String| Refusal(StatusCode::BAD_REQUEST, text);
    let Parameters(span) = span.map_err(|error| bad(error.body_text()))?;
    span.check(columns, states).map_err(bad)?;
    Ok(span)
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
