//! A limit is a refusal that is observed, by the tenant alone.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::share::{PROGRAM, line, pod};
use anyhow::{Context, Result, ensure};

pub(crate) async fn a_workload_is_refused_at_2000_mib_and_its_neighbour_does_not_notice(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 1))
        .await?;
    let ns = cluster.namespace().await?;
    let neighbour = pod(
        &ns,
        "neighbour",
        &[("gpu-memory", "4000")],
        "report alloc 1000 hold",
    );
    let before = cluster.run_share(&neighbour).await?;
    cluster.said(&ns, "neighbour", "main", "alloc").await?;

    let greedy = pod(
        &ns,
        "greedy",
        &[("gpu-memory", "2000")],
        "report grow 10 hold",
    );
    cluster.run_share(&greedy).await?;
    let grown = cluster.said(&ns, "greedy", "main", "grow").await?;
    ensure!(grown["ok"] == true, "refused for another reason: {grown}");
    let held = grown["held_mib"].as_u64().context("no held_mib")?;
    let refused = grown["refused_at_mib"]
        .as_u64()
        .context("no refused_at_mib")?;
    ensure!(
        held <= 2000 && refused > 2000,
        "held {held}, refused at {refused}"
    );
    ensure!(held > 1900, "refused {held} MiB into a share of 2000");

    // The neighbour's process, memory and server are as they were, and it can take more.
    let more = cluster
        .kubectl
        .exec(&ns, "neighbour", "main", &[PROGRAM, "alloc", "500"])
        .await?;
    let more = line(&more, "alloc").with_context(|| more.clone())?;
    ensure!(more["ok"] == true, "the neighbour is refused: {more}");
    let after = cluster.pods(&ns).get("neighbour").await?;
    ensure!(
        statuses(&before) == statuses(&after),
        "the neighbour's container was touched"
    );
    Ok(())
}

fn statuses(pod: &k8s_openapi::api::core::v1::Pod) -> Vec<(Option<String>, Option<i32>)> {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    statuses
        .into_iter()
        .flatten()
        .map(|status| (status.container_id.clone(), Some(status.restart_count)))
        .collect()
}
