//! A tenant, or a fault, against what the agent remembers and reads.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_tests::claims;
use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::{Gpus, Hardware};
use aliquot_tests::image::WORKLOAD_IMAGE;
use aliquot_tests::node;
use aliquot_tests::pod::phase_of;
use aliquot_tests::share::pod;
use aliquot_tests::suite::Claim;
use aliquot_tests::wait::{Seen, stays, until};
use anyhow::{Context, Result, ensure};
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::attacks;
use crate::modes::policy;
use crate::strangers::notice;

pub(crate) fn claims() -> Vec<Claim> {
    claims![
        attacks::node::a_share_whose_pod_was_deleted_by_force_is_held_until_its_container_is_dead,
        attacks::node::a_pod_that_holds_every_token_without_a_grant_is_evicted_and_the_next_share_starts,
        attacks::node::proofs_that_cannot_be_read_or_are_lost_kill_nobody_and_keep_new_shares_away,
    ]
}

/// Where the hook leaves its proofs.
const PROOFS: &str = "/run/aliquot/proof";

fn gpus(cluster: &mut Cluster) -> Result<&mut Gpus> {
    cluster.gpus.as_mut().context("no GPUs")
}

/// The hook's proof for the only container of a pod.
fn proof_of(uid: &str) -> Result<Value> {
    for entry in fs::read_dir(PROOFS)? {
        let proof: Value = serde_json::from_slice(&fs::read(entry?.path())?).unwrap_or_default();
        if proof["podUid"] == uid {
            return Ok(proof);
        }
    }
    anyhow::bail!("no proof of {uid}")
}

/// `/proc` of a container's first process.
async fn process(cluster: &Cluster, ns: &str, name: &str) -> Result<PathBuf> {
    let running = cluster.pods(ns).get(name).await?;
    let proof = proof_of(&running.metadata.uid.context("a UID")?)?;
    Ok(Path::new("/proc").join(proof["pid"].to_string()))
}

/// Whether the agent has a share of this pod, and by which words.
async fn held(cluster: &Cluster, name: &str) -> Result<Option<String>> {
    let page = cluster.gpus.as_ref().context("no GPUs")?.metrics().await?;
    let of = format!("pod=\"{name}\"");
    let mut lines = page.lines();
    let line = lines
        .find(|line| line.starts_with("aliquot_share_memory_limit_bytes{") && line.contains(&of));
    Ok(line.map(str::to_owned))
}

pub(crate) async fn a_share_whose_pod_was_deleted_by_force_is_held_until_its_container_is_dead(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    // Nothing but the watchdog, and no pod object that an eviction could reach.
    let spec = json!({ "defaultMode": "time-slicing", "onViolation": "Evict" });
    policy(cluster, spec).await?;
    let outcome = deleted_by_force(cluster).await;
    policy(cluster, json!({})).await?;
    cluster.node.kubelet.start_again()?;
    cluster.node_ready().await?;
    outcome
}

async fn deleted_by_force(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    // The first process of a container ignores TERM unless it asks for it.
    let script = "await /tmp/go alloc 9000 hold";
    let mut manifest = pod(&ns, "clings", &[("gpu-memory", "2000")], script);
    manifest["spec"]["terminationGracePeriodSeconds"] = json!(86_400);
    cluster.run_share(&manifest).await?;
    let process = process(cluster, &ns, "clings").await?;
    // A kubelet ends such a container sooner or later: here it does not.
    cluster.node.kubelet.kill().await?;
    let now = DeleteParams::default().grace_period(0);
    cluster.pods(&ns).delete("clings", &now).await?;
    ensure!(
        cluster.pods(&ns).get_opt("clings").await?.is_none(),
        "the object is still there"
    );
    stays("the share is held", Duration::from_secs(3), || async {
        let held = held(cluster, "clings").await?;
        Ok(Seen::when(held.is_some(), "freed"))
    })
    .await?;
    ensure!(process.exists(), "the container ended by itself");
    // Its first context, of more than its share.
    fs::write(process.join("root/tmp/go"), "")?;
    until("the watchdog ends it", Duration::from_secs(5), || async {
        Ok(Seen::when(!process.exists(), "it goes on"))
    })
    .await?;
    until("the share is freed", Duration::from_secs(10), || async {
        let held = held(cluster, "clings").await?;
        Ok(Seen::when(held.is_none(), held.unwrap_or_default()))
    })
    .await
}

pub(crate) async fn proofs_that_cannot_be_read_or_are_lost_kill_nobody_and_keep_new_shares_away(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let share = pod(&ns, "runs", &[("gpu-memory", "2000")], "report hold");
    cluster.run_share(&share).await?;
    let process = process(cluster, &ns, "runs").await?;
    let aside = format!("{PROOFS}.aside");
    // What is no folder cannot be read as one.
    fs::rename(PROOFS, &aside)?;
    fs::write(PROOFS, "")?;
    let outcome = unreadable(cluster).await;
    fs::remove_file(PROOFS)?;
    fs::rename(&aside, PROOFS)?;
    outcome?;
    offers(cluster, true, "").await?;
    // Lost while an agent is there that has seen it: put back.
    let name = fs::read_dir(PROOFS)?.next().context("no proof")??.path();
    fs::remove_file(&name)?;
    until(
        "the proof is there again",
        Duration::from_secs(10),
        || async { Ok(Seen::when(name.exists(), "gone")) },
    )
    .await?;
    // Lost while no agent is there: it is unknown whether the hook ran, so the container is
    // left alone.
    gpus(cluster)?.agent.kill().await?;
    fs::remove_file(&name)?;
    gpus(cluster)?.agent.start_again()?;
    offers(cluster, false, "restart the pod").await?;
    ensure!(process.exists(), "it was killed");
    let runs = cluster.pods(&ns).get("runs").await?;
    ensure!(phase_of(&runs) == "Running", "{}", phase_of(&runs));
    cluster.delete_pod(&ns, "runs").await?;
    offers(cluster, true, "").await
}

async fn unreadable(cluster: &mut Cluster) -> Result<()> {
    offers(cluster, false, "the hook's proofs cannot be read").await?;
    marked_unreadable(cluster).await?;
    // One that starts now knows no proof at all.
    gpus(cluster)?.agent.kill().await?;
    gpus(cluster)?.agent.start_again()?;
    // The condition may still be the old agent's, but the page is the new agent's.
    marked_unreadable(cluster).await?;
    offers(cluster, false, "the hook's proofs cannot be read").await
}

async fn marked_unreadable(cluster: &mut Cluster) -> Result<()> {
    let gpus = gpus(cluster)?;
    until(
        "a mark on the agent's page",
        Duration::from_secs(30),
        || async {
            let page = gpus.metrics().await.unwrap_or_default();
            let marked = page.contains("aliquot_node_unreadable{part=\"proofs\"} 1");
            Ok(Seen::when(marked, page))
        },
    )
    .await
}

/// Waits until the node offers shares, or says with these words why not.
async fn offers(cluster: &Cluster, wanted: bool, words: &str) -> Result<()> {
    let what = format!("the node offers shares: {wanted} {words}");
    until(&what, Duration::from_secs(30), || async {
        let status = cluster.gpu_node().await?.status.unwrap_or_default();
        let ready = status.conditions.iter().find(|one| one.type_ == "Offering");
        let ready = ready.context("no condition Offering")?;
        let right = (ready.status == "True") == wanted && ready.message.contains(words);
        Ok(Seen::when(right, format!("{ready:?}")))
    })
    .await
}

pub(crate) async fn a_pod_that_holds_every_token_without_a_grant_is_evicted_and_the_next_share_starts(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    // As in the product, but for the minute.
    let agent = &mut gpus(cluster)?.agent;
    let changed = agent.restart_with(|command| command.flag("--ungranted-grace-ms", "3000"));
    let plain = changed.await?;
    let outcome = hogged(cluster).await;
    let _ = cluster.delete_pod("kube-system", "hog").await;
    gpus(cluster)?.agent.restart_with(|_| plain).await?;
    outcome
}

async fn hogged(cluster: &mut Cluster) -> Result<()> {
    // An exempt namespace, since no other may ask for tokens by hand.
    let hog = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": "kube-system", "name": "hog", "annotations": { "gpu-memory": "1" } },
        "spec": {
            "nodeName": node::NAME, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": WORKLOAD_IMAGE,
                "resources": { "limits": { (proto::names::resource::SHARE): "48" } },
            }],
        },
    });
    // The kubelet keeps the tokens of a pod before it for a moment.
    until("the tokens are held", Duration::from_mins(1), || async {
        cluster.apply_one(&hog).await?;
        let told = cluster.events_of("kube-system", "hog").await?.join(" | ");
        let pod = cluster.pods("kube-system").get("hog").await?;
        if pod.status.and_then(|status| status.reason).as_deref()
            == Some("UnexpectedAdmissionError")
        {
            cluster.delete_pod("kube-system", "hog").await?;
        }
        Ok(Seen::when(told.contains("has no grant"), told))
    })
    .await?;
    let ns = cluster.namespace().await?;
    cluster
        .run_share(&pod(&ns, "next", &[("gpu-memory", "2000")], "report hold"))
        .await?;
    let said = notice(cluster, "kube-system", "hog", "Evict").await?;
    ensure!(
        said.contains("holds 48 of aliquot.dev/gpu-share and has no grant"),
        "{said}"
    );
    Ok(())
}
