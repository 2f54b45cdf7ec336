//! A scheduler that observes another one and can only read.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::node;
use aliquot_tests::observer::{Observer, PAGES};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use proto::names::resource;
use serde_json::{Value, json};

const LONG: Duration = Duration::from_mins(1);

async fn observed() -> Result<Value> {
    let page = aliquot_tests::http::get(PAGES, "/observed").await?;
    Ok(serde_json::from_str(&page)?)
}

pub(crate) fn whole(namespace: &str, name: &str, scheduler: &str) -> Value {
    let one = json!({ resource::GPU: "1" });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": namespace, "name": name },
        "spec": {
            "schedulerName": scheduler,
            "restartPolicy": "Never",
            "containers": [{ "name": "c", "image": aliquot_tests::image::WORKLOAD_IMAGE,
                "command": ["/bin/true"], "resources": { "limits": one, "requests": one } }],
        },
    })
}

pub(crate) async fn node_of(
    cluster: &Cluster,
    namespace: &str,
    pod: &str,
) -> Result<Option<String>> {
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
