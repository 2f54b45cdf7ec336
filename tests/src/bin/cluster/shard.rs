//! What an admin changes while the scheduler runs.

use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::kubectl::Kubectl;
use aliquot_tests::node;
use aliquot_tests::share::{pod, why_pending};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::placement::card_of;

/// KAI's, of nodes for pods with GPUs.
const GPU_WORKER: &str = "node-role.kubernetes.io/gpu-worker";
/// From the change until it acts.
const AT_ONCE: Duration = Duration::from_secs(5);

fn shard(spec: &Value) -> Value {
    json!({
        "apiVersion": "kai.scheduler/v1",
        "kind": "SchedulingShard",
        "metadata": {"name": "default"},
        "spec": spec,
    })
}

/// As a person waits for it: by the condition, of the generation that was applied.
async fn wait(kubectl: &Kubectl, condition: &str) -> Result<()> {
    let condition = format!("--for=condition={condition}");
    let args = [
        "wait",
        "schedulingshard/default",
        &condition,
        "--timeout=5s",
    ];
    kubectl.run(&args).await.map(drop)
}

async fn message(kubectl: &Kubectl, condition: &str) -> Result<String> {
    let path = format!("-o=jsonpath={{.status.conditions[?(@.type==\"{condition}\")].message}}");
    kubectl
        .run(&["get", "schedulingshard/default", &path])
        .await
}

pub(crate) async fn a_changed_shard_acts_within_five_seconds_and_says_what_of_it_does_not(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 2)).await?;
    let outcome = changed(cluster).await;
    let args = ["delete", "schedulingshard/default", "--ignore-not-found"];
    let deleted = cluster.kubectl.run(&args).await;
    outcome?;
    deleted.map(drop)
}

/// The card of a new share.
async fn share(cluster: &mut Cluster, ns: &str, name: &str) -> Result<String> {
    let share = pod(ns, name, &[("gpu-memory", "2000")], "report hold");
    card_of(&cluster.run_share(&share).await?)
}

async fn changed(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    let process = |cluster: &Cluster| {
        let scheduler = cluster.scheduler.as_ref().context("no scheduler")?;
        scheduler.daemon.pid().context("it does not run")
    };
    let before = process(cluster)?;
    let first = share(cluster, &ns, "first").await?;
    let second = share(cluster, &ns, "second").await?;
    ensure!(first == second, "shares are packed at first");

    let spread = json!({
        "placementStrategy": {"gpu": "spread"},
        "plugins": {"dreams": {}},
        "args": {"schedule-period": "2s"},
    });
    let begin = Instant::now();
    cluster.apply_one(&shard(&spread)).await?;
    wait(&cluster.kubectl, "Ready").await?;
    let took = begin.elapsed();
    ensure!(took < AT_ONCE, "it took {took:?}");
    let third = share(cluster, &ns, "third").await?;
    ensure!(third != first, "the third share is packed, not spread");
    wait(&cluster.kubectl, "KeysIgnored").await?;
    let ignored = message(&cluster.kubectl, "KeysIgnored").await?;
    for word in ["plugin dreams is not known", "spec.args.schedule-period"] {
        ensure!(ignored.contains(word), "{ignored}");
    }

    // An invalid object is reported, and what was in force stays.
    let thin = json!({"placementStrategy": {"gpu": "thin"}});
    cluster.apply_one(&shard(&thin)).await?;
    wait(&cluster.kubectl, "Ready=false").await?;
    let why = message(&cluster.kubectl, "Ready").await?;
    ensure!(
        why.contains("spec.placementStrategy.gpu: thin is neither binpack nor spread"),
        "{why}"
    );
    let packs = json!({"placementStrategy": {"gpu": "binpack"}});
    cluster.apply_one(&shard(&packs)).await?;
    wait(&cluster.kubectl, "Ready").await?;
    let fourth = share(cluster, &ns, "fourth").await?;
    ensure!(
        fourth == first,
        "the fourth share is not on the fuller card"
    );
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let label = json!({"metadata": {"labels": {GPU_WORKER: null}}});
    let restricted = restricted(cluster, &ns, &nodes).await;
    let params = PatchParams::default();
    let unlabelled = nodes.patch(node::NAME, &params, &Patch::Merge(label)).await;
    restricted?;
    unlabelled?;
    ensure!(
        process(cluster)? == before,
        "the scheduler was started again"
    );
    cluster.limits_hold().await
}

/// Nodes are for pods with GPUs where their label says so.
async fn restricted(cluster: &mut Cluster, ns: &str, nodes: &Api<Node>) -> Result<()> {
    let only = json!({"args": {"restrict-node-scheduling": "true"}});
    cluster.apply_one(&shard(&only)).await?;
    wait(&cluster.kubectl, "Ready").await?;
    wait(&cluster.kubectl, "KeysIgnored=false").await?;
    let fifth = pod(ns, "fifth", &[("gpu-memory", "2000")], "report hold");
    cluster.apply_one(&fifth).await?;
    let pods = cluster.pods(ns);
    let wanted = format!("1 node(s) had no label {GPU_WORKER}, which GPU pods need");
    until("the pod is told which label", AT_ONCE, || async {
        let why = why_pending(&pods.get("fifth").await?).unwrap_or_default();
        Ok(Seen::when(why.contains(&wanted), why))
    })
    .await?;
    let label = json!({"metadata": {"labels": {GPU_WORKER: ""}}});
    let params = PatchParams::default();
    nodes
        .patch(node::NAME, &params, &Patch::Merge(label))
        .await?;
    cluster.run_share(&fifth).await.map(drop)
}
