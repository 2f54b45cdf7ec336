//! Several cards by one claim.

use aliquot_tests::cluster::Cluster;
use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::setup::{manifest, refused, template, with_driver};
use crate::modes::policy;

pub(crate) async fn two_cards_of_one_claim_are_each_held_at_its_mib(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 2, async |cluster, ns| {
        template(cluster, ns, "apart", "2000Mi", &json!({ "count": 2 })).await?;
        for mode in ["mps-isolated", "time-slicing"] {
            policy(cluster, json!({ "defaultMode": mode })).await?;
            let pod = manifest(ns, mode, "apart", "report grow 10 hold");
            cluster.apply_one(&pod).await?;
            cluster.pod_phase(ns, mode, "Running").await?;
            let report = cluster.said(ns, mode, "main", "report").await?;
            let devices = report["devices"].as_array().context("no devices")?;
            ensure!(devices.len() == 2, "{report}");
            let name = format!("{ns}/{mode}");
            let held = cluster
                .ledger_is(&[(&name, "main", 2000), (&name, "main", 2000)])
                .await?;
            ensure!(held[0].0 != held[1].0, "one card twice: {held:?}");
            cluster.limits_hold().await?;
            if mode == "mps-isolated" {
                let grown = cluster.said(ns, mode, "main", "grow").await?;
                let held = grown["held_mib"].as_u64().context("no held_mib")?;
                ensure!(held <= 2000 && held > 1900, "{grown}");
            }
            cluster.delete_pod(ns, mode).await?;
            cluster.ledger_is(&[]).await?;
        }
        // Where the admin leaves no mode for it, and where one card is allocated twice.
        policy(
            cluster,
            json!({ "defaultMode": "mps", "gpus": all_in_mps(cluster).await? }),
        )
        .await?;
        cluster
            .apply_one(&manifest(ns, "mps", "apart", "report hold"))
            .await?;
        refused(cluster, ns, "mps", "mode mps allows one card per container").await?;
        cluster.delete_pod(ns, "mps").await?;
        policy(cluster, json!({})).await?;
        // Two requests may get one card, which is one container's once.
        let one = one(cluster).await?;
        let request = |name: &str| {
            json!({ "name": name, "exactly": {
                "deviceClassName": "share.aliquot.dev", "selectors": [one],
                "capacity": { "requests": { "memory": "1000Mi" } } } })
        };
        let twice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": { "namespace": ns, "name": "twice" },
            "spec": { "spec": { "devices": { "requests": [request("a"), request("b")] } } },
        });
        cluster.apply_one(&twice).await?;
        cluster
            .apply_one(&manifest(ns, "twice", "twice", "report hold"))
            .await?;
        refused(cluster, ns, "twice", "twice for one container").await?;
        cluster.delete_pod(ns, "twice").await
    })
    .await
}

async fn all_in_mps(cluster: &Cluster) -> Result<serde_json::Value> {
    let status = cluster.gpu_node().await?.status.context("no status")?;
    let cards = status.gpus.iter();
    Ok(cards
        .map(|card| json!({ "uuid": card.uuid, "mode": "mps" }))
        .collect())
}

/// Selects one of the cards.
async fn one(cluster: &Cluster) -> Result<serde_json::Value> {
    let status = cluster.gpu_node().await?.status.context("no status")?;
    let card = &status.gpus.first().context("no card")?.uuid;
    Ok(
        json!({ "cel": { "expression": format!("device.attributes['aliquot.dev'].uuid == '{card}'") } }),
    )
}
