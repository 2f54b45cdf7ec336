//! The queues and the pod of the first user who wrote theirs down, unmodified.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::share::{grant_of, lines, pod};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use serde_json::json;
use std::time::Duration;

const NAMESPACE: &str = "gpu-workload";
const POD: &str = "gpu-pod";

pub(crate) async fn seed_004_pod_gets_exactly_2000_mib(cluster: &mut Cluster) -> Result<()> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 1))
        .await?;
    cluster.apply_file("tests/seeds/004/queues.yaml").await?;
    cluster.make_namespace(NAMESPACE).await?;
    cluster.apply_file("tests/seeds/004/pod.yaml").await?;
    let pod = cluster.pod_phase(NAMESPACE, POD, "Running").await?;

    // What reached the container.
    cluster
        .said(NAMESPACE, POD, "cuda-container", "alloc")
        .await?;
    let log = cluster.logs(NAMESPACE, POD, None).await?;
    ensure!(
        log.contains("Test PASSED"),
        "the sample did not pass: {log}"
    );
    let report = lines(&log)
        .into_iter()
        .find(|line| line.get("nodes").is_some())
        .context("no report")?;
    ensure!(
        report["nodes"]
            .as_array()
            .is_some_and(|nodes| nodes.len() == 1),
        "device nodes: {report}"
    );
    let devices = report["devices"].as_array().context("no devices")?;
    ensure!(devices.len() == 1, "devices: {report}");
    ensure!(devices[0]["limit_mib"] == 2000, "limit: {report}");
    ensure!(
        report["pipe_directory"] == proto::names::container::MPS_PIPE,
        "pipe directory: {report}"
    );
    ensure!(report["mps_server"].is_number(), "no MPS server: {report}");

    // What was decided, and what the agent and the node say of it.
    let granted = grant_of(&pod)?;
    let uuid = granted.containers[0].gpus[0].clone();
    ensure!(
        granted.containers[0].memory_mib.0 == 2000,
        "granted: {granted:?}"
    );
    ensure!(
        devices[0]["uuid"] == uuid.as_str(),
        "the container sees {report}, granted was {uuid}"
    );
    let ledger = cluster
        .ledger_is(&[("gpu-workload/gpu-pod", "cuda-container", 2000)])
        .await?;
    ensure!(
        ledger[0].0 == uuid,
        "the GpuNode shows it on {}",
        ledger[0].0
    );
    let described = cluster.kubectl.run(&["describe", "node", "n1"]).await?;
    let held = described
        .split_once("Allocated resources:")
        .map(|(_, rest)| rest)
        .unwrap_or_default();
    ensure!(
        held.lines()
            .any(|line| line.contains(proto::names::resource::MEMORY_MIB) && line.contains("2k")),
        "kubectl describe node does not list the share: {held}"
    );

    // What the driver says: this pod's process, on this card, with this memory.
    let gpus = cluster.gpus.as_ref().context("no GPUs")?;
    let owner = pod.uid().context("a pod without a UID")?;
    until(
        "the pod's process in nvidia-smi",
        Duration::from_secs(5),
        || async {
            let apps = gpus
                .driver
                .smi(&[
                    "--query-compute-apps=gpu_uuid,pid,used_memory",
                    "--format=csv,noheader,nounits",
                ])
                .await?;
            let found = apps.lines().any(|line| {
                let cells: Vec<&str> = line.split(", ").collect();
                let [card, pid, used] = cells.as_slice() else {
                    return false;
                };
                let cgroup =
                    std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
                *card == uuid
                    && cgroup.contains(&owner)
                    && used.parse::<u64>().is_ok_and(|used| used > 1000)
            });
            Ok(Seen::when(found, apps))
        },
    )
    .await
}

pub(crate) async fn seed_004_the_fraction_instead_is_a_fifth_of_the_gpu(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 1))
        .await?;
    cluster.apply_file("tests/seeds/004/queues.yaml").await?;
    cluster.make_namespace(NAMESPACE).await?;
    // The other of the two options that the manifest offers.
    let path = cluster.programs.tree.join("tests/seeds/004/pod.yaml");
    let pod = std::fs::read_to_string(path)?
        .replace("#gpu-fraction:", "gpu-fraction:")
        .replace("    gpu-memory:", "    #gpu-memory:");
    cluster.apply(&pod).await?;
    let pod = cluster.pod_phase(NAMESPACE, POD, "Running").await?;
    let granted = grant_of(&pod)?.containers[0].memory_mib.0;
    let log = cluster
        .said(NAMESPACE, POD, "cuda-container", "alloc")
        .await
        .and(cluster.logs(NAMESPACE, POD, None).await)?;
    let report = lines(&log)
        .into_iter()
        .find(|line| line.get("nodes").is_some())
        .context("no report")?;
    let gpu = cluster.gpu_node().await?.status.unwrap_or_default().gpus;
    let fifth = gpu.first().context("no card")?.total_mib.0 / 5;
    // A fifth for the program, and what its context takes beside.
    ensure!(
        (fifth..=fifth + 512).contains(&granted)
            && report["devices"][0]["limit_mib"] == granted
            && report["thread_percentage"] == "20",
        "a fifth is {fifth} MiB, granted {granted}, and the container says {report}"
    );
    Ok(())
}

/// A queue under `default` with this priority and limit.
fn queue(name: &str, priority: u32, limit: f64) -> serde_json::Value {
    let all = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
    let gpu = json!({ "quota": -1, "limit": limit, "overQuotaWeight": 1 });
    json!({
        "apiVersion": "scheduling.run.ai/v2",
        "kind": "Queue",
        "metadata": { "name": name },
        "spec": {
            "parentQueue": "default",
            "priority": priority,
            "resources": { "cpu": all, "gpu": gpu, "memory": all },
        },
    })
}

/// A pod of a queue that requests this many MiB.
fn queued(namespace: &str, name: &str, queue: &str, mib: &str) -> serde_json::Value {
    let mut made = pod(namespace, name, &[("gpu-memory", mib)], "report hold");
    made["metadata"]["labels"] = json!({ "kai.scheduler/queue": queue });
    made
}

pub(crate) async fn seed_004_a_queues_limit_is_the_most_that_it_can_consume(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 1))
        .await?;
    cluster.apply_file("tests/seeds/004/queues.yaml").await?;
    // Room for one pod of 2000 MiB on a card of 48 GiB.
    cluster.apply_one(&queue("test", 100, 0.05)).await?;
    let ns = cluster.namespace().await?;
    cluster
        .run_share(&queued(&ns, "first", "test", "2000"))
        .await?;
    cluster
        .apply_one(&queued(&ns, "second", "test", "2000"))
        .await?;
    let reason = cluster.reason(&ns, "second").await?;
    ensure!(
        reason.contains("test quota has reached the allowable limit of GPUs"),
        "{reason}"
    );
    cluster.delete_pod(&ns, "first").await?;
    cluster.pod_phase(&ns, "second", "Running").await?;
    Ok(())
}

pub(crate) async fn seed_004_the_queue_of_higher_priority_is_served_first(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    cluster.apply_file("tests/seeds/004/queues.yaml").await?;
    cluster.apply_one(&queue("urgent", 200, -1.0)).await?;
    let ns = cluster.namespace().await?;
    cluster
        .run_share(&queued(&ns, "holder", "test", "12000"))
        .await?;
    // The one that came first waits in the queue that is served last.
    for (name, queue) in [("patient", "test"), ("pressing", "urgent")] {
        let mut waiting = queued(&ns, name, queue, "12000");
        // None of them takes the other's place.
        waiting["metadata"]["labels"]["kai.scheduler/preemptibility"] = json!("non-preemptible");
        cluster.apply_one(&waiting).await?;
    }
    cluster.reason(&ns, "patient").await?;
    cluster.delete_pod(&ns, "holder").await?;
    cluster.pod_phase(&ns, "pressing", "Running").await?;
    cluster.reason(&ns, "patient").await?;
    Ok(())
}
