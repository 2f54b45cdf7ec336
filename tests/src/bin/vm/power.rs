//! A power cut of the machine.

use aliquot_tests::pod::{LIMIT, describe, phase_of};
use aliquot_tests::wait::{Seen, until};
use aliquot_tests::{node, share};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::cluster::MachineCluster;
use crate::installed;

/// The size of the share that runs when the power goes, in MiB.
const MIB: u64 = 2000;

pub(crate) async fn a_power_cut_ends_what_ran_and_leaks_nothing(
    cluster: &mut MachineCluster,
) -> Result<()> {
    let _binds = installed::bring_up(cluster).await?;
    let ns = cluster.namespace().await?;
    // After a reboot the kubelet admits pods before device plugins have registered, and pods with
    // devices fail for good then. Only a controller makes another pod.
    cluster.apply_one(&job(&ns)).await?;
    let old = running(cluster, &ns, None).await?;
    cluster.said(&ns, &old.name_any(), "main", "alloc").await?;
    ledger_has_only(cluster, &ns, &old).await?;
    installed::guarded(cluster, &ns, &old.name_any()).await?;
    let boot = boot_id(cluster).await?;

    cluster.node.cut_power().await?;
    cluster.node.boot()?;
    until("the node says that it has booted", LIMIT, || async {
        let now = boot_id(cluster).await?;
        Ok(Seen::when(now != boot, now))
    })
    .await?;
    cluster.node_ready().await?;
    let new = running(cluster, &ns, Some(&old)).await?;
    let said = cluster.said(&ns, &new.name_any(), "main", "alloc").await?;
    ensure!(said["ok"] == true, "the share after the power cut: {said}");
    installed::ready(cluster).await?;
    ledger_has_only(cluster, &ns, &new).await?;
    installed::guarded(cluster, &ns, &new.name_any()).await?;
    cluster.limits_hold().await?;
    all_the_rest_is_free(cluster, &ns, &new).await
}

/// A Job, which replaces its pod if the pod fails.
fn job(namespace: &str) -> serde_json::Value {
    let pod = share::pod(namespace, "", &[], "alloc 500 hold");
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": { "namespace": namespace, "name": "tenant" },
        "spec": {
            "backoffLimit": 3,
            "template": {
                "metadata": { "annotations": { "gpu-memory": MIB.to_string() } },
                "spec": pod["spec"],
            },
        },
    })
}

/// Waits until `old` has failed and another pod of the job runs.
async fn running(cluster: &MachineCluster, namespace: &str, old: Option<&Pod>) -> Result<Pod> {
    let pods = cluster.pods(namespace);
    until("the tenant runs", LIMIT, || async {
        let all = pods.list(&ListParams::default()).await?.items;
        let is_old = |pod: &Pod| old.is_some_and(|old| old.uid() == pod.uid());
        let over = all
            .iter()
            .filter(|pod| is_old(pod))
            .all(|pod| phase_of(pod) == "Failed");
        let told: Vec<String> = all
            .iter()
            .map(|pod| format!("{}: {}", pod.name_any(), describe(pod)))
            .collect();
        let new = all
            .into_iter()
            .find(|pod| !is_old(pod) && installed::is_true(pod, "Ready"));
        Ok(Seen::from_option(new.filter(|_| over), told.join("; ")))
    })
    .await
}

async fn ledger_has_only(cluster: &MachineCluster, namespace: &str, pod: &Pod) -> Result<()> {
    let holder = format!("{namespace}/{}", pod.name_any());
    let ledger = cluster.ledger_is(&[(&holder, "main", MIB)]).await?;
    let uid = pod.uid().unwrap_or_default();
    ensure!(ledger[0].1.pod_uid == uid, "{ledger:?}, not of {uid}");
    Ok(())
}

/// Checks that nothing has leaked: a share with the rest of the card's memory runs beside the other.
async fn all_the_rest_is_free(cluster: &MachineCluster, ns: &str, beside: &Pod) -> Result<()> {
    let status = cluster.gpu_node().await?.status.context("no status")?;
    let rest = status.gpus[0].grantable_mib.0 - MIB;
    let annotation = [("gpu-memory", &*rest.to_string())];
    let taken = share::pod(
        ns,
        "rest",
        &annotation,
        &format!("alloc {} hold", rest - 1000),
    );
    cluster.run_share(&taken).await?;
    let said = cluster.said(ns, "rest", "main", "alloc").await?;
    ensure!(said["ok"] == true, "the rest of the card: {said}");
    let (one, other) = (format!("{ns}/{}", beside.name_any()), format!("{ns}/rest"));
    let wanted = [(&*one, "main", MIB), (&*other, "main", rest)];
    cluster.ledger_is(&wanted).await?;
    cluster.limits_hold().await
}

/// Returns the ID of the machine's current boot, as the kubelet reports it.
async fn boot_id(cluster: &MachineCluster) -> Result<String> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let status = nodes.get(node::NAME).await?.status.unwrap_or_default();
    Ok(status.node_info.context("no node info")?.boot_id)
}
