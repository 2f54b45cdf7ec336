//! Over HTTP, with an API server that knows three people.

mod now;
mod seen;
mod time;

use super::*;
use crate::watch::{Fact, Seen};
use api::gpu_node::{GpuNodeStatus, GpuStatus, GrantStatus};
use api::{GpuNode, GpuNodeSpec, Mib, Mode};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::client::Body as KubeBody;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use tower::{ServiceExt as _, service_fn};

/// `admin` may list everything, `tenant` queues and the pods of `a`, `nobody` nothing.
fn judge(path: &str, body: &Value) -> Value {
    let spec = &body["spec"];
    if path.contains("tokenreviews") {
        let token = spec["token"].as_str().unwrap();
        return if ["admin", "tenant", "nobody"].contains(&token) {
            json!({"authenticated": true, "user": {"username": token, "groups": ["people"]}})
        } else {
            json!({"authenticated": false, "error": "invalid bearer token"})
        };
    }
    assert_eq!(spec["groups"], json!(["people"]), "who is asked for");
    let what = &spec["resourceAttributes"];
    assert_eq!(what["verb"], "list");
    let allowed = match spec["user"].as_str().unwrap() {
        "admin" => true,
        "tenant" => {
            what["resource"] == "queues" || what["resource"] == "pods" && what["namespace"] == "a"
        }
        _ => false,
    };
    json!({"allowed": allowed})
}

fn client(asked: Arc<AtomicUsize>) -> kube::Client {
    let service = service_fn(move |request: Request<KubeBody>| {
        asked.fetch_add(1, Ordering::Relaxed);
        async move {
            let (parts, body) = request.into_parts();
            if parts.method == "GET" {
                let (code, found) = seen::object(&parts.uri);
                let body = KubeBody::from(found.to_string().into_bytes());
                return Ok(Response::builder().status(code).body(body).unwrap());
            }
            let bytes = body.collect().await.unwrap().to_bytes();
            let mut review: Value = serde_json::from_slice(&bytes).unwrap();
            review["metadata"] = json!({});
            review["status"] = judge(parts.uri.path(), &review);
            let body = KubeBody::from(serde_json::to_vec(&review).unwrap());
            Ok::<_, kube::Error>(Response::builder().status(201).body(body).unwrap())
        }
    });
    kube::Client::new(service, "default")
}

/// 2026-01-01T00:00:00Z.
const START: i64 = 1_767_225_600;

fn grant(pod: &str) -> GrantStatus {
    GrantStatus {
        pod: pod.into(),
        pod_uid: format!("uid-{pod}"),
        container: "main".into(),
        memory_mib: Mib(2000),
        phase: "Running".into(),
        ..GrantStatus::default()
    }
}

fn node(name: &str, grants: &[&str]) -> Fact {
    let mut node = GpuNode::new(name, GpuNodeSpec::default());
    node.status = Some(GpuNodeStatus {
        gpus: vec![GpuStatus {
            uuid: format!("GPU-{name}"),
            product: "NVIDIA L4".into(),
            grantable_mib: Mib(20_000),
            granted_mib: Mib(2000 * grants.len() as u64),
            mode: (!grants.is_empty()).then_some(Mode::Mps),
            ready: true,
            health: "Healthy".into(),
            grants: grants.iter().map(|pod| grant(pod)).collect(),
            ..GpuStatus::default()
        }],
        ..GpuNodeStatus::default()
    });
    Fact::GpuNode(Seen::There(Box::new(node)))
}

fn pod(key: &str, age: u32, patch: Value) -> Fact {
    let (namespace, name) = key.split_once('/').unwrap();
    let mut pod = json!({
        "metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{key}"),
            "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", 59 - age),
            "labels": {"kai.scheduler/queue": "team"}},
        "spec": {"schedulerName": "us", "containers": [{"name": "main"}]},
        "status": {"phase": "Pending"},
    });
    json_patch::merge(&mut pod, &patch);
    Fact::Pod(Seen::There(Box::new(
        serde_json::from_value::<Pod>(pod).unwrap(),
    )))
}

fn class(name: &str, value: i32) -> Fact {
    let class = json!({"metadata": {"name": name}, "value": value});
    Fact::Class(Seen::There(serde_json::from_value(class).unwrap()))
}

struct Site {
    routes: Router,
    facts: channel::Sender<Fact>,
    onward: Flows,
    /// Questions to the API server.
    asked: Arc<AtomicUsize>,
    heard: crate::telemetry::AgentEventSender,
    views: watch::Sender<Views>,
    questions: Option<mpsc::Receiver<Question>>,
    /// What the clock shows, in seconds since 1970.
    clock: Arc<AtomicI64>,
    _status: watch::Sender<Status>,
}

impl Site {
    fn start(facts_in: Vec<Fact>) -> Self {
        Self::beside(facts_in, None)
    }

    /// Beside a Prometheus at this URL.
    fn beside(facts_in: Vec<Fact>, prometheus: Option<&str>) -> Self {
        let (facts, facts_out) = channel::unbounded();
        let (heard, heard_out) = crate::telemetry::channel(None);
        let flows = Flows {
            facts: facts_out,
            heard: heard_out,
        };
        let clock = Arc::new(AtomicI64::new(START));
        let wall = {
            let clock = clock.clone();
            Wall::reads(move || Timestamp::from_second(clock.load(Ordering::Relaxed)).unwrap())
        };
        let (relay, onward, notes) =
            FactRelay::new("us", "squad", flows, Time(0), &channel::Lengths::default());
        tokio::spawn(relay.run());
        let (views_out, views) = watch::channel(Views::default());
        let (status_out, status) = watch::channel(Status::default());
        let (queries, asked) = mpsc::channel(QUERIES);
        tokio::spawn(owner::run(owner::RowSources {
            notes,
            asked,
            views,
            status,
            wall,
        }));
        let (questions_out, questions) = mpsc::channel(1);
        let asked = Arc::new(AtomicUsize::new(0));
        let client = client(asked.clone());
        let site = Self {
            routes: http::routes(http::HttpState {
                callers: Some(Arc::new(Callers::new(client.clone()))),
                client,
                asked: queries,
                questions: questions_out,
                scheduler: "us".into(),
                prometheus: prometheus.map(Arc::from),
                links: ["Logs=https://logs.example/?pod={namespace}/{name}"]
                    .map(|link| link.parse().unwrap())
                    .into(),
                trials: Arc::new(Semaphore::new(1)),
            }),
            facts,
            onward,
            asked,
            heard,
            views: views_out,
            questions: Some(questions),
            clock,
            _status: status_out,
        };
        for fact in facts_in {
            site.facts.send(fact).unwrap();
        }
        site
    }

    async fn get(&self, path: &str, token: Option<&str>, tag: Option<&str>) -> Response<Body> {
        let mut request = Request::get(path);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(tag) = tag {
            request = request.header(header::IF_NONE_MATCH, tag);
        }
        let request = request.body(Body::empty()).unwrap();
        self.routes.clone().oneshot(request).await.unwrap()
    }

    async fn json(&self, path: &str, token: &str) -> (StatusCode, Value) {
        let response = self.get(path, Some(token), None).await;
        let code = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap())
    }

    /// Asks until so many rows are there.
    async fn rows(&self, path: &str, token: &str, count: u64) -> Value {
        for _ in 0..1000 {
            let (_, answer) = self.json(path, token).await;
            if answer["total"] == count {
                return answer["rows"].clone();
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("{path}: {:?}", self.json(path, token).await);
    }
}

fn names(rows: &Value, key: &str) -> Vec<String> {
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| row[key].as_str().unwrap().to_owned())
        .collect()
}

fn everything() -> Vec<Fact> {
    vec![
        node("n1", &["a/x", "b/y"]),
        node("n2", &[]),
        pod("a/p", 1, json!({})),
        pod("b/q", 2, json!({})),
    ]
}

#[tokio::test]
async fn without_a_token_there_are_files_and_nothing_else() {
    let site = Site::start(everything());
    for file in ["/", "/app.js", "/views.js", "/page.css"] {
        let response = site.get(file, None, None).await;
        assert_eq!(response.status(), StatusCode::OK, "{file}");
        let policy = &response.headers()[header::CONTENT_SECURITY_POLICY];
        assert!(policy.to_str().unwrap().starts_with("default-src 'none'"));
    }
    for path in [
        "overview",
        "cards",
        "cards/GPU-n1",
        "queues",
        "pods",
        "pods/uid-a/p",
        "health",
    ] {
        let path = format!("/api/{}", path.replace("a/p", "a%2Fp"));
        for token in [None, Some("stranger")] {
            let response = site.get(&path, token, None).await;
            assert_eq!(
                response.status(),
                StatusCode::UNAUTHORIZED,
                "{path} {token:?}"
            );
        }
    }
}

#[tokio::test]
async fn who_may_list_sees_and_who_may_not_is_told_what_he_lacks() {
    let site = Site::start(everything());
    site.rows("/api/cards", "admin", 2).await;
    assert_eq!(
        names(&site.rows("/api/pods", "admin", 4).await, "name"),
        ["q", "p", "x", "y"]
    );
    let pods = site.rows("/api/pods", "tenant", 2).await;
    assert_eq!(names(&pods, "name"), ["p", "x"]);
    let (code, answer) = site.json("/api/cards", "tenant").await;
    assert_eq!(code, StatusCode::FORBIDDEN);
    assert_eq!(answer["error"], "you may not list gpunodes.aliquot.dev");
    assert_eq!(site.json("/api/queues", "tenant").await.0, StatusCode::OK);
    assert_eq!(
        site.json("/api/queues", "nobody").await.0,
        StatusCode::FORBIDDEN
    );
    let (_, overview) = site.json("/api/overview", "tenant").await;
    assert_eq!(
        overview["pods"],
        json!({"waiting": 1, "starting": 0, "whole": false})
    );
    assert_eq!(overview["cards"], Value::Null);
    // Another namespace's pod is not there, rather than forbidden: its name is not told.
    let (code, _) = site.json("/api/pods/uid-b%2Fq", "tenant").await;
    assert_eq!(code, StatusCode::NOT_FOUND);
    let (code, overview) = site.json("/api/overview", "nobody").await;
    assert_eq!(
        (code, &overview["pods"]["waiting"]),
        (StatusCode::OK, &json!(0))
    );
}

#[tokio::test]
async fn the_api_server_is_asked_once_for_many_looks() {
    let site = Site::start(everything());
    site.rows("/api/pods", "tenant", 2).await;
    let asked = site.asked.load(Ordering::Relaxed);
    for _ in 0..20 {
        site.json("/api/pods", "tenant").await;
        site.json("/api/overview", "tenant").await;
    }
    assert_eq!(site.asked.load(Ordering::Relaxed), asked);
    for _ in 0..20 {
        site.get("/api/overview", Some("stranger"), None).await;
    }
    assert_eq!(
        site.asked.load(Ordering::Relaxed),
        asked + 2,
        "a wrong token is asked for once, for each audience"
    );
}

/// The page and the scheduler read a pod's queue in one way: the admin's label comes before KAI's, and
/// the group's queue before both.
#[tokio::test]
async fn a_pod_is_shown_in_the_queue_of_its_group_and_by_the_label_of_the_admin() {
    let group = |queue: &str| -> Fact {
        let group = json!({"metadata": {"name": "g", "namespace": "a"}, "spec": {"queue": queue}});
        Fact::Group(Seen::There(serde_json::from_value(group).unwrap()))
    };
    let grouped = json!({"metadata": {"annotations": {"pod-group-name": "g"}}});
    let labelled = json!({"metadata": {"labels": {"squad": "blue"}}});
    let facts = vec![
        pod("a/labelled", 3, labelled),
        pod("a/grouped", 2, grouped),
        pod("a/plain", 1, json!({})),
        group("red"),
    ];
    let site = Site::start(facts);
    for (queue, name) in [("blue", "labelled"), ("red", "grouped"), ("team", "plain")] {
        let rows = site
            .rows(&format!("/api/pods?queue={queue}"), "admin", 1)
            .await;
        assert_eq!(rows[0]["name"], name);
        assert_eq!(rows[0]["queue"], queue);
    }
    site.facts.send(group("green")).unwrap();
    site.rows("/api/pods?queue=green", "admin", 1).await;
}

#[tokio::test]
async fn the_place_in_a_queue_goes_by_priority_then_age_and_by_group() {
    let gang = json!({"metadata": {"annotations": {"pod-group-name": "gang"}}});
    let high = json!({"metadata": {"labels": {"priorityClassName": "high"}}});
    let other = json!({"metadata": {"labels": {"kai.scheduler/queue": "other"}}});
    let bound = json!({"spec": {"nodeName": "n1"}});
    let site = Site::start(vec![
        class("high", 100),
        pod("a/young", 1, json!({})),
        pod("a/old", 9, json!({})),
        pod("a/high", 0, high),
        pod("a/g-1", 5, gang.clone()),
        pod("a/g-2", 4, gang),
        pod("a/other", 3, other),
        pod("a/bound", 8, bound),
    ]);
    let rows = site
        .rows("/api/pods?queue=team&sort=place", "admin", 6)
        .await;
    let places: Vec<(String, u64)> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            (
                row["name"].as_str().unwrap().to_owned(),
                row["place"].as_u64().unwrap(),
            )
        })
        .collect();
    let wanted = [
        ("bound", 0),
        ("high", 1),
        ("old", 2),
        ("g-1", 3),
        ("g-2", 3),
        ("young", 4),
    ];
    assert_eq!(places, wanted.map(|(name, place)| (name.to_owned(), place)));
    let rows = site.rows("/api/pods?queue=other", "admin", 1).await;
    assert_eq!(rows[0]["place"], 1);
}

#[tokio::test]
async fn long_lists_are_filtered_sorted_and_cut_and_nonsense_is_refused() {
    let mut facts: Vec<Fact> = (1..=120).map(|at| node(&format!("n{at}"), &[])).collect();
    facts.push(node("n121", &["a/x"]));
    let site = Site::start(facts);
    site.rows("/api/cards", "admin", 121).await;
    let (_, answer) = site.json("/api/cards?from=100&count=500", "admin").await;
    let got = names(&answer["rows"], "node");
    assert_eq!(
        (got.len(), got[0].as_str(), got[20].as_str()),
        (21, "n101", "n121")
    );
    let (_, answer) = site.json("/api/cards?sort=-granted&count=1", "admin").await;
    assert_eq!(names(&answer["rows"], "node"), ["n121"]);
    for (query, total) in [
        ("filter=N12", 3),
        ("filter=a%2Fx", 1),
        ("state=free", 120),
        ("state=trouble", 0),
        ("from=1000", 121),
    ] {
        let (_, answer) = site.json(&format!("/api/cards?{query}"), "admin").await;
        assert_eq!(answer["total"], total, "{query}");
    }
    for query in [
        "sort=x",
        "state=x",
        "count=0",
        "count=501",
        "count=x",
        "y=1",
        "from=-1",
    ] {
        let (code, answer) = site.json(&format!("/api/cards?{query}"), "admin").await;
        assert_eq!(code, StatusCode::BAD_REQUEST, "{query}");
        let error = answer["error"].as_str().unwrap();
        assert!(
            !error.is_empty() && error.lines().count() == 1,
            "{query}: {error}"
        );
    }
}

#[tokio::test]
async fn who_has_the_answer_already_gets_none_until_it_changes() {
    let site = Site::start(vec![node("n1", &[])]);
    site.rows("/api/cards", "admin", 1).await;
    let first = site.get("/api/cards", Some("admin"), None).await;
    let tag = first.headers()[header::ETAG].to_str().unwrap().to_owned();
    let again = site.get("/api/cards", Some("admin"), Some(&tag)).await;
    assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
    site.facts.send(node("n2", &[])).unwrap();
    site.rows("/api/cards", "admin", 2).await;
    let changed = site.get("/api/cards", Some("admin"), Some(&tag)).await;
    assert_eq!(changed.status(), StatusCode::OK);
}

#[tokio::test]
async fn every_fact_goes_on_in_its_order() {
    let mut site = Site::start(everything());
    for wanted in ["gpunode", "gpunode", "pod", "pod"] {
        let got = match site.onward.facts.recv().await.unwrap() {
            Fact::GpuNode(_) => "gpunode",
            Fact::Pod(_) => "pod",
            _ => "other",
        };
        assert_eq!(got, wanted);
    }
    // A pod that runs and holds nothing is shown no more.
    site.rows("/api/pods", "admin", 4).await;
    let runs = json!({"spec": {"nodeName": "n1"}, "status": {"phase": "Running"}});
    site.facts.send(pod("a/p", 1, runs)).unwrap();
    site.rows("/api/pods", "admin", 3).await;
}
