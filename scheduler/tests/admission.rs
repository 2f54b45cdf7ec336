//! Admission apart from the scheduler, and resizes that arrive anywhere.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

mod site;

use kube::Client;
use kube::api::{Api, PostParams};
use scheduler::{Config, Role};
use serde_json::{Value, json};
use site::{Replica, Site, page};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

async fn in_time(what: &str, done: impl Future<Output = ()>) {
    let waited = tokio::time::timeout(LIMIT, done).await;
    assert!(waited.is_ok(), "{what}");
}

async fn ready(replica: &Replica, path: &str) {
    in_time(path, async {
        while page(replica.pages, path).await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

async fn replica(site: &Site, role: Role) -> Replica {
    site.replica_with(Config {
        role,
        leader_elect: true,
        address: (role == Role::Scheduler).then_some([127, 0, 0, 1].into()),
        ..Config::default()
    })
    .await
}

/// Asks for a share, and whether its pod has the token.
async fn share(site: &Site, name: &str) -> kube::Result<bool> {
    let pod = json!({
        "metadata": {"name": name, "annotations": {"gpu-memory": "2000"}},
        "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "c", "image": "i"}]},
    });
    let pod = serde_json::from_value(pod).unwrap();
    let made = site.pods().create(&PostParams::default(), &pod).await?;
    let made = serde_json::to_value(made.spec).unwrap();
    Ok(made["containers"][0]["resources"]["limits"]["aliquot.dev/gpu-share"] == "1")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_scheduler_pods_are_admitted_and_a_scheduler_that_comes_later_places_them() {
    let site = Site::start().await;
    let admission = replica(&site, Role::Admission).await;
    ready(&admission, "/readyz").await;
    in_time("a share with its token", async {
        while !share(&site, "share").await.unwrap_or(true) {
            let now = kube::api::DeleteParams::default().grace_period(0);
            site.pods().delete("share", &now).await.unwrap();
        }
    })
    .await;
    site.pod(0).await;
    // It decides nothing.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(site.placed().await.is_empty());
    let scheduler = replica(&site, Role::Scheduler).await;
    ready(&scheduler, "/readyz").await;
    site.until_placed(1).await;
    scheduler.end().await;
    assert!(share(&site, "another").await.unwrap());
    admission.end().await;
}

/// Two pods of one CPU each are in a queue with a limit of four.
async fn two_pods(site: &Site) -> [Value; 2] {
    let queue = json!({
        "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "narrow"},
        "spec": {"resources": {"cpu": {"quota": -1, "limit": 4000}}},
    });
    let queues: Api<api::Queue> = Api::all(site.client.clone());
    let queue = serde_json::from_value(queue).unwrap();
    queues.create(&PostParams::default(), &queue).await.unwrap();
    let mut pods = Vec::new();
    for name in ["a", "b"] {
        let pod = json!({
            "metadata": {"name": name, "labels": {"kai.scheduler/queue": "narrow"}},
            "spec": {"schedulerName": "kai-scheduler", "nodeName": "n0", "containers": [{"name": "c",
                "image": "i", "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": "Running"},
        });
        let pod = serde_json::from_value(pod).unwrap();
        let made = site
            .pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap();
        pods.push(json!(made));
    }
    pods.try_into().unwrap()
}

/// What the webhook of a replica says of a pod that wants so many CPUs.
async fn asks(of: &Replica, pod: &Value, cpu: &str) -> (bool, String) {
    let mut config = kube::Config::new(format!("https://{}", of.webhook).parse().unwrap());
    config.accept_invalid_certs = true;
    let client = Client::try_from(config).unwrap();
    let mut new = pod.clone();
    new["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(cpu);
    let kind = |kind: &str| json!({"group": "", "version": "v1", "kind": kind});
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "r", "kind": kind("Pod"), "resource": {"group": "", "version": "v1", "resource": "pods"},
            "subResource": "resize", "name": pod["metadata"]["name"], "namespace": "default",
            "operation": "UPDATE", "userInfo": {}, "oldObject": pod, "object": new, "dryRun": false,
        },
    });
    let request = http::Request::post("/validate-resize")
        .header("content-type", "application/json")
        .body(review.to_string().into_bytes())
        .unwrap();
    let answer: Value = client.request(request).await.unwrap();
    let said = answer["response"]["status"]["message"].as_str();
    (
        answer["response"]["allowed"] == true,
        said.unwrap_or_default().to_owned(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_resizes_that_arrive_together_at_different_replicas_do_not_pass_their_queues_limit() {
    let site = Site::start().await;
    let [a, b] = two_pods(&site).await;
    let admission = replica(&site, Role::Admission).await;
    let first = replica(&site, Role::Scheduler).await;
    ready(&first, "/readyz").await;
    let second = replica(&site, Role::Scheduler).await;
    for replica in [&admission, &second] {
        ready(replica, "/readyz").await;
    }
    in_time("an answer by way of who does not act", async {
        while !asks(&second, &a, "1500m").await.0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    for _ in 0..5 {
        let (one, other) = tokio::join!(asks(&admission, &a, "2500m"), asks(&second, &b, "2500m"));
        let allowed = [&one, &other].into_iter().filter(|said| said.0).count();
        assert_eq!(allowed, 1, "{one:?} {other:?}");
        let refused = if one.0 { other } else { one };
        assert!(refused.1.contains("Limit is 4 CPU cores"), "{refused:?}");
        // Back again: nothing was stored.
        assert!(asks(&second, &a, "1500m").await.0 && asks(&admission, &b, "1500m").await.0);
    }
    // If no request changes, no decision is needed.
    let unchanged = asks(&admission, &a, "1").await;
    assert!(unchanged.0);
    // There is no leader any more.
    first.end().await;
    second.end().await;
    let refused = asks(&admission, &a, "2").await;
    assert!(
        !refused.0 && refused.1.ends_with("Try again"),
        "{refused:?}"
    );
    assert!(asks(&admission, &a, "1000m").await.0);
    admission.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_that_admission_could_not_find_does_not_start() {
    let site = Site::start().await;
    let config = Config {
        role: Role::Scheduler,
        ..Config::default()
    };
    let why = site.replica_with(config).await.task.await.unwrap();
    let why = why.unwrap_err().to_string();
    assert!(why.contains("--leader-elect=true"), "{why}");
}
