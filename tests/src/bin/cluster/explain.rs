//! `aliquot explain` reads a real cluster by itself, whose pods have what admission plugins add,
//! and has to come to the scheduler's own reasons.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::share::{pod, why_pending};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(30);

/// Returns the JSON that a verb prints.
async fn verb(cluster: &Cluster, words: &[&str]) -> Result<Value> {
    let output = tokio::process::Command::new(cluster.programs.ours.join("aliquot"))
        .env("KUBECONFIG", &cluster.kubectl.kubeconfig)
        .args(words)
        .args(["-o", "json"])
        .output()
        .await
        .context("aliquot")?;
    let (said, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(
        errors.is_empty(),
        "a kind was not read, or the verb failed: {errors}"
    );
    serde_json::from_str(&said).with_context(|| format!("{words:?}: {said}"))
}

/// Returns whether the pod has the service account's volume, which names a config map.
fn has_token(pod: &Pod) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| &spec.volumes).flatten();
    let mut sources = volumes
        .filter_map(|volume| volume.projected.as_ref()?.sources.as_ref())
        .flatten();
    sources.any(|source| source.config_map.is_some())
}

/// Returns a reason without the part that differs from card to card, which the verb shows as a
/// table.
fn reason(line: &str) -> &str {
    let line = line.lines().next().unwrap_or_default();
    let line = line.split(". node ").next().unwrap_or(line);
    line.trim_end_matches('.')
}

/// One pod is larger than any card, one exceeds its queue's quota, one names a missing queue, and
/// one lacks a config map; each has the volume of its service account.
pub(crate) async fn an_ordinary_pod_is_explained_as_its_condition_says(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let share = |name: &str, mib: &str| pod(&ns, name, &[("gpu-memory", mib)], "report");
    let mut serving = share("serving", "2000");
    serving["metadata"]["labels"] =
        json!({ "kai.scheduler/queue": "default-queue", "priorityClassName": "inference" });
    let mut lost = share("lost", "2000");
    lost["metadata"]["labels"] = json!({ "kai.scheduler/queue": "nosuch" });
    let mut lacks = share("lacks", "2000");
    lacks["spec"]["containers"][0]["envFrom"] = json!([{ "configMapRef": { "name": "nosuch" } }]);
    for pod in [share("large", "99999999"), serving, lost, lacks] {
        cluster.apply_one(&pod).await?;
    }
    let mut reasons = Vec::new();
    for name in ["large", "serving", "lost", "lacks"] {
        let pods = cluster.pods(&ns);
        until(&format!("{name} explained as told"), LONG, || async {
            let pod = pods.get(name).await?;
            ensure!(
                has_token(&pod),
                "{name} has no token of its service account"
            );
            let told = why_pending(&pod).unwrap_or_default();
            let said = verb(cluster, &["explain", &format!("{ns}/{name}")]).await?;
            let line = said["line"].as_str().unwrap_or_default().to_owned();
            // The verb may read the cluster between two reasons, so both are read again until they
            // agree.
            let same = !told.is_empty() && reason(&told) == reason(&line);
            Ok(Seen::when(
                same,
                format!("condition {told:?}, explain {line:?}"),
            ))
        })
        .await?;
        reasons.push(cluster.reason(&ns, name).await?);
    }
    ensure!(reasons[3].contains("nosuch"), "{reasons:?}");
    for reason in &reasons[..3] {
        ensure!(!reason.contains("ConfigMap"), "{reasons:?}");
    }
    // A pod that does not exist yet has no such volume, and is decided on the same picture of the
    // cluster.
    let file = cluster.work.state().join("simulated.yaml");
    std::fs::write(&file, share("small", "2000").to_string())?;
    let file = file.to_string_lossy();
    let said = verb(cluster, &["simulate", "-f", &file]).await?;
    ensure!(said["placed"] == 1, "{said}");
    Ok(())
}
