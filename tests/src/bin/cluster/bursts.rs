//! Shares that are created moments apart join one card; a pod without a controller is not moved for
//! a whole GPU that comes later.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::share::{pod, why_pending};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::placement::card_of;

/// The pauses between shares in milliseconds: the replicas of a chart come so close together, while
/// an MPS server takes a second to start.
const APART: [u64; 5] = [100, 150, 200, 300, 1500];

fn whole(ns: &str, name: &str) -> Value {
    let mut pod = pod(ns, name, &[], "report hold");
    pod["spec"]["containers"][0]["resources"] =
        json!({ "limits": { (proto::names::resource::GPU): "1" } });
    pod
}

pub(crate) async fn shares_that_come_moments_apart_join_the_card_that_is_starting(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 3)).await?;
    let ns = cluster.namespace().await?;
    let names: Vec<String> = (0..6).map(|index| format!("share-{index}")).collect();
    let mut pauses = APART.iter();
    for name in &names {
        let share = pod(&ns, name, &[("gpu-memory", "2000")], "report hold");
        cluster.apply_one(&share).await?;
        if let Some(pause) = pauses.next() {
            tokio::time::sleep(Duration::from_millis(*pause)).await;
        }
    }
    let mut cards = Vec::new();
    for name in &names {
        cards.push(card_of(&cluster.pod_phase(&ns, name, "Running").await?)?);
    }
    cards.sort_unstable();
    cards.dedup();
    ensure!(cards.len() == 1, "six shares took the cards {cards:?}");
    // The two other cards are free for pods that need a whole one.
    for name in ["whole-0", "whole-1"] {
        cluster.run_share(&whole(&ns, name)).await?;
    }
    cluster.limits_hold().await
}

pub(crate) async fn a_pod_that_nothing_creates_again_is_not_moved_for_a_whole_gpu(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 2)).await?;
    let scheduler = cluster.scheduler.as_mut().context("no scheduler")?;
    // Without a minimum age, only the lack of a controller protects the pod.
    let changed = scheduler
        .daemon
        .restart_with(|command| command.flag("--consolidation-min-age-s", "0"));
    let plain = changed.await?;
    let outcome = bare_pod_stays(cluster).await;
    let scheduler = cluster.scheduler.as_mut().context("no scheduler")?;
    scheduler.daemon.restart_with(|_| plain).await?;
    outcome
}

async fn bare_pod_stays(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    // A card has 15,360 MiB, so the second share finds no room beside the first.
    for (name, mib) in [("first", "9000"), ("second", "9000")] {
        let share = pod(&ns, name, &[("gpu-memory", mib)], "report hold");
        cluster.run_share(&share).await?;
    }
    let small = pod(&ns, "small", &[("gpu-memory", "4000")], "report hold");
    let small = cluster.run_share(&small).await?;
    let beside = ["first", "second"];
    let mut alone = None;
    for name in beside {
        let share = cluster.pods(&ns).get(name).await?;
        if card_of(&share)? == card_of(&small)? {
            alone = Some(name);
        }
    }
    // After this, `small` has a card of its own, and it would fit beside the other share.
    if let Some(name) = alone {
        cluster.delete_pod(&ns, name).await?;
    }
    cluster.apply_one(&whole(&ns, "whole")).await?;
    until("the reason is said", Duration::from_secs(20), || async {
        let why = why_pending(&cluster.pods(&ns).get("whole").await?).unwrap_or_default();
        Ok(Seen::when(why.contains("share on it"), why))
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let stays = cluster.pods(&ns).get("small").await?;
    ensure!(
        stays.metadata.uid == small.metadata.uid && stays.metadata.deletion_timestamp.is_none(),
        "small was moved: {:?}",
        stays.metadata
    );
    Ok(())
}
