//! What the rows' owner answers by itself.

use super::state::{Answered, HttpState, Refusal, read};
use crate::page::answer::{
    CARD_COLUMNS, CARD_STATES, POD_COLUMNS, POD_STATES, Query, Report, Span, Which,
};
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query as Parameters, State as Extract};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use serde::Deserialize;

pub(super) fn routes() -> Router<HttpState> {
    Router::new()
        .route("/api/overview", get(overview))
        .route("/api/cards", get(cards))
        .route("/api/cards/{uuid}", get(card))
        .route("/api/cards/{node}/{index}", get(card_at))
        .route("/api/fleet", get(fleet))
        .route("/api/queues", get(queues))
        .route("/api/pods", get(pods))
        .route("/api/report", get(report))
        .route("/api/health", get(health))
}

async fn overview(Extract(state): Extract<HttpState>, headers: HeaderMap) -> Answered {
    state.answer(&headers, Query::Overview).await
}

async fn cards(
    Extract(state): Extract<HttpState>,
    headers: HeaderMap,
    span: Result<Parameters<Span>, QueryRejection>,
) -> Answered {
    let span = checked(span, &CARD_COLUMNS, &CARD_STATES)?;
    state.answer(&headers, Query::Cards(span)).await
}

async fn card(
    Extract(state): Extract<HttpState>,
    headers: HeaderMap,
    Path(uuid): Path<String>,
) -> Answered {
    state.answer(&headers, Query::Card(Which::Uuid(uuid))).await
}

async fn card_at(
    Extract(state): Extract<HttpState>,
    headers: HeaderMap,
    Path((node, index)): Path<(String, u32)>,
) -> Answered {
    let which = Which::At(node, index);
    state.answer(&headers, Query::Card(which)).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Since {
    #[serde(default)]
    since: String,
}

async fn fleet(
    Extract(state): Extract<HttpState>,
    headers: HeaderMap,
    since: Result<Parameters<Since>, QueryRejection>,
) -> Answered {
    let Since { since } = read(since)?;
    state.answer(&headers, Query::Fleet(since)).await
}

async fn report(
    Extract(state): Extract<HttpState>,
    headers: HeaderMap,
    report: Result<Parameters<Report>, QueryRejection>,
) -> Answered {
    let report = read(report)?;
    state.answer(&headers, Query::Report(report)).await
}

async fn queues(Extract(state): Extract<HttpState>, headers: HeaderMap) -> Answered {
    state.answer(&headers, Query::Queues).await
}

async fn pods(
    Extract(state): Extract<HttpState>,
    headers: HeaderMap,
    span: Result<Parameters<Span>, QueryRejection>,
) -> Answered {
    let span = checked(span, &POD_COLUMNS, &POD_STATES)?;
    state.answer(&headers, Query::Pods(span)).await
}

async fn health(Extract(state): Extract<HttpState>, headers: HeaderMap) -> Answered {
    state.answer(&headers, Query::Health).await
}

fn checked(
    span: Result<Parameters<Span>, QueryRejection>,
    columns: &[&str],
    states: &[&str],
) -> Result<Span, Refusal> {
    let span = read(span)?;
    span.check(columns, states)
        .map_err(|text| Refusal(StatusCode::BAD_REQUEST, text))?;
    Ok(span)
}
