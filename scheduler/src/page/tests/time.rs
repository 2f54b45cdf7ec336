//! What is remembered, and told as changes.

use super::*;
use proto::telemetry::{Gpu, NodeState, Refusal, Share};
use scheduler_core::QueueView;
use scheduler_core::ids::QueueName;
use scheduler_core::units::Bound;

fn state(node: &str, used: u64, health: &str, complaint: &str) -> crate::telemetry::AgentEvent {
    let gpu = Gpu {
        uuid: format!("GPU-{node}"),
        memory_total_mib: 20_000,
        memory_grantable_mib: 20_000,
        memory_granted_mib: 2000,
        memory_used_mib: used,
        health: health.into(),
        health_reason: "XID 79".into(),
        ..Gpu::default()
    };
    let share = Share {
        pod_uid: "uid-a/x".into(),
        pod_namespace: "a".into(),
        pod_name: "x".into(),
        container: "main".into(),
        gpu_uuids: vec![gpu.uuid.clone()],
        memory_mib: 2000,
        memory_used_mib: used,
        phase: "Running".into(),
        complaint: complaint.into(),
        ..Share::default()
    };
    crate::telemetry::AgentEvent::State {
        node: node.into(),
        state: NodeState {
            node: node.into(),
            gpus: vec![gpu],
            shares: vec![share],
            ..NodeState::default()
        },
    }
}

/// A pod that holds what it was granted.
fn holder(key: &str, patch: Value) -> Fact {
    let (namespace, name) = key.split_once('/').unwrap();
    let grant = json!({"v": 1, "key": "", "cluster": "", "decision": "1-1", "queue": "paid", "containers": [],
        "pod": {"uid": format!("uid-{key}"), "namespace": namespace, "name": name}, "node": {"name": "n1", "uid": ""}});
    let mut object = json!({"metadata": {"annotations": {"aliquot.dev/grant": format!("c2ln.{grant}")}},
        "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}});
    json_patch::merge(&mut object, &patch);
    pod(key, 1, object)
}

fn queue(name: &str, held: u128, waiting: u32) -> QueueView {
    QueueView {
        queue: QueueName::new(name),
        parent: None,
        display_name: None,
        priority: 100,
        quota: [Bound::Unlimited; 3],
        limit: [Bound::Unlimited; 3],
        fair: None,
        held: [held, 0, 0],
        held_non_preemptible: [0; 3],
        wanted: [0; 3],
        usage: [0; 3],
        products: Vec::new(),
        bad_products: None,
        idle_after: None,
        bad_idle: None,
        holding: 1,
        waiting,
    }
}

impl Site {
    /// Asks until the answer is right.
    pub(super) async fn until(
        &self,
        path: &str,
        token: &str,
        right: impl Fn(&Value) -> bool,
    ) -> Value {
        for _ in 0..2000 {
            let (_, answer) = self.json(path, token).await;
            if right(&answer) {
                return answer;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("{path}: {:?}", self.json(path, token).await);
    }

    fn pass(&self, seconds: i64) {
        self.clock.fetch_add(seconds, Ordering::Relaxed);
    }
}

fn known(answer: &Value, series: &str) -> Vec<u64> {
    let values = answer["series"][series].as_array().into_iter().flatten();
    values.filter_map(Value::as_u64).collect()
}

#[tokio::test]
async fn what_was_is_shown_with_what_happened_and_to_each_reader_what_it_may_see() {
    let site = Site::start(vec![node("n1", &["a/x"]), holder("a/x", json!({}))]);
    site.views.send_replace(Views {
        queues: vec![queue("paid", 500_000_000, 3)],
        ..Views::default()
    });
    site.heard.send(state("n1", 500, "Healthy", ""));
    site.rows("/api/cards", "admin", 1).await;
    let fleet = "/api/time?of=fleet";
    site.until("/api/fleet", "admin", |fleet| {
        fleet["nodes"][0][2][0][4] == 500
    })
    .await;
    // The first look is at once, the next ones every 30 s.
    site.pass(60);
    site.until(fleet, "admin", |time| known(time, "used").contains(&500))
        .await;
    site.heard
        .send(state("n1", 1900, "Healthy", "held 2100 of 2000 MiB"));
    site.heard.send(crate::telemetry::AgentEvent::Refusal {
        node: "n1".into(),
        refusal: Refusal {
            pod_uid: "uid-b/z".into(),
            pod_namespace: "b".into(),
            reason: "a secret of b".into(),
            ..Refusal::default()
        },
    });
    site.until(fleet, "admin", |time| {
        time["marks"]
            .as_array()
            .is_some_and(|marks| marks.len() == 2)
    })
    .await;
    site.heard
        .send(state("n1", 1900, "Unhealthy", "held 2100 of 2000 MiB"));
    let evicted = json!({"status": {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
        "message": "Pod a/x was preempted by workload b/secret", "lastTransitionTime": "2026-01-01T00:01:30Z"}]}});
    site.facts.send(holder("a/x", evicted)).unwrap();
    let time = site
        .until(fleet, "admin", |time| {
            time["marks"]
                .as_array()
                .is_some_and(|marks| marks.len() == 4)
        })
        .await;
    let kinds: Vec<&str> = time["marks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mark| mark["kind"].as_str().unwrap())
        .collect();
    let mut sorted = kinds.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, ["evicted", "fault", "limit", "refused"]);
    let limit = time["marks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|mark| mark["kind"] == "limit")
        .unwrap();
    assert_eq!(
        (&limit["queue"], &limit["card"]),
        (&json!("paid"), &json!("GPU-n1"))
    );
    site.pass(30);
    let card = "/api/time?of=card&name=GPU-n1";
    let time = site
        .until(card, "admin", |time| known(time, "used").contains(&1900))
        .await;
    assert_eq!(
        known(&time, "granted"),
        vec![2000; known(&time, "used").len()]
    );
    assert_eq!(time["step"], 30_000);
    let held = site
        .until("/api/time?of=queue&name=paid", "tenant", |time| {
            !known(time, "held").is_empty()
        })
        .await;
    assert!(known(&held, "held").iter().all(|held| *held == 500));
    let waiting = site
        .until("/api/time?of=waiting", "tenant", |time| {
            !known(time, "paid").is_empty()
        })
        .await;
    assert_eq!(known(&waiting, "paid").last(), Some(&3));
    // The tenant may list pods of `a` alone, and no cards.
    let (code, answer) = site.json(fleet, "tenant").await;
    assert_eq!(code, StatusCode::FORBIDDEN, "{answer}");
    let text = site
        .json("/api/time?of=queue&name=paid", "tenant")
        .await
        .1
        .to_string();
    assert!(
        text.contains("b/secret") && !text.contains("a secret of b"),
        "the words of its own pod: {text}"
    );
    for path in [
        fleet,
        card,
        "/api/time?of=queue&name=paid",
        "/api/time?of=waiting",
        "/api/report",
    ] {
        assert_eq!(
            site.json(path, "nobody").await.0,
            StatusCode::FORBIDDEN,
            "{path}"
        );
    }
    for path in [
        "/api/time?of=nothing",
        "/api/time?of=fleet&from=1",
        "/api/time?of=pod&name=a/x",
        "/api/report?hours=x",
    ] {
        assert_eq!(
            site.json(path, "admin").await.0,
            StatusCode::BAD_REQUEST,
            "{path}"
        );
    }
    let (code, answer) = site
        .json("/api/time?of=fleet&from=1&until=2", "admin")
        .await;
    assert_eq!(code, StatusCode::NOT_FOUND);
    assert!(
        answer["error"]
            .as_str()
            .unwrap()
            .contains("--prometheus-url"),
        "{answer}"
    );
}

#[tokio::test]
async fn the_fleet_is_told_as_a_whole_once_and_then_as_changes() {
    let site = Site::start(vec![
        node("n1", &["a/x", "b/y"]),
        node("n2", &[]),
        holder("a/x", json!({})),
    ]);
    site.rows("/api/cards", "admin", 2).await;
    let labelled = json!({"metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "z1", "kubernetes.io/hostname": "n1"}}});
    let labelled = Box::new(serde_json::from_value(labelled).unwrap());
    site.facts.send(Fact::Node(Seen::There(labelled))).unwrap();
    let whole = site
        .until("/api/fleet", "admin", |fleet| {
            fleet["keys"] == json!(["topology.kubernetes.io/zone"])
        })
        .await;
    assert_eq!(whole["whole"], true);
    let words = whole["words"].as_array().unwrap().clone();
    let word = |at: &Value| {
        usize::try_from(at.as_i64().unwrap())
            .ok()
            .map(|at| words[at].as_str().unwrap())
    };
    let first = &whole["nodes"][0];
    assert_eq!(
        (first[0].as_str(), word(&first[1][0])),
        (Some("n1"), Some("z1"))
    );
    let card = &first[2][0];
    assert_eq!(
        (word(&card[1]), card[3].as_u64(), card[4].as_i64()),
        (Some("NVIDIA L4"), Some(4000), Some(-1))
    );
    assert_eq!(word(&card[6][0][3]), Some("paid"));
    assert_eq!(whole["nodes"][1][1][0], -1, "n2 has no such label");
    let token = whole["token"].as_str().unwrap();
    let since = format!("/api/fleet?since={token}");
    let (_, none) = site.json(&since, "admin").await;
    assert_eq!(
        (&none["whole"], &none["nodes"]),
        (&json!(false), &json!([]))
    );
    site.facts.send(node("n2", &["a/x"])).unwrap();
    let some = site
        .until(&since, "admin", |fleet| fleet["nodes"] != json!([]))
        .await;
    assert_eq!(some["nodes"].as_array().unwrap().len(), 1);
    assert_eq!(some["nodes"][0][0], "n2");
    // Use that cannot be seen in a picture is no change.
    site.heard.send(state("n2", 500, "Healthy", ""));
    let some = site
        .until(&since, "admin", |fleet| fleet["nodes"][0][2][0][4] == 500)
        .await;
    let since = format!("/api/fleet?since={}", some["token"].as_str().unwrap());
    site.heard.send(state("n2", 510, "Healthy", ""));
    site.until("/api/cards?filter=n2", "admin", |cards| {
        cards["rows"][0]["used"] == 510
    })
    .await;
    assert_eq!(site.json(&since, "admin").await.1["nodes"], json!([]));
    site.facts
        .send(Fact::GpuNode(Seen::Gone("n1".into())))
        .unwrap();
    let some = site
        .until(&since, "admin", |fleet| fleet["gone"] != json!([]))
        .await;
    assert_eq!(some["gone"], json!(["n1"]));
    let (code, _) = site.json("/api/fleet", "tenant").await;
    assert_eq!(code, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn the_report_sums_what_was_granted_and_hides_what_the_reader_may_not_list() {
    let site = Site::start(vec![node("n1", &["a/x", "b/y"]), holder("a/x", json!({}))]);
    site.rows("/api/cards", "admin", 1).await;
    site.heard.send(state("n1", 500, "Healthy", ""));
    site.until("/api/fleet", "admin", |fleet| {
        fleet["nodes"][0][2][0][4] == 500
    })
    .await;
    let report = "/api/report?by=namespace&hours=1";
    // Half an hour, looked at every 30 s. The time before the first look counts for nothing.
    let mut looked = 0;
    while looked == 0 {
        site.pass(30);
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        looked = site.json(report, "admin").await.1["seconds"]
            .as_i64()
            .unwrap();
    }
    while looked < 1800 {
        site.pass(30);
        let known = |report: &Value| report["seconds"].as_i64().unwrap();
        let answer = site
            .until(report, "admin", |report| known(report) > looked)
            .await;
        looked = known(&answer);
    }
    let (_, answer) = site.json(report, "admin").await;
    let rows = answer["rows"].as_array().unwrap();
    assert_eq!(names(&answer["rows"], "namespace"), ["a", "b"]);
    // 2000 of 20,000 MiB for half an hour; 500 of them are in use, and of b/y nothing is known.
    let seconds = answer["seconds"].as_u64().unwrap();
    assert!((1800..=1860).contains(&seconds), "{seconds}");
    assert_eq!(rows[0]["gpuHours"], 100 * seconds / 3600);
    assert_eq!(rows[0]["unusedGpuHours"], 75 * seconds / 3600);
    assert_eq!(rows[0]["grantedMibHours"], 2000 * seconds / 3600);
    assert_eq!(rows[1]["unusedMibHours"], 0);
    assert_eq!(answer["cards"]["gpuHours"], 1000 * seconds / 3600);
    assert_eq!(answer["hidden"], Value::Null);
    let (_, owners) = site.json("/api/report?by=owner&hours=1", "admin").await;
    assert_eq!(names(&owners["rows"], "owner"), ["", "Pod/x"]);
    assert_eq!(names(&owners["rows"], "queue"), ["", "paid"]);
    let (_, answer) = site.json(report, "tenant").await;
    assert_eq!(names(&answer["rows"], "namespace"), ["a"]);
    assert_eq!(answer["cards"], Value::Null);
    assert_eq!(answer["hidden"]["grantedMibHours"], 2000 * seconds / 3600);
}

/// A server that answers each range query with one series of `value`, and notes the query.
async fn prometheus(value: &'static str) -> (String, Arc<std::sync::Mutex<Vec<String>>>) {
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let noted = asked.clone();
    let answer = async move |body: String| {
        let pairs: std::collections::HashMap<String, String> =
            form_urlencoded::parse(body.as_bytes())
                .into_owned()
                .collect();
        noted.lock().unwrap().push(pairs["query"].clone());
        let start: f64 = pairs["start"].parse().unwrap();
        axum::Json(
            json!({"status": "success", "data": {"resultType": "matrix", "result": [
            {"metric": {"queue_name": "paid"}, "values": [[start, value]]}]}}),
        )
    };
    let routes = Router::new().route("/api/v1/query_range", axum::routing::post(answer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (url, asked)
}

#[tokio::test]
async fn ranges_come_from_prometheus_by_our_own_queries_and_as_far_as_a_reader_may_see() {
    let (url, asked) = prometheus("2097152").await;
    let site = Site::beside(everything(), Some(&url));
    site.rows("/api/cards", "admin", 2).await;
    let range = "from=1767225600000&until=1767312000000";
    let (code, time) = site
        .json(&format!("/api/time?of=fleet&{range}"), "admin")
        .await;
    assert_eq!(code, StatusCode::OK, "{time}");
    assert_eq!(
        (&time["source"], &time["range"]),
        (&json!("prometheus"), &json!(true))
    );
    assert_eq!(time["series"]["granted"][0], 2);
    assert_eq!(time["step"], 288_000);
    let (_, time) = site
        .json(&format!("/api/time?of=waiting&{range}"), "tenant")
        .await;
    assert_eq!(time["series"]["paid"][0], 2_097_152);
    let before = asked.lock().unwrap().len();
    for (path, token, code) in [
        ("of=fleet", "tenant", StatusCode::FORBIDDEN),
        ("of=card&name=GPU-n1", "tenant", StatusCode::FORBIDDEN),
        ("of=queue&name=paid", "nobody", StatusCode::FORBIDDEN),
        ("of=pod&name=b/y", "tenant", StatusCode::NOT_FOUND),
        ("of=fleet", "stranger", StatusCode::UNAUTHORIZED),
    ] {
        let path = format!("/api/time?{path}&{range}");
        assert_eq!(site.json(&path, token).await.0, code, "{path} {token}");
    }
    assert_eq!(
        asked.lock().unwrap().len(),
        before,
        "Prometheus was not asked"
    );
    let pod = format!("/api/time?of=pod&name=a/x&{range}");
    assert_eq!(site.json(&pod, "tenant").await.0, StatusCode::OK);
    let last = asked.lock().unwrap().last().cloned().unwrap();
    assert!(last.contains("namespace=\"a\",pod=\"x\""), "{last}");
    // What it cannot answer is one sentence, without its address's password.
    let gone = Site::beside(everything(), Some("http://me:secret@127.0.0.1:1"));
    gone.rows("/api/cards", "admin", 2).await;
    let (code, answer) = gone
        .json(&format!("/api/time?of=fleet&{range}"), "admin")
        .await;
    assert_eq!(code, StatusCode::BAD_GATEWAY);
    let error = answer["error"].as_str().unwrap();
    assert!(
        error.contains("127.0.0.1:1") && !error.contains("secret"),
        "{error}"
    );
    let (_, local) = gone.json("/api/time?of=fleet", "admin").await;
    assert_eq!(
        local["source"], "scheduler",
        "what is remembered is there all the same"
    );
}
