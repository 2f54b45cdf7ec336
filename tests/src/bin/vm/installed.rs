//! Installs Aliquot on the machine as in a cluster: agent and MPS supervisor are pods of the image.
//!
//! In: a machine whose node is Ready. Out: shares in the node's allocatable. Scheduler and
//! admission are processes outside, with the control plane. Must never change what the `DaemonSet`s
//! say beyond what `adapt` has to: that is under test.

use std::fs;

use aliquot_tests::adapt::{adapt, is_workload};
use aliquot_tests::daemon::Daemon;
use aliquot_tests::image::{Image, WORKLOAD_IMAGE};
use aliquot_tests::manifest::documents;
use aliquot_tests::pod::{LIMIT, describe};
use aliquot_tests::scheduler::Replica;
use aliquot_tests::stand_in;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use proto::names::NAMESPACE;
use proto::names::condition::ISOLATION_VERIFIED;
use serde_json::{Value, json};

use crate::cluster::MachineCluster;

/// The image as `deploy/` names it. The tests' registry serves it.
const IMAGE: &str = "aliquot:0.1.0";
/// The number of Aliquot's pods on the node: the agent and the MPS supervisor.
const PODS: usize = 2;
/// The image of the sample in a seed.
const SAMPLE: &str = "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0";

/// Installs Aliquot and waits until shares are offered. Returns kube-scheduler, which binds the pods
/// of the `DaemonSet`s while it runs.
pub(crate) async fn bring_up(cluster: &mut MachineCluster) -> Result<Daemon> {
    let layout = cluster.programs.image.clone().context("no image")?;
    cluster.registry.push(&Image::at(layout), IMAGE).await?;
    for (reference, recipe) in stand_in::images(&cluster.programs) {
        if [WORKLOAD_IMAGE, SAMPLE].contains(&reference) {
            cluster.serve_image(&recipe, reference).await?;
        }
    }
    cluster.install().await?;
    cluster.admit().await?;
    let mut scheduler = cluster.start_scheduler(Replica::only()).await?;
    scheduler.ready().await?;
    cluster.scheduler = Some(scheduler);
    let binds = cluster.start_kube_scheduler()?;
    let text = fs::read_to_string(cluster.programs.tree.join("deploy/daemonset.yaml"))?;
    let mut workloads = documents(&text)?;
    workloads.retain(is_workload);
    ensure!(workloads.len() == PODS, "{} workloads", workloads.len());
    for workload in &mut workloads {
        adapt(workload)?;
        be_patient(workload);
        cluster.apply_one(workload).await?;
    }
    ready(cluster).await?;
    cluster.shares_are_offered().await?;
    Ok(binds)
}

/// Gives probes more time. Their one second is too short on an emulated machine, and the kubelet
/// would kill the container.
fn be_patient(workload: &mut Value) {
    let container = &mut workload["spec"]["template"]["spec"]["containers"][0];
    for probe in ["livenessProbe", "readinessProbe"] {
        if container[probe].is_object() {
            container[probe]["timeoutSeconds"] = json!(10);
        }
    }
}

/// Waits until both pods are ready.
pub(crate) async fn ready(cluster: &MachineCluster) -> Result<()> {
    let pods = cluster.pods(NAMESPACE);
    until("Aliquot's pods ready", LIMIT, || async {
        let all = pods.list(&ListParams::default()).await?;
        let ready = all.iter().filter(|pod| is_true(pod, "Ready")).count();
        let told = all
            .iter()
            .map(|pod| format!("{}: {}", pod.name_any(), describe(pod)));
        Ok(Seen::when(
            ready == PODS,
            told.collect::<Vec<_>>().join("; "),
        ))
    })
    .await
}

/// Waits until the pod's condition says that MPS holds its share, as it was read back.
pub(crate) async fn guarded(cluster: &MachineCluster, namespace: &str, name: &str) -> Result<()> {
    cluster
        .pod_until(namespace, name, "with a fence that was read back", |pod| {
            let status = pod.status.as_ref();
            let conditions = status.and_then(|status| status.conditions.as_ref());
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|condition| {
                condition.type_ == ISOLATION_VERIFIED
                    && condition.reason.as_deref() == Some("Guarded")
            })
        })
        .await
        .map(drop)
}

/// Returns true if the pod has that condition and its status is `True`.
pub(crate) fn is_true(pod: &Pod, kind: &str) -> bool {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == kind && condition.status == "True")
}

/// Returns how often the containers of a pod were started again.
pub(crate) fn restarts(pod: &Pod) -> i32 {
    let status = pod.status.as_ref();
    let statuses = status.and_then(|status| status.container_statuses.as_ref());
    statuses
        .into_iter()
        .flatten()
        .map(|one| one.restart_count)
        .sum()
}

/// Copies the machine's journal and the logs of its pods to the other logs.
pub(crate) async fn keep_journal(cluster: &MachineCluster) {
    let wanted = "journalctl --no-pager -o short-monotonic; \
                  for log in /var/log/pods/*/*/*.log; do echo \"== $log\"; cat \"$log\"; done";
    let said = cluster.node.run(wanted).await;
    let said = said.unwrap_or_else(|error| format!("no journal: {error:#}"));
    // The file only helps to find a defect, so an error here must not hide the claim's own.
    let _ = fs::write(cluster.work.logs().join("journal.log"), said);
}
