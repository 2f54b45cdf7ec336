//! What the admin's other words do: a pod that breaks its share is evicted in place of
//! killed, and a pod that uses a card without a grant is reported, evicted or killed.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::{DRIVER_ROOT, Hardware};
use aliquot_tests::image::WORKLOAD_IMAGE;
use aliquot_tests::node;
use aliquot_tests::pod::phase_of;
use aliquot_tests::share::{pod, why_pending};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use api::Mib;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Api;
use serde_json::{Value, json};

use crate::modes::policy;

pub(crate) async fn a_pod_that_breaks_its_share_is_evicted_where_the_admin_says_so(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let spec = json!({ "defaultMode": "time-slicing", "onViolation": "Evict" });
    policy(cluster, spec).await?;
    let held = evicted(cluster).await;
    policy(cluster, json!({})).await?;
    held
}

async fn evicted(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    let neighbour = pod(
        &ns,
        "neighbour",
        &[("gpu-memory", "1000")],
        "alloc 500 hold",
    );
    cluster.run_share(&neighbour).await?;
    // No controller would recreate it: it is evicted nevertheless.
    let script = "context await /tmp/go alloc 9000 hold";
    cluster
        .run_share(&pod(&ns, "greedy", &[("gpu-memory", "8000")], script))
        .await?;
    cluster.said(&ns, "greedy", "main", "context").await?;
    cluster
        .apply_one(&pod(
            &ns,
            "next",
            &[("gpu-memory", "8000")],
            "alloc 500 hold",
        ))
        .await?;
    until("next waits", Duration::from_secs(20), || async {
        let next = cluster.pods(&ns).get("next").await?;
        Ok(Seen::from_option(why_pending(&next), "no reason"))
    })
    .await?;
    let touch = ["/bin/busybox", "touch", "/tmp/go"];
    let _ = cluster.kubectl.exec(&ns, "greedy", "main", &touch).await;
    until("greedy is gone", Duration::from_secs(30), || async {
        let there = cluster.pods(&ns).get_opt("greedy").await?;
        Ok(Seen::when(there.is_none(), "still there"))
    })
    .await?;
    let said = notice(cluster, &ns, "greedy", "Evict").await?;
    ensure!(said.contains("8000 MiB were granted"), "{said}");
    cluster.pod_phase(&ns, "next", "Running").await?;
    let beside = cluster.pods(&ns).get("neighbour").await?;
    ensure!(phase_of(&beside) == "Running", "the neighbour ended");
    Ok(())
}

pub(crate) async fn a_pod_that_uses_a_card_without_a_grant_is_reported_evicted_or_killed(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let held = by_policy(cluster).await;
    policy(cluster, json!({})).await?;
    held
}

async fn by_policy(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    for reaction in ["Report", "Evict", "Kill"] {
        policy(cluster, json!({ "onStranger": reaction })).await?;
        let name = reaction.to_lowercase();
        cluster.apply_one(&stranger(&ns, &name)).await?;
        match reaction {
            "Report" => reported(cluster, &ns, &name).await?,
            "Evict" => {
                until("the stranger is gone", Duration::from_secs(30), || async {
                    let there = cluster.pods(&ns).get_opt(&name).await?;
                    Ok(Seen::when(there.is_none(), "still there"))
                })
                .await?;
                let said = notice(cluster, &ns, &name, "Evict").await?;
                ensure!(said.contains("without a grant"), "{said}");
            }
            _ => {
                cluster.pod_phase(&ns, &name, "Failed").await?;
                let ended = cluster.pods(&ns).get(&name).await?;
                ensure!(exit_code(&ended) == Some(137), "{:?}", ended.status);
            }
        }
        if reaction != "Evict" {
            cluster.delete_pod(&ns, &name).await?;
        }
    }
    Ok(())
}

/// It is named in the node's status with what it holds, that is not granted to others, and
/// it is left alone.
async fn reported(cluster: &Cluster, ns: &str, name: &str) -> Result<()> {
    until("the stranger is named", Duration::from_secs(20), || async {
        let status = cluster.gpu_node().await?.status.unwrap_or_default();
        let gpu = status.gpus.first().context("no card")?;
        let named = gpu.strangers.iter().any(|one| one.memory_mib >= Mib(3000));
        Ok(Seen::when(named, format!("{:?}", gpu.strangers)))
    })
    .await?;
    let granted = pod(ns, "beside", &[("gpu-memory", "13000")], "hold");
    cluster.apply_one(&granted).await?;
    let why = until(
        "what it holds belongs to no share",
        Duration::from_secs(20),
        || async {
            let waits = cluster.pods(ns).get("beside").await?;
            Ok(Seen::from_option(why_pending(&waits), "no reason"))
        },
    )
    .await?;
    ensure!(why.contains("GPU memory"), "{why}");
    cluster.delete_pod(ns, "beside").await?;
    let stays = cluster.pods(ns).get(name).await?;
    ensure!(
        phase_of(&stays) == "Running" && stays.metadata.deletion_timestamp.is_none(),
        "it was only to be reported"
    );
    Ok(())
}

/// A pod whose owner owns the node anyhow: the card's device nodes come from the host's
/// own tree.
fn stranger(ns: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "namespace": ns, "name": name },
        "spec": {
            "nodeName": node::NAME, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "volumes": [{ "name": "host", "hostPath": { "path": "/" } }],
            "containers": [{
                "name": "main", "image": WORKLOAD_IMAGE, "securityContext": { "privileged": true },
                "volumeMounts": [{ "name": "host", "mountPath": "/host" }],
                "env": [
                    { "name": "SIM_ROOT", "value": format!("/host{DRIVER_ROOT}") },
                    { "name": "SIM_WORKLOAD", "value": "direct alloc 3000 hold" },
                ],
            }],
        },
    })
}

fn exit_code(pod: &Pod) -> Option<i32> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    Some(
        statuses
            .first()?
            .state
            .as_ref()?
            .terminated
            .as_ref()?
            .exit_code,
    )
}

/// The note of an event about a pod.
pub(crate) async fn notice(cluster: &Cluster, ns: &str, pod: &str, reason: &str) -> Result<String> {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), ns);
    until(
        &format!("event {reason} about {pod}"),
        Duration::from_secs(20),
        || async {
            let all = events.list(&kube::api::ListParams::default()).await?;
            let about = |event: &&Event| event.involved_object.name.as_deref() == Some(pod);
            let mut mine = all.items.iter().filter(about);
            let found = mine.find(|event| event.reason.as_deref() == Some(reason));
            let seen: Vec<_> = all.items.iter().filter(about).collect();
            Ok(Seen::from_option(
                found.and_then(|event| event.message.clone()),
                format!("{seen:?}"),
            ))
        },
    )
    .await
}
