//! Pods whose resources are changed while they run, by the real kubelet and runtime.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::share::{pod, why_pending};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use proto::names::kai;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

const QUEUE: &str = "narrow";

/// A pod without a share that requests this many thousandths of a CPU.
fn asking(namespace: &str, name: &str, cpu: u64) -> Value {
    let mut pod = pod(namespace, name, &[], "hold");
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": format!("{cpu}m")}});
    pod
}

async fn resize(cluster: &Cluster, namespace: &str, name: &str, cpu: u64) -> kube::Result<Pod> {
    let resources = json!({"requests": {"cpu": format!("{cpu}m")}});
    resize_to(cluster, namespace, name, &resources).await
}

async fn resize_to(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    resources: &Value,
) -> kube::Result<Pod> {
    let patch = json!({"spec": {"containers": [{"name": "main", "resources": resources}]}});
    let (pods, patch) = (cluster.pods(namespace), Patch::Strategic(patch));
    let params = PatchParams::default();
    pods.patch_subresource("resize", name, &params, &patch)
        .await
}

/// Thousandths of a CPU that the node has for pods.
async fn allocatable(cluster: &Cluster) -> Result<u64> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let node = nodes.get(aliquot_tests::node::NAME).await?;
    let allocatable = node.status.and_then(|status| status.allocatable);
    allocatable
        .and_then(|list| api::quantity::milli_up(list.get("cpu")?))
        .context("a node without CPUs")
}

/// Thousandths of a CPU that the kubelet says its container has.
fn has(pod: &Pod) -> Option<u64> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let requests = status.resources.as_ref()?.requests.as_ref()?;
    api::quantity::milli_up(requests.get("cpu")?)
}

/// The reason of its condition `PodResizePending`.
fn pending(pod: &Pod) -> Option<&str> {
    let mut conditions = pod.status.as_ref()?.conditions.as_ref()?.iter();
    let condition = conditions.find(|condition| condition.type_ == "PodResizePending")?;
    condition.reason.as_deref()
}

/// The scheduler says so where it explains the pod.
async fn says(cluster: &Cluster, pod: &Pod, sentence: &str) -> Result<()> {
    let scheduler = cluster.scheduler.as_ref().context("no scheduler")?;
    let (address, uid) = (
        scheduler.replica.metrics(),
        pod.uid().context("a pod without a UID")?,
    );
    until(sentence, Duration::from_secs(10), || async {
        let text = aliquot_tests::http::get(&address, &format!("/explain?pod={uid}")).await?;
        Ok(Seen::when(text.contains(sentence), text))
    })
    .await
}

pub(crate) async fn a_pod_that_is_resized_counts_with_the_most_that_it_asks_for_or_has(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let all = allocatable(cluster).await?;
    cluster.run_share(&asking(&ns, "first", all / 5)).await?;

    // Larger: what would have fitted beside it does not any more.
    resize(cluster, &ns, "first", all * 3 / 4).await?;
    let grown = |pod: &Pod| has(pod) == Some(all * 3 / 4);
    cluster
        .pod_until(&ns, "first", "has what it asks for", grown)
        .await?;
    cluster.apply_one(&asking(&ns, "second", all / 2)).await?;
    let waits = |pod: &Pod| why_pending(pod).is_some_and(|why| why.contains("CPU cores"));
    cluster
        .pod_until(&ns, "second", "waits for CPUs", waits)
        .await?;
    // Smaller: it does.
    resize(cluster, &ns, "first", all / 5).await?;
    cluster.pod_phase(&ns, "second", "Running").await?;

    // More than the node has now: that is reported, counts, and is granted once there is room.
    resize(cluster, &ns, "first", all * 3 / 5).await?;
    let deferred = |pod: &Pod| pending(pod) == Some("Deferred");
    let first = cluster
        .pod_until(&ns, "first", "has a deferred resize", deferred)
        .await?;
    says(
        cluster,
        &first,
        "its resize waits for room on its node (Deferred)",
    )
    .await?;
    cluster.apply_one(&asking(&ns, "third", all / 10)).await?;
    cluster
        .pod_until(&ns, "third", "waits for CPUs", waits)
        .await?;
    cluster.delete_pod(&ns, "second").await?;
    let given = |pod: &Pod| has(pod) == Some(all * 3 / 5) && pending(pod).is_none();
    cluster
        .pod_until(&ns, "first", "has what it asks for", given)
        .await?;
    cluster.pod_phase(&ns, "third", "Running").await?;
    Ok(())
}

/// A kubelet that gives CPUs of their own to pods that are guaranteed them resizes none of these.
pub(crate) async fn a_resize_that_its_node_can_never_give_is_said_and_does_not_count(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let config = cluster.work.state().join("kubelet/config.json");
    let before = std::fs::read(&config)?;
    let mut changed: Value = serde_json::from_slice(&before)?;
    changed["cpuManagerPolicy"] = json!("static");
    changed["reservedSystemCPUs"] = json!("0");
    let changed = serde_json::to_vec_pretty(&changed)?;
    restart(cluster, &config, &changed).await?;
    let held = never_given(cluster).await;
    restart(cluster, &config, &before).await?;
    held
}

/// Restarts the kubelet with this configuration.
async fn restart(cluster: &mut Cluster, path: &Path, config: &[u8]) -> Result<()> {
    cluster.node.kubelet.kill().await?;
    std::fs::write(path, config)?;
    // It does not start with another policy's.
    std::fs::remove_file("/var/lib/kubelet/cpu_manager_state")?;
    cluster.node.kubelet.start_again()?;
    cluster.node_ready().await
}

async fn never_given(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    let all = allocatable(cluster).await?;
    let guaranteed = |cpu: u64| json!({"cpu": format!("{cpu}m"), "memory": "64Mi"});
    let mut first = asking(&ns, "first", all / 5);
    first["spec"]["containers"][0]["resources"] =
        json!({"requests": guaranteed(all / 5), "limits": guaranteed(all / 5)});
    cluster.run_share(&first).await?;
    let more = json!({"requests": guaranteed(all * 4 / 5), "limits": guaranteed(all * 4 / 5)});
    resize_to(cluster, &ns, "first", &more).await?;
    let infeasible = |pod: &Pod| pending(pod) == Some("Infeasible");
    let first = cluster
        .pod_until(&ns, "first", "has an infeasible resize", infeasible)
        .await?;
    let never = "its node can never give what its resize asks for (Infeasible)";
    says(cluster, &first, never).await?;
    cluster.run_share(&asking(&ns, "second", all / 2)).await?;
    Ok(())
}

/// A queue that may have 500m, and two pods of 100m and 200m in it that run.
async fn narrow_queue(cluster: &mut Cluster) -> Result<String> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let all = json!({"quota": -1, "limit": -1, "overQuotaWeight": 1});
    let half = json!({"quota": -1, "limit": 500, "overQuotaWeight": 1});
    let resources = json!({"cpu": half, "gpu": all, "memory": all});
    cluster
        .apply_one(&json!({
            "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": QUEUE},
            "spec": {"resources": resources},
        }))
        .await?;
    let ours = |name: &str, cpu: u64| {
        let mut pod = asking(&ns, name, cpu);
        pod["metadata"]["labels"] = json!({kai::QUEUE_LABEL: QUEUE});
        pod
    };
    cluster.run_share(&ours("first", 100)).await?;
    cluster.run_share(&ours("second", 200)).await?;
    Ok(ns)
}

pub(crate) async fn a_resize_beyond_its_queues_limit_is_refused_with_one_sentence(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = narrow_queue(cluster).await?;
    until(
        "the refusal of 301m beside 200m of 500m",
        Duration::from_secs(10),
        || async {
            let refusal = match resize(cluster, &ns, "first", 301).await {
                // Before the webhook's configuration stood.
                Ok(_) => match resize(cluster, &ns, "first", 100).await {
                    Ok(_) => "it was taken".to_owned(),
                    Err(error) => error.to_string(),
                },
                Err(refusal) => refusal.to_string(),
            };
            let says = format!(
                "pod {ns}/first is not resized: {QUEUE} quota has reached the allowable limit of CPU cores. Limit is 0.5"
            );
            Ok(Seen::when(refusal.contains(&says), refusal))
        },
    )
    .await?;
    let refused = cluster.pods(&ns).get("first").await?;
    let asks = |pod: &Pod| {
        let container = pod.spec.as_ref()?.containers.first()?;
        let requests = container.resources.as_ref()?.requests.as_ref()?;
        api::quantity::milli_up(requests.get("cpu")?)
    };
    ensure!(
        asks(&refused) == Some(100),
        "it asks for {:?}",
        asks(&refused)
    );
    resize(cluster, &ns, "first", 300).await?;
    let grown = |pod: &Pod| has(pod) == Some(300);
    cluster
        .pod_until(&ns, "first", "has what it asks for", grown)
        .await?;
    Ok(())
}

/// A watch has shown neither when the other comes.
pub(crate) async fn of_two_resizes_at_once_that_the_queue_cannot_both_have_one_is_refused(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = narrow_queue(cluster).await?;
    until("a refusal", Duration::from_secs(10), || async {
        // Before the webhook's configuration stood nothing is refused.
        let refused = resize(cluster, &ns, "first", 400).await.is_err();
        resize(cluster, &ns, "first", 100).await?;
        Ok(Seen::when(refused, "it was taken"))
    })
    .await?;
    for round in 0..10 {
        let both = tokio::join!(
            resize(cluster, &ns, "first", 250),
            resize(cluster, &ns, "second", 350),
        );
        let refusals: Vec<String> = [both.0, both.1]
            .into_iter()
            .filter_map(Result::err)
            .map(|refusal| refusal.to_string())
            .collect();
        let [refusal] = refusals.as_slice() else {
            bail!("round {round}: {refusals:?}");
        };
        ensure!(refusal.contains("Limit is 0.5"), "{refusal}");
        // Smaller is never refused by the queue.
        resize(cluster, &ns, "first", 100).await?;
        resize(cluster, &ns, "second", 200).await?;
    }
    Ok(())
}
