//! Monitoring by adminAccess.

use aliquot_tests::cluster::Cluster;
use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::setup::{claim_pod, grantable, ledger_is, manifest, template, with_driver};

pub(crate) async fn a_monitoring_pod_sees_a_card_that_is_full_and_counts_nothing(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        // All of the card is another's.
        claim_pod(cluster, ns, "full", "", "report hold").await?;
        cluster.pod_phase(ns, "full", "Running").await?;
        let whole = [("full", grantable(cluster).await?)];
        let before = ledger_is(cluster, ns, &whole).await?;
        // Kubernetes 1.36 searches for room even for a pod that takes none.
        let access = json!({
            "adminAccess": true, "allocationMode": "All",
            "capacity": { "requests": { "memory": "0" } },
        });
        let why = template(cluster, ns, "look", "", &access).await.err();
        let why = why.context("a namespace without the label may")?;
        ensure!(format!("{why:#}").contains("admin-access"), "{why:#}");
        let label = "resource.kubernetes.io/admin-access=true";
        cluster
            .kubectl
            .run(&["label", "namespace", ns, label])
            .await?;
        template(cluster, ns, "look", "", &access).await?;
        // As monitoring has it.
        let mut pod = manifest(ns, "look", "look", "report hold");
        pod["spec"]["hostPID"] = json!(true);
        pod["spec"]["containers"][0]["securityContext"] = json!({ "privileged": true });
        cluster.apply_one(&pod).await?;
        cluster.pod_phase(ns, "look", "Running").await?;
        let report = cluster.said(ns, "look", "main", "report").await?;
        // Which of the cards' device nodes it has.
        ensure!(report["nodes"] == json!([0]), "{report}");
        ensure!(report["memory_limit"].is_null(), "{report}");
        let after = ledger_is(cluster, ns, &whole).await?;
        ensure!(before == after, "{before:?}, then {after:?}");
        cluster.delete_pod(ns, "look").await?;
        cluster.delete_pod(ns, "full").await?;
        ledger_is(cluster, ns, &[]).await.map(drop)
    })
    .await
}
