//! Several node pools in one process, and a canary in one of them, on the simulated API
//! server.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

mod site;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use scheduler::Config;
use serde_json::{Value, json};
use site::{GPUS, Site, page};
use std::time::Duration;

const POOL: &str = "kai.scheduler/node-pool";

/// Nodes 3 and 4 are pool `a`, which has a queue of its own.
async fn split(site: &Site) {
    let nodes: Api<Node> = Api::all(site.client.clone());
    let label = Patch::Merge(json!({"metadata": {"labels": {POOL: "a"}}}));
    for node in ["n3", "n4"] {
        nodes
            .patch(node, &PatchParams::default(), &label)
            .await
            .unwrap();
    }
    let queues: Api<api::Queue> = Api::all(site.client.clone());
    let all = json!({"quota": -1, "limit": -1});
    let queue = json!({
        "apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
        "metadata": {"name": "team-a", "labels": {POOL: "a"}},
        "spec": {"resources": {"gpu": all, "cpu": all, "memory": all}},
    });
    let queue = serde_json::from_value(queue).unwrap();
    queues.create(&PostParams::default(), &queue).await.unwrap();
}

async fn in_pool(site: &Site, name: &str, labels: Value) {
    site.pod_with(name, json!({"metadata": {"labels": labels}}))
        .await;
}

async fn until<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let seen = async {
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), seen)
        .await
        .expect(what)
}

async fn node_of(site: &Site, pod: &str) -> String {
    until(pod, async || {
        let pod = site.pods().get(pod).await.unwrap();
        site::node_of(&pod).map(str::to_owned)
    })
    .await
}

async fn waits(site: &Site, pod: &str) -> String {
    until("a reason", async || {
        let pod = serde_json::to_value(site.pods().get(pod).await.unwrap()).unwrap();
        let conditions = pod.pointer("/status/conditions")?.as_array()?.clone();
        let found = conditions
            .into_iter()
            .find(|one| one["status"] == "False")?;
        Some(found["message"].as_str()?.to_owned())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_shard_places_its_own_pods_on_its_own_nodes() {
    let site = Site::start().await;
    split(&site).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shards.yaml");
    let text = "apiVersion: aliquot.dev/v1alpha1\nkind: SchedulerConfiguration\nqueueLabelKey: team\n---\n\
        apiVersion: kai.scheduler/v1\nkind: SchedulingShard\nmetadata: {name: default}\n---\n\
        apiVersion: kai.scheduler/v1\nkind: SchedulingShard\nmetadata: {name: a}\n\
        spec: {partitionLabelValue: a, placementStrategy: {gpu: spread, cpu: spread}}\n";
    std::fs::write(&file, text).unwrap();
    let config = Config {
        leader_elect: true,
        config: Some(file),
        ..Config::default()
    };
    let replica = site.replica_with(config).await;
    let a = json!({POOL: "a", "team": "team-a"});
    for name in ["a1", "a2"] {
        in_pool(&site, name, a.clone()).await;
    }
    in_pool(&site, "d1", json!({})).await;
    in_pool(&site, "d2", json!({})).await;
    // One packs, the other spreads.
    let (d1, d2) = (node_of(&site, "d1").await, node_of(&site, "d2").await);
    assert_eq!(d1, d2);
    assert!(["n0", "n1", "n2"].contains(&d1.as_str()), "{d1}");
    let mut spread = [node_of(&site, "a1").await, node_of(&site, "a2").await];
    spread.sort();
    assert_eq!(spread, ["n3", "n4"]);
    // A queue of another pool is none, and a full pool stays full though others are not.
    in_pool(&site, "stray", json!({"team": "team-a"})).await;
    assert!(waits(&site, "stray").await.contains("team-a"));
    for at in 0..2 * GPUS - 2 {
        in_pool(&site, &format!("fill{at}"), a.clone()).await;
        node_of(&site, &format!("fill{at}")).await;
    }
    in_pool(&site, "late", a).await;
    waits(&site, "late").await;
    // A node that changes its pool gives that room at once.
    let nodes: Api<Node> = Api::all(site.client.clone());
    let label = Patch::Merge(json!({"metadata": {"labels": {POOL: "a"}}}));
    nodes
        .patch("n2", &PatchParams::default(), &label)
        .await
        .unwrap();
    assert_eq!(node_of(&site, "late").await, "n2");

    let (status, text) = page(replica.pages, "/snapshot?shard=a").await;
    assert_eq!(status, 200);
    assert!(
        text.contains("node n3") && !text.contains("node n0"),
        "{text}"
    );
    let (status, _) = page(replica.pages, "/snapshot?shard=none").await;
    assert_eq!(status, 503);
    let (status, _) = page(replica.pages, "/readyz/scheduling").await;
    assert_eq!(status, 200);
    replica.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_canary_under_another_name_keeps_to_its_node_pool_and_its_queues() {
    let site = Site::start().await;
    split(&site).await;
    let config = Config {
        leader_elect: true,
        scheduler_name: "aliquot".into(),
        node_pool: Some("a".into()),
        ..Config::default()
    };
    let canary = site.replica_with(config).await;
    let ours = |labels: Value| json!({"metadata": {"labels": labels}, "spec": {"schedulerName": "aliquot"}});
    // Another scheduler's pod counts on the canary's node, and is not touched elsewhere.
    site.pod_with("theirs", json!({"spec": {"nodeName": "n3"}}))
        .await;
    let labels = json!({POOL: "a", "kai.scheduler/queue": "team-a"});
    for at in 0..2 * GPUS - 1 {
        site.pod_with(&format!("c{at}"), ours(labels.clone())).await;
        let node = node_of(&site, &format!("c{at}")).await;
        assert!(["n3", "n4"].contains(&node.as_str()), "{node}");
    }
    site.pod_with("full", ours(labels)).await;
    waits(&site, "full").await;
    site.pod_with("kais", json!({})).await;
    site.pod_with("elsewhere", ours(json!({}))).await;
    // By the time its queue is reported, everything else would have been too.
    let queues: Api<api::Queue> = Api::all(site.client.clone());
    until("the canary's queue has a status", async || {
        let queue = serde_json::to_value(queues.get("team-a").await.unwrap()).unwrap();
        queue.pointer("/status/allocated").cloned()
    })
    .await;
    let queue = serde_json::to_value(queues.get("default-queue").await.unwrap()).unwrap();
    assert!(queue.get("status").is_none_or(Value::is_null), "{queue}");
    for untouched in ["kais", "elsewhere"] {
        let pod = serde_json::to_value(site.pods().get(untouched).await.unwrap()).unwrap();
        assert!(
            pod.pointer("/spec/nodeName").is_none_or(Value::is_null),
            "{pod}"
        );
    }
    canary.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_meant_ends_the_start_with_its_line() {
    let site = Site::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shards.yaml");
    std::fs::write(
        &file,
        "apiVersion: kai.scheduler/v1\nkind: SchedulingShard\nmetadata: {name: a}\nspec:\n  actions:\n    dance: {}\n",
    )
    .unwrap();
    let config = Config {
        config: Some(file),
        ..Config::default()
    };
    let refused = site
        .replica_with(config)
        .await
        .task
        .await
        .unwrap()
        .unwrap_err();
    let why = refused.to_string();
    assert!(why.contains("shards.yaml, line 6: action dance"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_snapshot_for_kais_tools_has_its_keys_and_nothing_that_containers_are_told() {
    let site = Site::start().await;
    let replica = site.replica().await;
    let secret = json!({"spec": {"containers": [{"name": "c", "image": "i", "args": ["--token=hush"],
        "env": [{"name": "PASSWORD", "value": "hush"}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}});
    site.pod_with("p", secret).await;
    node_of(&site, "p").await;
    // The name of its group comes with its binding, the group soon after.
    until("its group", async || {
        let pod = site.pods().get("p").await.unwrap();
        let group = pod.annotations().get("pod-group-name").cloned()?;
        let groups: Api<api::PodGroup> = Api::namespaced(site.client.clone(), "default");
        groups.get_opt(&group).await.unwrap()
    })
    .await;
    let (status, archive) = page(replica.pages, "/get-snapshot").await;
    assert_eq!(status, 200);
    assert!(!archive.contains("hush"), "{archive}");
    // The headers before and after the file may hold the bytes of braces, too.
    let (_, file) = archive.split_once("snapshot.json").unwrap();
    let snapshot = serde_json::Deserializer::from_str(file).into_iter().next();
    let snapshot: Value = snapshot.unwrap().unwrap();
    assert_eq!(
        snapshot["config"]["actions"],
        "allocate, consolidation, reclaim, preempt, stalegangeviction"
    );
    assert_eq!(
        snapshot["schedulerParams"]["schedulerName"],
        "kai-scheduler"
    );
    let objects = &snapshot["rawObjects"];
    let count = |kind: &str| objects[kind].as_array().map(Vec::len);
    for (kind, there) in [("nodes", 5), ("pods", 1), ("queues", 1), ("podGroups", 1)] {
        assert_eq!(count(kind), Some(there), "{kind}");
    }
    assert_eq!(count("bindRequests"), Some(0));
    assert_eq!(objects["pods"][0]["spec"]["containers"][0]["name"], "c");
    replica.end().await;
}

/// Decisions of a core that is rebuilt from a page of the scheduler's.
fn replayed(snapshot: &str) -> String {
    let mut core = scheduler_core::Core::new(scheduler_core::Config::verified());
    for event in scheduler_core::text::read(snapshot).unwrap() {
        core.apply(event);
    }
    let decision = core.decide(scheduler_core::units::Time(0));
    scheduler_core::text::decision(&decision)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_of_our_snapshot_decides_as_the_scheduler_does() {
    let site = Site::start().await;
    // It does not act: another holds the lease; so what it would do is still to be done.
    let live = site.replica().await;
    site.pod(0).await;
    node_of(&site, "p0").await;
    let idle = site.replica().await;
    live.task.abort();
    let names: Vec<String> = (1..8).map(|at| format!("p{at}")).collect();
    for at in 1..8 {
        site.pod(at).await;
    }
    // Until it has seen all of them; the lease of the other lasts longer than that.
    let snapshot = until("it has seen all pods", async || {
        let (_, text) = page(idle.pages, "/snapshot").await;
        let all = names
            .iter()
            .all(|name| text.contains(&format!("name={name} ")));
        all.then_some(text)
    })
    .await;
    let expected = replayed(&snapshot);
    assert_eq!(replayed(&snapshot), expected);
    for name in &names {
        let decided = expected
            .lines()
            .find(|line| line.starts_with("bind") && line.contains(&format!("name={name} ")))
            .map(|line| {
                line.split("node=")
                    .nth(1)
                    .unwrap()
                    .split(' ')
                    .next()
                    .unwrap()
                    .to_owned()
            });
        assert_eq!(
            decided,
            Some(node_of(&site, name).await),
            "{name}\n{expected}"
        );
    }
    idle.end().await;
}
