//! `/metrics`, `/healthz`, `/readyz`, `/readyz/scheduling`, and for people: `/snapshot`,
//! `/explain?pod=UID`, `/observed`; `?shard=NAME` where there are several;
//! `/report?by=queue&hours=24`.

use super::cycle_status::Status;
use crate::cycle::Question;
use crate::download;
use crate::off_thread;
use crate::page::PageClient;
use axum::Router;
use axum::body::Body;
use axum::extract::{Query, State as Extract};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use scheduler_core::text;
use serde::Deserialize;
use std::io;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

/// `OpenMetrics` 1.0.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The endpoints.
#[derive(Clone, Debug)]
pub struct Pages {
    /// All metrics.
    pub registry: Arc<Registry>,
    /// Where the cycle is.
    pub status: watch::Receiver<Status>,
    /// Whether pods are admitted here; `None`: this process admits none.
    pub admits: Option<watch::Receiver<bool>>,
    /// To the cycle.
    pub questions: mpsc::Sender<Question>,
    /// Client of the status page; `None` where no page is served.
    pub page: Option<PageClient>,
    /// A snapshot takes the core's memory once more until it is sent: one at a time, the others
    /// wait.
    pub snapshots: Arc<Semaphore>,
}

/// All pages.
pub fn router(pages: Pages) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/readyz/scheduling", get(scheduling))
        .route("/snapshot", get(snapshot))
        .route("/explain", get(explain))
        .route("/observed", get(observed))
        .route("/report", get(report))
        .with_state(pages)
}

async fn metrics(Extract(pages): Extract<Pages>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &pages.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The cycle lives.
async fn healthz(Extract(pages): Extract<Pages>) -> Response {
    if pages.status.has_changed().is_ok() {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the cycle has ended\n").into_response()
    }
}

/// Pods are admitted here, by the leader or not, busy or not: the API server must find a process
/// that gives a share its token. A process without admission is ready once everything was listed.
async fn readyz(Extract(pages): Extract<Pages>) -> Response {
    match &pages.admits {
        None => scheduling(Extract(pages)).await,
        Some(admits) if *admits.borrow() => "ok\n".into_response(),
        Some(_) => {
            let why =
                "pods are not admitted yet: keys and certificate are not there, see the log\n";
            (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
        }
    }
}

/// Everything was listed; a replica without the lease is ready too.
async fn scheduling(Extract(pages): Extract<Pages>) -> Response {
    let missing = pages.status.borrow().missing.clone();
    if missing.is_empty() {
        "ok\n".into_response()
    } else {
        let text = format!("not listed yet: {}\n", missing.join(", "));
        (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
    }
}

#[derive(Deserialize)]
struct ShardQuery {
    shard: Option<String>,
}

impl ShardQuery {
    fn ask(self, question: Question) -> Question {
        match self.shard {
            Some(shard) => Question::Of(shard, Box::new(question)),
            None => question,
        }
    }
}

async fn snapshot(Extract(pages): Extract<Pages>, Query(of): Query<ShardQuery>) -> Response {
    let Ok(turn) = Arc::clone(&pages.snapshots).acquire_owned().await else {
        return gone();
    };
    let (to, answer) = oneshot::channel();
    let question = of.ask(Question::Fork(to));
    if pages.questions.send(question).await.is_err() {
        return gone();
    }
    let Ok(core) = answer.await else {
        return gone();
    };
    let write = move |page: &mut dyn io::Write| {
        let mut line = String::new();
        let mut written = Ok(());
        core.snapshot_to(|event| {
            if written.is_ok() {
                line.clear();
                text::append(&mut line, &event);
                written = page.write_all(line.as_bytes());
            }
        });
        written
    };
    let body = if off_thread::runs_in_place() {
        let mut page = Vec::new();
        match write(&mut page) {
            Ok(()) => Body::from(page),
            Err(error) => return error.to_string().into_response(),
        }
    } else {
        download::body(turn, move |page| write(page))
    };
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

async fn observed(Extract(pages): Extract<Pages>, Query(of): Query<ShardQuery>) -> Response {
    let (to, answer) = oneshot::channel();
    let question = of.ask(Question::Observed(to));
    if pages.questions.send(question).await.is_err() {
        return gone();
    }
    match answer.await {
        Ok(Some(report)) => axum::Json(report).into_response(),
        Ok(None) => (
            StatusCode::NOT_FOUND,
            "no scheduler is observed: start with --observe\n",
        )
            .into_response(),
        Err(_) => gone(),
    }
}

#[derive(Deserialize)]
struct Span {
    by: String,
    hours: u64,
}

/// Memory granted and not used, for `aliquot report`.
async fn report(Extract(pages): Extract<Pages>, Query(of): Query<Span>) -> Response {
    let Some(page) = &pages.page else {
        let why = "nothing is remembered: start the scheduler with --page\n";
        return (StatusCode::NOT_FOUND, why).into_response();
    };
    match page.report(&of.by, of.hours).await {
        Ok(Some(report)) => axum::Json(report).into_response(),
        Ok(None) => gone(),
        Err(why) => (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response(),
    }
}

#[derive(Deserialize)]
struct PodQuery {
    pod: String,
}

async fn explain(Extract(pages): Extract<Pages>, Query(which): Query<PodQuery>) -> Response {
    let (to, answer) = oneshot::channel();
    let question = Question::Explain(which.pod.as_str().into(), to);
    if pages.questions.send(question).await.is_err() {
        return gone();
    }
    match answer.await {
        Ok(Some(text)) => format!("{text}\n").into_response(),
        Ok(None) => (
            StatusCode::NOT_FOUND,
            format!("no pod has the UID {}\n", which.pod),
        )
            .into_response(),
        Err(_) => gone(),
    }
}

fn gone() -> Response {
    let why = "the cycle has ended, or there is no such shard\n";
    (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
}
