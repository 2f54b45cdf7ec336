//! Priority classes that types of workloads have by an admin's config map.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::scheduler::Replica;
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, until};
use anyhow::Result;
use api::PodGroup;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

const NAME: &str = "types";

pub(crate) async fn a_type_of_workload_has_the_class_that_a_config_map_gives_it(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let mut replica = Replica::only();
    replica.args.extend([
        format!("--default-priorities-configmap-name={NAME}"),
        format!("--default-priorities-configmap-namespace={ns}"),
    ]);
    cluster.replace_scheduler(replica).await?;
    let held = followed(cluster, &ns).await;
    cluster.replace_scheduler(Replica::only()).await?;
    held
}

fn types(namespace: &str, list: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": NAME},
        "data": {"types": list.to_string()}})
}

async fn followed(cluster: &mut Cluster, ns: &str) -> Result<()> {
    let given = json!([
        {"typeName": "Pod", "priorityName": "build-preemptible"},
        {"typeName": "Job", "group": "batch", "priorityName": "build", "preemptibility": "preemptible"},
    ]);
    cluster.apply_one(&types(ns, &given)).await?;
    has(cluster, ns, "alone", |group| {
        group.spec.priority_class_name.as_deref() == Some("build-preemptible")
    })
    .await?;
    // What is changed holds for those that come afterwards.
    let other =
        json!([{"typeName": "Pod", "priorityName": "build", "preemptibility": "Preemptible"}]);
    cluster.apply_one(&types(ns, &other)).await?;
    has(cluster, ns, "later", |group| {
        group.spec.priority_class_name.as_deref() == Some("build")
            && group.spec.preemptibility.as_deref() == Some("preemptible")
    })
    .await
}

/// A pod without an owner runs, in a group of its own that is so; one that came before the
/// scheduler saw the config map is recreated.
async fn has(
    cluster: &Cluster,
    ns: &str,
    name: &str,
    is: impl Fn(&PodGroup) -> bool,
) -> Result<()> {
    let groups: Api<PodGroup> = Api::namespaced(cluster.client.clone(), ns);
    until(
        &format!("the group of {name}"),
        Duration::from_mins(1),
        || async {
            let share = pod(ns, name, &[("gpu-memory", "1000")], "hold");
            let uid = cluster.run_share(&share).await?.uid().unwrap_or_default();
            let seen = groups.list(&ListParams::default()).await?.items;
            let own = seen.iter().find(|group| group.name_any().ends_with(&uid));
            if own.is_some_and(&is) {
                return Ok(Seen::Done(()));
            }
            let seen = own.map(|group| group.spec.clone());
            cluster.delete_pod(ns, name).await?;
            Ok(Seen::NotYet(format!("{seen:?}")))
        },
    )
    .await
}
