//! A pod's timeline, and the victims of a request: the requests to other servers.

use super::*;
use axum::http::Uri;
use scheduler_core::{Config, Core, text};

/// What the API server has: pod `a/x`, and events of it.
pub(super) fn object(uri: &Uri) -> (u16, Value) {
    let query = uri.query().unwrap_or_default();
    match uri.path() {
        "/api/v1/namespaces/a/pods/x" => (
            200,
            json!({"metadata": {"name": "x", "namespace": "a", "uid": "uid-a/x", "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {"gpu-memory": "2000"}}, "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
                "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:04Z"}]}}),
        ),
        "/api/v1/namespaces/a/events" => {
            let gone = query.contains("uid-a%2Fgone");
            let event = json!({"metadata": {"name": "e"}, "involvedObject": {}, "reason": "Evict", "message": "for b/y",
                "eventTime": "2026-01-01T00:00:09.000000Z"});
            let items = if gone { vec![event] } else { Vec::new() };
            (200, json!({"metadata": {}, "items": items}))
        }
        _ => (
            404,
            json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "not found"}),
        ),
    }
}

fn kinds(told: &Value) -> Vec<&str> {
    let steps = told["steps"].as_array().unwrap().iter();
    steps.map(|step| step["kind"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_pods_way_is_told_to_who_may_list_it_and_events_to_who_may_list_those() {
    let site = Site::start(everything());
    site.rows("/api/cards", "admin", 2).await;
    let path = "/api/timeline/uid-a%2Fx";
    let (code, told) = site.json(path, "admin").await;
    assert_eq!(code, StatusCode::OK, "{told}");
    assert_eq!(kinds(&told), ["asked", "bound"]);
    assert_eq!(
        (&told["asks"], &told["node"], &told["events"]),
        (&json!("2000 MiB"), &json!("n1"), &json!(true))
    );
    let logs = json!([{"name": "Logs", "url": "https://logs.example/?pod=a/x"}]);
    assert_eq!(told["links"], logs);
    assert_eq!(told["holds"][0]["node"], "n1");
    // The tenant may list pods of `a`, and no events.
    let (code, told) = site.json(path, "tenant").await;
    assert_eq!((code, &told["events"]), (StatusCode::OK, &json!(false)));
    assert_eq!(site.json(path, "nobody").await.0, StatusCode::NOT_FOUND);
    // A pod that is gone is known by its events alone, and by its name.
    let gone = "/api/timeline/uid-a%2Fgone";
    assert_eq!(site.json(gone, "admin").await.0, StatusCode::NOT_FOUND);
    let (code, told) = site.json(&format!("{gone}?pod=a/gone"), "admin").await;
    assert_eq!((code, kinds(&told)), (StatusCode::OK, vec!["evicted"]));
    assert_eq!(told["gone"], true);
    // A pod that is recreated under the same name is another pod.
    let (_, told) = site
        .json("/api/timeline/uid-a%2Fgone?pod=a/x", "admin")
        .await;
    assert_eq!(told["gone"], true);
    assert_eq!(
        site.json(&format!("{gone}?pod=b/y"), "tenant").await.0,
        StatusCode::NOT_FOUND
    );
}

const CLUSTER: &str = "\
tick 100000
node n1 cpu=64000 memory=274877906944 pods=110 gpus=1 managed extended.aliquot.dev/gpu-share=48
cards n1 default=mps
  card GPU-1 product=L4 total=23034 reserved=34
queue rich gpu=1000000000/-1/1000000
queue poor gpu=0/-1/1000000
pod guest ns=b queue=poor created=1 gpus.main=1 phase=running on=n1
  grant main cards=GPU-1 memory=23000 mode=exclusive
";

#[tokio::test]
async fn who_would_give_way_is_asked_of_a_copy_of_the_core() {
    let mut site = Site::start(everything());
    let mut questions = site.questions.take().unwrap();
    tokio::spawn(async move {
        while let Some(question) = questions.recv().await {
            if let Question::ForkOf(queue, to) = question
                && queue.as_str() == "rich"
            {
                let mut core = Core::new(Config::default());
                for event in text::read(CLUSTER).unwrap() {
                    core.apply(event);
                }
                let _ = to.send(Box::new(core));
            }
        }
    });
    let path = "/api/whatif?queue=rich&memory=2000&count=2";
    let (code, answer) = site.json(path, "admin").await;
    assert_eq!(code, StatusCode::OK, "{answer}");
    assert_eq!(
        (&answer["placed"], &answer["wanted"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(answer["victims"][0]["name"], "guest");
    assert_eq!(answer["victims"][0]["queue"], "poor");
    assert_eq!(answer["nodes"], json!({"n1": 2}));
    // Names of another namespace's pods and of nodes are not for the tenant.
    let (_, answer) = site.json(path, "tenant").await;
    assert_eq!(
        (&answer["victims"][0]["name"], &answer["nodes"]),
        (&json!(""), &Value::Null)
    );
    assert_eq!(answer["victims"][0]["queue"], "poor");
    assert_eq!(site.json(path, "nobody").await.0, StatusCode::FORBIDDEN);
    for (query, words) in [
        ("queue=none&memory=1", "there is no queue none"),
        ("queue=rich", "ask for one of memory"),
        ("queue=rich&memory=1&gpus=1", "ask for one of memory"),
        (
            "queue=rich&memory=1&count=0",
            "count must be from 1 to 1000",
        ),
        ("queue=rich&fraction=2", "gpu-fraction annotation value"),
    ] {
        let (code, answer) = site.json(&format!("/api/whatif?{query}"), "admin").await;
        assert_eq!(code, StatusCode::BAD_REQUEST, "{query}");
        assert!(
            answer["error"].as_str().unwrap().contains(words),
            "{query}: {answer}"
        );
    }
}
