//! What handlers have, and what a request that fails gets.

use crate::cycle::Question;
use crate::page::answer::{Answer, Pods, Query, Rights};
use crate::page::caller::{CallerError, Callers};
use crate::page::owner::PendingQuery;
use crate::page_link::PageLink;
use axum::extract::Query as Parameters;
use axum::extract::rejection::QueryRejection;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc, oneshot};

/// The sources of data, and the account.
#[derive(Clone)]
pub(in crate::page) struct HttpState {
    /// `None`: all readers may see everything.
    pub(in crate::page) callers: Option<Arc<Callers>>,
    /// To the API server, as this scheduler.
    pub(in crate::page) client: kube::Client,
    /// To the rows' owner.
    pub(in crate::page) asked: mpsc::Sender<PendingQuery>,
    /// To the cycle.
    pub(in crate::page) questions: mpsc::Sender<Question>,
    /// Name of this scheduler in pods' specs.
    pub(in crate::page) scheduler: Arc<str>,
    /// URL of Prometheus, where there is one.
    pub(in crate::page) prometheus: Option<Arc<str>>,
    /// Links of a pod's page to other tools.
    pub(in crate::page) links: Arc<[PageLink]>,
    /// One request is tried at a time: each takes a copy of the core.
    pub(in crate::page) trials: Arc<Semaphore>,
}

/// The error of a request.
pub(super) struct Refusal(pub(super) StatusCode, pub(super) String);

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

pub(super) fn ended() -> Refusal {
    Refusal(
        StatusCode::SERVICE_UNAVAILABLE,
        "this scheduler is stopping".to_owned(),
    )
}

impl HttpState {
    pub(super) async fn rights(&self, headers: &HeaderMap) -> Result<Rights, Refusal> {
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

    pub(super) async fn may_list_events(
        &self,
        headers: &HeaderMap,
        namespace: &str,
    ) -> Result<bool, Refusal> {
        let Some(callers) = &self.callers else {
            return Ok(true);
        };
        let (token, _) = callers.rights(shown(headers)?, None).await?;
        Ok(callers.events(token, namespace).await?)
    }

    pub(super) async fn ask(&self, headers: &HeaderMap, query: Query) -> Result<Value, Refusal> {
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

    pub(super) async fn answer(
        &self,
        headers: &HeaderMap,
        query: Query,
    ) -> Result<Response, Refusal> {
        let value = self.ask(headers, query).await?;
        Ok(tagged(headers, "application/json", value.to_string()))
    }
}

pub(super) type Answered = Result<Response, Refusal>;

/// The parameters of a request.
pub(super) fn read<P>(parameters: Result<Parameters<P>, QueryRejection>) -> Result<P, Refusal> {
    let bad = |error: QueryRejection| Refusal(StatusCode::BAD_REQUEST, error.body_text());
    parameters.map(|Parameters(read)| read).map_err(bad)
}

/// The token of a request.
pub(super) fn shown(headers: &HeaderMap) -> Result<&str, Refusal> {
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
pub(super) fn tagged(headers: &HeaderMap, kind: &'static str, body: String) -> Response {
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
