//! Nodes that pods wait for, as an autoscaler sees them; the claims play the autoscaler.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::manifest::documents;
use aliquot_tests::scheduler::Replica;
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, stays, until};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::ListParams;
use proto::names::{resource, scale_up as names};
use serde_json::{Value, json};

/// The label of the group's nodes.
const GROUP: (&str, &str) = ("kwok-group", "t4");
/// A check of the scheduler, a plan, and the writes.
const SOON: Duration = Duration::from_secs(20);
/// Two checks.
const QUIET: Duration = Duration::from_secs(5);

pub(crate) async fn who_waits_for_room_brings_the_nodes_it_needs_and_no_more(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let file = cluster.work.state().join("node-templates.yaml");
    let templates = json!({ "nodeTemplates": [{
        "name": "t4", "labels": { GROUP.0: GROUP.1 }, "cards": 1, "cardMemory": "15360Mi",
        "cpu": "8", "memory": "32Gi", "maxNodes": 5,
    }] });
    std::fs::write(&file, templates.to_string())?;
    let manifests = cluster
        .programs
        .tree
        .join("deploy/autoscaling/autoscaling.yaml");
    for document in documents(&std::fs::read_to_string(manifests)?)? {
        cluster.apply_one(&document).await?;
    }
    let mut replica = Replica::only();
    replica.args.extend([
        "--cluster-autoscaling".to_owned(),
        format!("--node-templates={}", file.display()),
    ]);
    cluster.replace_scheduler(replica.clone()).await?;
    let outcome = asked_for(cluster, replica).await;
    cluster.replace_scheduler(Replica::only()).await?;
    let args = ["delete", "namespace", names::NAMESPACE, "--timeout=60s"];
    cluster.kubectl.run(&args).await?;
    outcome
}

pub(crate) fn queue(name: &str, quota: i64) -> Value {
    let all = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
    let gpu = json!({ "quota": quota, "limit": -1, "overQuotaWeight": 1 });
    json!({
        "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": { "name": name },
        "spec": { "resources": { "cpu": all, "gpu": gpu, "memory": all } },
    })
}

fn share(ns: &str, name: &str, queue: &str, annotation: (&str, &str)) -> Value {
    let mut share = pod(ns, name, &[annotation], "report hold");
    share["metadata"]["labels"] = json!({ "kai.scheduler/queue": queue });
    share
}

pub(crate) async fn placeholders(cluster: &Cluster) -> Result<Vec<Pod>> {
    let pods = cluster.pods(names::NAMESPACE);
    let mut listed = pods.list(&ListParams::default()).await?.items;
    listed.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(listed)
}

/// Waits until autoscalers see requests for this many nodes.
pub(crate) async fn asked(cluster: &Cluster, count: usize) -> Result<Vec<Pod>> {
    until(&format!("{count} placeholders"), SOON, || async {
        let pods = placeholders(cluster).await?;
        let seen = pods
            .iter()
            .filter(|pod| said(pod) == "Unschedulable")
            .count();
        let all = pods.len() == count && seen == count;
        Ok(if all {
            Seen::Done(pods)
        } else {
            Seen::NotYet(format!("{} there, {seen} of them seen", pods.len()))
        })
    })
    .await
}

pub(crate) async fn still(cluster: &Cluster, count: usize) -> Result<()> {
    stays(&format!("{count} placeholders"), QUIET, || async {
        let there = placeholders(cluster).await?.len();
        Ok(Seen::when(there == count, there.to_string()))
    })
    .await
}

/// The reason of `PodScheduled=False`.
fn said(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let mut conditions = status.conditions.into_iter().flatten();
    let condition = conditions.find(|one| one.type_ == "PodScheduled" && one.status == "False");
    condition.and_then(|one| one.reason).unwrap_or_default()
}

pub(crate) async fn explained(cluster: &Cluster, ns: &str, name: &str) -> Result<String> {
    let uid = cluster.pods(ns).get(name).await?.uid().context("no UID")?;
    let scheduler = cluster.scheduler.as_ref().context("no scheduler")?;
    let address = scheduler.replica.metrics();
    aliquot_tests::http::get(&address, &format!("/explain?pod={uid}")).await
}

async fn asked_for(cluster: &mut Cluster, replica: Replica) -> Result<()> {
    let ns = cluster.namespace().await?;
    cluster.apply_one(&queue("scale", 10)).await?;
    cluster.apply_one(&queue("over", 0)).await?;
    // All of the only card.
    let before = share(&ns, "before", "scale", ("gpu-memory", "14000"));
    let runs = cluster.run_share(&before).await?;
    let safe_to_evict = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    ensure!(
        runs.annotations().get(safe_to_evict).map(String::as_str) == Some("false"),
        "{:?}",
        runs.annotations()
    );
    still(cluster, 0).await?;

    let half = ("gpu-fraction", "0.5");
    cluster
        .apply_one(&share(&ns, "half-1", "scale", half))
        .await?;
    let first = asked(cluster, 1).await?;
    cluster
        .apply_one(&share(&ns, "half-2", "scale", half))
        .await?;
    cluster
        .apply_one(&share(&ns, "borrower", "over", half))
        .await?;
    still(cluster, 1).await?;
    cluster
        .apply_one(&share(&ns, "half-3", "scale", half))
        .await?;
    let two = asked(cluster, 2).await?;
    ensure!(
        two.iter().any(|pod| pod.uid() == first[0].uid()),
        "the placeholder of the first node was recreated"
    );
    let spec = two[0].spec.clone().unwrap_or_default();
    let requests = spec.containers[0]
        .resources
        .clone()
        .and_then(|all| all.requests);
    let cards = requests.and_then(|all| all.get(resource::GPU).cloned());
    ensure!(cards.is_some_and(|cards| cards.0 == "1"), "{spec:?}");
    let selector = spec.node_selector.unwrap_or_default();
    ensure!(
        selector.get(GROUP.0).is_some_and(|value| value == GROUP.1),
        "{selector:?}"
    );

    // Autoscalers must not count these, too.
    let pods = cluster.pods(&ns);
    until("the reason of one that waits", SOON, || async {
        let reason = said(&pods.get("half-1").await?);
        Ok(Seen::when(reason == names::WAITING, reason))
    })
    .await?;
    let text = explained(cluster, &ns, "half-3").await?;
    ensure!(
        text.contains("a node like t4 would let it run: asked for since"),
        "{text}"
    );
    let text = explained(cluster, &ns, "borrower").await?;
    ensure!(!text.contains("would let it run"), "{text}");

    // Another process: what is there is what it needs.
    let ours: Vec<_> = two.iter().map(kube::ResourceExt::uid).collect();
    cluster.replace_scheduler(replica).await?;
    still(cluster, 2).await?;
    let kept = asked(cluster, 2).await?;
    ensure!(
        kept.iter().all(|pod| ours.contains(&pod.uid())),
        "they were recreated"
    );

    // A node comes that offers no card yet: it will have room for two.
    cluster.simulate_nodes(&["new-1"], 0).await?;
    let label = format!("{}={}", GROUP.0, GROUP.1);
    cluster
        .kubectl
        .run(&["label", "node", "new-1", &label])
        .await?;
    let starting = "node new-1 is starting, and will have room for it";
    until("two that wait for the node that starts", SOON, || async {
        let mut wait = 0;
        for name in ["half-1", "half-2", "half-3"] {
            wait += usize::from(explained(cluster, &ns, name).await?.contains(starting));
        }
        Ok(Seen::when(wait == 2, format!("{wait} wait for it")))
    })
    .await?;
    // Without its placeholder, an autoscaler would take it for room for the other one.
    still(cluster, 2).await?;
    let kept = asked(cluster, 2).await?;
    ensure!(
        kept.iter().all(|pod| ours.contains(&pod.uid())),
        "they were recreated"
    );

    let args = [
        "-n",
        &ns,
        "delete",
        "pod",
        "half-1",
        "half-2",
        "half-3",
        "--wait=true",
    ];
    cluster.kubectl.run(&args).await?;
    asked(cluster, 0).await.map(drop)?;
    cluster.limits_hold().await
}
