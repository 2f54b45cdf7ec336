//! Writes of the node's `ResourceSlice`, against an API server that has nothing else.

use crate::{sample, until};
use agent::Config;
use agent::dra::publish;
use agent::node::State;
use axum::Router;
use axum::extract::{Query, State as Extract};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;

type Seen = Arc<Mutex<Vec<(Instant, Value)>>>;

async fn write(Extract(seen): Extract<Seen>, body: String) -> String {
    let body: Value = serde_json::from_str(&body).unwrap();
    seen.lock().unwrap().push((Instant::now(), body.clone()));
    body.to_string()
}

async fn absent() -> Response {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Failure", "message": "not found", "reason": "NotFound", "code": 404});
    (StatusCode::NOT_FOUND, status.to_string()).into_response()
}

async fn list(Query(query): Query<BTreeMap<String, String>>) -> String {
    if query.contains_key("watch") {
        std::future::pending::<()>().await;
    }
    json!({"kind": "ResourceSliceList", "apiVersion": "resource.k8s.io/v1",
        "metadata": {"resourceVersion": "1"}, "items": []})
    .to_string()
}

/// Starts the API server and the task that publishes a node's slice to it. Both end with the set.
async fn publishing(router: Router) -> (watch::Sender<Arc<State>>, JoinSet<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
    let mut node = sample::state();
    node.restored = true;
    let (state, receiver) = watch::channel(Arc::new(node));
    let config = Arc::new(Config::for_node("n1"));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    tasks.spawn(publish::run(config, client, receiver));
    (state, tasks)
}

fn is_cordoned(body: &Value) -> bool {
    let taints = &body["spec"]["devices"][0]["taints"];
    let mut taints = taints.as_array().into_iter().flatten();
    taints.any(|taint| taint["key"] == proto::names::dra::TAINT_CORDONED)
}

#[tokio::test]
async fn a_slice_that_changes_all_the_time_is_written_once_a_second_and_as_it_is_last() {
    let seen = Seen::default();
    let all = "/apis/resource.k8s.io/v1/resourceslices";
    let router = Router::new()
        .route(all, get(list))
        .route(&format!("{all}/{{name}}"), get(absent).patch(write))
        .with_state(seen.clone());
    let (state, _tasks) = publishing(router).await;

    let until_then = Instant::now() + Duration::from_millis(2500);
    while Instant::now() < until_then {
        state.send_modify(|state| {
            let card = &mut Arc::make_mut(state).inventory.cards[0];
            card.cordoned = !card.cordoned;
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    state.send_modify(|state| Arc::make_mut(state).inventory.cards[0].cordoned = false);
    tokio::time::sleep(Duration::from_millis(10)).await;
    state.send_modify(|state| Arc::make_mut(state).inventory.cards[0].cordoned = true);
    until("the last state is written", async || {
        let seen = seen.lock().unwrap();
        seen.last()
            .is_some_and(|(_, body)| is_cordoned(body))
            .then_some(())
    })
    .await;
    let seen = seen.lock().unwrap();
    for (one, next) in seen.iter().zip(seen.iter().skip(1)) {
        let apart = next.0 - one.0;
        assert!(apart >= Duration::from_millis(900), "{apart:?}");
        let generation = |body: &Value| body["spec"]["pool"]["generation"].as_i64().unwrap();
        assert!(generation(&next.1) > generation(&one.1));
    }
}

/// Another client changes the slice: the watch shows it, and the agent's own is written again. What the
/// API server makes of a write, and an event of an earlier write, are no changes.
#[tokio::test]
async fn a_slice_that_another_client_has_changed_is_written_again() {
    let seen = Seen::default();
    let (shown, _) = tokio::sync::broadcast::channel::<String>(8);
    let watched = shown.clone();
    let list = move |Query(query): Query<BTreeMap<String, String>>| {
        let mut events = watched.subscribe();
        async move {
            if query.contains_key("watch") {
                // Each watch shows one event, and ends.
                return format!("{}\n", events.recv().await.unwrap());
            }
            json!({"kind": "ResourceSliceList", "apiVersion": "resource.k8s.io/v1",
                "metadata": {"resourceVersion": "1"}, "items": []})
            .to_string()
        }
    };
    let all = "/apis/resource.k8s.io/v1/resourceslices";
    let router = Router::new()
        .route(all, get(list))
        .route(&format!("{all}/{{name}}"), get(absent).patch(write))
        .with_state(seen.clone());
    let (_state, _tasks) = publishing(router).await;
    let written = |count: usize| {
        let seen = seen.clone();
        async move {
            until("so many writes", async || {
                let seen = seen.lock().unwrap();
                (seen.len() >= count).then(|| seen[count - 1].1.clone())
            })
            .await
        }
    };
    let show = |slice: &Value| {
        let mut slice = slice.clone();
        slice["metadata"]["resourceVersion"] = json!("2");
        let event = json!({"type": "MODIFIED", "object": slice}).to_string();
        let shown = shown.clone();
        async move {
            until("a watch", async || {
                (shown.receiver_count() > 0).then_some(())
            })
            .await;
            shown.send(event).unwrap();
        }
    };
    // The first list has nothing, so that the slice is written once more where it was written before.
    until("a watch", async || {
        (shown.receiver_count() > 0).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let writes = seen.lock().unwrap().len();
    let own = written(writes).await;
    show(&own).await;
    let mut earlier = own.clone();
    earlier["spec"]["pool"]["generation"] = json!(0);
    earlier["spec"]["devices"] = json!([]);
    show(&earlier).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(seen.lock().unwrap().len(), writes, "nothing was changed");

    let mut changed = own.clone();
    changed["spec"]["devices"] = json!([]);
    show(&changed).await;
    let again = written(writes + 1).await;
    assert_eq!(again["spec"]["devices"], own["spec"]["devices"]);
}
