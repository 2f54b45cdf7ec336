//! What a claim or its class asks for beside cards and memory.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::setup::{LIMIT, claim_spec, ledger_is, manifest, refused, template, with_driver};
use super::status::isolation_of;
use crate::hostile::ended;

/// A template with this configuration of aliquot.dev.
fn configured(ns: &str, name: &str, memory: &str, fields: Value) -> Value {
    let mut parameters = json!({ "apiVersion": "aliquot.dev/v1alpha1", "kind": "ShareConfig" });
    for (key, value) in fields.as_object().into_iter().flatten() {
        parameters[key] = value.clone();
    }
    let mut spec = claim_spec(memory, &json!({}));
    spec["devices"]["config"] =
        json!([{ "opaque": { "driver": "aliquot.dev", "parameters": parameters } }]);
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": { "namespace": ns, "name": name }, "spec": { "spec": spec },
    })
}

pub(crate) async fn a_claim_is_configured_or_told_why_not(cluster: &mut Cluster) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        // Of another version, and with what there is not: refused where it is written.
        let templates: Api<ResourceClaimTemplate> = Api::namespaced(cluster.client.clone(), ns);
        for (fields, words) in [
            (
                json!({ "apiVersion": "aliquot.dev/v2" }),
                "this release reads no other",
            ),
            (
                json!({ "kind": "GpuConfig" }),
                "this release reads no other",
            ),
            (json!({ "memory": "2Gi" }), "and no others"),
            (json!({ "mode": "mig" }), "mode is exclusive, mps"),
            (json!({ "computePercent": 0 }), "from 1 to 100"),
            (json!({ "computePercent": "all" }), "from 1 to 100"),
            (json!({ "onViolation": "Ignore" }), "Report, Evict or Kill"),
            (json!({ "minimumFence": "Best" }), "minimumFence is"),
        ] {
            // A policy acts a moment after it was made.
            until(&format!("{fields} refused"), LIMIT, || async {
                let bad = configured(ns, "bad", "1000Mi", fields.clone());
                let why = cluster.apply_one(&bad).await.err();
                if why.is_none() {
                    // Until then it was admitted, and existing objects are not validated again.
                    templates.delete("bad", &DeleteParams::default()).await?;
                }
                let why = why.map(|why| format!("{why:#}")).unwrap_or_default();
                Ok(Seen::when(why.contains(words), why))
            })
            .await?;
        }
        let why = template(cluster, ns, "nothing", "0", &json!({}))
            .await
            .err();
        let why = why.context("a share of nothing is taken")?;
        ensure!(format!("{why:#}").contains("at least 1Mi"), "{why:#}");
        // A mode and a ceiling.
        let fields =
            json!({ "mode": "mps-isolated", "computePercent": 25, "minimumFence": "ServerLimit" });
        cluster
            .apply_one(&configured(ns, "isolated", "2000Mi", fields))
            .await?;
        cluster
            .apply_one(&manifest(ns, "isolated", "isolated", "report grow 10 hold"))
            .await?;
        cluster.pod_phase(ns, "isolated", "Running").await?;
        let grown = cluster.said(ns, "isolated", "main", "grow").await?;
        let held = grown["held_mib"].as_u64().context("no held_mib")?;
        ensure!(held <= 2000 && held > 1900, "{grown}");
        ledger_is(cluster, ns, &[("isolated", 2000)]).await?;
        let rows = cluster.ledger().await?;
        let [(_, row)] = &rows[..] else {
            anyhow::bail!("{rows:?}")
        };
        ensure!(row.compute_percent == 25, "{row:?}");
        until("its fence", LIMIT, || async {
            let said = isolation_of(cluster, ns, "isolated").await?;
            Ok(Seen::when(said.contains("ServerLimit"), said))
        })
        .await?;
        // What its card cannot be beside that, what is weaker than it asks for, and what is
        // weaker than the node.
        for (name, fields, words) in [
            (
                "sliced",
                json!({ "mode": "time-slicing" }),
                "in mode mps-isolated, held by",
            ),
            (
                "fence",
                json!({ "minimumFence": "DriverLimit" }),
                "the claim's minimum fence is DriverLimit",
            ),
            (
                "weak",
                json!({ "onViolation": "Report" }),
                "a claim can only be stricter",
            ),
            (
                "part",
                json!({ "mode": "exclusive" }),
                "in mode mps-isolated, held by",
            ),
        ] {
            cluster
                .apply_one(&configured(ns, name, "1000Mi", fields))
                .await?;
            cluster
                .apply_one(&manifest(ns, name, name, "report hold"))
                .await?;
            refused(cluster, ns, name, words).await?;
            cluster.delete_pod(ns, name).await?;
        }
        ledger_is(cluster, ns, &[("isolated", 2000)]).await?;
        cluster.delete_pod(ns, "isolated").await
    })
    .await
}

pub(crate) async fn a_claim_is_stricter_than_a_class_that_reports(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        let class = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
            "metadata": { "name": "told.aliquot.dev" },
            "spec": {
                "selectors": [{ "cel": { "expression": "device.driver == 'aliquot.dev'" } }],
                "config": [{ "opaque": { "driver": "aliquot.dev", "parameters": {
                    "apiVersion": "aliquot.dev/v1alpha1", "kind": "ShareConfig",
                    "mode": "time-slicing", "onViolation": "Report" } } }],
            },
        });
        cluster.apply_one(&class).await?;
        let outcome = reported_and_killed(cluster, ns).await;
        cluster
            .kubectl
            .run(&["delete", "deviceclass", "told.aliquot.dev"])
            .await?;
        outcome
    })
    .await
}

async fn reported_and_killed(cluster: &Cluster, ns: &str) -> Result<()> {
    for (name, fields) in [
        ("told", json!({})),
        ("ends", json!({ "onViolation": "Kill" })),
    ] {
        let mut template = configured(ns, name, "1000Mi", fields);
        let exactly = &mut template["spec"]["spec"]["devices"]["requests"][0]["exactly"];
        exactly["deviceClassName"] = json!("told.aliquot.dev");
        cluster.apply_one(&template).await?;
        cluster
            .apply_one(&manifest(ns, name, name, "report alloc 1500 hold"))
            .await?;
    }
    // Nothing but the watchdog holds either of them.
    let killed = cluster.pod_phase(ns, "ends", "Failed").await?;
    let code = ended(&killed).map(|ended| ended.exit_code);
    ensure!(code == Some(137), "ended with {code:?}");
    cluster.pod_phase(ns, "told", "Running").await?;
    until("the violation is told", LIMIT, || async {
        let rows = cluster.ledger().await?;
        let told = rows
            .iter()
            .any(|(_, row)| row.complaint.contains("1000 MiB were granted"));
        Ok(Seen::when(told, format!("{rows:?}")))
    })
    .await?;
    let pod = cluster.pods(ns).get("told").await?;
    ensure!(
        aliquot_tests::pod::phase_of(&pod) == "Running",
        "it was ended"
    );
    cluster.delete_pods(ns, ["told", "ends"]).await?;
    Ok(())
}
