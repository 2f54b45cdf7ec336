//! What the claims about `ResourceClaim`s have in common: the agent as DRA driver, manifests, and what
//! is asked of them.

use std::path::Path;
use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::{Gpus, Hardware};
use aliquot_tests::manifest::documents;
use aliquot_tests::pod::describe;
use aliquot_tests::share::{pod, why_pending};
use aliquot_tests::wait::{Seen, stays, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::resource::v1::{Device, ResourceClaim, ResourceSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;
use kube::api::ListParams;
use proto::names::dra;
use serde_json::{Value, json};

use crate::modes::policy;

/// For what the kubelet tries again with its own pauses.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

/// With Kubernetes' own scheduler and the agent as DRA driver, for as long as `claim` runs.
pub(crate) async fn with_driver(
    cluster: &mut Cluster,
    cards: u32,
    claim: impl AsyncFnOnce(&mut Cluster, &str) -> Result<()>,
) -> Result<()> {
    with_driver_on(cluster, &Hardware::preset("T4", cards), claim).await
}

/// The same on other cards.
pub(crate) async fn with_driver_on(
    cluster: &mut Cluster,
    hardware: &Hardware,
    claim: impl AsyncFnOnce(&mut Cluster, &str) -> Result<()>,
) -> Result<()> {
    cluster.aliquot(hardware).await?;
    let file = cluster.programs.tree.join("deploy/dra/dra.yaml");
    for document in documents(&std::fs::read_to_string(file)?)? {
        cluster.apply_one(&document).await?;
    }
    let ns = cluster.namespace().await?;
    let mut scheduler = cluster.start_kube_scheduler()?;
    let agent = &mut gpus(cluster)?.agent;
    let changed = agent.restart_with(|command| command.flag("--dra", "true"));
    let plain = changed.await?;
    device_until(cluster, "in the node's slice", |_| true).await?;
    let outcome = claim(cluster, &ns).await;
    // Before the driver goes: without it the kubelet cannot end a pod that has a claim.
    let cleaned = cluster.clean().await;
    let policies = policy(cluster, json!({})).await;
    outcome.and(cleaned).and(policies)?;
    scheduler.stop().await?;
    gpus(cluster)?.agent.restart_with(|_| plain).await.map(drop)
}

pub(crate) fn gpus(cluster: &mut Cluster) -> Result<&mut Gpus> {
    cluster.gpus.as_mut().context("no GPUs")
}

/// A claim of one request; `memory` may be empty.
pub(crate) fn claim_spec(memory: &str, more: &Value) -> Value {
    let mut exactly = json!({ "deviceClassName": dra::SHARE_CLASS });
    if !memory.is_empty() {
        exactly["capacity"] = json!({ "requests": { (dra::MEMORY): memory } });
    }
    for (key, value) in more.as_object().into_iter().flatten() {
        exactly[key] = value.clone();
    }
    json!({ "devices": { "requests": [{ "name": "gpu", "exactly": exactly }] } })
}

pub(crate) async fn template(
    cluster: &Cluster,
    ns: &str,
    name: &str,
    memory: &str,
    more: &Value,
) -> Result<()> {
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": { "namespace": ns, "name": name },
        "spec": { "spec": claim_spec(memory, more) },
    });
    cluster.apply_one(&template).await?;
    Ok(())
}

pub(crate) fn manifest(ns: &str, name: &str, template: &str, script: &str) -> Value {
    let mut pod = pod(ns, name, &[], script);
    pod["spec"]["schedulerName"] = json!("default-scheduler");
    pod["spec"]["resourceClaims"] =
        json!([{ "name": "gpu", "resourceClaimTemplateName": template }]);
    pod["spec"]["containers"][0]["resources"] = json!({ "claims": [{ "name": "gpu" }] });
    pod
}

/// A claim of its own, that pods name.
pub(crate) async fn object(
    cluster: &Cluster,
    ns: &str,
    name: &str,
    memory: &str,
    more: &Value,
) -> Result<()> {
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": { "namespace": ns, "name": name },
        "spec": claim_spec(memory, more),
    });
    cluster.apply_one(&claim).await.map(drop)
}

/// A pod whose container takes the claim of this name.
pub(crate) fn naming(ns: &str, name: &str, claim: &str, script: &str) -> Value {
    let mut pod = manifest(ns, name, "", script);
    pod["spec"]["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimName": claim }]);
    pod
}

/// Another container of a pod, that takes the same.
pub(crate) fn beside(pod: &mut Value, name: &str, script: &str) -> Result<()> {
    let containers = pod["spec"]["containers"].as_array_mut();
    let containers = containers.context("containers")?;
    let mut container = containers[0].clone();
    container["name"] = json!(name);
    container["env"] = json!([{ "name": "SIM_WORKLOAD", "value": script }]);
    containers.push(container);
    Ok(())
}

pub(crate) async fn claim_pod(
    cluster: &Cluster,
    ns: &str,
    name: &str,
    memory: &str,
    script: &str,
) -> Result<()> {
    template(cluster, ns, name, memory, &json!({})).await?;
    cluster.apply_one(&manifest(ns, name, name, script)).await?;
    Ok(())
}

/// Until the agent reports exactly these: pod and MiB, sorted. With the card and container.
pub(crate) async fn ledger_is(
    cluster: &Cluster,
    ns: &str,
    wanted: &[(&str, u64)],
) -> Result<Vec<(String, String)>> {
    let names: Vec<String> = wanted
        .iter()
        .map(|(pod, _)| format!("{ns}/{pod}"))
        .collect();
    let rows: Vec<(&str, &str, u64)> = names
        .iter()
        .zip(wanted)
        .map(|(name, (_, mib))| (name.as_str(), "main", *mib))
        .collect();
    let found = cluster.ledger_is(&rows).await?;
    Ok(found
        .into_iter()
        .map(|(card, grant)| (card, format!("{} {}", grant.pod, grant.memory_mib)))
        .collect())
}

pub(crate) async fn grantable(cluster: &Cluster) -> Result<u64> {
    let status = cluster.gpu_node().await?.status.context("no status")?;
    Ok(status.gpus.first().context("no card")?.grantable_mib.0)
}

/// Kubernetes' own scheduler reports that nothing is free, and continues to do so.
pub(crate) async fn waits(cluster: &Cluster, ns: &str, name: &str) -> Result<()> {
    cluster
        .pod_until(ns, name, "unschedulable", |pod| why_pending(pod).is_some())
        .await?;
    unbound(cluster, ns, name).await
}

pub(crate) async fn unbound(cluster: &Cluster, ns: &str, name: &str) -> Result<()> {
    let what = format!("{name} waits");
    stays(&what, Duration::from_secs(4), || async {
        let pod = cluster.pods(ns).get(name).await?;
        let spec = pod.spec.as_ref();
        let bound = spec.is_some_and(|spec| spec.node_name.is_some());
        Ok(Seen::when(!bound, describe(&pod)))
    })
    .await
}

/// The kubelet and the claim show the agent's sentence, and the container never starts.
pub(crate) async fn refused(cluster: &Cluster, ns: &str, name: &str, words: &str) -> Result<()> {
    until(&format!("{name} refused"), LIMIT, || async {
        let events = cluster.events_of(ns, name).await?;
        let said = events.iter().any(|event| {
            event.starts_with("FailedPrepareDynamicResources") && event.contains(words)
        });
        Ok(Seen::when(said, events.join(" | ")))
    })
    .await?;
    let pod = cluster.pods(ns).get(name).await?;
    ensure!(
        aliquot_tests::pod::phase_of(&pod) == "Pending",
        "{}",
        describe(&pod)
    );
    let refused = |ready: &Condition| ready.status == "False" && ready.message.contains(words);
    ready(cluster, ns, name, refused).await.map(drop)
}

/// A sentence is in a pod's events.
pub(crate) async fn says(cluster: &Cluster, ns: &str, name: &str, words: &str) -> Result<()> {
    until(&format!("{name}: {words}"), LIMIT, || async {
        let events = cluster.events_of(ns, name).await?.join(" | ");
        Ok(Seen::when(events.contains(words), events))
    })
    .await
}

pub(crate) async fn device_until(
    cluster: &Cluster,
    what: &str,
    condition: impl Fn(&Device) -> bool,
) -> Result<()> {
    let slices: Api<ResourceSlice> = Api::all(cluster.client.clone());
    until(&format!("the card {what}"), LIMIT, || async {
        let slices = slices.list(&ListParams::default()).await?.items;
        let devices: Vec<&Device> = slices
            .iter()
            .flat_map(|slice| slice.spec.devices.iter().flatten())
            .collect();
        let fits = devices.iter().any(|device| condition(device));
        Ok(Seen::when(fits, format!("{devices:?}")))
    })
    .await
}

pub(crate) fn tainted(device: &Device, key: &str) -> bool {
    device.taints.iter().flatten().any(|taint| taint.key == key)
}

/// Our CDI files.
pub(crate) fn files() -> Result<usize> {
    let folder = std::fs::read_dir(Path::new("/var/run/cdi"))?;
    let names = folder.flatten().map(|entry| entry.file_name());
    Ok(names
        .filter(|name| {
            name.to_string_lossy()
                .starts_with(proto::names::cdi::FILE_PREFIX)
        })
        .count())
}

pub(crate) async fn container_of(cluster: &Cluster, ns: &str, name: &str) -> Result<String> {
    let pod = cluster.pods(ns).get(name).await?;
    let statuses = pod
        .status
        .and_then(|status| status.container_statuses)
        .unwrap_or_default();
    let status = statuses.first().context("no container")?;
    Ok(format!(
        "{:?} {}",
        status.container_id, status.restart_count
    ))
}

/// Waits until a pod's claim has the given condition `Ready`.
pub(crate) async fn ready(
    cluster: &Cluster,
    ns: &str,
    pod: &str,
    wanted: impl Fn(&Condition) -> bool,
) -> Result<(ResourceClaim, Condition)> {
    until(&format!("the claim of {pod}"), LIMIT, || async {
        let found = device_conditions(cluster, ns, pod).await?;
        let said = format!("{:?}", found.as_ref().map(|(_, conditions)| conditions));
        let found = found.and_then(|(claim, conditions)| {
            let mut conditions = conditions.into_iter();
            Some((claim, conditions.find(|one| one.type_ == "Ready")?))
        });
        Ok(Seen::from_option(
            found.filter(|(_, ready)| wanted(ready)),
            said,
        ))
    })
    .await
}

/// The claim that was made for a pod, and what it says of its one device of ours.
pub(crate) async fn device_conditions(
    cluster: &Cluster,
    ns: &str,
    pod: &str,
) -> Result<Option<(ResourceClaim, Vec<Condition>)>> {
    let claims: Api<ResourceClaim> = Api::namespaced(cluster.client.clone(), ns);
    let claims = claims.list(&ListParams::default()).await?.items;
    let of_pod = |claim: &ResourceClaim| {
        let owners = claim.metadata.owner_references.iter().flatten();
        owners.into_iter().any(|owner| owner.name == pod)
    };
    let claim = claims.into_iter().find(of_pod);
    Ok(claim.map(|claim| {
        let status = claim.status.as_ref();
        let devices = status.and_then(|status| status.devices.as_deref());
        let mut devices = devices.unwrap_or_default().iter();
        let ours = devices.find(|device| device.driver == dra::DRIVER);
        let conditions = ours.and_then(|device| device.conditions.clone());
        (claim.clone(), conditions.unwrap_or_default())
    }))
}
