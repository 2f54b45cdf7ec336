//! Whole cards by claim, and by the claim that Kubernetes' scheduler makes for an extended
//! resource.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::pod::describe;
use aliquot_tests::share::{pod, why_pending};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use super::setup::{
    LIMIT, claim_pod, gpus, ledger_is, manifest, template, unbound, waits, with_driver,
};
use crate::modes::policy;

pub(super) const CLASS: &str = "gpu.aliquot.dev";

pub(crate) async fn a_whole_card_by_claim_is_one_pods_alone(cluster: &mut Cluster) -> Result<()> {
    with_driver(cluster, 2, async |cluster, ns| {
        let class = json!({ "deviceClassName": CLASS });
        template(cluster, ns, "whole", "", &class).await?;
        cluster
            .apply_one(&manifest(ns, "whole", "whole", "report grow 100 hold"))
            .await?;
        cluster.pod_phase(ns, "whole", "Running").await?;
        let grown = cluster.said(ns, "whole", "main", "grow").await?;
        let status = cluster.gpu_node().await?.status.context("no status")?;
        let total = status.gpus.first().context("no card")?.total_mib.0;
        let held = grown["held_mib"].as_u64().context("no held_mib")?;
        // Without a fence it has what the driver has.
        ensure!(held > total - 500, "{grown} of {total}");
        // The second card is one that is shared, and then there is no whole one.
        claim_pod(cluster, ns, "share", "1000Mi", "report hold").await?;
        cluster.pod_phase(ns, "share", "Running").await?;
        cluster
            .apply_one(&manifest(ns, "second", "whole", "report hold"))
            .await?;
        waits(cluster, ns, "second").await?;
        cluster.delete_pod(ns, "share").await?;
        cluster.pod_phase(ns, "second", "Running").await?;
        // Now no card takes a share.
        claim_pod(cluster, ns, "late", "1000Mi", "report hold").await?;
        waits(cluster, ns, "late").await?;
        cluster.delete_pods(ns, ["whole", "second", "late"]).await?;
        // Part of a whole card is nothing.
        template(cluster, ns, "part", "1000Mi", &class).await?;
        cluster
            .apply_one(&manifest(ns, "part", "part", "report hold"))
            .await?;
        super::setup::refused(cluster, ns, "part", "asks for card").await?;
        cluster.delete_pod(ns, "part").await?;
        // A card that is for whole use alone takes no share, and is claimed whole.
        let cards: Vec<Value> = status
            .gpus
            .iter()
            .map(|card| json!({ "uuid": card.uuid, "front": "dra", "mode": "exclusive" }))
            .collect();
        policy(cluster, json!({ "gpus": cards })).await?;
        claim_pod(cluster, ns, "share", "1000Mi", "report hold").await?;
        waits(cluster, ns, "share").await?;
        cluster
            .apply_one(&manifest(ns, "alone", "whole", "report hold"))
            .await?;
        cluster.pod_phase(ns, "alone", "Running").await?;
        cluster.delete_pod(ns, "alone").await?;
        cluster.delete_pod(ns, "share").await?;
        policy(cluster, json!({})).await
    })
    .await
}

pub(crate) async fn a_pod_that_asks_for_a_gpu_gets_it_by_the_claim_that_the_scheduler_makes(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 2, async |cluster, ns| {
        policy(cluster, json!({ "defaultFront": "dra" })).await?;
        allocatable(cluster, "0").await?;
        // Two containers, a card each: parts of the one claim that is created for them.
        let mut asks = pod(ns, "asks", &[], "report hold");
        asks["spec"]["schedulerName"] = json!("default-scheduler");
        let one = json!({ "limits": { "nvidia.com/gpu": "1" } });
        asks["spec"]["containers"][0]["resources"] = one.clone();
        let mut second = asks["spec"]["containers"][0].clone();
        second["name"] = json!("second");
        asks["spec"]["containers"]
            .as_array_mut()
            .context("containers")?
            .push(second);
        asks["spec"]["initContainers"] = json!([{
            "name": "first", "image": aliquot_tests::image::WORKLOAD_IMAGE, "resources": one,
            "env": [{ "name": "SIM_WORKLOAD", "value": "report" }],
        }]);
        cluster.apply_one(&asks).await?;
        let running = cluster.pod_phase(ns, "asks", "Running").await?;
        let made = running
            .status
            .as_ref()
            .and_then(|status| status.extended_resource_claim_status.as_ref());
        ensure!(made.is_some(), "no claim was made: {}", describe(&running));
        let name = format!("{ns}/asks");
        let mut cards = Vec::new();
        for container in ["main", "second"] {
            let report = cluster.said(ns, "asks", container, "report").await?;
            let devices = report["devices"].as_array().context("no devices")?;
            ensure!(devices.len() == 1, "{container}: {report}");
            cards.push(devices[0]["uuid"].to_string());
        }
        ensure!(cards[0] != cards[1], "{cards:?}");
        // Its agent writes it once a second at most.
        let soon = Duration::from_secs(10);
        until("a row of each container", soon, || async {
            let rows = cluster.ledger().await?;
            let mut held: Vec<&str> = (rows.iter())
                .filter(|(_, row)| row.pod == name)
                .map(|(_, row)| row.container.as_str())
                .collect();
            held.sort_unstable();
            let each = held == ["first", "main", "second"];
            Ok(Seen::when(each, format!("{rows:?}")))
        })
        .await?;
        // There is no third one.
        let mut third = pod(ns, "third", &[], "report hold");
        third["spec"]["schedulerName"] = json!("default-scheduler");
        third["spec"]["containers"][0]["resources"] =
            json!({ "limits": { "nvidia.com/gpu": "1" } });
        cluster.apply_one(&third).await?;
        waits(cluster, ns, "third").await?;
        // An agent that has restarted knows what it is.
        gpus(cluster)?.agent.kill().await?;
        gpus(cluster)?.agent.start_again()?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        cluster.delete_pod(ns, "asks").await?;
        cluster.pod_phase(ns, "third", "Running").await?;
        cluster.delete_pod(ns, "third").await?;
        ledger_is(cluster, ns, &[]).await?;
        policy(cluster, json!({})).await
    })
    .await
}

/// The node's allocatable has that many GPUs.
pub(super) async fn allocatable(cluster: &Cluster, count: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    until("GPUs of the plugin", LIMIT, || async {
        let node = nodes.get(aliquot_tests::node::NAME).await?;
        let status = node.status.context("no status")?;
        let allocatable = status.allocatable.unwrap_or_default();
        let gpus = allocatable.get("nvidia.com/gpu");
        let gpus = gpus.map_or("0", |amount| &amount.0);
        Ok(Seen::when(gpus == count, gpus.to_owned()))
    })
    .await
}

/// A pod with GPUs in its resources, one for each of its containers.
pub(super) fn with_gpus(ns: &str, name: &str, scheduler: &str, containers: &[&str]) -> Value {
    let mut pod = pod(ns, name, &[], "report hold");
    pod["spec"]["schedulerName"] = json!(scheduler);
    let mut container = pod["spec"]["containers"][0].clone();
    container["resources"] = json!({ "limits": { "nvidia.com/gpu": "1" } });
    let each = containers.iter().map(|name| {
        container["name"] = json!(name);
        container.clone()
    });
    pod["spec"]["containers"] = each.collect();
    pod
}

/// What is to be alike in a claim of one pod and of another: its object, and how the pod names it.
async fn made_for(cluster: &Cluster, ns: &str, name: &str) -> Result<Value> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), ns);
    let pod = pods.get(name).await?;
    let status = pod.status.as_ref();
    let named = status.and_then(|status| status.extended_resource_claim_status.as_ref());
    let named = named.with_context(|| format!("no claim was made: {}", describe(&pod)))?;
    let claims: Api<ResourceClaim> = Api::namespaced(cluster.client.clone(), ns);
    let claim = json!(claims.get(&named.resource_claim_name).await?);
    let base = format!("{name}-extended-resources-");
    ensure!(named.resource_claim_name.starts_with(&base), "{named:?}");
    let meta = &claim["metadata"];
    let owner = &meta["ownerReferences"];
    ensure!(
        owner[0]["uid"] == json!(pod.metadata.uid) && owner[0]["name"] == name,
        "{owner}"
    );
    let devices = &claim["status"]["allocation"]["devices"];
    let results = devices["results"].as_array().context("no devices")?;
    let fields: Vec<Value> = results
        .iter()
        .map(|one| {
            json!([
                one["request"],
                one["driver"],
                one["pool"],
                one["consumedCapacity"]
            ])
        })
        .collect();
    Ok(json!({
        "annotations": meta["annotations"],
        "finalizers": meta["finalizers"],
        "controller": [owner[0]["apiVersion"], owner[0]["kind"], owner[0]["controller"]],
        "spec": claim["spec"],
        "results": fields,
        "config": devices["config"],
        "nodes": claim["status"]["allocation"]["nodeSelector"],
        "reserved": claim["status"]["reservedFor"].as_array().map(Vec::len),
        "mappings": named.request_mappings,
    }))
}

/// Takes the class of `nvidia.com/gpu` away; returns it as it can be applied again.
async fn without_class(cluster: &Cluster) -> Result<Value> {
    let classes: Api<DeviceClass> = Api::all(cluster.client.clone());
    let class = classes.get(CLASS).await?;
    classes.delete(CLASS, &DeleteParams::default()).await?;
    Ok(json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": { "name": CLASS, "labels": class.metadata.labels },
        "spec": class.spec,
    }))
}

pub(crate) async fn under_our_scheduler_a_gpu_comes_by_the_claim_that_kubernetes_would_make(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 2, async |cluster, ns| {
        policy(cluster, json!({ "defaultFront": "dra" })).await?;
        allocatable(cluster, "0").await?;
        let containers = ["main", "second"];
        let theirs = with_gpus(ns, "same", "default-scheduler", &containers);
        cluster.apply_one(&theirs).await?;
        cluster.pod_phase(ns, "same", "Running").await?;
        let expected = made_for(cluster, ns, "same").await?;
        cluster.delete_pod(ns, "same").await?;
        ledger_is(cluster, ns, &[]).await?;
        // It waits for devices in vain until they are GPUs by their class.
        let class = without_class(cluster).await?;
        let ours = with_gpus(ns, "same", "kai-scheduler", &containers);
        cluster.apply_one(&ours).await?;
        cluster
            .pod_until(ns, "same", "waits", |pod| why_pending(pod).is_some())
            .await?;
        cluster.apply_one(&class).await?;
        cluster.pod_phase(ns, "same", "Running").await?;
        let made = made_for(cluster, ns, "same").await?;
        ensure!(made == expected, "{made}\ninstead of\n{expected}");
        let mut cards = Vec::new();
        for container in containers {
            let report = cluster.said(ns, "same", container, "report").await?;
            let devices = report["devices"].as_array().context("no devices")?;
            ensure!(devices.len() == 1, "{container}: {report}");
            cards.push(devices[0]["uuid"].to_string());
        }
        ensure!(cards[0] != cards[1], "{cards:?}");
        // There is no third one, and our scheduler says so.
        let next = with_gpus(ns, "next", "kai-scheduler", &["main"]);
        cluster.apply_one(&next).await?;
        let words =
            "cannot allocate all claims: no device is left for request container-0-request-0";
        cluster
            .pod_until(ns, "next", words, |pod| {
                why_pending(pod).is_some_and(|why| why.contains(words))
            })
            .await?;
        unbound(cluster, ns, "next").await?;
        cluster.delete_pod(ns, "same").await?;
        cluster.pod_phase(ns, "next", "Running").await?;
        cluster.delete_pod(ns, "next").await?;
        let claims: Api<ResourceClaim> = Api::namespaced(cluster.client.clone(), ns);
        until("no claim is left", LIMIT, || async {
            let left = claims.list(&ListParams::default()).await?.items.len();
            Ok(Seen::when(left == 0, left.to_string()))
        })
        .await?;
        ledger_is(cluster, ns, &[]).await?;
        policy(cluster, json!({})).await
    })
    .await
}
