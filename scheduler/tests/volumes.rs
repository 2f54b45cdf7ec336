//! Volumes that are bound where their first consumer goes, on the simulated API server;
//! the test is the provisioner, and the controller that binds claims.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

mod site;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams, PostParams};
use scheduler::Config;
use serde_json::{Value, json};
use site::Site;
use std::time::Duration;

const SELECTED: &str = "volume.kubernetes.io/selected-node";

fn claims(site: &Site) -> Api<PersistentVolumeClaim> {
    Api::namespaced(site.client.clone(), "default")
}

async fn fill(site: &Site) {
    let create = PostParams::default();
    let classes: Api<StorageClass> = Api::all(site.client.clone());
    let class = json!({"metadata": {"name": "late"}, "provisioner": "test", "volumeBindingMode": "WaitForFirstConsumer"});
    let class = serde_json::from_value(class).unwrap();
    classes.create(&create, &class).await.unwrap();
    let claim = json!({"metadata": {"name": "data"}, "spec": {"storageClassName": "late",
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = serde_json::from_value(claim).unwrap();
    claims(site).create(&create, &claim).await.unwrap();
}

async fn with_claim(site: &Site, name: &str) {
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    site.pod_with(name, json!({"spec": {"volumes": volumes}}))
        .await;
}

/// Makes a volume that can be used on that node alone, and binds the claim to it.
async fn provision(site: &Site, node: &str) {
    let volumes: Api<PersistentVolume> = Api::all(site.client.clone());
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}}}});
    let volume = serde_json::from_value(volume).unwrap();
    volumes
        .create(&PostParams::default(), &volume)
        .await
        .unwrap();
    let bound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "pv"}});
    claims(site)
        .patch("data", &PatchParams::default(), &Patch::Merge(bound))
        .await
        .unwrap();
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

async fn selected(site: &Site) -> String {
    until("a node is selected", async || {
        let claim = claims(site).get("data").await.unwrap();
        claim.annotations().get(SELECTED).cloned()
    })
    .await
}

/// `reason: message` of the condition that says why it is not placed.
async fn why(site: &Site, pod: &str) -> Option<String> {
    let pod = serde_json::to_value(site.pods().get(pod).await.unwrap()).unwrap();
    let conditions = pod.pointer("/status/conditions")?.as_array()?.clone();
    let found = conditions
        .into_iter()
        .find(|one| one["type"] == "PodScheduled" && one["status"] == "False")?;
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    Some(format!("{}: {}", text("reason"), text("message")))
}

async fn node_of(site: &Site, pod: &str) -> Option<String> {
    let pod = site.pods().get(pod).await.unwrap();
    site::node_of(&pod).map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_bound_where_its_pod_goes_before_the_pod_is() {
    let site = Site::start().await;
    let replica = site.replica().await;
    with_claim(&site, "p").await;
    until("the missing claim is named", async || {
        let why = why(&site, "p").await?;
        why.contains("\"data\" not found").then_some(())
    })
    .await;
    fill(&site).await;
    let node = selected(&site).await;
    let said = until("the wait is told", async || {
        why(&site, "p")
            .await
            .filter(|why| why.starts_with("WaitingForVolume: "))
    })
    .await;
    assert_eq!(
        said,
        format!("WaitingForVolume: waiting for data to be bound on node {node}")
    );
    assert_eq!(node_of(&site, "p").await, None, "bound before its volume");
    provision(&site, &node).await;
    until("the pod is bound", async || node_of(&site, "p").await).await;
    assert_eq!(node_of(&site, "p").await, Some(node.clone()));

    // A later user of the volume is placed where it is, though another node is emptier.
    with_claim(&site, "second").await;
    let second = until("the second is bound", async || {
        node_of(&site, "second").await
    })
    .await;
    assert_eq!(second, node);
    replica.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_does_not_come_in_time_takes_the_decision_back_and_may_come_later() {
    let site = Site::start().await;
    fill(&site).await;
    let config = Config {
        leader_elect: true,
        volume_binding_timeout_s: 1,
        ..Config::default()
    };
    let replica = site.replica_with(config).await;
    with_claim(&site, "p").await;
    let node = selected(&site).await;
    let said = until("it is taken back", async || {
        why(&site, "p")
            .await
            .filter(|why| why.contains("within 1 s"))
    })
    .await;
    assert!(
        said.contains("persistentvolumeclaim \"data\" was not bound"),
        "{said}"
    );
    // Others get the GPU in the meantime; the pod gets it with its volume.
    provision(&site, &node).await;
    let at = until("the pod is bound", async || node_of(&site, "p").await).await;
    assert_eq!(at, node);
    replica.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_replica_goes_on_with_the_node_that_was_selected() {
    let site = Site::start().await;
    fill(&site).await;
    let selected_before: Value = json!({"metadata": {"annotations": {SELECTED: "n3"}}});
    claims(&site)
        .patch(
            "data",
            &PatchParams::default(),
            &Patch::Merge(selected_before),
        )
        .await
        .unwrap();
    let replica = site.replica().await;
    with_claim(&site, "p").await;
    until("the wait is told", async || {
        why(&site, "p")
            .await
            .filter(|why| why.contains("WaitingForVolume"))
    })
    .await;
    provision(&site, "n3").await;
    let at = until("the pod is bound", async || node_of(&site, "p").await).await;
    assert_eq!(at, "n3");
    replica.end().await;
}

/// A statically provisioned volume, which node `n<at>` alone can use.
async fn made_by_hand(site: &Site, name: &str, node: &str) {
    let volumes: Api<PersistentVolume> = Api::all(site.client.clone());
    let volume = json!({"metadata": {"name": name},
        "spec": {"storageClassName": "local", "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"],
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}}}});
    let volume = serde_json::from_value(volume).unwrap();
    volumes
        .create(&PostParams::default(), &volume)
        .await
        .unwrap();
    // As the controller sets it for an unbound one.
    let free = Patch::Merge(json!({"status": {"phase": "Available"}}));
    volumes
        .patch_status(name, &PatchParams::default(), &free)
        .await
        .unwrap();
}

/// The UID of the claim that was written on the volume.
async fn claimed_by(site: &Site, volume: &str) -> Option<String> {
    let volumes: Api<PersistentVolume> = Api::all(site.client.clone());
    let volume = volumes.get(volume).await.unwrap();
    volume.spec?.claim_ref?.uid
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_made_by_hand_is_given_to_one_claim_and_the_next_waits_for_another() {
    let site = Site::start().await;
    let create = PostParams::default();
    let classes: Api<StorageClass> = Api::all(site.client.clone());
    let class = json!({"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer"});
    let class = serde_json::from_value(class).unwrap();
    classes.create(&create, &class).await.unwrap();
    made_by_hand(&site, "pv-1", "n3").await;
    let mut uids = Vec::new();
    for name in ["a", "b"] {
        let claim = json!({"metadata": {"name": name}, "spec": {"storageClassName": "local",
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        let claim = serde_json::from_value(claim).unwrap();
        let made = claims(&site).create(&create, &claim).await.unwrap();
        uids.push(made.uid().unwrap());
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": name}}]);
        site.pod_with(name, json!({"spec": {"volumes": volumes}}))
            .await;
    }
    // Both are decided on at once.
    let replica = site.replica().await;
    let uid = until("a claim on the volume", async || {
        claimed_by(&site, "pv-1").await
    })
    .await;
    let (first, second) = if uid == uids[0] {
        ("a", "b")
    } else {
        ("b", "a")
    };
    let bind = async |claim: &str, volume: &str| {
        let bound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": volume}});
        let patch = Patch::Merge(bound);
        claims(&site)
            .patch(claim, &PatchParams::default(), &patch)
            .await
            .unwrap();
    };
    let said = until("the other's reason", async || {
        why(&site, second)
            .await
            .filter(|why| why.contains("available persistent volumes"))
    })
    .await;
    assert!(
        said.contains(&format!(
            "to bind to persistentvolumeclaim default/{second}"
        )),
        "{said}"
    );
    assert_eq!(node_of(&site, first).await, None, "bound before its volume");
    bind(first, "pv-1").await;
    let at = until("the first is bound", async || node_of(&site, first).await).await;
    assert_eq!(at, "n3");
    assert_eq!(node_of(&site, second).await, None);
    made_by_hand(&site, "pv-2", "n1").await;
    until("a claim on the second volume", async || {
        claimed_by(&site, "pv-2").await
    })
    .await;
    bind(second, "pv-2").await;
    let at = until("the second is bound", async || node_of(&site, second).await).await;
    assert_eq!(at, "n1");
    assert_eq!(claimed_by(&site, "pv-1").await, Some(uid));
    replica.end().await;
}
