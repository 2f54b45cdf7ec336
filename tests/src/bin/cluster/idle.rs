//! A pod that holds its share and does no work, in a queue with a rule about that.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::pod::phase_of;
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::Api;
use proto::names::condition::IDLE;
use proto::names::kai::QUEUE_LABEL;
use proto::names::queue::{IDLE_AFTER, IDLE_CONDITION};
use serde_json::{Value, json};

use crate::strangers::notice;

const QUEUE: &str = "notebooks";
/// The shortest rule there is takes two minutes, and the agent counts whole ones.
const RULE: &str = "2m";
const LONG: Duration = Duration::from_mins(5);
const SOON: Duration = Duration::from_secs(30);

pub(crate) async fn idle_notebooks_give_way_after_a_warning_and_come_back_last(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    cluster.apply_one(&queue()).await?;
    rule_is_in_force(cluster).await?;
    // Neither is preemptible by its class.
    let half = |name: &str, script: &str| pod(&ns, name, &[("gpu-fraction", "0.5")], script);
    let worker = of_class(half("worker", "context work 30 hold"), "build");
    cluster.run_share(&worker).await?;
    cluster.said(&ns, "worker", "main", "work").await?;
    let notebook = of_class(half("notebook", "context hold"), "build");
    cluster.apply_one(&stateful_set(&ns, notebook)).await?;
    cluster.pod_phase(&ns, "notebook-0", "Running").await?;
    let first = cluster.pods(&ns).get("notebook-0").await?.uid();
    let waits = of_class(half("waits", "report hold"), "train");
    cluster.apply_one(&waits).await?;
    cluster.reason(&ns, "waits").await?;

    until("the warning", LONG, || async {
        let notebook = cluster.pods(&ns).get("notebook-0").await?;
        ensure!(notebook.uid() == first, "it left without a warning");
        let is_warned = condition(&notebook) == Some(true);
        Ok(Seen::when(is_warned, format!("{:?}", notebook.status)))
    })
    .await?;
    let warning = notice(cluster, &ns, "notebook-0", "GPUIdle").await?;
    ensure!(warning.contains(QUEUE), "{warning}");
    let begun = until("the pod that waits", LONG, || async {
        let pods = cluster.pods(&ns);
        let (waits, worker) = (pods.get("waits").await?, pods.get("worker").await?);
        ensure!(
            worker.metadata.deletion_timestamp.is_none(),
            "a pod that works was evicted"
        );
        ensure!(condition(&worker).is_none(), "a pod that works was warned");
        let runs = phase_of(&waits) == "Running";
        Ok(Seen::when(runs, format!("{:?}", waits.status)))
    })
    .await;
    begun?;
    // Its controller has created it again; its class is higher, and it waits all the same.
    let again = until("the notebook, again", SOON, || async {
        let pod = cluster.pods(&ns).get_opt("notebook-0").await?;
        let again = pod.filter(|pod| pod.uid() != first);
        Ok(Seen::from_option(again, "the first one"))
    })
    .await?;
    cluster.reason(&ns, "notebook-0").await?;
    ensure!(phase_of(&again) == "Pending", "{:?}", again.status);
    let waits = cluster.pods(&ns).get("waits").await?;
    ensure!(
        waits.metadata.deletion_timestamp.is_none() && phase_of(&waits) == "Running",
        "the notebook took its place back by force"
    );
    Ok(())
}

fn condition(pod: &Pod) -> Option<bool> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let one = conditions.iter().find(|one| one.type_ == IDLE)?;
    Some(one.status == "True")
}

async fn rule_is_in_force(cluster: &Cluster) -> Result<()> {
    let queues: Api<api::Queue> = Api::all(cluster.client.clone());
    until("the queue's condition", SOON, || async {
        let status = queues.get(QUEUE).await?.status.unwrap_or_default();
        let mut conditions = status.conditions.into_iter();
        let condition = conditions.find(|one| one.type_ == IDLE_CONDITION);
        let is = condition.as_ref().is_some_and(|one| one.status == "True");
        Ok(Seen::when(is, format!("{condition:?}")))
    })
    .await
    .map(drop)
}

fn queue() -> Value {
    let all = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
    json!({
        "apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
        "metadata": { "name": QUEUE, "annotations": { IDLE_AFTER: RULE } },
        "spec": { "resources": { "cpu": all, "gpu": all, "memory": all } },
    })
}

fn of_class(mut pod: Value, class: &str) -> Value {
    pod["metadata"]["labels"] =
        json!({ QUEUE_LABEL: QUEUE, "priorityClassName": class, "app": class });
    pod
}

/// What a notebook's controller makes of one: it creates its pod again whenever it is gone.
fn stateful_set(ns: &str, mut pod: Value) -> Value {
    let labels = pod["metadata"]["labels"].clone();
    pod["spec"]["restartPolicy"] = json!("Always");
    let metadata = json!({ "labels": labels, "annotations": pod["metadata"]["annotations"] });
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": { "namespace": ns, "name": "notebook", "labels": labels },
        "spec": {
            "serviceName": "notebook", "replicas": 1,
            "selector": { "matchLabels": { "app": "build" } },
            "template": { "metadata": metadata, "spec": pod["spec"] },
        },
    })
}
