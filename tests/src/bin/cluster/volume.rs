//! Volumes that are bound where their first consumer goes, on real controllers: made there
//! by a provisioner, and made by hand before.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::node;
use aliquot_tests::pod::phase_of;
use aliquot_tests::share::why_pending;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt as _};
use proto::names::kai;
use serde_json::{Value, json};

use crate::observing::{node_of, whole};

const SELECTED: &str = "volume.kubernetes.io/selected-node";
const LONG: Duration = Duration::from_mins(1);

/// One that waits for its first consumer.
fn class(name: &str, provisioner: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": { "name": name },
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
    })
}

fn claim(namespace: &str, name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "namespace": namespace, "name": name },
        "spec": { "storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } } },
    })
}

/// A pod with a GPU that uses that claim.
fn user(namespace: &str, claim: &str) -> Value {
    let mut pod = whole(namespace, claim, proto::names::kai::SCHEDULER_NAME);
    pod["spec"]["volumes"] =
        json!([{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "v", "mountPath": "/data" }]);
    pod
}

pub(crate) async fn a_volume_is_made_where_its_first_consumer_goes_and_the_pod_follows(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("L4", 1)).await?;
    let ns = cluster.namespace().await?;
    cluster
        .apply_one(&class("late", "test.aliquot.dev/by-hand"))
        .await?;
    cluster.apply_one(&claim(&ns, "data", "late")).await?;
    cluster.apply_one(&user(&ns, "data")).await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &ns);
    let node = until("a node selected", LONG, || async {
        let claim = claims.get("data").await?;
        let node = claim.annotations().get(SELECTED).cloned();
        Ok(Seen::from_option(
            node,
            format!("{:?}", claim.annotations()),
        ))
    })
    .await?;
    until("the wait told", LONG, || async {
        let pod = serde_json::to_value(cluster.pods(&ns).get("data").await?)?;
        let text = pod["status"]["conditions"].to_string();
        Ok(Seen::when(text.contains("WaitingForVolume"), text))
    })
    .await?;
    ensure!(
        node_of(cluster, &ns, "data").await?.is_none(),
        "bound before its volume"
    );
    // As a provisioner does: a volume for that claim, which the controller binds.
    let uid = claims.get("data").await?.uid().context("a UID")?;
    cluster
        .apply_one(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": { "name": format!("pv-{ns}"),
                "annotations": { "pv.kubernetes.io/provisioned-by": "test.aliquot.dev/by-hand" } },
            "spec": {
                "storageClassName": "late", "capacity": { "storage": "1Gi" },
                "accessModes": ["ReadWriteOnce"],
                "claimRef": { "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "namespace": ns, "name": "data", "uid": uid },
                "hostPath": { "path": "/tmp" },
                "persistentVolumeReclaimPolicy": "Retain",
            },
        }))
        .await?;
    until("the pod done on that node", LONG, || async {
        let pod = cluster.pods(&ns).get("data").await?;
        let at = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let phase = pod
            .status
            .and_then(|status| status.phase)
            .unwrap_or_default();
        let done = phase == "Succeeded" && at.as_deref() == Some(node.as_str());
        Ok(Seen::when(done, format!("{phase} on {at:?}")))
    })
    .await?;
    Ok(())
}

/// A disk of that node, as a statically provisioned volume.
fn disk(name: &str, class: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": { "name": name },
        "spec": {
            "storageClassName": class, "capacity": { "storage": "2Gi" },
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "local": { "path": "/tmp" },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }] }] } },
        },
    })
}

pub(crate) async fn a_pod_goes_where_a_disk_made_by_hand_fits_its_claim_and_waits_for_one(
    cluster: &mut Cluster,
) -> Result<()> {
    const ASIDE: &str = "aside";
    cluster.aliquot(&Hardware::preset("L4", 2)).await?;
    cluster.simulate_nodes(&[ASIDE], 8).await?;
    let ns = cluster.namespace().await?;
    let local = format!("local-{ns}");
    cluster
        .apply_one(&class(&local, "kubernetes.io/no-provisioner"))
        .await?;
    let (there, here) = (format!("there-{ns}"), format!("here-{ns}"));
    cluster.apply_one(&disk(&there, &local, ASIDE)).await?;
    for name in ["first", "second"] {
        cluster.apply_one(&claim(&ns, name, &local)).await?;
    }
    // The other node has enough free GPUs, but the disk is not on it.
    cluster.apply_one(&user(&ns, "first")).await?;
    until("the first where the disk is", LONG, || async {
        let at = node_of(cluster, &ns, "first").await?;
        Ok(Seen::when(at.as_deref() == Some(ASIDE), format!("{at:?}")))
    })
    .await?;
    cluster.apply_one(&user(&ns, "second")).await?;
    let reason = cluster.reason(&ns, "second").await?;
    ensure!(
        reason.contains(&format!(
            "available persistent volumes to bind to persistentvolumeclaim {ns}/second"
        )),
        "{reason}"
    );
    cluster.apply_one(&disk(&here, &local, node::NAME)).await?;
    until("the second done where the new disk is", LONG, || async {
        let pod = cluster.pods(&ns).get("second").await?;
        let at = node_of(cluster, &ns, "second").await?;
        let done = phase_of(&pod) == "Succeeded" && at.as_deref() == Some(node::NAME);
        Ok(Seen::when(done, format!("{} on {at:?}", phase_of(&pod))))
    })
    .await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &ns);
    for (claim, disk) in [("first", &there), ("second", &here)] {
        let volume = claims
            .get(claim)
            .await?
            .spec
            .and_then(|spec| spec.volume_name);
        ensure!(volume.as_ref() == Some(disk), "{claim} has {volume:?}");
    }
    let disks: Api<PersistentVolume> = Api::all(cluster.client.clone());
    for disk in [there, here] {
        disks.delete(&disk, &DeleteParams::default()).await?;
    }
    Ok(())
}

/// A driver that attaches one volume to the node, and publishes what it can still provision there.
pub(crate) async fn a_drivers_limits_and_free_storage_and_claims_of_one_pod_are_kept(
    cluster: &mut Cluster,
) -> Result<()> {
    const ASIDE: &str = "aside";
    const DRIVER: &str = "disk.test.aliquot.dev";
    cluster.aliquot(&Hardware::preset("L4", 1)).await?;
    cluster.simulate_nodes(&[ASIDE], 8).await?;
    let ns = cluster.namespace().await?;
    let node = cluster
        .kubectl
        .run(&["get", "node", ASIDE, "-o", "jsonpath={.metadata.uid}"]);
    cluster
        .apply_one(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
            "metadata": { "name": ASIDE, "ownerReferences": [{ "apiVersion": "v1", "kind": "Node",
                "name": ASIDE, "uid": node.await?.trim() }] },
            "spec": { "drivers": [{ "name": DRIVER, "nodeID": ASIDE, "topologyKeys": [],
                "allocatable": { "count": 1 } }] },
        }))
        .await?;
    cluster
        .apply_one(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
            "metadata": { "name": DRIVER }, "spec": { "storageCapacity": true },
        }))
        .await?;
    for (name, mode) in [("one", "ReadWriteOnce"), ("two", "ReadWriteOncePod")] {
        let mut bound = claim(&ns, name, "");
        bound["spec"]["volumeName"] = json!(format!("{name}-{ns}"));
        bound["spec"]["accessModes"] = json!([mode]);
        cluster.apply_one(&bound).await?;
        cluster
            .apply_one(&json!({
                "apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": { "name": format!("{name}-{ns}") },
                "spec": {
                    "capacity": { "storage": "1Gi" }, "accessModes": [mode],
                    "persistentVolumeReclaimPolicy": "Delete",
                    "csi": { "driver": DRIVER, "volumeHandle": name },
                },
            }))
            .await?;
    }
    let aside = |name: &str, claim: &str| {
        let mut pod = user(&ns, claim);
        pod["metadata"]["name"] = json!(name);
        pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": ASIDE });
        pod
    };
    let placed = async |cluster: &Cluster, name: &str| {
        until("a place", LONG, || async {
            let at = node_of(cluster, &ns, name).await?;
            Ok(Seen::when(
                at.as_deref() == Some(ASIDE),
                format!("{name}: {at:?}"),
            ))
        })
        .await
    };
    // Two that share the volume need one attachment; another volume is one too many.
    for name in ["first", "beside"] {
        cluster.apply_one(&aside(name, "one")).await?;
        placed(cluster, name).await?;
    }
    cluster.apply_one(&aside("second", "two")).await?;
    let reason = cluster.reason(&ns, "second").await?;
    ensure!(reason.contains("exceed max volume count"), "{reason}");
    cluster.delete_pod(&ns, "first").await?;
    cluster.delete_pod(&ns, "beside").await?;
    placed(cluster, "second").await?;
    // Its claim is for one pod; the second pod's reason says so.
    cluster.apply_one(&aside("third", "two")).await?;
    let reason = cluster.reason(&ns, "third").await?;
    ensure!(reason.contains("ReadWriteOncePod"), "{reason}");
    cluster.delete_pod(&ns, "second").await?;
    placed(cluster, "third").await?;
    cluster.delete_pod(&ns, "third").await?;
    // Too little is left for what it is to provision, until there is more.
    let late = format!("late-{ns}");
    cluster.apply_one(&class(&late, DRIVER)).await?;
    let capacity = |size: &str| {
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
            "metadata": { "namespace": ns, "name": "aside" },
            "storageClassName": late, "capacity": size,
            "nodeTopology": { "matchLabels": { "kubernetes.io/hostname": ASIDE } },
        })
    };
    cluster.apply_one(&capacity("500Mi")).await?;
    cluster.apply_one(&claim(&ns, "fresh", &late)).await?;
    cluster.apply_one(&user(&ns, "fresh")).await?;
    let reason = cluster.reason(&ns, "fresh").await?;
    ensure!(reason.contains("enough free storage"), "{reason}");
    cluster.apply_one(&capacity("2Gi")).await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &ns);
    until("the node with storage selected", LONG, || async {
        let claim = claims.get("fresh").await?;
        let node = claim.annotations().get(SELECTED).cloned();
        Ok(Seen::when(
            node.as_deref() == Some(ASIDE),
            format!("{node:?}"),
        ))
    })
    .await?;
    cluster.delete_pod(&ns, "fresh").await?;
    for name in ["one", "two"] {
        let disks: Api<PersistentVolume> = Api::all(cluster.client.clone());
        disks
            .delete(&format!("{name}-{ns}"), &DeleteParams::default())
            .await?;
    }
    Ok(())
}

pub(crate) async fn a_gang_that_lacks_one_disk_takes_none_and_waits_whole(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("L4", 2)).await?;
    let ns = cluster.namespace().await?;
    let local = format!("local-{ns}");
    cluster
        .apply_one(&class(&local, "kubernetes.io/no-provisioner"))
        .await?;
    let disks = [format!("one-{ns}"), format!("two-{ns}")];
    cluster
        .apply_one(&disk(&disks[0], &local, node::NAME))
        .await?;
    cluster
        .apply_one(&json!({
            "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
            "metadata": { "namespace": ns, "name": "pair" },
            "spec": { "minMember": 2, "queue": kai::DEFAULT_QUEUE },
        }))
        .await?;
    for name in ["a", "b"] {
        cluster.apply_one(&claim(&ns, name, &local)).await?;
        let mut pod = user(&ns, name);
        pod["metadata"]["annotations"] = json!({ kai::POD_GROUP: "pair" });
        cluster.apply_one(&pod).await?;
    }
    for name in ["a", "b"] {
        cluster
            .pod_until(&ns, name, "told which volume its gang lacks", |pod| {
                why_pending(pod).is_some_and(|why| {
                    why.contains("Resources were found for 1 pods while 2 are required")
                        && why.contains("available persistent volumes to bind to")
                })
            })
            .await?;
    }
    let volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let kept = volumes.get(&disks[0]).await?.spec;
    let kept = kept.and_then(|spec| spec.claim_ref);
    ensure!(kept.is_none(), "the only disk was given to {kept:?}");
    for name in ["a", "b"] {
        let at = node_of(cluster, &ns, name).await?;
        ensure!(at.is_none(), "{name} is on {at:?} alone");
    }
    cluster
        .apply_one(&disk(&disks[1], &local, node::NAME))
        .await?;
    for name in ["a", "b"] {
        cluster.pod_phase(&ns, name, "Succeeded").await?;
    }
    for disk in disks {
        volumes.delete(&disk, &DeleteParams::default()).await?;
    }
    Ok(())
}
