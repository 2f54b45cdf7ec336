//! A tenant, or a node that was taken over, against what the scheduler is told.

use std::time::Duration;

use aliquot_tests::claims;
use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::scheduler::Replica;
use aliquot_tests::share::pod;
use aliquot_tests::suite::Claim;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::walls;

pub(crate) fn claims() -> Vec<Claim> {
    claims![walls::scheduler::a_running_share_is_charged_as_it_was_granted_whatever_is_written_on_its_pod]
}

/// Queues of their own, so that nothing else is charged to them.
fn queue(name: &str) -> Value {
    let all = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
    json!({
        "apiVersion": "scheduling.run.ai/v2",
        "kind": "Queue",
        "metadata": { "name": name },
        "spec": { "resources": { "gpu": all, "cpu": all, "memory": all } },
    })
}

/// What the queues are charged with, as their status says; nothing is written of a queue that
/// is charged with nothing.
async fn charged(cluster: &Cluster, names: [&str; 2]) -> Result<[String; 2]> {
    let queues = Api::<api::Queue>::all(cluster.client.clone());
    let mut all = [String::new(), String::new()];
    for (of, name) in all.iter_mut().zip(names) {
        let status = queues.get(name).await?.status.unwrap_or_default();
        let status = serde_json::to_value(status)?;
        *of = status["allocated"]["nvidia.com/gpu"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
    }
    Ok(all)
}

/// The guard refuses these writes; here it is told to look away, so that what the scheduler
/// believes is seen alone, also by one that was started anew.
pub(crate) async fn a_running_share_is_charged_as_it_was_granted_whatever_is_written_on_its_pod(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let exempt = json!({ "metadata": { "labels": { "aliquot.dev/guard": "exempt" } } });
    Api::<Namespace>::all(cluster.client.clone())
        .patch(&ns, &PatchParams::default(), &Patch::Merge(exempt))
        .await?;
    let names = ["wall-payer", "wall-other"];
    for name in names {
        cluster.apply_one(&queue(name)).await?;
    }
    let mut manifest = pod(&ns, "tenant", &[("gpu-memory", "4000")], "hold");
    manifest["metadata"]["labels"] = json!({ "kai.scheduler/queue": names[0] });
    cluster.run_share(&manifest).await?;
    // 4000 of 15360 MiB.
    let honest = ["261m".to_owned(), String::new()];
    let is_honest = || async {
        let now = charged(cluster, names).await?;
        let same = now[0] == honest[0] && ["", "0"].contains(&now[1].as_str());
        Ok(Seen::when(same, format!("{now:?}")))
    };
    until("the share is charged", Duration::from_secs(20), is_honest).await?;

    let lies = json!({ "metadata": {
        "annotations": { "gpu-memory": "1", "pod-group-name": "another" },
        "labels": {
            "kai.scheduler/queue": names[1],
            "priorityClassName": "build",
            "kai.scheduler/preemptibility": "non-preemptible",
        },
    } });
    cluster
        .pods(&ns)
        .patch("tenant", &PatchParams::default(), &Patch::Merge(lies))
        .await?;
    // What a pod of the other queue is charged is written after the lies were heard; the second
    // time by a scheduler that knows of the first pod what its object says, and nothing else.
    for (name, sum) in [("next", "131m"), ("after", "261m")] {
        let mut next = pod(&ns, name, &[("gpu-memory", "2000")], "hold");
        next["metadata"]["labels"] = json!({ "kai.scheduler/queue": names[1] });
        cluster.run_share(&next).await?;
        until(
            &format!("{name} is charged"),
            Duration::from_secs(20),
            || async {
                let now = charged(cluster, names).await?;
                Ok(Seen::when(now[1] == sum, format!("{now:?}")))
            },
        )
        .await?;
        let now = charged(cluster, names).await?;
        ensure!(now[0] == honest[0], "{name} runs, and now {now:?}");
        if name == "next" {
            if let Some(mut old) = cluster.scheduler.take() {
                old.daemon.stop().await?;
            }
            cluster.scheduler = Some(cluster.start_scheduler(Replica::only()).await?);
        }
    }
    Ok(())
}
