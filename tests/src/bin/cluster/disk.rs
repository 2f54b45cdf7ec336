//! A disk that is full or read-only when a share is to start.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::pod::phase_of;
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use nix::mount::{MsFlags, mount};

/// A file system of its own on these machines.
const CDI: &str = "/run/cdi";

pub(crate) async fn a_full_disk_holds_a_share_up_and_loses_none(
    cluster: &mut Cluster,
) -> Result<()> {
    let full = || -> Result<()> {
        remount(MsFlags::empty(), "size=64k")?;
        let mut file = fs::File::create(Path::new(CDI).join("ballast"))?;
        while file.write_all(&[0; 512]).is_ok() {}
        Ok(())
    };
    let free = || -> Result<()> {
        let _ = fs::remove_file(Path::new(CDI).join("ballast"));
        remount(MsFlags::empty(), "size=64m")
    };
    held_up(cluster, full, free, "No space left").await
}

pub(crate) async fn a_read_only_disk_holds_a_share_up_and_loses_none(
    cluster: &mut Cluster,
) -> Result<()> {
    held_up(
        cluster,
        || remount(MsFlags::MS_RDONLY, "size=64m"),
        || remount(MsFlags::empty(), "size=64m"),
        "Read-only file system",
    )
    .await
}

fn remount(flags: MsFlags, options: &str) -> Result<()> {
    mount(
        None::<&str>,
        CDI,
        None::<&str>,
        MsFlags::MS_REMOUNT | flags,
        Some(options),
    )
    .with_context(|| format!("{CDI} with {options}"))
}

/// A share that comes in bad times starts when they are over; one that ran does not notice.
async fn held_up(
    cluster: &mut Cluster,
    bad: impl Fn() -> Result<()>,
    good: impl Fn() -> Result<()>,
    word: &str,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let manifest = |name| pod(&ns, name, &[("gpu-memory", "2000")], "report hold");
    cluster.run_share(&manifest("before")).await?;
    bad()?;
    cluster.apply_one(&manifest("late")).await?;
    let told = told(cluster, &ns, word).await;
    good()?;
    told?;
    cluster.pod_phase(&ns, "late", "Running").await?;
    let report = cluster.said(&ns, "late", "main", "report").await?;
    ensure!(report["devices"][0]["limit_mib"] == 2000, "{report}");
    let before = cluster.pods(&ns).get("before").await?;
    ensure!(phase_of(&before) == "Running", "{:?}", before.status);
    cluster.limits_hold().await
}

/// The pod's events say why it does not start.
async fn told(cluster: &Cluster, ns: &str, word: &str) -> Result<()> {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), ns);
    until(
        &format!("{word} in an event"),
        Duration::from_secs(40),
        || async {
            let all = events.list(&ListParams::default()).await?.items;
            let said: Vec<String> = all.into_iter().filter_map(|one| one.message).collect();
            let told = said.iter().any(|one| one.contains(word));
            Ok(Seen::when(told, said.join("\n")))
        },
    )
    .await
}
