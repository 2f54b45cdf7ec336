//! Shares by `ResourceClaim`: real kube-scheduler, kubelet and containerd, the agent as DRA
//! driver, the simulated driver.

mod cards;
mod config;
mod faults;
pub(crate) mod foreign;
mod front;
pub(crate) mod kueue;
mod observer;
mod ours;
mod page;
mod race;
mod rollout;
mod setup;
mod shared;
mod slices;
mod status;
mod whole;

pub(crate) use cards::*;
pub(crate) use config::*;
pub(crate) use faults::*;
pub(crate) use foreign::a_pod_is_bound_once_the_driver_has_made_its_device_ready;
pub(crate) use front::*;
pub(crate) use observer::*;
pub(crate) use ours::*;
pub(crate) use page::*;
pub(crate) use race::*;
pub(crate) use rollout::*;
pub(crate) use setup::{manifest, template, with_driver_on};
pub(crate) use shared::*;
pub(crate) use slices::*;
pub(crate) use status::*;
pub(crate) use whole::*;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::share::PROGRAM;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use proto::names::dra;
use serde_json::json;
use setup::{
    LIMIT, claim_pod, container_of, files, gpus, grantable, ledger_is, ready, refused, says, waits,
    with_driver,
};
use std::time::Duration;

use crate::hostile::column_by_claim;

pub(crate) async fn two_claims_under_the_default_scheduler_are_each_held_at_their_mib(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        let script = "report grow 10 hold";
        // Kubernetes counts it as the node does: in whole MiB.
        claim_pod(cluster, ns, "first", "2047500Ki", script).await?;
        claim_pod(cluster, ns, "second", "3000Mi", script).await?;
        for (name, limit) in [("first", 2000), ("second", 3000)] {
            cluster.pod_phase(ns, name, "Running").await?;
            let report = cluster.said(ns, name, "main", "report").await?;
            ensure!(
                report["devices"][0]["limit_mib"] == limit,
                "{name}: {report}"
            );
            let grown = cluster.said(ns, name, "main", "grow").await?;
            let held = grown["held_mib"].as_u64().context("no held_mib")?;
            ensure!(
                grown["ok"] == true && held <= limit && held > limit - 100,
                "{name}: {grown}"
            );
        }
        ledger_is(cluster, ns, &[("first", 2000), ("second", 3000)]).await?;
        for (name, counted) in [("first", "2000Mi"), ("second", "3000Mi")] {
            let (claim, _) = ready(cluster, ns, name, |_| true).await?;
            let claim = serde_json::to_value(&claim.status)?;
            let consumed = &claim["allocation"]["devices"]["results"][0]["consumedCapacity"];
            ensure!(
                *consumed == json!({ (dra::MEMORY): counted, (dra::SLOTS): "1" }),
                "{name}: {consumed}"
            );
        }
        cluster.limits_hold().await?;
        // Without an amount it is the whole card, which is no longer free.
        claim_pod(cluster, ns, "whole", "", "report hold").await?;
        waits(cluster, ns, "whole").await?;
        // What a pod held is another's, and nothing of it is left on the node.
        let files = files()?;
        cluster.delete_pod(ns, "first").await?;
        ledger_is(cluster, ns, &[("second", 3000)]).await?;
        until("the first claim's file gone", LIMIT, || async {
            let now = self::files()?;
            Ok(Seen::when(
                now + 1 == files,
                format!("{now} files, {files} before"),
            ))
        })
        .await?;
        cluster.delete_pod(ns, "second").await?;
        cluster.pod_phase(ns, "whole", "Running").await?;
        let whole = [("whole", grantable(cluster).await?)];
        ledger_is(cluster, ns, &whole).await.map(drop)
    })
    .await
}

pub(crate) async fn an_agent_killed_while_claims_run_has_the_ledger_it_had(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        claim_pod(cluster, ns, "first", "2000Mi", "report alloc 500 hold").await?;
        cluster.pod_phase(ns, "first", "Running").await?;
        cluster.said(ns, "first", "main", "alloc").await?;
        let before = ledger_is(cluster, ns, &[("first", 2000)]).await?;
        let container = container_of(cluster, ns, "first").await?;

        gpus(cluster)?.agent.kill().await?;
        // What comes while no agent runs waits for it.
        claim_pod(cluster, ns, "second", "3000Mi", "report hold").await?;
        cluster
            .pod_until(ns, "second", "bound", |pod| {
                pod.spec
                    .as_ref()
                    .is_some_and(|spec| spec.node_name.is_some())
            })
            .await?;
        gpus(cluster)?.agent.start_again()?;
        cluster.pod_phase(ns, "second", "Running").await?;
        let after = ledger_is(cluster, ns, &[("first", 2000), ("second", 3000)]).await?;
        ensure!(before[0] == after[0], "{before:?}, then {after:?}");
        ensure!(
            container == container_of(cluster, ns, "first").await?,
            "its container was touched"
        );
        // It is held as before.
        for (mib, fits) in [("1000", true), ("2100", false)] {
            let words = [PROGRAM, "alloc", mib];
            let more = cluster.kubectl.exec(ns, "first", "main", &words).await;
            ensure!(more.is_ok() == fits, "{mib} MiB more: {more:?}");
        }

        // A pod that leaves while no agent runs is freed by the next one.
        gpus(cluster)?.agent.kill().await?;
        let pods = cluster.pods(ns);
        pods.delete("first", &kube::api::DeleteParams::default())
            .await?;
        tokio::time::sleep(Duration::from_secs(4)).await;
        gpus(cluster)?.agent.start_again()?;
        ledger_is(cluster, ns, &[("second", 3000)]).await?;
        cluster
            .pod_until(ns, "second", "running", |pod| {
                aliquot_tests::pod::phase_of(pod) == "Running"
            })
            .await?;
        until("the first pod gone", LIMIT, || async {
            let left = pods.get_opt("first").await?;
            Ok(Seen::when(left.is_none(), "it is still there"))
        })
        .await
    })
    .await
}

pub(crate) async fn a_claim_that_cannot_be_honoured_is_refused_with_one_sentence(
    cluster: &mut Cluster,
) -> Result<()> {
    // As many cards as one of the claims asks for.
    with_driver(cluster, 2, async |cluster, ns| {
        template(cluster, ns, "share", "1000Mi", &json!({})).await?;
        let base = |name: &str| manifest(ns, name, "share", "report hold");
        let mut privileged = base("privileged");
        privileged["spec"]["containers"][0]["securityContext"] = json!({ "privileged": true });
        let mut host_pid = base("host-pid");
        host_pid["spec"]["hostPID"] = json!(true);
        // Two of its shares in one container, by two claims.
        let mut two = base("two-claims");
        let claims = &mut two["spec"]["resourceClaims"];
        *claims = json!([
            { "name": "gpu", "resourceClaimTemplateName": "share" },
            { "name": "more", "resourceClaimTemplateName": "share" },
        ]);
        two["spec"]["containers"][0]["resources"] =
            json!({ "claims": [{ "name": "gpu" }, { "name": "more" }] });
        for (pod, words) in [(privileged, "is privileged"), (host_pid, "sets hostPID")] {
            cluster.apply_one(&pod).await?;
            let name = pod["metadata"]["name"].as_str().context("a name")?;
            refused(cluster, ns, name, words).await?;
            cluster.delete_pod(ns, name).await?;
        }
        // One of its claims is prepared, and the other one says why it is not.
        cluster.apply_one(&two).await?;
        says(cluster, ns, "two-claims", "holds another share already").await?;
        cluster.delete_pod(ns, "two-claims").await?;
        ledger_is(cluster, ns, &[]).await.map(drop)
    })
    .await
}

pub(crate) async fn a_lost_card_ends_what_is_claimed_of_it(cluster: &mut Cluster) -> Result<()> {
    with_driver(cluster, 2, async |cluster, ns| {
        claim_pod(cluster, ns, "first", "2000Mi", "report hold").await?;
        cluster.pod_phase(ns, "first", "Running").await?;
        let (card, _) = ledger_is(cluster, ns, &[("first", 2000)]).await?.remove(0);
        let driver = &gpus(cluster)?.driver;
        driver.control(&["lost", &card]).await?;
        until("the pod of the lost card evicted", LIMIT, || async {
            let pod = cluster.pods(ns).get_opt("first").await?;
            Ok(Seen::when(pod.is_none(), "it is there"))
        })
        .await?;
        // The other card is as it was.
        claim_pod(cluster, ns, "second", "2000Mi", "report hold").await?;
        cluster.pod_phase(ns, "second", "Running").await?;
        let (other, _) = ledger_is(cluster, ns, &[("second", 2000)]).await?.remove(0);
        ensure!(other != card, "on the lost card {card}");
        Ok(())
    })
    .await
}

pub(crate) async fn a_pods_status_says_that_its_card_is_lost(cluster: &mut Cluster) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        // It would be evicted else.
        let stays =
            json!({ "tolerations": [{ "key": dra::TAINT_UNHEALTHY, "operator": "Exists", "effect": "NoExecute" }] });
        template(cluster, ns, "stays", "2000Mi", &stays).await?;
        cluster
            .apply_one(&manifest(ns, "stays", "stays", "report hold"))
            .await?;
        cluster.pod_phase(ns, "stays", "Running").await?;
        health_is(cluster, ns, "stays", "Healthy").await?;
        let (card, _) = ledger_is(cluster, ns, &[("stays", 2000)]).await?.remove(0);
        gpus(cluster)?.driver.control(&["lost", &card]).await?;
        health_is(cluster, ns, "stays", "Unhealthy").await?;
        gpus(cluster)?.driver.control(&["restore", &card]).await?;
        health_is(cluster, ns, "stays", "Healthy").await
    })
    .await
}

/// What the kubelet says of the container's one device.
async fn health_is(cluster: &Cluster, ns: &str, name: &str, wanted: &str) -> Result<()> {
    until(&format!("{name}: {wanted}"), LIMIT, || async {
        let pod = serde_json::to_value(cluster.pods(ns).get(name).await?)?;
        let status = &pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"];
        let health = &status[0]["resources"][0]["health"];
        Ok(Seen::when(health == wanted, status.to_string()))
    })
    .await
}

pub(crate) async fn under_mps_a_hostile_tenant_with_a_claim_gets_what_the_table_says(
    cluster: &mut Cluster,
) -> Result<()> {
    column_by_claim(cluster, 1).await
}

pub(crate) async fn under_mps_isolated_a_hostile_tenant_with_a_claim_gets_what_the_table_says(
    cluster: &mut Cluster,
) -> Result<()> {
    column_by_claim(cluster, 2).await
}

pub(crate) async fn under_time_slicing_a_hostile_tenant_with_a_claim_gets_what_the_table_says(
    cluster: &mut Cluster,
) -> Result<()> {
    column_by_claim(cluster, 3).await
}
