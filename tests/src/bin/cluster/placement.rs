//! Which card a share lands on, and what happens when none has room.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::pod::{describe, phase_of};
use aliquot_tests::share::{grant_of, pod, why_pending};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;

/// The card of a pod with one share on one card.
pub(crate) fn card_of(pod: &Pod) -> Result<String> {
    let grant = grant_of(pod)?;
    let container = grant
        .containers
        .first()
        .context("a grant without containers")?;
    container
        .gpus
        .first()
        .cloned()
        .context("a grant without cards")
}

pub(crate) async fn a_second_share_lands_on_the_same_card(cluster: &mut Cluster) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 2)).await?;
    let ns = cluster.namespace().await?;
    let first = cluster
        .run_share(&pod(&ns, "first", &[("gpu-memory", "2000")], "report hold"))
        .await?;
    let second = cluster
        .run_share(&pod(
            &ns,
            "second",
            &[("gpu-memory", "3000")],
            "report hold",
        ))
        .await?;
    ensure!(
        card_of(&first)? == card_of(&second)?,
        "two cards for two shares that fit one"
    );
    for name in ["first", "second"] {
        let report = cluster.said(&ns, name, "main", "report").await?;
        ensure!(
            report["devices"][0]["uuid"] == card_of(&first)?.as_str(),
            "{name} sees {report}"
        );
    }
    cluster
        .ledger_is(&[
            (&format!("{ns}/first"), "main", 2000),
            (&format!("{ns}/second"), "main", 3000),
        ])
        .await?;
    cluster.limits_hold().await
}

pub(crate) async fn a_share_that_no_card_holds_waits_with_a_line_per_card_and_starts_when_one_does(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 2)).await?;
    let ns = cluster.namespace().await?;
    let large = |name: &str| pod(&ns, name, &[("gpu-memory", "12000")], "report hold");
    let first = cluster.run_share(&large("first")).await?;
    let second = cluster.run_share(&large("second")).await?;
    ensure!(
        card_of(&first)? != card_of(&second)?,
        "24000 MiB on one card of 15360"
    );

    cluster.apply_one(&large("third")).await?;
    let reason = cluster.reason(&ns, "third").await?;
    for card in [card_of(&first)?, card_of(&second)?] {
        let lines: Vec<&str> = reason.lines().filter(|line| line.contains(&card)).collect();
        ensure!(
            lines.len() == 1,
            "{} lines about {card} in: {reason}",
            lines.len()
        );
    }
    let waiting = cluster.pods(&ns).get("third").await?;
    ensure!(
        waiting
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_none()),
        "bound: {}",
        describe(&waiting)
    );

    cluster.delete_pod(&ns, "first").await?;
    let third = cluster.pod_phase(&ns, "third", "Running").await?;
    ensure!(
        card_of(&third)? == card_of(&first)?,
        "not on the card that became free"
    );
    cluster
        .ledger_is(&[
            (&format!("{ns}/second"), "main", 12000),
            (&format!("{ns}/third"), "main", 12000),
        ])
        .await?;
    cluster.limits_hold().await
}

pub(crate) async fn limits_never_sum_to_more_than_a_card_can_grant(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    // Six shares of 4000 MiB, all at once, where three fit.
    for at in 0..6 {
        cluster
            .apply_one(&pod(
                &ns,
                &format!("p{at}"),
                &[("gpu-memory", "4000")],
                "report hold",
            ))
            .await?;
    }
    // A pod may have been tried before the node listed its resources: a reason for waiting is not
    // final.
    until(
        "three run and three wait",
        Duration::from_secs(40),
        || async {
            cluster.limits_hold().await?;
            let pods = cluster.pods(&ns).list(&ListParams::default()).await?.items;
            let running = pods.iter().filter(|pod| phase_of(pod) == "Running");
            let bound = |pod: &&Pod| {
                pod.spec
                    .as_ref()
                    .is_some_and(|spec| spec.node_name.is_some())
            };
            let waiting = pods
                .iter()
                .filter(|pod| !bound(pod) && why_pending(pod).is_some());
            let (running, waiting) = (running.count(), waiting.count());
            let bound = pods.iter().filter(bound).count();
            ensure!(bound <= 3, "{bound} of 6 are bound where 3 fit");
            let seen = format!("{running} run, {waiting} wait");
            Ok(Seen::when((running, waiting) == (3, 3), seen))
        },
    )
    .await
}

pub(crate) async fn two_halves_fit_one_card(cluster: &mut Cluster) -> Result<()> {
    fractions_fit(cluster, &["0.5", "0.5"]).await
}

pub(crate) async fn seven_tenths_and_two_tenths_fit_one_card(cluster: &mut Cluster) -> Result<()> {
    fractions_fit(cluster, &["0.7", "0.2"]).await
}

async fn fractions_fit(cluster: &mut Cluster, fractions: &[&str]) -> Result<()> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 1))
        .await?;
    let ns = cluster.namespace().await?;
    for (at, fraction) in fractions.iter().enumerate() {
        let name = format!("p{at}");
        let started = cluster
            .run_share(&pod(
                &ns,
                &name,
                &[("gpu-fraction", fraction)],
                "report hold",
            ))
            .await
            .with_context(|| format!("fraction {fraction}"))?;
        let granted = grant_of(&started)?.containers[0].memory_mib.0;
        let report = cluster.said(&ns, &name, "main", "report").await?;
        ensure!(
            report["devices"][0]["limit_mib"] == granted,
            "granted {granted}, but {report}"
        );
    }
    cluster.limits_hold().await
}
