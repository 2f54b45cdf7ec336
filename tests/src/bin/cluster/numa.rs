//! A kubelet whose topology manager refuses pods, on a machine of two sockets.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::node;
use aliquot_tests::pod::{describe, phase_of};
use aliquot_tests::random::SplitMix64;
use aliquot_tests::share::{container, pod};
use aliquot_tests::two_sockets;
use aliquot_tests::unpinned::RUNTIME_CLASS;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context as _, Result, anyhow, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use proto::names::resource::GPU;
use serde_json::{Value, json};

use crate::modes::policy;

/// The kubelet's reason.
const REFUSED: &str = "TopologyAffinityError";
/// Name of the definition of `NodeResourceTopology`.
const TOPOLOGIES: &str = "noderesourcetopologies.topology.node.k8s.io";
/// Two of them fill more than one socket of 32 CPUs, one of which is reserved.
const MOST_OF_A_SOCKET: u64 = 20;

/// Gives a container of a pod its requests, as limits: the pod is Guaranteed.
fn guaranteed(container: &mut Value, cpu: &str, memory: &str, gpus: usize) {
    let mut limits = json!({ "cpu": cpu, "memory": memory });
    if gpus > 0 {
        limits[GPU] = json!(gpus);
    }
    container["resources"] = json!({ "limits": limits });
}

/// A share with most of a socket's CPUs.
fn large(ns: &str, name: &str) -> Value {
    let mut pod = pod(ns, name, &[("gpu-fraction", "0.25")], "report hold");
    pod["spec"]["runtimeClassName"] = json!(RUNTIME_CLASS);
    let cpu = MOST_OF_A_SOCKET.to_string();
    guaranteed(&mut pod["spec"]["containers"][0], &cpu, "64Mi", 0);
    pod
}

/// One of many pods: any requests that an empty node could admit, for a second or two.
fn any(ns: &str, name: &str, random: &mut SplitMix64) -> Value {
    let gpus = [0, 0, 1, 1, 2, 4][random.below(6)];
    let share: &[(&str, &str)] = match random.below(2) {
        0 if gpus == 0 => &[("gpu-fraction", "0.5")],
        _ => &[],
    };
    let script = ["report sleep 1", "report sleep 2"][random.below(2)];
    let mut pod = pod(ns, name, share, script);
    pod["metadata"]["labels"] = json!({ "app": "many" });
    pod["spec"]["runtimeClassName"] = json!(RUNTIME_CLASS);
    // Most with exclusive CPUs.
    let mut cpu = || match random.below(5) {
        0 => "1500m".to_owned(),
        at => [1, 4, 9, 14][at - 1].to_string(),
    };
    guaranteed(&mut pod["spec"]["containers"][0], &cpu(), "96Mi", gpus);
    if random.below(3) == 0 {
        let mut beside = container("beside", "sleep 1");
        guaranteed(&mut beside, "2", "32Mi", 0);
        if let Some(containers) = pod["spec"]["containers"].as_array_mut() {
            containers.push(beside);
        }
    }
    pod
}

pub(crate) async fn what_a_topology_manager_would_refuse_waits_and_none_of_many_pods_is_refused(
    cluster: &mut Cluster,
) -> Result<()> {
    let outcome = async {
        two_sockets::align(cluster, "single-numa-node", "container").await?;
        cluster.aliquot(&Hardware::preset("T4", 8)).await?;
        without_a_word(cluster).await?;
        let said = json!({ "policy": "single-numa-node", "scope": "container" });
        policy(cluster, json!({ "topologyManager": said })).await?;
        third_waits(cluster).await?;
        policy(cluster, json!({ "topologyManager": null })).await?;
        cluster.clean().await?;
        topology_object(cluster).await?;
        third_waits(cluster).await?;
        // Last: the kubelet starts nothing for a minute while it removes a thousand pods.
        policy(cluster, json!({ "topologyManager": said })).await?;
        many(cluster, pod_count(24)).await
    }
    .await;
    let cleaned = cluster.clean().await;
    let args = ["delete", "crd", TOPOLOGIES, "--ignore-not-found"];
    cluster.kubectl.run(&args).await?;
    two_sockets::leave(cluster).await?;
    policy(cluster, json!({ "topologyManager": null })).await?;
    outcome.and(cleaned)
}

/// How many pods come together: `ALIQUOT_POD_COUNT`, or this many.
fn pod_count(usual: usize) -> usize {
    let asked = std::env::var("ALIQUOT_POD_COUNT").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// What node feature discovery's topology updater writes of the node, as far as it is read. Its
/// definition of the resource is shortened to a name: neither is to be had as a module.
async fn topology_object(cluster: &mut Cluster) -> Result<()> {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": TOPOLOGIES,
            // The API server wants to know who has approved of a name below k8s.io.
            "annotations": { "api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870" },
        },
        "spec": {
            "group": "topology.node.k8s.io", "scope": "Cluster",
            "names": { "kind": "NodeResourceTopology", "plural": "noderesourcetopologies" },
            "versions": [{
                "name": "v1alpha2", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                } },
            }],
        },
    });
    cluster.apply_one(&definition).await?;
    let established = format!("crd/{TOPOLOGIES}");
    let args = ["wait", "--for=condition=Established", &established];
    cluster.kubectl.run(&args).await?;
    let attribute = |name: &str, value: &str| json!({ "name": name, "value": value });
    let object = json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": { "name": node::NAME },
        "topologyPolicies": ["SingleNUMANodeContainerLevel"],
        "attributes": [
            attribute("topologyManagerPolicy", "single-numa-node"),
            attribute("topologyManagerScope", "container"),
        ],
        "zones": [],
    });
    cluster.apply_one(&object).await?;
    // An agent that found no such resource at its start looks again after a minute.
    let gpus = cluster.gpus.as_mut().context("no GPUs")?;
    gpus.agent.kill().await?;
    gpus.agent.start_again()
}

/// A scheduler that knows nothing of zones binds a pod that fits in sum.
async fn without_a_word(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    for name in ["first", "second"] {
        cluster.run_share(&large(&ns, name)).await?;
    }
    cluster.apply_one(&large(&ns, "third")).await?;
    let refused = cluster.pod_phase(&ns, "third", "Failed").await?;
    let reason = refused.status.as_ref().and_then(|s| s.reason.as_deref());
    ensure!(reason == Some(REFUSED), "{}", describe(&refused));
    cluster.clean().await
}

/// One that knows lets it wait until a zone has room.
async fn third_waits(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    for name in ["first", "second"] {
        cluster.run_share(&large(&ns, name)).await?;
    }
    cluster.apply_one(&large(&ns, "third")).await?;
    let reason = cluster.reason(&ns, "third").await?;
    ensure!(reason.contains("cannot NUMA-align"), "{reason}");
    cluster.delete_pod(&ns, "first").await?;
    cluster.pod_phase(&ns, "third", "Running").await?;
    cluster.clean().await
}

/// Jobs that come together, more than fit at once, all succeed, and the kubelet refuses none of
/// their pods. A pod that the scheduler evicts is made again by its Job.
async fn many(cluster: &mut Cluster, count: usize) -> Result<()> {
    let ns = cluster.namespace().await?;
    let mut random = SplitMix64::new(count as u64);
    for n in 0..count {
        let job = job(&any(&ns, "", &mut random), &ns, &format!("p{n}"));
        cluster.apply_one(&job).await?;
    }
    let pods = cluster.pods(&ns);
    let jobs: Api<Job> = Api::namespaced(cluster.client.clone(), &ns);
    let list = ListParams::default().labels("app=many");
    let patience = Duration::from_secs(30 + 3 * count as u64);
    until("all of them succeed", patience, || async {
        // To list a thousand pods ten times a second takes all of a core of the API server's.
        tokio::time::sleep(Duration::from_millis(count as u64)).await;
        let all = pods.list(&list).await?.items;
        let reason = |pod: &Pod| pod.status.as_ref().and_then(|s| s.reason.clone());
        let refused = |pod: &&Pod| reason(pod).as_deref() == Some(REFUSED);
        if let Some(refused) = all.iter().find(refused) {
            let name = refused.name_any();
            return Ok(Seen::Never(anyhow!("{name}: {}", describe(refused))));
        }
        let jobs = jobs.list(&ListParams::default()).await?.items;
        let succeeded = |job: &&Job| job.status.as_ref().and_then(|s| s.succeeded) == Some(1);
        let done = jobs.iter().filter(succeeded).count();
        let rest = all.iter().filter(|pod| phase_of(pod) != "Succeeded");
        let rest: Vec<String> = rest
            .map(|pod| format!("{}: {}", pod.name_any(), describe(pod)))
            .collect();
        Ok(Seen::when(done == count, rest.join("; ")))
    })
    .await
}

/// A Job of one such pod.
fn job(pod: &Value, namespace: &str, name: &str) -> Value {
    let (mut metadata, spec) = (pod["metadata"].clone(), &pod["spec"]);
    for own in ["name", "namespace"] {
        metadata.as_object_mut().map(|fields| fields.remove(own));
    }
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": { "namespace": namespace, "name": name },
        "spec": {
            "backoffLimit": 20,
            "template": { "metadata": metadata, "spec": spec },
        },
    })
}
