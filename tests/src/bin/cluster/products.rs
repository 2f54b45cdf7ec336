//! Quotas of single GPU products: the node with cards, and a second one that has GPUs of another
//! product in the API server alone, so that pods are bound to it and do not start.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::share::pod;
use aliquot_tests::simulated_agents::make_node;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use proto::names::kai::QUEUE_LABEL;
use proto::names::queue::{QUOTA_BY_PRODUCT, QUOTA_CONDITION};
use serde_json::{Value, json};

const OTHER: &str = "other-product";
const QUEUE: &str = "by-product";
const SOON: Duration = Duration::from_secs(20);

pub(crate) async fn a_queue_has_at_most_its_limit_of_a_product_and_what_is_over_goes_to_another(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 2)).await?;
    let ns = cluster.namespace().await?;
    make_node(&cluster.client, OTHER, 0).await?;
    let outcome = claim(cluster, &ns).await;
    // No kubelet ends the pod that was bound there.
    let args = [
        "delete",
        "pod",
        "third",
        "--ignore-not-found",
        "--grace-period=0",
        "--force",
    ];
    cluster
        .kubectl
        .run(&[&["--namespace", &ns], &args[..]].concat())
        .await?;
    let args = ["delete", "--ignore-not-found", "node", OTHER];
    cluster.kubectl.run(&args).await?;
    outcome
}

async fn claim(cluster: &mut Cluster, ns: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let parameters = PatchParams::default();
    let label = json!({ "metadata": { "labels": { "nvidia.com/gpu.product": "NVIDIA-L4" } } });
    nodes
        .patch(OTHER, &parameters, &Patch::Merge(label))
        .await?;
    let gpus = json!({ "nvidia.com/gpu": "1" });
    let gpus = json!({ "status": { "capacity": gpus, "allocatable": gpus } });
    nodes
        .patch_status(OTHER, &parameters, &Patch::Merge(gpus))
        .await?;
    cluster
        .apply_one(&queue(
            r#"{"Tesla-T4": {"limit": 0.5}, "NVIDIA-L4": {"limit": 1}}"#,
        ))
        .await?;
    let half = |name: &str| queued(pod(ns, name, &[("gpu-fraction", "0.5")], "report hold"));
    let whole = |name: &str| {
        let mut whole = queued(pod(ns, name, &[], "report hold"));
        whole["spec"]["containers"][0]["resources"] = json!({ "limits": { "nvidia.com/gpu": 1 } });
        whole
    };
    cluster.run_share(&half("first")).await?;
    // There is room on both T4s.
    cluster.apply_one(&half("second")).await?;
    let reason = cluster.reason(ns, "second").await?;
    let said = "by-product quota has reached the allowable limit of Tesla-T4 GPUs. Limit is 0.5 GPUs, currently 0.5 GPUs allocated and workload requested 0.5 GPUs";
    ensure!(reason.contains(said), "{reason}");
    // A T4 is free, and the L4.
    cluster.apply_one(&whole("third")).await?;
    let pods = cluster.pods(ns);
    until("a binding to the other product", SOON, || async {
        let node = pods.get("third").await?.spec.unwrap_or_default().node_name;
        Ok(Seen::when(
            node.as_deref() == Some(OTHER),
            node.unwrap_or_default(),
        ))
    })
    .await?;
    condition(cluster, "True").await?;
    // The limit rises: the one that waits has its place.
    cluster
        .apply_one(&queue(
            r#"{"Tesla-T4": {"limit": 1}, "NVIDIA-L4": {"limit": 1}}"#,
        ))
        .await?;
    cluster.pod_phase(ns, "second", "Running").await?;
    // The same in MiB: the halves hold one T4 of 15360 MiB.
    cluster
        .apply_one(&queue(r#"{"Tesla-T4": {"limitMib": 20000}}"#))
        .await?;
    let memory = queued(pod(ns, "memory", &[("gpu-memory", "6000")], "report hold"));
    cluster.apply_one(&memory).await?;
    let reason = cluster.reason(ns, "memory").await?;
    let said = "by-product quota has reached the allowable limit of Tesla-T4 GPU memory. Limit is 20000 MiB, currently 15360 MiB allocated and workload requested 6000 MiB";
    ensure!(reason.contains(said), "{reason}");
    cluster
        .apply_one(&queue(r#"{"Tesla-T4": {"limitMib": 21360}}"#))
        .await?;
    cluster.pod_phase(ns, "memory", "Running").await.map(drop)
}

async fn condition(cluster: &Cluster, wanted: &str) -> Result<()> {
    let queues: Api<api::Queue> = Api::all(cluster.client.clone());
    until("the queue's condition", SOON, || async {
        let status = queues.get(QUEUE).await?.status.unwrap_or_default();
        let mut conditions = status.conditions.into_iter();
        let condition = conditions.find(|one| one.type_ == QUOTA_CONDITION);
        let is = condition.as_ref().is_some_and(|one| one.status == wanted);
        Ok(Seen::when(is, format!("{condition:?}")))
    })
    .await
    .map(drop)
}

fn queue(products: &str) -> Value {
    let all = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
    json!({
        "apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
        "metadata": { "name": QUEUE, "annotations": { QUOTA_BY_PRODUCT: products } },
        "spec": { "resources": { "cpu": all, "gpu": all, "memory": all } },
    })
}

fn queued(mut pod: Value) -> Value {
    pod["metadata"]["labels"] = json!({ QUEUE_LABEL: QUEUE });
    pod
}
