//! A limit is a refusal that is observed, by the tenant alone.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::{DRIVER_ROOT, Hardware};
use aliquot_tests::share::{PROGRAM, line, pod};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::hostile;
use crate::modes::{COMPUTE_MODE, REQUEST};

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

/// Its root is another user on the node: the fence holds, the agent knows whose processes
/// these are, and the card's MPS daemon takes no command from it.
pub(crate) async fn a_share_in_a_user_namespace_holds_as_any_other(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 2))
        .await?;
    let ns = cluster.namespace().await?;
    let apart = |name: &str, annotations: &[(&str, &str)], script: &str| {
        let mut manifest = pod(&ns, name, annotations, script);
        manifest["spec"]["hostUsers"] = false.into();
        manifest
    };
    // runc makes no device for it but binds what the node has at the same path, wherever the
    // driver's root is. Without that it says so, and nothing starts.
    let share = [("gpu-memory", "2000")];
    cluster.apply_one(&apart("nowhere", &share, "hold")).await?;
    let failed = cluster.pod_phase(&ns, "nowhere", "Failed").await?;
    let why = hostile::ended(&failed).and_then(|ended| ended.message.clone());
    ensure!(
        (why.as_deref()).is_some_and(|why| why.contains("src=/dev/nvidia0")),
        "{why:?}"
    );
    let nodes = [
        "nvidia0",
        "nvidia1",
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-uvm-tools",
    ];
    for node in nodes {
        let made = Path::new(DRIVER_ROOT).join("dev").join(node);
        symlink(made, Path::new("/dev").join(node)).context(node)?;
    }
    let held = apart_from_the_node(cluster, &ns, apart).await;
    for node in nodes {
        fs::remove_file(Path::new("/dev").join(node)).context(node)?;
    }
    held
}

async fn apart_from_the_node(
    cluster: &mut Cluster,
    ns: &str,
    apart: impl Fn(&str, &[(&str, &str)], &str) -> Value,
) -> Result<()> {
    let greedy = apart("greedy", &[("gpu-memory", "2000")], "report grow 10 hold");
    cluster.run_share(&greedy).await?;
    let shell = |script: &'static str| {
        let command = ["/bin/busybox", "sh", "-c", script];
        let kubectl = &cluster.kubectl;
        async move { kubectl.exec(ns, "greedy", "main", &command).await }
    };
    let map = shell("id -u; cat /proc/self/uid_map").await?;
    let words: Vec<&str> = map.split_whitespace().collect();
    ensure!(
        words.first() == Some(&"0") && words.get(2).is_some_and(|outside| *outside != "0"),
        "not root of a user namespace: {map}"
    );
    let grown = cluster.said(ns, "greedy", "main", "grow").await?;
    let held = grown["held_mib"].as_u64().context("no held_mib")?;
    ensure!((1901..=2000).contains(&held), "{grown}");
    // What root of the node's own user namespace does, see `attacks::server`.
    let write = "cd /run/aliquot/mps/pipe && ls -n && { touch x || rm control || echo kept; } 2>&1";
    let said = shell(write).await?;
    ensure!(said.ends_with("kept\n"), "it writes there: {said}");
    let said = shell("/usr/local/bin/workload drive 'quit -t 0' 2>&1 || true").await?;
    ensure!(
        said.contains("Insufficient privileges"),
        "it commands: {said}"
    );

    // Where only the watchdog holds a share, it finds and ends this one as well.
    let alone = [(REQUEST, "2000Mi"), (COMPUTE_MODE, "time-slicing")];
    let hog = apart("hog", &alone, "alloc 3000 hold");
    cluster.apply_one(&hog).await?;
    let ended = cluster.pod_phase(ns, "hog", "Failed").await?;
    let code = hostile::ended(&ended).map(|ended| ended.exit_code);
    ensure!(code == Some(137), "hog ended with {code:?}");
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
