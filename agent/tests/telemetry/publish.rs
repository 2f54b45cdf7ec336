//! Writes of the `GpuNode`'s status, against an API server that only takes patches.

use crate::{sample, until};
use agent::Config;
use agent::node::State;
use agent::telemetry::{TelemetryInputs, run};
use api::Mib;
use axum::Router;
use axum::extract::{Path, State as Extract};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::patch;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

#[derive(Clone, Default)]
struct Api {
    seen: Arc<Mutex<Vec<(Instant, String, Value)>>>,
    refuse: Arc<Mutex<u32>>,
}

async fn take(
    Extract(api): Extract<Api>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: String,
) -> Response {
    assert_eq!(headers["content-type"], "application/merge-patch+json");
    {
        let mut refuse = api.refuse.lock().unwrap();
        if *refuse > 0 {
            *refuse -= 1;
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "message": "not found", "reason": "NotFound", "code": 404});
            return (StatusCode::NOT_FOUND, status.to_string()).into_response();
        }
    }
    let body: Value = serde_json::from_str(&body).unwrap();
    let answer = json!({"apiVersion": "aliquot.dev/v1alpha1", "kind": "GpuNode",
        "metadata": {"name": &name}, "spec": {}, "status": body["status"]});
    api.seen.lock().unwrap().push((Instant::now(), name, body));
    answer.to_string().into_response()
}

struct Fixture {
    api: Api,
    state: watch::Sender<Arc<State>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Fixture {
    async fn new(refuse: u32, state: State) -> Self {
        let api = Api {
            refuse: Arc::new(Mutex::new(refuse)),
            ..Api::default()
        };
        let path = "/apis/aliquot.dev/v1alpha1/gpunodes/{name}/status";
        let router = Router::new()
            .route(path, patch(take))
            .with_state(api.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        let (state, receiver) = watch::channel(Arc::new(state));
        let (_, notes) = channel::unbounded();
        let stop = CancellationToken::new();
        let inputs = TelemetryInputs {
            config: Arc::new(Config::for_node("n1")),
            client,
            state: receiver,
            notes,
            stop: stop.clone(),
            lengths: channel::Lengths::default(),
        };
        let task = tokio::spawn(async move {
            run(inputs).await.unwrap();
            server.abort();
        });
        Self {
            api,
            state,
            stop,
            task,
        }
    }

    fn seen(&self) -> Vec<(Instant, String, Value)> {
        self.api.seen.lock().unwrap().clone()
    }

    async fn writes(&self, count: usize) -> Vec<(Instant, String, Value)> {
        until("the writes came", async || {
            let seen = self.seen();
            (seen.len() >= count).then_some(seen)
        })
        .await
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

#[tokio::test]
async fn the_status_is_written_alone_and_again_only_when_more_than_memory_in_use_changed() {
    let scene = Fixture::new(0, sample::state()).await;
    let first = scene.writes(1).await.remove(0);
    assert_eq!(first.1, "n1");
    let body = first.2.as_object().unwrap();
    assert_eq!(body.keys().collect::<Vec<_>>(), ["status"]);
    assert_eq!(body["status"]["grantedMib"], 2000);
    assert_eq!(body["status"]["conditions"][0]["status"], "True");
    // Memory moves many times, a share comes last: one write, two seconds after the first.
    for used in (0..40).map(|n| n * 1000) {
        scene.state.send_modify(|state| {
            Arc::make_mut(state).inventory.cards[0].used = Mib(used);
        });
        tokio::task::yield_now().await;
    }
    scene.state.send_modify(|state| {
        Arc::make_mut(state)
            .ledger
            .restore(sample::share("q", 1, 10));
    });
    let seen = scene.writes(2).await;
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1].2["status"]["shareCount"], 2);
    let apart = seen[1].0 - seen[0].0;
    assert!(apart >= Duration::from_millis(1900), "{apart:?}");
    scene.end().await;
}

#[tokio::test]
async fn a_node_that_is_not_there_yet_is_tried_again() {
    let scene = Fixture::new(2, sample::state()).await;
    scene.writes(1).await;
    assert_eq!(*scene.api.refuse.lock().unwrap(), 0);
    scene.end().await;
}

#[tokio::test]
async fn an_agent_that_knows_nothing_yet_writes_nothing() {
    let mut unknown = sample::state();
    unknown.ready.cluster = false;
    let scene = Fixture::new(0, unknown).await;
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    assert!(scene.seen().is_empty());
    scene
        .state
        .send_modify(|state| Arc::make_mut(state).ready.cluster = true);
    assert_eq!(scene.writes(1).await.len(), 1);
    scene.end().await;
}
