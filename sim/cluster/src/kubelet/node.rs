//! The node object: made at start, its status kept current, its lease renewed.
//!
//! What plugins offer is written over whatever is there; capacity keys of others are
//! kept and copied to allocatable, so an opaque amount survives. A node that appears
//! without a checkpoint has its extended resources set to zero once.

use super::config::Config;
use super::plugins::Plugins;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

/// Allocatable of the node, as strings, for admission.
pub(super) type Allocatable = BTreeMap<String, String>;

/// Registers the node; answers its UID.
pub(super) async fn register(
    client: &kube::Client,
    config: &Config,
    had_checkpoint: bool,
) -> kube::Result<String> {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut labels = config.labels.clone();
    labels.insert("kubernetes.io/hostname".into(), config.node_name.clone());
    labels.insert("kubernetes.io/os".into(), "linux".into());
    labels.insert("kubernetes.io/arch".into(), "amd64".into());
    let object =
        json!({"metadata": {"name": config.node_name, "labels": labels}, "spec": {}, "status": {}});
    let node: Node = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    match nodes.create(&PostParams::default(), &node).await {
        Ok(node) => return Ok(node.metadata.uid.unwrap_or_default()),
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(error),
    }
    let node = nodes.get(&config.node_name).await?;
    if !had_checkpoint {
        let zero = |map: Option<BTreeMap<String, _>>| -> Map<String, Value> {
            map.into_iter()
                .flatten()
                .filter(|(key, _): &(String, _)| key.contains('/'))
                .map(|(key, _)| (key, json!("0")))
                .collect()
        };
        let status = node.status.clone().unwrap_or_default();
        let zeroed = json!({"status": {"capacity": zero(status.capacity), "allocatable": zero(status.allocatable)}});
        nodes
            .patch_status(
                &config.node_name,
                &PatchParams::default(),
                &Patch::Strategic(zeroed),
            )
            .await?;
    }
    Ok(node.metadata.uid.unwrap_or_default())
}

/// Keeps the status current until stopped.
pub(super) async fn keep(
    client: kube::Client,
    config: Arc<Config>,
    plugins: Arc<Plugins>,
    allocatable: watch::Sender<Allocatable>,
    stop: CancellationToken,
) {
    let nodes: Api<Node> = Api::all(client.clone());
    let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    let mut every = tokio::time::interval(config.status_every);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut beat: Option<Instant> = None;
    loop {
        tokio::select! {
            _ = every.tick() => {}
            () = stop.cancelled() => return,
        }
        let counts = plugins.counts();
        let heartbeat = beat.is_none_or(|last| last.elapsed() >= config.heartbeat_every);
        let written = async {
            let node = nodes.get(&config.node_name).await?;
            let status = serde_json::to_value(node.status.unwrap_or_default())
                .map_err(kube::Error::SerdeError)?;
            let (patch, now_allocatable) = update(&status, &config.capacity, &counts, heartbeat);
            allocatable.send_replace(now_allocatable);
            if let Some(patch) = patch {
                nodes
                    .patch_status(
                        &config.node_name,
                        &PatchParams::default(),
                        &Patch::Strategic(json!({"status": patch})),
                    )
                    .await?;
            }
            if heartbeat {
                renew(&leases, &config.node_name).await?;
            }
            Ok::<_, kube::Error>(())
        };
        match written.await {
            Ok(()) if heartbeat => beat = Some(Instant::now()),
            Ok(()) => {}
            Err(error) => tracing::warn!(%error, "node status cannot be written, tried again"),
        }
    }
}

async fn renew(leases: &Api<Lease>, node: &str) -> kube::Result<()> {
    let now = jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S.%6fZ")
        .to_string();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": now},
    });
    let params = PatchParams::apply("kubelet").force();
    leases.patch(node, &params, &Patch::Apply(lease)).await?;
    Ok(())
}

/// The patch that the status needs, if any, and what is allocatable after it.
fn update(
    status: &Value,
    machine: &BTreeMap<String, String>,
    counts: &BTreeMap<String, (usize, usize)>,
    heartbeat: bool,
) -> (Option<Value>, Allocatable) {
    let read = |field: &str| -> BTreeMap<String, String> {
        status
            .get(field)
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect()
    };
    let (old_capacity, old_allocatable) = (read("capacity"), read("allocatable"));
    let mut capacity = old_capacity.clone();
    capacity.extend(machine.clone());
    for (resource, (total, _)) in counts {
        capacity.insert(resource.clone(), total.to_string());
    }
    let mut allocatable = capacity.clone();
    for (resource, (_, healthy)) in counts {
        allocatable.insert(resource.clone(), healthy.to_string());
    }
    let ready = status
        .get("conditions")
        .and_then(Value::as_array)
        .is_some_and(|list| list.iter().any(|one| one["type"] == "Ready"));
    if capacity == old_capacity && allocatable == old_allocatable && ready && !heartbeat {
        return (None, allocatable);
    }
    let mut patch = json!({"capacity": capacity, "allocatable": allocatable});
    if heartbeat || !ready {
        let now = jiff::Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string();
        let mut condition = json!({
            "type": "Ready", "status": "True", "reason": "KubeletReady",
            "message": "kubelet is posting ready status", "lastHeartbeatTime": now,
        });
        if !ready {
            condition["lastTransitionTime"] = json!(now);
        }
        patch["conditions"] = json!([condition]);
        patch["addresses"] = json!([{"type": "InternalIP", "address": "127.0.0.1"}]);
        patch["nodeInfo"] = json!({
            "kubeletVersion": "v1.36.0-aliquot-sim", "kubeProxyVersion": "", "osImage": "simulated",
            "operatingSystem": "linux", "architecture": "amd64", "containerRuntimeVersion": "containerd://2.3.4-aliquot-sim",
            "kernelVersion": "", "machineID": "", "systemUUID": "", "bootID": "",
        });
    }
    (Some(patch), allocatable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn keys_of_others_are_kept_and_copied_to_allocatable() {
        let status = json!({"capacity": {"aliquot.dev/gpu-milli": "2000", "cpu": "1"}, "conditions": [{"type": "Ready"}]});
        let counts = BTreeMap::from([("nvidia.com/gpu".to_owned(), (2, 1))]);
        let (patch, allocatable) = update(&status, &map(&[("cpu", "8")]), &counts, false);
        let expected = map(&[
            ("aliquot.dev/gpu-milli", "2000"),
            ("cpu", "8"),
            ("nvidia.com/gpu", "1"),
        ]);
        assert_eq!(allocatable, expected);
        let patch = patch.unwrap();
        assert_eq!(patch["capacity"]["nvidia.com/gpu"], "2");
        assert_eq!(patch["allocatable"]["aliquot.dev/gpu-milli"], "2000");
        let settled = json!({"capacity": patch["capacity"], "allocatable": patch["allocatable"], "conditions": [{"type": "Ready"}]});
        assert_eq!(
            update(&settled, &map(&[("cpu", "8")]), &counts, false).0,
            None
        );
    }
}
