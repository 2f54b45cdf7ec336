//! Ray's jobs and services, through Ray's operator: each has a cluster of its own, whose pods
//! are one gang.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gang::bound_together;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::operator::KUBERAY;
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use proto::names::kai;
use serde_json::{Value, json};

const IMAGE: &str = "rayproject/ray:2.46.0";

/// A head and two workers.
fn cluster_spec() -> Value {
    let template = |name: &str| {
        let resources = json!({"requests": {"cpu": "100m", "memory": "100Mi"}});
        json!({"spec": {"schedulerName": kai::SCHEDULER_NAME, "containers": [
            {"name": name, "image": IMAGE, "resources": resources}]}})
    };
    json!({
        "headGroupSpec": {"rayStartParams": {}, "template": template("ray-head")},
        "workerGroupSpecs": [{"groupName": "worker", "replicas": 2, "minReplicas": 2,
            "rayStartParams": {}, "template": template("ray-worker")}],
    })
}

async fn prepare(cluster: &mut Cluster) -> Result<String> {
    cluster.operator(&KUBERAY).await?;
    cluster.aliquot(&Hardware::preset("L4", 1)).await?;
    cluster.namespace().await
}

/// The pods of the owner's cluster are one gang with a part for the head and one for the workers.
async fn is_gang(cluster: &Cluster, ns: &str, owner: &str, kind: &str) -> Result<Vec<Pod>> {
    let pods = cluster
        .pods_running(ns, "ray.io/is-ray-node=yes", 3)
        .await?;
    bound_together(&pods)?;
    let group = cluster.group_of(&pods[0]).await?;
    for pod in &pods {
        let other = cluster.group_of(pod).await?;
        ensure!(other.name_any() == group.name_any(), "two groups");
        let part = pod.labels().get("ray.io/group");
        ensure!(
            part.is_some() && pod.labels().get(kai::SUB_GROUP_LABEL) == part,
            "{:?}",
            pod.labels()
        );
    }
    let name = group.name_any();
    ensure!(name.starts_with(&format!("pg-{owner}-")), "{name}");
    ensure!(
        group.owner_references().iter().any(|one| one.kind == kind),
        "{:?}",
        group.owner_references()
    );
    let parts: Vec<_> = (group.spec.sub_groups.iter())
        .map(|part| (part.name.as_str(), part.min_member))
        .collect();
    let expected = [("headgroup", Some(1)), ("worker", Some(2))];
    ensure!(parts == expected, "{parts:?}");
    ensure!(
        group.spec.min_member.is_none_or(|min| min == 3),
        "{:?}",
        group.spec
    );
    Ok(pods)
}

/// With KAI as its batch scheduler this version of the operator refuses `RayJob`s: it is started
/// without, which takes a while.
pub(crate) async fn ray_job_is_gang(cluster: &mut Cluster) -> Result<()> {
    let ns = prepare(cluster).await?;
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), KUBERAY.namespace);
    let before = deployments.get(KUBERAY.deployment).await?;
    let pod = before
        .spec
        .template
        .spec
        .context("the operator has no pod")?;
    let container = pod.containers.into_iter().next();
    let mut args = (container.and_then(|one| one.args)).context("the operator has no arguments")?;
    let all = args.clone();
    args.retain(|arg| !arg.starts_with("--batch-scheduler"));
    ensure!(args.len() < all.len(), "{all:?}");
    start_operator(cluster, &args).await?;
    let held = ray_job(cluster, &ns).await;
    start_operator(cluster, &all).await?;
    held
}

async fn start_operator(cluster: &Cluster, args: &[String]) -> Result<()> {
    let patch =
        json!([{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": args}]);
    let (namespace, deployment) = (KUBERAY.namespace, KUBERAY.deployment);
    let patch = patch.to_string();
    let kubectl = &cluster.kubectl;
    kubectl
        .run(&[
            "-n",
            namespace,
            "patch",
            "deployment",
            deployment,
            "--type=json",
            "-p",
            &patch,
        ])
        .await?;
    kubectl
        .run(&[
            "-n",
            namespace,
            "rollout",
            "status",
            "deployment",
            deployment,
            "--timeout=100s",
        ])
        .await?;
    Ok(())
}

async fn ray_job(cluster: &Cluster, ns: &str) -> Result<()> {
    let submitter = json!({"spec": {"schedulerName": kai::SCHEDULER_NAME, "restartPolicy": "Never",
        "containers": [{"name": "submit", "image": IMAGE, "command": ["sleep", "infinity"]}]}});
    cluster
        .apply_one(&json!({
            "apiVersion": "ray.io/v1", "kind": "RayJob",
            "metadata": {"namespace": ns, "name": "train"},
            "spec": {"entrypoint": "python train.py", "rayClusterSpec": cluster_spec(),
                "submitterPodTemplate": submitter},
        }))
        .await?;
    let pods = is_gang(cluster, ns, "train", "RayJob").await?;
    // The Job that the operator makes once the cluster is ready.
    let alone = cluster
        .pods_running(ns, "batch.kubernetes.io/job-name", 1)
        .await?;
    let own = cluster.group_of(&alone[0]).await?;
    ensure!(
        own.name_any() != cluster.group_of(&pods[0]).await?.name_any()
            && own.spec.min_member == Some(1),
        "{own:?}"
    );
    Ok(())
}

pub(crate) async fn seed_ray_the_cluster_of_a_ray_service_is_a_gang(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = prepare(cluster).await?;
    cluster
        .apply_one(&json!({
            "apiVersion": "ray.io/v1", "kind": "RayService",
            "metadata": {"namespace": ns, "name": "serve"},
            "spec": {"serveConfigV2": "applications: []", "rayClusterConfig": cluster_spec()},
        }))
        .await?;
    is_gang(cluster, &ns, "serve", "RayService").await?;
    Ok(())
}
