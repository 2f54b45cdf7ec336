//! A container runtime that does not do what the agent requests.

use std::fs;
use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{ContainerState, Pod};

/// containerd refuses the container by itself (an older one starts it without a device: the
/// agent ends what ran without the hook's proof, see its own tests).
pub(crate) async fn a_runtime_with_cdi_off_starts_no_share_and_starts_it_when_cdi_is_on(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    cdi(cluster, false).await?;
    let refused = refused(cluster, &ns).await;
    cdi(cluster, true).await?;
    refused?;
    cluster.pod_phase(&ns, "share", "Running").await?;
    let report = cluster.said(&ns, "share", "main", "report").await?;
    ensure!(report["devices"][0]["limit_mib"] == 2000, "{report}");
    Ok(())
}

async fn refused(cluster: &Cluster, ns: &str) -> Result<()> {
    let share = pod(ns, "share", &[("gpu-memory", "2000")], "report hold");
    cluster.apply_one(&share).await?;
    until("the runtime's word", Duration::from_secs(40), || async {
        let pod = cluster.pods(ns).get("share").await?;
        let state = state(&pod).unwrap_or_default();
        ensure!(state.running.is_none(), "it runs without its fence");
        let said = state.waiting.and_then(|waiting| waiting.message);
        let said = said.unwrap_or_default();
        Ok(Seen::when(said.contains("CDI"), said))
    })
    .await
}

fn state(pod: &Pod) -> Option<ContainerState> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.first()?.state.clone()
}

/// Switches CDI on or off in containerd's configuration and restarts it.
async fn cdi(cluster: &mut Cluster, on: bool) -> Result<()> {
    const LINE: &str = "cdi_spec_dirs = ";
    const OFF: &str = "enable_cdi = false\n";
    let path = cluster.work.state().join("containerd/config.toml");
    let text = fs::read_to_string(&path)?.replace(OFF, "");
    ensure!(
        text.contains(LINE),
        "containerd's configuration has no {LINE}"
    );
    let text = if on {
        text
    } else {
        text.replace(LINE, &format!("{OFF}{LINE}"))
    };
    fs::write(&path, text)?;
    cluster.node.containerd.stop().await?;
    cluster.node.containerd.start_again()?;
    cluster.node_ready().await
}
