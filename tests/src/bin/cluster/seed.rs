//! The queues and the pod of the first user who wrote theirs down, unmodified.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::share::{grant_of, lines};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
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
