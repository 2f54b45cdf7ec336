//! What a pod of ours becomes before it exists, or why it does not.
//!
//! - `amend`: pure: a pod → the same with its token and amount, or one sentence.
//! - `bodies`: requests, bounded before they are parsed.
//! - [`review`]: an `AdmissionReview` → its answer.
//! - [`lint`]: finds everything that admission would say about a manifest. Pure.
//! - `validate`: pure: invalid or too large queues, pod groups and topologies.
//! - `queues`: the queues that are there.
//! - `resize`: whether a pod may be resized.
//! - `configuration`: the two webhook configurations of `deploy/`, kept as they must be.
//! - `dedicated_thread`: a thread and a runtime of its own, so that nothing of the scheduler holds it up.
//!
//! Pods that name our scheduler and ask for a share: `failurePolicy: Fail`, since a pod's
//! resources stay as they were made, and no token can be given later. Other pods that name it,
//! and the other kinds: `Ignore`, since the core copes with whatever they say. Deployments, Jobs and
//! their like are never refused, only warned of, and only those are sent that speak of GPUs.
//!
//! A process serves it as soon as it has its certificate, leader or not. Only resizes need the
//! core: as a process of its own (`--role=admission`) it keeps working while no scheduler runs, and
//! the pods that it admits stay pending.

mod amend;
mod bodies;
mod configuration;
mod dedicated_thread;
mod invalid;
pub mod lint;
mod over_subscription;
mod queues;
mod raised_minimum;
mod resize;
pub mod review;
mod validate;

pub use amend::{AmendError, amended};
pub use configuration::{Reach, Settings};
pub use over_subscription::OverSubscription;
pub use queues::QueueTree;
pub use resize::Core;

use crate::bursts::Bursts;
use crate::limits::Limits;
use crate::serve::Endpoint;
use crate::trust::Certificates;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use axum::{Json, Router};
use configuration::{Configuration, MANIFESTS, OBJECTS, PODS, RESIZES};
use resize::RESIZES_PASSED_ON;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What queues and pod groups are checked against.
#[derive(Clone, Debug)]
pub struct Rules {
    /// How large they may be.
    pub limits: Limits,
    /// The queues that are there, as far as the watch is.
    pub queues: watch::Receiver<QueueTree>,
    /// What the webhook answers where the quotas of children exceed their parent's.
    pub over_subscription: OverSubscription,
    /// How far above its request a share may be held.
    pub bursts: Bursts,
    /// What decides on resizes.
    pub core: Core,
}

/// Both webhook configurations as they are kept in the cluster, with this authority (PEM).
/// `deploy/scheduler.yaml` has the same without one: the scheduler may make none.
pub fn configurations(settings: &Settings, ca_pem: &str) -> [serde_json::Value; 2] {
    Configuration::new(settings, ca_pem).objects()
}

/// Why admission ended.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// The listener broke, or there is no thread for it.
    #[error("the webhook cannot be served: {0}")]
    Serve(#[from] std::io::Error),
}

/// Serves the webhook and keeps its configuration, until `stop`. `admits` is true from the
/// moment that it serves.
///
/// # Errors
/// The listener broke, or there is no thread for it.
pub async fn run(
    endpoint: Endpoint,
    settings: Settings,
    rules: Rules,
    certificates: Certificates,
    client: kube::Client,
    admits: watch::Sender<bool>,
    stop: CancellationToken,
) -> Result<(), AdmissionError> {
    let configuration = Configuration::new(&settings, certificates.ca_pem());
    let core = rules.core.clone();
    let scheduler = settings.scheduler_name.clone();
    let routes = Router::new()
        .route(
            PODS,
            post(async move |Json(sent)| Json(review::pods(sent, rules.bursts))),
        )
        .route(
            OBJECTS,
            post(async move |Json(sent)| {
                let queues = rules.queues.borrow();
                let answer = review::objects(sent, &rules.limits, &queues, rules.over_subscription);
                Json(answer)
            }),
        )
        .route(
            MANIFESTS,
            post(async move |Json(sent)| {
                // An object that cannot be read is not refused: the API server ignores the error.
                review::manifests(sent, &scheduler)
                    .map(Json)
                    .ok_or(StatusCode::UNPROCESSABLE_ENTITY)
            }),
        )
        .merge(resizes(core, certificates.clone()));
    let routes = bounded(routes);
    let end = stop.child_token();
    let _guard = end.clone().drop_guard();
    let serving = {
        // Stopping this part ends its thread as well.
        let stop = end.clone();
        let port = matches!(endpoint, Endpoint::Port(_));
        let serve = async move {
            admits.send_replace(true);
            certificates.serve(endpoint, routes, stop).await
        };
        async move {
            // Without a socket its caller is of this runtime, and so is its clock.
            if port {
                dedicated_thread::run("admission", serve).await
            } else {
                serve.await
            }
        }
    };
    // What serves comes first: a configuration without a server refuses pods.
    tokio::select! {
        biased;
        ended = serving => Ok(ended?),
        () = configuration.keep(client, end) => Ok(()),
    }
}

/// Serves processes that pass resizes on, where admission is another process, until `stop`.
///
/// # Errors
/// The listener broke.
pub async fn serve_resizes(
    endpoint: Endpoint,
    core: Core,
    certificates: Certificates,
    stop: CancellationToken,
) -> Result<(), AdmissionError> {
    let routes = bounded(resizes(core, certificates.clone()));
    Ok(certificates.serve(endpoint, routes, stop).await?)
}

/// Bodies are bounded by [`bodies`], and by nothing else.
fn bounded(routes: Router) -> Router {
    routes
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(bodies::Bodies::new(), bodies::bounded))
}

fn resizes(core: Core, certificates: Certificates) -> Router {
    let passed_on = core.clone();
    Router::new()
        .route(
            RESIZES,
            post(async move |Json(sent)| Json(core.judge(sent, &certificates).await)),
        )
        .route(
            RESIZES_PASSED_ON,
            post(async move |Json(sent)| Json(passed_on.judge_passed_on(sent).await)),
        )
        .route("/healthz", get(async || "ok"))
}

#[cfg(test)]
mod tests;
