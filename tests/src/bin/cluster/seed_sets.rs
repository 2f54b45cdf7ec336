//! Sets of sets, through their own controllers: each gang in one group, bound whole.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gang::bound_together;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::operator::{JOBSET, LEADER_WORKER_SET};
use anyhow::{Result, ensure};
use api::kai::PodGroup;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

/// A pod's spec with a share of 1000 MiB in its template.
fn template(restart: Option<&str>) -> Value {
    let mut spec = json!({
        "schedulerName": proto::names::kai::SCHEDULER_NAME,
        "terminationGracePeriodSeconds": 2,
        "containers": [aliquot_tests::share::container("main", "report hold")],
    });
    if let Some(restart) = restart {
        spec["restartPolicy"] = json!(restart);
    }
    json!({ "metadata": { "annotations": { "gpu-memory": "1000" } }, "spec": spec })
}

/// The group of all these pods, and of no other.
async fn one_group(cluster: &Cluster, pods: &[Pod]) -> Result<PodGroup> {
    let group = cluster.group_of(&pods[0]).await?;
    for pod in pods {
        let other = cluster.group_of(pod).await?.name_any();
        ensure!(
            other == group.name_any(),
            "{} is in {other}, not in {}",
            pod.name_any(),
            group.name_any()
        );
    }
    Ok(group)
}

/// A set of two jobs of two workers each, and a driver.
fn job_set(namespace: &str, name: &str, order: Option<&str>) -> Value {
    let job = |name: &str, replicas: u32, pods: u32| {
        json!({
            "name": name,
            "replicas": replicas,
            "template": { "spec": {
                "parallelism": pods, "completions": pods, "backoffLimit": 0,
                "template": template(Some("Never")),
            } },
        })
    };
    let mut set = json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": { "namespace": namespace, "name": name },
        "spec": { "replicatedJobs": [job("workers", 2, 2), job("driver", 1, 1)] },
    });
    if let Some(order) = order {
        set["spec"]["startupPolicy"] = json!({ "startupPolicyOrder": order });
    }
    set
}

pub(crate) async fn seed_sets_a_job_set_is_one_group_with_a_part_for_each_replica(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.operator(&JOBSET).await?;
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    for (name, order, needed) in [("any", None, 2), ("ordered", Some("InOrder"), 1)] {
        cluster.apply_one(&job_set(&ns, name, order)).await?;
        let set = format!("jobset.sigs.k8s.io/jobset-name={name}");
        let pods = cluster.pods_running(&ns, &set, 5).await?;
        let group = one_group(cluster, &pods).await?;
        let spec = &group.spec;
        ensure!(
            (spec.min_member, spec.min_sub_group) == (None, Some(needed)),
            "{spec:?}"
        );
        let parts: Vec<&str> = spec.sub_groups.iter().map(|p| p.name.as_str()).collect();
        ensure!(
            parts
                == [
                    "workers",
                    "workers-replica-0",
                    "workers-replica-1",
                    "driver",
                    "driver-replica-0"
                ],
            "{parts:?}"
        );
        // In order, a part exists before the next one is created.
        if order.is_none() {
            bound_together(&pods)?;
        }
    }
    Ok(())
}

pub(crate) async fn seed_sets_each_group_of_a_leader_worker_set_is_a_gang(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.operator(&LEADER_WORKER_SET).await?;
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    cluster
        .apply_one(&json!({
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": { "namespace": ns, "name": "server" },
            "spec": {
                "replicas": 2,
                "leaderWorkerTemplate": { "size": 3, "workerTemplate": template(None) },
            },
        }))
        .await?;
    let set = "leaderworkerset.sigs.k8s.io/name=server";
    cluster.pods_running(&ns, set, 6).await?;
    let mut names = Vec::new();
    for at in 0..2 {
        let selector = format!("{set},leaderworkerset.sigs.k8s.io/group-index={at}");
        let pods = cluster.pods_running(&ns, &selector, 3).await?;
        let group = one_group(cluster, &pods).await?;
        ensure!(
            group.spec.min_member == Some(3) && group.name_any().ends_with(&format!("-group-{at}")),
            "{}: {:?}",
            group.name_any(),
            group.spec
        );
        names.push(group.name_any());
        bound_together(&pods)?;
    }
    ensure!(names[0] != names[1], "{names:?}");
    Ok(())
}
