//! Workloads whose controllers are built for `tests/cluster/run --extended` alone, or whose
//! claims take minutes.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gang::bound_together;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::image::Recipe;
use aliquot_tests::operator::{ARGO, ARGO_EXECUTOR, JOBSET, TRAINER};
use aliquot_tests::pod::{describe, phase_of};
use aliquot_tests::share::{self, container};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Result, ensure};
use kube::ResourceExt;
use kube::api::ListParams;
use proto::names::kai;
use serde_json::json;
use std::time::Duration;

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

pub(crate) async fn extended_devices_of_the_example_driver_are_allocated_beside_ours(
    cluster: &mut Cluster,
) -> Result<()> {
    crate::claims::foreign::beside_the_example_driver(cluster).await
}

pub(crate) async fn extended_kueue_lets_in_as_many_claims_as_its_quota_has(
    cluster: &mut Cluster,
) -> Result<()> {
    crate::claims::kueue::kueue_lets_in_as_many_claims_as_its_quota_has(cluster).await
}

pub(crate) async fn extended_both_fronts_race_a_hundred_times_for_one_idle_card(
    cluster: &mut Cluster,
) -> Result<()> {
    crate::claims::race(cluster, 100).await
}

pub(crate) async fn extended_a_hundred_pods_at_once_each_get_their_own_card(
    cluster: &mut Cluster,
) -> Result<()> {
    crate::kubelet::pods_at_once(cluster, 100).await
}

pub(crate) async fn extended_an_agent_costs_little_with_64_shares_and_knows_them_after_a_kill(
    cluster: &mut Cluster,
) -> Result<()> {
    crate::load::agent_costs_little(cluster, 64).await
}

pub(crate) async fn extended_64_claims_at_once_each_start_with_what_they_were_allocated(
    cluster: &mut Cluster,
) -> Result<()> {
    crate::claims::claims_at_once(cluster, 64, 8).await
}

pub(crate) async fn extended_no_panel_of_kais_dashboards_is_empty_on_a_real_prometheus(
    cluster: &mut Cluster,
) -> Result<()> {
    crate::dashboards::kais_panels_are_not_empty(cluster).await
}

pub(crate) async fn extended_a_real_prometheus_knows_who_used_much(
    cluster: &mut Cluster,
) -> Result<()> {
    crate::usage::a_real_prometheus_knows_who_used_much(cluster).await
}

pub(crate) async fn extended_karpenter_brings_the_nodes_that_shares_need_and_no_more(
    cluster: &mut Cluster,
) -> Result<()> {
    crate::karpenter::shares_bring_nodes(cluster).await
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

pub(crate) async fn extended_each_pod_of_a_workflow_has_its_share_and_its_own_group(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.operator(&ARGO).await?;
    let (image, program) = ARGO_EXECUTOR;
    let executor = cluster.programs.operator_file(&format!("bin/{program}"))?;
    let executor = Recipe::busybox().file(executor, "/bin/argoexec");
    cluster.serve_image(&executor, image).await?;
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    executor_role(cluster, &ns).await?;
    // Containers of Argo's own come before the user's one.
    let annotations = json!({ "gpu-memory": "2000", "gpu-fraction-container-name": "main" });
    let mut main = container("main", "report alloc 1000 sleep 3");
    main["command"] = json!([share::PROGRAM]);
    let step =
        json!({ "name": "step", "metadata": { "annotations": annotations }, "container": main });
    let steps: Vec<_> = ["one", "two"]
        .map(|name| json!({ "name": name, "template": "step" }))
        .into();
    cluster
        .apply_one(&json!({
            "apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow",
            "metadata": { "namespace": ns, "name": "flow",
                "labels": { "priorityClassName": "build-preemptible" } },
            "spec": { "entrypoint": "all", "schedulerName": kai::SCHEDULER_NAME,
                "templates": [step, { "name": "all", "steps": [steps] }] },
        }))
        .await?;
    let of_it = "workflows.argoproj.io/workflow=flow";
    let mut groups = Vec::new();
    for pod in cluster.pods_running(&ns, of_it, 2).await? {
        let grant = share::grant_of(&pod)?;
        let granted: Vec<_> = (grant.containers.iter())
            .map(|container| container.name.as_str())
            .collect();
        ensure!(granted == ["main"], "{grant:?}");
        let group = cluster.group_of(&pod).await?;
        let owner = group.owner_references().first().map(|one| one.name.clone());
        ensure!(
            owner == Some(pod.name_any()),
            "{:?}",
            group.owner_references()
        );
        // What the workflow says goes for each of its pods.
        let class = group.spec.priority_class_name.as_deref();
        ensure!(class == Some("build-preemptible"), "{:?}", group.spec);
        let said = cluster.said(&ns, &pod.name_any(), "main", "alloc").await?;
        ensure!(said["ok"] == true, "{said}");
        groups.push(group.name_any());
    }
    ensure!(groups[0] != groups[1], "one group of both: {groups:?}");
    until("the workflow's end", Duration::from_mins(1), || async {
        let phase = [
            "get",
            "workflow",
            "flow",
            "-n",
            &ns,
            "-o",
            "jsonpath={.status.phase}",
        ];
        let phase = cluster.kubectl.run(&phase).await?;
        Ok(Seen::when(phase == "Succeeded", phase))
    })
    .await?;
    let pods = cluster
        .pods(&ns)
        .list(&ListParams::default().labels(of_it))
        .await?;
    for pod in pods {
        ensure!(phase_of(&pod) == "Succeeded", "{}", describe(&pod));
    }
    Ok(())
}

/// The rights that Argo's documentation requires for the account of a workflow's pods.
async fn executor_role(cluster: &Cluster, ns: &str) -> Result<()> {
    let rule = json!({ "apiGroups": ["argoproj.io"], "resources": ["workflowtaskresults"],
        "verbs": ["create", "patch"] });
    let name = json!({ "namespace": ns, "name": "executor" });
    cluster
        .apply_one(
            &json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": name, "rules": [rule] }),
        )
        .await?;
    cluster
        .apply_one(&json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": name,
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "executor" },
            "subjects": [{ "kind": "ServiceAccount", "namespace": ns, "name": "default" }] }))
        .await?;
    Ok(())
}
