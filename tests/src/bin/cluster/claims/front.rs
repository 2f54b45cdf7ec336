//! By annotation or by claim: one front of a card at a time, and the admin's word on it.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::pod::{describe, phase_of};
use aliquot_tests::share::{pod, why_pending};
use anyhow::{Context, Result, ensure};
use proto::names::dra;
use serde_json::{Value, json};

use super::setup::{claim_pod, device_until, ledger_is, tainted, unbound, waits, with_driver};
use crate::modes::policy;

fn annotated(ns: &str, name: &str) -> Value {
    pod(ns, name, &[("gpu-memory", "2000")], "report hold")
}

pub(crate) async fn a_card_has_one_front_at_a_time(cluster: &mut Cluster) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        cluster.run_share(&annotated(ns, "granted")).await?;
        device_until(cluster, "closed to claims", |device| {
            tainted(device, dra::TAINT_FRONT)
        })
        .await?;
        claim_pod(cluster, ns, "claimed", "2000Mi", "report hold").await?;
        waits(cluster, ns, "claimed").await?;
        cluster.delete_pod(ns, "granted").await?;
        cluster.pod_phase(ns, "claimed", "Running").await?;
        // And the other way round.
        device_until(cluster, "open to claims", |device| {
            !tainted(device, dra::TAINT_FRONT)
        })
        .await?;
        cluster.apply_one(&annotated(ns, "later")).await?;
        unbound(cluster, ns, "later").await?;
        let later = cluster.pods(ns).get("later").await?;
        ensure!(
            why_pending(&later).is_some(),
            "no reason: {}",
            describe(&later)
        );
        ledger_is(cluster, ns, &[("claimed", 2000)]).await?;
        cluster.delete_pod(ns, "claimed").await?;
        cluster.pod_phase(ns, "later", "Running").await?;
        Ok(())
    })
    .await
}

pub(crate) async fn the_admin_closes_a_card_to_one_front_and_what_runs_stays(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        cluster.run_share(&annotated(ns, "granted")).await?;
        let status = cluster.gpu_node().await?.status.context("no status")?;
        let card = &status.gpus.first().context("no card")?.uuid;
        // To grants, while one runs: it stays, and until it has ended the card has no other front.
        policy(
            cluster,
            json!({ "gpus": [{ "uuid": card, "front": "dra" }] }),
        )
        .await?;
        claim_pod(cluster, ns, "claimed", "2000Mi", "report hold").await?;
        waits(cluster, ns, "claimed").await?;
        runs_alone(cluster, ns, "granted").await?;
        cluster.delete_pod(ns, "granted").await?;
        cluster.pod_phase(ns, "claimed", "Running").await?;
        cluster.delete_pod(ns, "claimed").await?;
        ledger_is(cluster, ns, &[]).await?;
        // Idle, it is still closed to grants.
        cluster.apply_one(&annotated(ns, "later")).await?;
        unbound(cluster, ns, "later").await?;
        claim_pod(cluster, ns, "again", "2000Mi", "report hold").await?;
        cluster.pod_phase(ns, "again", "Running").await?;
        // And the other way round, for all cards of the node.
        policy(cluster, json!({ "defaultFront": "plugin" })).await?;
        device_until(cluster, "closed to claims", |device| {
            tainted(device, dra::TAINT_FRONT)
        })
        .await?;
        claim_pod(cluster, ns, "last", "1000Mi", "report hold").await?;
        waits(cluster, ns, "last").await?;
        runs_alone(cluster, ns, "again").await?;
        cluster.delete_pod(ns, "again").await?;
        cluster.pod_phase(ns, "later", "Running").await?;
        unbound(cluster, ns, "last").await?;
        // What is invalid is refused where it is written.
        let why = policy(cluster, json!({ "defaultFront": "both" }))
            .await
            .err();
        let why = why.context("a front that there is not is taken")?;
        ensure!(format!("{why:#}").contains("supported values"), "{why:#}");
        policy(cluster, json!({})).await
    })
    .await
}

async fn runs_alone(cluster: &Cluster, ns: &str, name: &str) -> Result<()> {
    ledger_is(cluster, ns, &[(name, 2000)]).await?;
    let pod = cluster.pods(ns).get(name).await?;
    ensure!(phase_of(&pod) == "Running", "{}", describe(&pod));
    Ok(())
}
