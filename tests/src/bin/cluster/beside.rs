//! A scheduler that looks at another one's work and can read alone, and volumes that are
//! bound where their first consumer goes, on real controllers.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::node;
use aliquot_tests::observer::{Observer, PAGES};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use proto::names::resource;
use serde_json::{Value, json};

const SELECTED: &str = "volume.kubernetes.io/selected-node";
const LONG: Duration = Duration::from_mins(1);

async fn observed() -> Result<Value> {
    let page = aliquot_tests::http::get(PAGES, "/observed").await?;
    Ok(serde_json::from_str(&page)?)
}

fn whole(namespace: &str, name: &str, scheduler: &str) -> Value {
    let one = json!({ resource::GPU: "1" });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": namespace, "name": name },
        "spec": {
            "schedulerName": scheduler,
            "restartPolicy": "Never",
            "containers": [{ "name": "c", "image": aliquot_tests::share::IMAGE,
                "command": ["/bin/true"], "resources": { "limits": one, "requests": one } }],
        },
    })
}

async fn node_of(cluster: &Cluster, namespace: &str, pod: &str) -> Result<Option<String>> {
    let pod: Pod = cluster.pods(namespace).get(pod).await?;
    Ok(pod.spec.and_then(|spec| spec.node_name))
}

pub(crate) async fn an_observer_that_can_only_read_says_where_it_would_differ(
    cluster: &mut Cluster,
) -> Result<()> {
    const THEIRS: &str = "another-scheduler";
    cluster.aliquot(&Hardware::preset("L4", 2)).await?;
    let ns = cluster.namespace().await?;
    let mut observer = Observer::start(cluster, THEIRS).await?;
    cluster.apply_one(&whole(&ns, "p", THEIRS)).await?;
    let waits = until("the pod that waits there", LONG, || async {
        let report = observed().await?;
        let told = report["open"][0]["kind"] == "waits-there";
        Ok(if told {
            Seen::Done(report)
        } else {
            Seen::NotYet(report.to_string())
        })
    })
    .await?;
    let here = waits["open"][0]["here"].as_str().unwrap_or_default();
    ensure!(here.starts_with("node "), "{waits}");
    ensure!(waits["open"][0]["pod"] == format!("{ns}/p"), "{waits}");
    ensure!(
        node_of(cluster, &ns, "p").await?.is_none(),
        "it was bound by who only looks"
    );
    // What the other one does at last is what would be done here.
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": { "name": "p" },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node::NAME },
    });
    cluster
        .pods(&ns)
        .create_subresource::<Value, kube::core::Status>(
            "binding",
            "p",
            &PostParams::default(),
            &binding,
        )
        .await?;
    until("the same counted", LONG, || async {
        let report = observed().await?;
        Ok(Seen::when(report["bound"]["same"] == 1, report.to_string()))
    })
    .await?;
    // Whatever it may not do it did not try either.
    let log = observer.log()?;
    ensure!(!log.contains("forbidden"), "{log}");
    observer.stop().await
}

pub(crate) async fn a_volume_is_made_where_its_first_consumer_goes_and_the_pod_follows(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("L4", 1)).await?;
    let ns = cluster.namespace().await?;
    cluster
        .apply_one(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": { "name": "late" },
            "provisioner": "test.aliquot.dev/by-hand",
            "volumeBindingMode": "WaitForFirstConsumer",
        }))
        .await?;
    cluster
        .apply_one(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "namespace": ns, "name": "data" },
            "spec": { "storageClassName": "late", "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } } },
        }))
        .await?;
    let mut pod = whole(&ns, "p", proto::names::kai::SCHEDULER_NAME);
    pod["spec"]["volumes"] =
        json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "v", "mountPath": "/data" }]);
    cluster.apply_one(&pod).await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &ns);
    let node = until("a node selected", LONG, || async {
        let claim = claims.get("data").await?;
        let node = claim.annotations().get(SELECTED).cloned();
        Ok(Seen::from_option(
            node,
            format!("{:?}", claim.annotations()),
        ))
    })
    .await?;
    until("the wait told", LONG, || async {
        let pod = serde_json::to_value(cluster.pods(&ns).get("p").await?)?;
        let text = pod["status"]["conditions"].to_string();
        Ok(Seen::when(text.contains("WaitingForVolume"), text))
    })
    .await?;
    ensure!(
        node_of(cluster, &ns, "p").await?.is_none(),
        "bound before its volume"
    );
    // As a provisioner does: a volume for that claim, which the controller binds.
    let uid = claims.get("data").await?.uid().context("a UID")?;
    cluster
        .apply_one(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": { "name": format!("pv-{ns}"),
                "annotations": { "pv.kubernetes.io/provisioned-by": "test.aliquot.dev/by-hand" } },
            "spec": {
                "storageClassName": "late", "capacity": { "storage": "1Gi" },
                "accessModes": ["ReadWriteOnce"],
                "claimRef": { "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "namespace": ns, "name": "data", "uid": uid },
                "hostPath": { "path": "/tmp" },
                "persistentVolumeReclaimPolicy": "Retain",
            },
        }))
        .await?;
    until("the pod done on that node", LONG, || async {
        let pod = cluster.pods(&ns).get("p").await?;
        let at = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let phase = pod
            .status
            .and_then(|status| status.phase)
            .unwrap_or_default();
        let done = phase == "Succeeded" && at.as_deref() == Some(node.as_str());
        Ok(Seen::when(done, format!("{phase} on {at:?}")))
    })
    .await?;
    Ok(())
}
