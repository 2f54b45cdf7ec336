//! A scheduler that observes, on the simulated API server.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

mod site;

use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::discovery::Discovery;
use scheduler::Config;
use serde_json::{Value, json};
use site::{GPUS, Replica, Site, page};
use std::time::Duration;

/// How far the API server has counted its writes.
async fn revision(site: &Site) -> String {
    let listed = site.pods().list(&ListParams::default()).await.unwrap();
    listed.metadata.resource_version.unwrap()
}

async fn observed(observer: &Replica) -> Value {
    let (status, body) = page(observer.pages, "/observed").await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// Waits until the report is as wanted.
async fn until(observer: &Replica, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let seen = async {
        loop {
            last = observed(observer).await;
            if wanted(&last) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(30), seen).await;
    assert!(in_time.is_ok(), "{last}");
    last
}

fn observing() -> Config {
    Config {
        observe: true,
        ..Config::default()
    }
}

/// Binds as another scheduler would.
async fn bind(site: &Site, pod: &str, node: &str) {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let post = PostParams::default();
    site.pods()
        .create_subresource::<Value, kube::core::Status>("binding", pod, &post, &binding)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_writes_nothing_and_says_where_it_would_differ() {
    let site = Site::start().await;
    let observer = site.replica_with(observing()).await;
    site.pod_with("a", json!({})).await;
    site.pod_with("b", json!({})).await;
    // A share that no webhook has admitted, and an owned pod without a group.
    let share = json!({"metadata": {"annotations": {"gpu-memory": "2000"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    site.pod_with("share", share).await;
    let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "o", "uid": "o", "controller": true}]);
    site.pod_with("owned", json!({"metadata": {"ownerReferences": owner}}))
        .await;
    let before = revision(&site).await;
    // It would bind them, for longer than it is patient; and they do not pile up on it.
    let told = until(&observer, |report| {
        report["open"]
            .as_array()
            .is_some_and(|open| open.len() == 2)
    })
    .await;
    assert_eq!(told["open"][0]["kind"], "waits-there", "{told}");
    assert!(!told.to_string().contains("default/owned"), "{told}");
    assert_eq!(revision(&site).await, before, "it has written");

    bind(&site, "a", "n0").await;
    bind(&site, "b", "n4").await;
    let told = until(&observer, |report| {
        report["bound"]["same"] == 1 && report["bound"]["other"] == 1
    })
    .await;
    assert_eq!(told["over"][0]["pod"], "default/b");
    assert_eq!(told["over"][0]["kind"], "other-node");
    assert!(
        told["over"][0]["why"].as_str().unwrap().contains("n4"),
        "{told}"
    );

    // Nothing that only a scheduler makes is there.
    let discovery = Discovery::new(site.client.clone()).run().await.unwrap();
    for group in discovery.groups() {
        for (resource, _) in group.recommended_resources() {
            if ![
                "Secret",
                "ConfigMap",
                "Lease",
                "Event",
                "PodGroup",
                "MutatingWebhookConfiguration",
                "ValidatingWebhookConfiguration",
            ]
            .contains(&resource.kind.as_str())
            {
                continue;
            }
            let all: Api<DynamicObject> = Api::all_with(site.client.clone(), &resource);
            let found = all.list(&ListParams::default()).await.unwrap();
            assert_eq!(found.items.len(), 0, "{}: {:?}", resource.kind, found.items);
        }
    }
    observer.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_one_that_decides_alike_it_finds_no_difference() {
    let site = Site::start().await;
    let observer = site.replica_with(observing()).await;
    let (_, body) = page(observer.pages, "/readyz").await;
    assert!(!body.is_empty());
    let live = site.replica().await;
    // More than one node takes, one after the other.
    let pods = GPUS + 2;
    for at in 0..pods {
        site.pod(at).await;
        site.until_placed(at + 1).await;
    }
    let told = until(&observer, |report| {
        let bound = &report["bound"];
        let count = |key: &str| bound[key].as_u64().unwrap();
        count("same") + count("other") + count("unseen") == pods as u64
    })
    .await;
    assert_eq!(told["bound"]["other"], 0, "{told}");
    assert!(told["open"].as_array().unwrap().is_empty(), "{told}");
    let (status, _) = page(live.pages, "/observed").await;
    assert_eq!(status, 404);
    live.end().await;
    observer.end().await;
}

#[tokio::test]
async fn it_is_not_in_the_way_of_who_serves() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let config = Config {
        webhook: address,
        telemetry: address,
        ..observing()
    };
    scheduler::Listeners::bind(&config).await.unwrap();
    let serving = Config {
        observe: false,
        ..config
    };
    assert!(scheduler::Listeners::bind(&serving).await.is_err());
}
