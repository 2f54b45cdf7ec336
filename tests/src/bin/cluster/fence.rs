//! A limit is a refusal that is observed, by the tenant alone.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::share::{PROGRAM, line, pod};
use aliquot_tests::wait::{Seen, until};
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

pub(crate) async fn the_sm_time_of_a_share_is_its_own(cluster: &mut Cluster) -> Result<()> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 1))
        .await?;
    let ns = cluster.namespace().await?;
    for (name, script) in [("busy", "context work 30 hold"), ("idle", "context hold")] {
        let manifest = pod(&ns, name, &[("gpu-memory", "2000")], script);
        cluster.run_share(&manifest).await?;
        cluster.said(&ns, name, "main", "hold").await?;
    }
    let gpus = cluster.gpus.as_ref().context("no GPUs")?;
    let shown = until("SM time by pod", Duration::from_secs(20), || async {
        let page = gpus.metrics().await?;
        let of = |pod: &str| {
            let mut lines = page.lines().filter(|line| {
                line.starts_with("aliquot_share_sm_percent{")
                    && line.contains(&format!("pod=\"{pod}\""))
            });
            lines.next()?.rsplit(' ').next()?.parse::<u32>().ok()
        };
        let both = of("busy").zip(of("idle"));
        Ok(Seen::from_option(both.filter(|both| both.0 > 0), page))
    })
    .await?;
    // The driver holds a share's kernels below its thread percentage.
    ensure!(shown.0 <= 30 && shown.1 == 0, "{shown:?}");
    Ok(())
}
