//! Claims under Aliquot's own scheduler: allocated beside queues, priorities and gangs, written
//! to the API server, and held by the agent like those that kube-scheduler allocated.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::pod::describe;
use aliquot_tests::share::why_pending;
use aliquot_tests::wait::{Seen, stays, until};
use anyhow::{Context, Result, ensure};
use api::kai::Queue;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use std::time::Duration;

use crate::modes::policy;

use super::setup::{
    LIMIT, grantable, ledger_is, manifest, naming, object, template, unbound, with_driver,
};

/// A pod of ours with a claim of its own from this template.
fn ours(ns: &str, name: &str, template: &str, labels: &Value) -> Value {
    let mut pod = manifest(ns, name, template, "report grow 10 hold");
    pod["spec"]["schedulerName"] = json!("kai-scheduler");
    pod["metadata"]["labels"] = labels.clone();
    pod
}

/// A queue that may hold this part of a GPU.
fn queue(name: &str, limit: f64) -> Value {
    let all = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
    let gpu = json!({ "quota": -1, "limit": limit, "overQuotaWeight": 1 });
    json!({
        "apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
        "metadata": { "name": name },
        "spec": {
            "parentQueue": "default-parent-queue",
            "resources": { "cpu": all, "gpu": gpu, "memory": all },
        },
    })
}

/// Our scheduler says why it waits, in these words, and it has no node.
async fn waits(cluster: &Cluster, ns: &str, name: &str, words: &str) -> Result<()> {
    cluster
        .pod_until(ns, name, words, |pod| {
            why_pending(pod).is_some_and(|why| why.contains(words))
        })
        .await?;
    unbound(cluster, ns, name).await
}

/// The claims of a namespace: name, devices it has, pods it is for.
async fn claims(cluster: &Cluster, ns: &str) -> Result<Vec<(String, usize, usize)>> {
    let claims: Api<ResourceClaim> = Api::namespaced(cluster.client.clone(), ns);
    let all = claims.list(&ListParams::default()).await?.items;
    let row = |claim: ResourceClaim| {
        let status = claim.status.unwrap_or_default();
        let devices = status.allocation.and_then(|one| one.devices);
        let results = devices.and_then(|devices| devices.results);
        (
            claim.metadata.name.unwrap_or_default(),
            results.map_or(0, |results| results.len()),
            status.reserved_for.map_or(0, |pods| pods.len()),
        )
    };
    Ok(all.into_iter().map(row).collect())
}

pub(crate) async fn under_our_scheduler_claims_are_allocated_counted_and_held(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        // There is a status once the agent has followed it.
        policy(cluster, json!({})).await?;
        let whole = grantable(cluster).await?;
        for (name, memory) in [("two", 2000), ("three", 3000), ("rest", whole - 4000)] {
            template(cluster, ns, name, &format!("{memory}Mi"), &json!({})).await?;
        }
        #[expect(clippy::cast_precision_loss, reason = "MiB of a card")]
        let limit = 4000.0 / whole as f64;
        cluster.apply_one(&queue("claims", limit)).await?;
        let queued = json!({ "kai.scheduler/queue": "claims" });

        // Two shares beside each other, held at their sizes.
        cluster
            .apply_one(&ours(ns, "first", "two", &queued))
            .await?;
        cluster
            .apply_one(&ours(ns, "other", "three", &json!({})))
            .await?;
        for (name, limit) in [("first", 2000), ("other", 3000)] {
            cluster.pod_phase(ns, name, "Running").await?;
            let grown = cluster.said(ns, name, "main", "grow").await?;
            let held = grown["held_mib"].as_u64().context("no held_mib")?;
            ensure!(
                grown["ok"] == true && held <= limit && held > limit - 100,
                "{name}: {grown}"
            );
        }
        ledger_is(cluster, ns, &[("first", 2000), ("other", 3000)]).await?;
        for (name, devices, pods) in claims(cluster, ns).await? {
            ensure!(
                (devices, pods) == (1, 1),
                "{name}: {devices} devices, {pods} pods"
            );
        }

        // The queue counts them: 2000 MiB of the 4000 that it may hold are left.
        let queues: Api<Queue> = Api::all(cluster.client.clone());
        until("its queue counts the claim", LIMIT, || async {
            let status = serde_json::to_value(queues.get("claims").await?)?["status"].take();
            let held = status["allocated"]["nvidia.com/gpu"].clone();
            // In thousandths of a GPU.
            let held = held.as_str().and_then(|held| held.strip_suffix('m'));
            let held = held.and_then(|held| held.parse::<f64>().ok());
            let counts = held.is_some_and(|held| (held / 1000.0 - limit / 2.0).abs() < 0.001);
            Ok(Seen::when(counts, status.to_string()))
        })
        .await?;
        cluster
            .apply_one(&ours(ns, "over", "three", &queued))
            .await?;
        waits(cluster, ns, "over", "limit").await?;
        cluster.delete_pod(ns, "over").await?;

        // A scheduler that knows nothing finds what is allocated.
        let scheduler = cluster.scheduler.as_mut().context("no scheduler")?;
        scheduler.daemon.kill().await?;
        scheduler.daemon.start_again()?;
        cluster
            .apply_one(&ours(ns, "rest", "rest", &json!({})))
            .await?;
        waits(
            cluster,
            ns,
            "rest",
            "cannot allocate all claims: no device is left for request gpu",
        )
        .await?;
        cluster.delete_pod(ns, "other").await?;
        cluster.pod_phase(ns, "rest", "Running").await?;
        ledger_is(cluster, ns, &[("first", 2000), ("rest", whole - 4000)])
            .await
            .map(drop)
    })
    .await
}

pub(crate) async fn a_claim_gives_way_to_one_of_higher_priority_and_a_gang_has_all_of_its_own(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        // There is a status once the agent has followed it.
        policy(cluster, json!({})).await?;
        let whole = grantable(cluster).await?;
        for (name, memory) in [("most", whole - 1000), ("half", whole / 2 + 100)] {
            template(cluster, ns, name, &format!("{memory}Mi"), &json!({})).await?;
        }
        let class = |name: &str| json!({ "priorityClassName": name });
        cluster
            .apply_one(&ours(ns, "train", "most", &class("train")))
            .await?;
        cluster.pod_phase(ns, "train", "Running").await?;
        cluster
            .apply_one(&ours(ns, "build", "most", &class("build-preemptible")))
            .await?;
        cluster.pod_phase(ns, "build", "Running").await?;
        until("the one that gave way gone", LIMIT, || async {
            let left = cluster.pods(ns).get_opt("train").await?;
            let said = left.as_ref().map(describe).unwrap_or_default();
            Ok(Seen::when(left.is_none(), said))
        })
        .await?;
        ledger_is(cluster, ns, &[("build", whole - 1000)]).await?;
        cluster.delete_pod(ns, "build").await?;

        // Two halves and a little more: one would fit, both do not.
        let group = json!({
            "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
            "metadata": { "namespace": ns, "name": "both" },
            "spec": { "minMember": 2, "queue": "default-queue" },
        });
        cluster.apply_one(&group).await?;
        for name in ["left", "right"] {
            let mut pod = ours(ns, name, "half", &json!({}));
            pod["metadata"]["annotations"] = json!({ "pod-group-name": "both" });
            cluster.apply_one(&pod).await?;
        }
        waits(cluster, ns, "left", "gang").await?;
        stays("no claim is allocated", Duration::from_secs(2), || async {
            let held = claims(cluster, ns).await?;
            let free = held.iter().all(|(_, devices, _)| *devices == 0);
            Ok(Seen::when(free, format!("{held:?}")))
        })
        .await?;
        ledger_is(cluster, ns, &[]).await.map(drop)
    })
    .await
}

pub(crate) async fn pods_of_one_claim_wait_while_its_device_is_held(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        // There is a status once the agent has followed it.
        policy(cluster, json!({})).await?;
        let most = grantable(cluster).await? - 1000;
        let memory = format!("{most}Mi");
        template(cluster, ns, "most", &memory, &json!({})).await?;
        object(cluster, ns, "shared", &memory, &json!({})).await?;
        let label = json!({ "metadata": { "labels": { "kai.scheduler/queue": "default-queue" } } });
        let claims: Api<ResourceClaim> = Api::namespaced(cluster.client.clone(), ns);
        let params = PatchParams::default();
        claims
            .patch("shared", &params, &Patch::Merge(label))
            .await?;
        let mut holder = ours(ns, "holder", "most", &json!({}));
        holder["spec"]["terminationGracePeriodSeconds"] = json!(30);
        holder["spec"]["containers"][0]["lifecycle"] =
            // What is looked at meanwhile takes 13 s: each of two pods is watched for 4, and both for 5.
            json!({ "preStop": { "sleep": { "seconds": 22 } } });
        cluster.apply_one(&holder).await?;
        cluster.pod_phase(ns, "holder", "Running").await?;

        // It holds the card until its hook has slept.
        let pods = cluster.pods(ns);
        pods.delete("holder", &DeleteParams::default()).await?;
        for name in ["one", "other"] {
            let mut pod = naming(ns, name, "shared", "report grow 10 hold");
            pod["spec"]["schedulerName"] = json!("kai-scheduler");
            cluster.apply_one(&pod).await?;
        }
        for name in ["one", "other"] {
            waits(cluster, ns, name, "being released").await?;
        }
        let bound = |pod: &Pod| {
            pod.spec
                .as_ref()
                .is_some_and(|spec| spec.node_name.is_some())
        };
        stays("neither is bound", Duration::from_secs(5), || async {
            let all = pods.list(&ListParams::default()).await?.items;
            let at: Vec<String> = all.iter().filter(|pod| bound(pod)).map(describe).collect();
            Ok(Seen::when(at.len() == 1, format!("{at:?}")))
        })
        .await?;
        for name in ["one", "other"] {
            cluster.pod_phase(ns, name, "Running").await?;
        }
        Ok(())
    })
    .await
}
