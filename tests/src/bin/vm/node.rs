//! A share on a node as distributions have it.

use aliquot_tests::share::{grant_of, lines};
use anyhow::{Context, Result, ensure};
use proto::names::container;

use crate::cluster::MachineCluster;
use crate::{cgroups, installed};

pub(crate) async fn a_share_has_its_limit_on_a_node_with_systemd_and_cgroup_v2(
    cluster: &mut MachineCluster,
) -> Result<()> {
    is_as_distributions_have_it(cluster).await?;
    let _binds = installed::bring_up(cluster).await?;
    cluster.apply_file("tests/seeds/004/queues.yaml").await?;
    let (namespace, name, of) = ("gpu-workload", "gpu-pod", "cuda-container");
    cluster.make_namespace(namespace).await?;
    cluster.apply_file("tests/seeds/004/pod.yaml").await?;
    let pod = cluster.pod_phase(namespace, name, "Running").await?;
    cluster.said(namespace, name, of, "alloc").await?;
    let log = cluster.logs(namespace, name, None).await?;
    ensure!(log.contains("Test PASSED"), "the sample: {log}");
    let report = lines(&log)
        .into_iter()
        .find(|line| line.get("nodes").is_some())
        .context("no report")?;
    let devices = report["devices"].as_array().map_or(0, Vec::len);
    ensure!(
        devices == 1
            && report["devices"][0]["limit_mib"] == 2000
            && report["pipe_directory"] == container::MPS_PIPE
            && report["mps_server"].is_number(),
        "what the container sees: {report}"
    );
    let uuid = grant_of(&pod)?.containers[0].gpus[0].clone();
    let holder = format!("{namespace}/{name}");
    let ledger = cluster.ledger_is(&[(&holder, of, 2000)]).await?;
    ensure!(
        ledger[0].0 == uuid,
        "the GpuNode shows it on {}",
        ledger[0].0
    );
    installed::guarded(cluster, namespace, name).await?;
    in_scopes_below_their_pods(cluster, &ledger[0].1.pod_uid).await?;
    cluster.delete_pod(namespace, name).await?;
    cluster.ledger_is(&[]).await?;
    Ok(())
}

/// Checks that the node has systemd, cgroup v2 and the systemd driver, so that the claim does not hold
/// for the wrong reason.
async fn is_as_distributions_have_it(cluster: &mut MachineCluster) -> Result<()> {
    cluster.node.answers().await?;
    let first = cluster.node.run("cat /proc/1/comm").await?;
    ensure!(first.trim() == "systemd", "the first process: {first}");
    let hierarchy = cluster.node.run("stat -fc %T /sys/fs/cgroup").await?;
    ensure!(hierarchy.trim() == "cgroup2fs", "cgroups: {hierarchy}");
    let path = format!("/api/v1/nodes/{}/proxy/configz", aliquot_tests::node::NAME);
    let said = cluster.kubectl.run(&["get", "--raw", &path]).await?;
    let config: serde_json::Value = serde_json::from_str(&said)?;
    let driver = &config["kubeletconfig"]["cgroupDriver"];
    ensure!(driver == "systemd", "the kubelet's driver: {driver}");
    Ok(())
}

/// Checks that the share's processes are in a scope below the slice of their pod, and that the MPS
/// server is in the slice of the supervisor's pod, beside the container's scope.
async fn in_scopes_below_their_pods(cluster: &MachineCluster, pod_uid: &str) -> Result<()> {
    let slice = format!("pod{}.slice/cri-containerd-", pod_uid.replace('-', "_"));
    let found = cgroups::of_pods(cluster).await?;
    let seen = format!("{found:#?}");
    std::fs::write(cluster.work.logs().join("cgroups.txt"), &seen)?;
    ensure!(
        found
            .iter()
            .any(|one| one.cgroup.contains(&slice) && one.cgroup.strip_suffix(".scope").is_some()),
        "no process in a scope below {slice}: {seen}"
    );
    let beside = |one: &&cgroups::Process| {
        let last = one.cgroup.rsplit_once(".slice/").map(|(_, last)| last);
        last.is_some_and(|last| last.starts_with("aliquot-mps-"))
    };
    let servers: Vec<_> = found.iter().filter(beside).collect();
    ensure!(
        servers
            .iter()
            .any(|one| one.command.contains("nvidia-cuda-mps-server")),
        "no MPS server beside the supervisor's container: {seen}"
    );
    Ok(())
}
