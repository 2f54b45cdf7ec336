//! Groups of Kubernetes itself, which its API server serves where a feature gate says so.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::pod::phase_of;
use aliquot_tests::scheduler::Replica;
use aliquot_tests::share::{pod, why_pending};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use api::PodGroup;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

/// Switches the objects on. Off in 1.36.
const FLAGS: [(&str, &str); 2] = [
    ("--feature-gates", "GenericWorkload=true"),
    ("--runtime-config", "scheduling.k8s.io/v1alpha2=true"),
];

pub(crate) async fn a_pod_group_of_kubernetes_is_a_gang_of_its_count(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    serve_with(cluster, &FLAGS).await?;
    let held = gang(cluster).await;
    serve_with(cluster, &[]).await?;
    held
}

/// Starts the API server again, with these flags. A scheduler that could not renew its lease meanwhile
/// has ended; here no kubelet starts it again.
async fn serve_with(cluster: &mut Cluster, flags: &[(&str, &str)]) -> Result<()> {
    cluster.control_plane.serve_with(flags).await?;
    // Beside another cluster, its own roles alone may take a minute.
    until("the API server ready", Duration::from_mins(2), || async {
        let ready = cluster.kubectl.run(&["get", "--raw", "/readyz"]).await;
        Ok(match ready {
            Ok(_) => Seen::Done(()),
            Err(error) => Seen::NotYet(format!("{error:#}")),
        })
    })
    .await?;
    cluster.replace_scheduler(Replica::only()).await
}

/// A share of a card of 15360 MiB, in the group.
fn member(namespace: &str, name: &str, mib: &str) -> Value {
    let mut pod = pod(namespace, name, &[("gpu-memory", mib)], "hold");
    pod["spec"]["schedulingGroup"] = json!({"podGroupName": "trainers"});
    pod
}

async fn gang(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    let waits = |word: &'static str| {
        move |pod: &Pod| why_pending(pod).is_some_and(|why| why.contains(word))
    };
    // Before the object is there they wait and say for what.
    cluster.apply_one(&member(&ns, "a", "4000")).await?;
    cluster
        .pod_until(
            &ns,
            "a",
            "waits for its group",
            waits("the PodGroup trainers"),
        )
        .await?;
    cluster
        .apply_one(&json!({
            "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
            "metadata": {"name": "trainers", "namespace": ns},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}},
        }))
        .await?;
    cluster.apply_one(&member(&ns, "b", "4000")).await?;
    cluster
        .pod_until(&ns, "b", "waits for a third", waits("3"))
        .await?;
    let a = cluster.pods(&ns).get("a").await?;
    ensure!(
        phase_of(&a) == "Pending",
        "two of three: a is {}",
        phase_of(&a)
    );
    // Of three that do not fit together none is placed.
    cluster.apply_one(&member(&ns, "large", "12000")).await?;
    let no_room = waits("GPU");
    cluster
        .pod_until(&ns, "large", "has no room", no_room)
        .await?;
    for name in ["a", "b"] {
        let pod = cluster.pods(&ns).get(name).await?;
        ensure!(phase_of(&pod) == "Pending", "{name} is {}", phase_of(&pod));
    }
    cluster.delete_pod(&ns, "large").await?;
    cluster.apply_one(&member(&ns, "c", "4000")).await?;
    for name in ["a", "b", "c"] {
        cluster.pod_phase(&ns, name, "Running").await?;
    }
    let groups: Api<PodGroup> = Api::namespaced(cluster.client.clone(), &ns);
    let groups = groups.list(&kube::api::ListParams::default()).await?.items;
    let [group] = groups.as_slice() else {
        anyhow::bail!("{} groups", groups.len());
    };
    ensure!(group.spec.min_member == Some(3), "{:?}", group.spec);
    let owner = group.owner_references().first().context("no owner")?;
    ensure!(
        (owner.kind.as_str(), owner.name.as_str()) == ("PodGroup", "trainers"),
        "{owner:?}"
    );
    Ok(())
}
