//! The first page: what is wrong, who suffers, and what a reader may be told of it.

use super::*;

/// Node `n1` with one card; `patch` changes its status.
fn changed(patch: impl FnOnce(&mut GpuStatus)) -> Fact {
    let Fact::GpuNode(Seen::There(mut object)) = node("n1", &["a/x", "b/y"]) else {
        panic!("not a node");
    };
    patch(&mut object.status.as_mut().unwrap().gpus[0]);
    Fact::GpuNode(Seen::There(object))
}

fn waits(key: &str, age: u32, why: &str) -> Fact {
    let condition = json!([{"type": "PodScheduled", "status": "False", "message": why}]);
    pod(key, age, json!({"status": {"conditions": condition}}))
}

/// The rows of the first page, once the last of the facts is there.
async fn rows(site: &Site, token: &str) -> Vec<Value> {
    site.rows("/api/pods?namespace=last", "admin", 1).await;
    let (_, overview) = site.json("/api/overview", token).await;
    overview["now"]["rows"].as_array().unwrap().clone()
}

fn facts(more: Vec<Fact>) -> Vec<Fact> {
    let last = pod("last/one", 0, json!({"spec": {"nodeName": "n1"}}));
    more.into_iter().chain([last]).collect()
}

fn find<'a>(rows: &'a [Value], what: &str) -> &'a Value {
    let found = |row: &&Value| row["what"].as_str().unwrap().contains(what);
    rows.iter()
        .find(found)
        .unwrap_or_else(|| panic!("no {what} in {rows:#?}"))
}

#[tokio::test]
async fn a_problem_says_who_suffers_and_what_to_type() {
    let broken = changed(|gpu| {
        gpu.health = "Unhealthy".into();
        gpu.health_reason = "XID 79".into();
    });
    let site = Site::start(facts(vec![
        broken,
        waits("a/p", 9, "no room: 3 node(s) had no GPU\nn1: full"),
        waits("a/q", 1, "no room: 14 node(s) had no GPU"),
    ]));
    let now = rows(&site, "admin").await;
    // What is broken comes before what waits.
    assert_eq!(now[0]["level"], "bad");
    let card = find(&now, "n1 / 0: unhealthy: XID 79");
    assert_eq!(card["command"], "kubectl aliquot cordon n1/0");
    assert_eq!(
        (&card["hurt"], &card["pods"][1]["name"]),
        (&json!(2), &json!("b/y"))
    );
    let node = find(&now, "n1: its agent is disconnected");
    assert_eq!(node["hurt"], 2);
    // One row for reasons that differ in numbers, with the oldest pod's.
    let wait = find(&now, "2 pods wait in queue team");
    assert_eq!(
        (&wait["level"], &wait["detail"]),
        (&json!("warn"), &json!("no room: 3 node(s) had no GPU"))
    );
    assert_eq!(wait["command"], "kubectl aliquot explain a/p");
}

#[tokio::test]
async fn a_cordon_is_a_wish_and_is_news() {
    let site = Site::start(facts(vec![changed(|_| {})]));
    rows(&site, "admin").await;
    site.facts.send(changed(|gpu| gpu.cordoned = true)).unwrap();
    let overview = site
        .until("/api/overview", "admin", |overview| {
            overview["changed"]["rows"][0]["kind"] == "cordoned"
        })
        .await;
    let change = &overview["changed"]["rows"][0];
    assert_eq!(
        (&change["place"], &change["words"]),
        (&json!("n1 / 0"), &json!("GPU 0 of node n1"))
    );
    let now = rows(&site, "admin").await;
    let card = find(&now, "n1 / 0: cordoned");
    assert_eq!(
        (&card["level"], &card["command"]),
        (&json!("warn"), &json!("kubectl aliquot uncordon n1/0"))
    );
    // After a quarter of an hour it is no news, and a tenant hears nothing of cards.
    let (_, tenant) = site.json("/api/overview", "tenant").await;
    assert_eq!(tenant["changed"]["rows"], json!([]));
    site.clock.fetch_add(15 * 60 + 1, Ordering::Relaxed);
    site.until("/api/overview", "admin", |overview| {
        overview["changed"]["rows"] == json!([])
    })
    .await;
}

#[tokio::test]
async fn a_crash_names_its_log_and_a_name_that_a_shell_would_obey_gets_no_command() {
    let crashed = |key: &str, container: &str| {
        let (namespace, name) = key.split_once('/').unwrap();
        let grant = json!({"v": 1, "key": "", "cluster": "", "decision": "1-1", "queue": "paid", "containers": [],
            "pod": {"uid": format!("uid-{key}"), "namespace": namespace, "name": name}, "node": {"name": "n1", "uid": ""}});
        let status = json!([{"name": container, "image": "", "imageID": "", "ready": false, "restartCount": 9,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]);
        pod(
            key,
            1,
            json!({"metadata": {"annotations": {"aliquot.dev/grant": format!("c2ln.{grant}")}},
            "spec": {"nodeName": "n1"}, "status": {"phase": "Running", "containerStatuses": status}}),
        )
    };
    let site = Site::start(facts(vec![
        node("n1", &["a/x", "b/y"]),
        crashed("a/x", "main"),
        crashed("b/y", "$(id)"),
    ]));
    let now = rows(&site, "admin").await;
    let row = find(&now, "a/x does not run");
    assert_eq!(
        row["detail"],
        "CrashLoopBackOff, 9 restarts (container main)"
    );
    assert_eq!(row["command"], "kubectl -n a logs x -c main --previous");
    assert_eq!(find(&now, "b/y does not run")["command"], Value::Null);
    // The tenant is told of its own pods alone.
    let mine = rows(&site, "tenant").await;
    assert_eq!(mine.len(), 1, "{mine:#?}");
    let (_, list) = site.json("/api/pods?state=trouble", "tenant").await;
    assert_eq!(
        (&list["total"], &list["rows"][0]["trouble"]),
        (&json!(1), &json!("CrashLoopBackOff, 9 restarts"))
    );
}

#[tokio::test]
async fn a_tenant_has_a_home_and_an_admin_sees_how_shares_are_held() {
    let fenced = changed(|gpu| {
        gpu.grants[0].fence = Some(api::units::Fence::ServerLimit);
        gpu.grants[1].fence = Some(api::units::Fence::WatchdogOnly);
    });
    let site = Site::start(facts(vec![
        fenced,
        waits("a/p", 3, "no room"),
        waits("b/q", 3, "no room"),
    ]));
    rows(&site, "admin").await;
    let (_, overview) = site.json("/api/overview", "admin").await;
    assert_eq!(
        overview["held"],
        json!({"hard": 0, "guarded": 1, "watched": 1, "whole": 0, "unknown": 0})
    );
    assert_eq!(overview["homes"], Value::Null);
    assert_eq!(
        overview["largest"],
        json!({"free": 16_000, "cards": 1, "node": "n1"})
    );
    let shares = &overview["drawn"][0]["cards"][0]["shares"];
    assert_eq!(names(shares, "pod"), ["a/x", "b/y"]);
    let (_, overview) = site.json("/api/overview", "tenant").await;
    let homes = overview["homes"].as_array().unwrap();
    assert_eq!(homes.len(), 1);
    assert_eq!(
        (
            &homes[0]["namespace"],
            &homes[0]["pods"],
            &homes[0]["waiting"],
            &homes[0]["granted"]
        ),
        (&json!("a"), &json!(1), &json!(1), &json!(2000))
    );
    assert!(!overview.to_string().contains("b/"), "{overview}");
    // The agent of n1 is disconnected, which concerns only readers who may list cards.
    assert!(find(&rows(&site, "admin").await, "n1")["hurt"] == 2);
    assert!(!overview["now"].to_string().contains("n1"), "{overview}");
}

#[tokio::test]
async fn pods_that_run_are_in_the_list_and_are_found_by_namespace_node_and_state() {
    let site = Site::start(facts(vec![
        node("n1", &["a/x"]),
        node("n2", &["b/y"]),
        waits("a/p", 1, "no room"),
    ]));
    rows(&site, "admin").await;
    for (query, wanted) in [
        ("", vec!["p", "one", "x", "y"]),
        ("state=running", vec!["x", "y"]),
        ("state=waiting", vec!["p"]),
        ("namespace=a", vec!["p", "x"]),
        ("filter=N2", vec!["y"]),
        ("filter=a/x", vec!["x"]),
        ("filter=uid-b", vec!["y"]),
        ("sort=-name", vec!["one", "y", "x", "p"]),
    ] {
        let (_, list) = site.json(&format!("/api/pods?{query}"), "admin").await;
        assert_eq!(names(&list["rows"], "name"), wanted, "{query}");
        assert_eq!(list["namespaces"], json!(["a", "b", "last"]), "{query}");
    }
    let (_, list) = site
        .json("/api/pods?state=running&namespace=b", "admin")
        .await;
    let row = &list["rows"][0];
    assert_eq!(
        (&row["node"], &row["granted"], &row["used"]),
        (&json!("n2"), &json!(2000), &Value::Null)
    );
}

/// The advice is the scheduler's own, tried on a copy; what names others is for those who may see
/// them.
#[tokio::test]
async fn advice_is_tried_and_names_others_only_to_those_who_may_see_them() {
    const CLUSTER: &str = "\
tick 100000
node n1 cpu=64000 memory=274877906944 pods=110 gpus=1 managed extended.aliquot.dev/gpu-share=48
cards n1 default=mps
  card GPU-1 product=L4 total=23034 reserved=34
queue team gpu=-1/-1/1000000
pod guest ns=b queue=team created=1 gpus.main=1 phase=running on=n1
  grant main cards=GPU-1 memory=23000 mode=exclusive
pod uid-a/p ns=a name=p queue=team created=2 gpus.main=1
";
    let mut site = Site::start(facts(vec![waits("a/p", 1, "no room")]));
    let mut questions = site.questions.take().unwrap();
    tokio::spawn(async move {
        while let Some(question) = questions.recv().await {
            if let Question::Explain(_, to) = question {
                let text = "no room\nestimated start: about 14:20 UTC (in 1 h), when b/guest ends (expected after 2 h)\nn1: full";
                let _ = to.send(Some(text.to_owned()));
            } else if let Question::ForkOfPod(_, to) = question {
                let mut core = scheduler_core::Core::new(scheduler_core::Config::default());
                for event in scheduler_core::text::read(CLUSTER).unwrap() {
                    core.apply(event);
                }
                let _ = to.send(Some(Box::new(core)));
            }
        }
    });
    rows(&site, "admin").await;
    // When it may start, without the name of a pod that the reader may not list.
    let path = "/api/pods/uid-a%2Fp";
    let (_, one) = site.json(path, "admin").await;
    assert_eq!(
        one["start"],
        "about 14:20 UTC (in 1 h), when b/guest ends (expected after 2 h)"
    );
    assert!(one["explain"].as_str().unwrap().ends_with("n1: full"));
    let (_, one) = site.json(path, "tenant").await;
    assert_eq!(one["start"], "about 14:20 UTC (in 1 h)");
    assert_eq!(
        (&one["explain"], &one["lacks"]),
        (&Value::Null, &json!("gpunodes.aliquot.dev"))
    );
    let path = "/api/advice/uid-a%2Fp";
    let (code, advice) = site.json(path, "admin").await;
    assert_eq!(code, StatusCode::OK, "{advice}");
    let whats = names(&advice["changes"], "what");
    assert!(
        whats
            .iter()
            .any(|what| what.starts_with("wait for the end of b/guest")),
        "{whats:?}"
    );
    assert!(
        whats.iter().any(|what| what.starts_with("one more node")),
        "{whats:?}"
    );
    assert_eq!(advice["changes"][0]["suffices"], true);
    let (_, advice) = site.json(path, "tenant").await;
    assert_eq!(advice, json!({"changes": [], "hidden": 2}));
    assert_eq!(site.json(path, "nobody").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_megabyte_of_a_reason_is_cut() {
    let long = "x".repeat(1 << 20);
    let mut site = Site::start(facts(vec![waits("a/p", 1, &long)]));
    // There is no cycle that could explain it.
    drop(site.questions.take());
    rows(&site, "admin").await;
    let (_, list) = site.json("/api/pods?namespace=a", "admin").await;
    assert!(list["rows"][0]["why"].as_str().unwrap().len() <= 300);
    let (_, one) = site.json("/api/pods/uid-a%2Fp", "admin").await;
    assert!(one["why"].as_str().unwrap().len() < 20_000);
}
