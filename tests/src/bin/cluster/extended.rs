//! Workloads whose controllers are built for `tests/cluster/run --extended` alone, or whose
//! claims take minutes.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gang::bound_together;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::operator::{JOBSET, TRAINER};
use aliquot_tests::share::container;
use anyhow::{Result, ensure};
use kube::ResourceExt;
use proto::names::kai;
use serde_json::json;

pub(crate) async fn extended_the_cluster_of_a_ray_job_is_a_gang_without_who_submits_it(
    cluster: &mut Cluster,
) -> Result<()> {
    crate::seed_ray::ray_job_is_gang(cluster).await
}

pub(crate) async fn extended_a_hundred_random_clusters_have_room_for_a_pod_where_kube_scheduler_finds_it(
    cluster: &mut Cluster,
) -> Result<()> {
    crate::random::clusters(cluster, 100).await
}

pub(crate) async fn extended_no_panel_of_kais_dashboards_is_empty_on_a_real_prometheus(
    cluster: &mut Cluster,
) -> Result<()> {
    crate::dashboards::kais_panels_are_not_empty(cluster).await
}

pub(crate) async fn extended_a_train_job_is_the_group_of_its_job_set(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.operator(&JOBSET).await?;
    cluster.operator(&TRAINER).await?;
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let template = json!({
        "metadata": {"annotations": {"gpu-memory": "2000"}},
        "spec": {"schedulerName": kai::SCHEDULER_NAME, "terminationGracePeriodSeconds": 2,
            "containers": [container("node", "report hold")]},
    });
    let step = json!({"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"});
    let job = json!({"name": "node", "template": {
        "metadata": {"labels": step}, "spec": {"template": template}}});
    cluster
        .apply_one(&json!({
            "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime",
            "metadata": {"namespace": ns, "name": "plain"},
            "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [job]}}},
        }))
        .await?;
    let reference =
        json!({"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "plain"});
    cluster
        .apply_one(&json!({
            "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
            "metadata": {"namespace": ns, "name": "train",
                "labels": {"priorityClassName": "build-preemptible"}},
            "spec": {"runtimeRef": reference, "trainer": {"numNodes": 3}},
        }))
        .await?;
    let set = "jobset.sigs.k8s.io/jobset-name=train";
    let pods = cluster.pods_running(&ns, set, 3).await?;
    bound_together(&pods)?;
    let group = cluster.group_of(&pods[0]).await?;
    for pod in &pods {
        let other = cluster.group_of(pod).await?;
        ensure!(other.name_any() == group.name_any(), "two groups");
    }
    let owner = group
        .owner_references()
        .first()
        .map(|one| one.kind.as_str());
    ensure!(owner == Some("JobSet"), "{:?}", group.owner_references());
    // What the TrainJob says is its JobSet's.
    let class = group.spec.priority_class_name.as_deref();
    ensure!(class == Some("build-preemptible"), "{:?}", group.spec);
    let parts: Vec<_> = (group.spec.sub_groups.iter())
        .map(|part| (part.name.as_str(), part.min_member))
        .collect();
    let expected = [("node", None), ("node-replica-0", Some(3))];
    ensure!(parts == expected, "{parts:?}");
    Ok(())
}
