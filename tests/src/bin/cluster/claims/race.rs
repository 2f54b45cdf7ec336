//! Both fronts at once for one idle card.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::pod::{describe, phase_of};
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use super::setup::{LIMIT, ledger_is, manifest, template, with_driver};
use super::whole::{CLASS, allocatable, with_gpus};

/// In this many rounds, both fronts must win some; otherwise it is no race.
const ROUNDS: usize = 6;
/// At this many it is settled that one of them never wins.
const MOST: usize = 15;
/// How much more of a start the one has that lost.
const STEP: Duration = Duration::from_millis(40);

pub(crate) async fn both_fronts_race_for_one_idle_card(cluster: &mut Cluster) -> Result<()> {
    race(cluster, ROUNDS).await
}

/// `rounds` times, and on until each has won once.
pub(crate) async fn race(cluster: &mut Cluster, rounds: usize) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        template(cluster, ns, "share", "2000Mi", &json!({})).await?;
        let (mut granted, mut claimed) = (0, 0);
        // By how much the annotation comes before the claim: Kubernetes' scheduler is the
        // quicker one, by how much depends on the machine.
        let mut ahead = Duration::ZERO;
        for round in 0..rounds.max(MOST) {
            if round >= rounds && granted > 0 && claimed > 0 {
                break;
            }
            let (one, other) = (format!("g{round}"), format!("c{round}"));
            let by_grant = pod(ns, &one, &[("gpu-memory", "2000")], "report hold");
            let by_claim = manifest(ns, &other, "share", "report hold");
            let first = won(cluster, ns, ahead, by_grant, by_claim)
                .await
                .with_context(|| format!("round {round}"))?;
            if first == one {
                granted += 1;
                ahead = ahead.saturating_sub(STEP);
            } else {
                claimed += 1;
                ahead += STEP;
            }
        }
        #[expect(clippy::print_stdout, reason = "the figures are worth a line")]
        {
            let rounds = granted + claimed;
            println!("{rounds} races: {granted} by annotation, {claimed} by claim");
        }
        ensure!(granted > 0 && claimed > 0, "{granted} to {claimed}");
        Ok(())
    })
    .await
}

/// Neither scheduler knows of the other's choice before it is done: Aliquot's takes the first card,
/// Kubernetes' the slice's first device, which is the last card.
pub(crate) async fn cards_that_both_fronts_give_away_at_once_are_different_ones(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 2, async |cluster, ns| {
        let class = json!({ "deviceClassName": CLASS });
        template(cluster, ns, "whole", "", &class).await?;
        for round in 0..ROUNDS {
            allocatable(cluster, "2").await?;
            let (one, other) = (format!("p{round}"), format!("c{round}"));
            let by_plugin = with_gpus(ns, &one, "kai-scheduler", &["main"]);
            let by_claim = manifest(ns, &other, "whole", "report hold");
            tokio::try_join!(cluster.apply_one(&by_plugin), cluster.apply_one(&by_claim))?;
            let mut cards = Vec::new();
            for name in [&one, &other] {
                cluster.pod_phase(ns, name, "Running").await?;
                let report = cluster.said(ns, name, "main", "report").await?;
                cards.push(report["devices"][0]["uuid"].to_string());
            }
            ensure!(cards[0] != cards[1], "round {round}: {cards:?}");
            cluster.delete_pods(ns, [&one, &other]).await?;
            ledger_is(cluster, ns, &[]).await?;
        }
        Ok(())
    })
    .await
}

/// Applies one that much ahead of the other; the name of the one that runs, once the other one was let in too.
async fn won(
    cluster: &mut Cluster,
    ns: &str,
    ahead: Duration,
    by_grant: Value,
    by_claim: Value,
) -> Result<String> {
    let (one, other) = if ahead.is_zero() {
        (by_claim, by_grant)
    } else {
        (by_grant, by_claim)
    };
    cluster.apply_one(&one).await?;
    tokio::time::sleep(ahead).await;
    cluster.apply_one(&other).await?;
    let pods = cluster.pods(ns);
    let first = until("one of them runs", LIMIT, || async {
        let all = pods.list(&ListParams::default()).await?.items;
        let up: Vec<&Pod> = all
            .iter()
            .filter(|pod| phase_of(pod) == "Running")
            .collect();
        let said: Vec<String> = all.iter().map(describe).collect();
        ensure!(up.len() < 2, "both run");
        let first = up.first().and_then(|pod| pod.metadata.name.clone());
        Ok(Seen::from_option(first, said.join("; ")))
    })
    .await?;
    // The card is one front's, whatever the other scheduler believes.
    cluster.limits_hold().await?;
    let second = [&one, &other]
        .iter()
        .filter_map(|pod| pod["metadata"]["name"].as_str())
        .find(|name| *name != first)
        .context("two pods")?
        .to_owned();
    // The other one waits, and has the card when the first has left it.
    let waits = cluster.pods(ns).get(&second).await?;
    ensure!(phase_of(&waits) == "Pending", "{}", describe(&waits));
    cluster.delete_pod(ns, &first).await?;
    let runs = |pod: &Pod| phase_of(pod) == "Running";
    cluster
        .pod_until(ns, &second, "runs in its turn", runs)
        .await?;
    cluster.delete_pod(ns, &second).await?;
    pods.delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    cluster.ledger_is(&[]).await?;
    Ok(first)
}
