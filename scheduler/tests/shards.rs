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
    let (status, snapshot) = page(replica.pages, "/get-snapshot").await;
    assert_eq!(status, 200);
    assert!(!snapshot.contains("hush"), "{snapshot}");
    let snapshot: Value = serde_json::from_str(&snapshot).unwrap();
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

fn shard(spec: Value) -> Value {
    json!({"apiVersion": "kai.scheduler/v1", "kind": "SchedulingShard",
        "metadata": {"name": "default"}, "spec": spec})
}

/// Makes it, or replaces its spec, as `kubectl apply` does.
async fn apply(site: &Site, object: &Value) {
    let api: Api<api::SchedulingShard> = Api::all(site.client.clone());
    let params = PatchParams::apply("an-admin").force();
    let name = object["metadata"]["name"].as_str().unwrap();
    api.patch(name, &params, &Patch::Apply(object))
        .await
        .unwrap();
}

/// A condition of the default shard, once it is of this generation.
async fn condition(site: &Site, kind: &str, generation: i64) -> (String, String) {
    let api: Api<api::SchedulingShard> = Api::all(site.client.clone());
    until(kind, async || {
        let shard = api.get("default").await.unwrap();
        let found = api::kai::conditions(&shard.status).into_iter();
        let found = found
            .filter(|one| one.observed_generation == Some(generation))
            .find(|one| one.type_ == kind)?;
        Some((found.status, found.message))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_shard_acts_at_once_and_says_what_of_it_does_not() {
    let site = Site::start().await;
    let first = site.replica().await;
    let second = site.replica().await;
    site.pod_with("a", json!({})).await;
    let packed = node_of(&site, "a").await;

    let spec = json!({"placementStrategy": {"gpu": "spread", "cpu": "spread"},
        "plugins": {"dreams": {}}});
    apply(&site, &shard(spec)).await;
    assert_eq!(condition(&site, "Ready", 1).await.0, "True");
    let (ignored, names) = condition(&site, "KeysIgnored", 1).await;
    assert_eq!(ignored, "True");
    assert_eq!(names, "spec.plugins.dreams: plugin dreams is not known");
    site.pod_with("b", json!({})).await;
    let spread = node_of(&site, "b").await;
    assert_ne!(spread, packed);

    // What replays a snapshot goes by the same settings.
    until("the settings in a snapshot", async || {
        let (_, ours) = page(first.pages, "/snapshot").await;
        let settings = ours.lines().next()?.strip_prefix("config ")?;
        let placement = ["gpu=spread", "cpu=spread"];
        let told = |one: &&str| settings.split(' ').any(|word| word == *one);
        placement.iter().all(told).then_some(())
    })
    .await;
    // A replica that does not lead reads the shard as well.
    until("the settings in KAI's snapshot", async || {
        let (_, kais) = page(second.pages, "/get-snapshot").await;
        kais.contains("spread").then_some(())
    })
    .await;

    // An invalid object changes nothing.
    apply(&site, &shard(json!({"placementStrategy": {"gpu": "thin"}}))).await;
    let (ready, why) = condition(&site, "Ready", 2).await;
    assert_eq!(ready, "False");
    assert!(
        why.starts_with("spec.placementStrategy.gpu: thin is neither"),
        "{why}"
    );
    site.pod_with("c", json!({})).await;
    let still = node_of(&site, "c").await;
    assert!(still != packed && still != spread, "{still}");

    // Nor does a pool that is another's.
    apply(&site, &shard(json!({"partitionLabelValue": "a"}))).await;
    let (ready, why) = condition(&site, "Ready", 3).await;
    assert!(ready == "False" && why.contains("--node-pool=a"), "{why}");

    // Without the object it is as it was; a replica that takes over goes by the object, too.
    let api: Api<api::SchedulingShard> = Api::all(site.client.clone());
    api.delete("default", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    site.pod_with("d", json!({})).await;
    assert!([&packed, &spread, &still].contains(&&node_of(&site, "d").await));
    first.end().await;
    second.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_of_another_name_leaves_the_shards_alone() {
    let site = Site::start().await;
    apply(&site, &shard(json!({"plugins": {"dreams": {}}}))).await;
    let config = Config {
        scheduler_name: "aliquot".to_owned(),
        ..Config::default()
    };
    let other = site.replica_with(config).await;
    let pod = json!({"spec": {"schedulerName": "aliquot"}});
    site.pod_with("a", pod).await;
    node_of(&site, "a").await;
    let api: Api<api::SchedulingShard> = Api::all(site.client.clone());
    let there = api.get("default").await.unwrap();
    assert!(there.status.is_empty());
    other.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_wants_one_try_gets_one_in_each_node_pool() {
    let site = Site::start().await;
    split(&site).await;
    let config = Config {
        node_pool: Some("a".to_owned()),
        ..Config::default()
    };
    let replica = site.replica_with(config).await;
    let groups: Api<api::PodGroup> = Api::namespaced(site.client.clone(), "default");
    let group = json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": "g", "labels": {POOL: "a"}},
        "spec": {"queue": "team-a", "minMember": 1, "schedulingBackoff": 1}});
    let group = serde_json::from_value(group).unwrap();
    groups.create(&PostParams::default(), &group).await.unwrap();
    let labels = json!({POOL: "a", "kai.scheduler/queue": "team-a"});
    let in_group = |gpus: usize| {
        json!({"metadata": {"labels": labels, "annotations": {"pod-group-name": "g"}},
        "spec": {"containers": [{"name": "main", "image": "none",
            "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]}})
    };
    site.pod_with("large", in_group(GPUS + 1)).await;
    let parked = until("parked", async || {
        let group = groups.get("g").await.unwrap();
        let condition = group.status?.scheduling_conditions.pop()?;
        assert_eq!(condition.node_pool, "a");
        condition
            .message
            .contains("schedulingBackoff: 1")
            .then_some(condition.message)
    })
    .await;
    assert!(parked.contains("GPUs"), "why it was: {parked}");
    // One that would fit is not tried, and another group's is.
    site.pod_with("small", in_group(1)).await;
    in_pool(&site, "other", labels.clone()).await;
    node_of(&site, "other").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(
        site::node_of(&site.pods().get("small").await.unwrap()),
        None
    );
    let gone = kube::api::DeleteParams::default();
    site.pods().delete("large", &gone).await.unwrap();
    let forget = json!({"status": {"schedulingConditions": null}});
    let params = PatchParams::default();
    groups
        .patch_status("g", &params, &Patch::Merge(forget))
        .await
        .unwrap();
    node_of(&site, "small").await;
    replica.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_schedulers_of_two_node_pools_lead_at_once() {
    let site = Site::start().await;
    split(&site).await;
    let of = |pool: &str| Config {
        leader_elect: true,
        node_pool: Some(pool.to_owned()),
        ..Config::default()
    };
    let first = site.replica_with(of("")).await;
    let second = site.replica_with(of("a")).await;
    site.pod_with("d", json!({})).await;
    let labels = json!({POOL: "a", "kai.scheduler/queue": "team-a"});
    in_pool(&site, "a", labels).await;
    let (of_none, of_a) = (node_of(&site, "d").await, node_of(&site, "a").await);
    assert!(["n0", "n1", "n2"].contains(&of_none.as_str()), "{of_none}");
    assert!(["n3", "n4"].contains(&of_a.as_str()), "{of_a}");
    first.end().await;
    second.end().await;
}
