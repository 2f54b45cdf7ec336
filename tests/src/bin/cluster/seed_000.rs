//! The training job, the two priorities and the half GPU of a user who then asks why
//! the node does not show what is shared, and why nothing holds the memory.

use aliquot_tests::cluster::{Cluster, quantity};
use aliquot_tests::gang::{bound, bound_together};
use aliquot_tests::gpu::Hardware;
use aliquot_tests::operator::TRAINING;
use aliquot_tests::pod::{describe, phase_of};
use aliquot_tests::share::{grant_of, line, why_pending};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use proto::names::{kai, resource};
use std::time::Duration;

const NAMESPACE: &str = "sandbox";
const JOB: &str = "training.kubeflow.org/job-name=pytorch-dist-mnist-nccl";
/// A container whose first process takes no notice of SIGTERM has half a minute.
const EVICTED: Duration = Duration::from_mins(1);

async fn prepare(cluster: &mut Cluster, hardware: Hardware) -> Result<()> {
    cluster.aliquot(&hardware).await?;
    cluster.make_namespace(NAMESPACE).await?;
    cluster.apply_file("tests/seeds/000/queues.yaml").await?;
    Ok(())
}

pub(crate) async fn seed_000_a_training_job_is_bound_whole_or_not_at_all(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.operator(&TRAINING).await?;
    prepare(cluster, Hardware::preset("L4", 3)).await?;
    // One of the three GPUs is taken: two of the job's three pods would fit.
    cluster
        .apply_file("tests/seeds/000/build-priority-pod.yaml")
        .await?;
    cluster.pod_phase(NAMESPACE, "build-pod", "Running").await?;
    cluster
        .apply_file("tests/seeds/000/pytorch-job.yaml")
        .await?;
    let waiting = cluster
        .pods_until(
            NAMESPACE,
            JOB,
            3,
            "waiting in its group, with a reason",
            |pod| why_pending(pod).is_some() && pod.annotations().contains_key(kai::POD_GROUP),
        )
        .await?;
    ensure!(
        !waiting.iter().any(bound),
        "a part of the gang is bound: {}",
        waiting.iter().map(describe).collect::<Vec<_>>().join(" | ")
    );
    let group = cluster.group_of(&waiting[0]).await?;
    ensure!(
        group.spec.min_member == Some(3) && group.spec.queue.as_deref() == Some("test"),
        "{:?}",
        group.spec
    );
    ensure!(
        group.name_any().starts_with("pg-pytorch-dist-mnist-nccl-"),
        "{}",
        group.name_any()
    );

    cluster.delete_pod(NAMESPACE, "build-pod").await?;
    let running = cluster.pods_running(NAMESPACE, JOB, 3).await?;
    bound_together(&running)?;
    let job = cluster
        .kubectl
        .run(&[
            "wait",
            "pytorchjob/pytorch-dist-mnist-nccl",
            "--for=condition=Running",
            "--timeout=30s",
            "-n",
            NAMESPACE,
        ])
        .await?;
    ensure!(job.contains("condition met"), "{job}");
    Ok(())
}

pub(crate) async fn seed_000_build_preempts_train_in_a_queue_of_one_gpu(
    cluster: &mut Cluster,
) -> Result<()> {
    prepare(cluster, Hardware::preset("L4", 1)).await?;
    cluster
        .apply_file("tests/seeds/000/limited-queue.yaml")
        .await?;
    cluster
        .apply_file("tests/seeds/000/train-priority-pod.yaml")
        .await?;
    cluster.pod_phase(NAMESPACE, "train-pod", "Running").await?;
    cluster
        .apply_file("tests/seeds/000/build-priority-pod.yaml")
        .await?;
    cluster
        .pod_until(NAMESPACE, "train-pod", "evicted", |pod| {
            pod.metadata.deletion_timestamp.is_some()
        })
        .await?;
    until("the reason, in KAI's words", EVICTED, || async {
        let told = cluster.events_of(NAMESPACE, "train-pod").await?.join(" | ");
        Ok(Seen::when(
            told.contains("was preempted by higher priority workload"),
            told,
        ))
    })
    .await?;
    let pods = cluster.pods(NAMESPACE);
    until("build-pod in train-pod's place", EVICTED, || async {
        let build = pods.get("build-pod").await?;
        Ok(Seen::when(phase_of(&build) == "Running", describe(&build)))
    })
    .await?;
    let left = cluster
        .pods_with(NAMESPACE, "runai/queue=test")
        .await?
        .into_iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .map(|pod| pod.name_any())
        .collect::<Vec<_>>();
    ensure!(left == ["build-pod"], "{left:?}");
    Ok(())
}

pub(crate) async fn seed_000_half_a_gpu_shows_on_the_node_and_its_memory_holds(
    cluster: &mut Cluster,
) -> Result<()> {
    prepare(cluster, Hardware::preset("L4", 1)).await?;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    cluster
        .apply_file("tests/seeds/000/gpu-sharing.yaml")
        .await?;
    let pod = cluster
        .pod_phase(NAMESPACE, "gpu-sharing", "Running")
        .await?;

    // "requested GPU memory does not decrement the allocatable capacity on the node"
    until(
        "the shared GPU gone from the whole ones",
        Duration::from_secs(10),
        || async {
            let node = nodes.get(aliquot_tests::node::NAME).await?;
            let allocatable = node
                .status
                .and_then(|status| status.allocatable)
                .unwrap_or_default();
            let whole = allocatable
                .get(resource::GPU)
                .and_then(|amount| quantity(&amount.0));
            Ok(Seen::when(whole == Some(0), format!("{allocatable:?}")))
        },
    )
    .await?;
    let described = cluster.kubectl.run(&["describe", "node", "n1"]).await?;
    let held = described
        .split_once("Allocated resources:")
        .map(|(_, rest)| rest)
        .unwrap_or_default();
    ensure!(
        held.lines()
            .any(|line| line.contains(resource::MILLI) && line.contains("500")),
        "kubectl describe node does not list the half: {held}"
    );

    // "the process on the GPU has full access to the GPU memory"
    let granted = grant_of(&pod)?.containers[0].memory_mib.0;
    let said = cluster
        .kubectl
        .exec(
            NAMESPACE,
            "gpu-sharing",
            "main",
            &["workload", "grow", "100"],
        )
        .await?;
    let grown = line(&said, "grow").with_context(|| said.clone())?;
    let (held, refused) = (
        grown["held_mib"].as_u64().context("held")?,
        grown["refused_at_mib"].as_u64().context("refused")?,
    );
    let total = 23034;
    ensure!(
        held <= granted && refused > granted && granted < total * 6 / 10,
        "granted {granted} MiB, the container says {grown}"
    );
    Ok(())
}
