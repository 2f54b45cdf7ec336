//! An underused node of an autoscaled group, whose share the scheduler moves to another node.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::manifest::documents;
use aliquot_tests::node;
use aliquot_tests::pod::{describe, phase_of};
use aliquot_tests::scheduler::Replica;
use aliquot_tests::share::{line, pod};
use aliquot_tests::simulated_agents::{self, Cards};
use aliquot_tests::wait::{Seen, stays, until};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use proto::names::scale_up as names;
use serde_json::{Value, json};

/// The node of the group: its pods run in name only.
const IDLE: &str = "idle-1";
/// Seconds.
const DELAY: u64 = 3;
const CARDS: Cards = Cards {
    count: 1,
    product: "NVIDIA L4",
    total_mib: 23_034,
    grantable_mib: 22_528,
};
const MIB: u64 = 5000;

pub(crate) async fn a_share_on_an_underused_node_moves_to_one_in_use_and_breaks_no_budget(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
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
        format!("--scale-down-delay-s={DELAY}"),
    ]);
    cluster.replace_scheduler(replica.clone()).await?;
    cluster.simulate_nodes(&[IDLE], 1).await?;
    let group = "karpenter.sh/nodepool=l4";
    cluster.kubectl.run(&["label", "node", IDLE, group]).await?;
    let idle: Node = Api::all(cluster.client.clone()).get(IDLE).await?;
    let agent =
        simulated_agents::enlist(&cluster.client, &idle, CARDS, replica.telemetry()).await?;
    let outcome = moved(cluster).await;
    simulated_agents::discharge(&cluster.client, vec![agent]).await?;
    cluster.replace_scheduler(Replica::only()).await?;
    let args = ["delete", "namespace", names::NAMESPACE, "--timeout=60s"];
    cluster.kubectl.run(&args).await?;
    outcome
}

/// A server with one share, and a budget that lets none of it be evicted.
fn server(ns: &str) -> [Value; 2] {
    let (labels, mib) = (json!({ "app": "web" }), MIB.to_string());
    let pod = pod(ns, "web", &[("gpu-memory", &mib)], "report hold");
    let annotations = &pod["metadata"]["annotations"];
    let mut deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "namespace": ns, "name": "web", "labels": { "priorityClassName": "train" } },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels, "annotations": annotations },
                "spec": pod["spec"],
            },
        },
    });
    // A Deployment's pods always restart.
    deployment["spec"]["template"]["spec"]["restartPolicy"] = json!("Always");
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "namespace": ns, "name": "web" },
        "spec": { "maxUnavailable": 0, "selector": { "matchLabels": labels } },
    });
    [deployment, budget]
}

/// A share on the node that no autoscaler removes.
fn there(ns: &str, name: &str, mib: &str) -> Value {
    let mut pod = pod(ns, name, &[("gpu-memory", mib)], "report hold");
    pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": node::NAME });
    pod
}

async fn servers(cluster: &Cluster, ns: &str) -> Result<Vec<Pod>> {
    let of_server = ListParams::default().labels("app=web");
    Ok(cluster.pods(ns).list(&of_server).await?.items)
}

/// The server's only pod, once it runs there.
async fn runs_on(cluster: &Cluster, ns: &str, node: &str) -> Result<Pod> {
    let what = format!("the server on {node}");
    until(&what, Duration::from_mins(1), || async {
        let pods = servers(cluster, ns).await?;
        let seen: Vec<String> = pods.iter().map(describe).collect();
        let is_it = |pod: &Pod| {
            let at = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            at == Some(node) && phase_of(pod) == "Running"
        };
        Ok(match pods.as_slice() {
            [pod] if is_it(pod) => Seen::Done(pod.clone()),
            _ => Seen::NotYet(seen.join("; ")),
        })
    })
    .await
}

async fn moved(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    // All of the card of the node that no autoscaler removes.
    cluster.run_share(&there(&ns, "before", "14000")).await?;
    for object in server(&ns) {
        cluster.apply_one(&object).await?;
    }
    let first = runs_on(cluster, &ns, IDLE).await?;
    cluster.delete_pod(&ns, "before").await?;
    cluster.run_share(&there(&ns, "beside", "4000")).await?;
    let quiet = Duration::from_secs(2 * DELAY);
    stays("the server, which its budget protects", quiet, || async {
        let pods = servers(cluster, &ns).await?;
        let seen: Vec<String> = pods.iter().map(describe).collect();
        let is_same = pods.len() == 1 && pods[0].uid() == first.uid();
        Ok(Seen::when(is_same, seen.join("; ")))
    })
    .await?;

    cluster
        .kubectl
        .run(&["-n", &ns, "delete", "poddisruptionbudget", "web"])
        .await?;
    let second = runs_on(cluster, &ns, node::NAME).await?;
    let told = cluster.events_of(&ns, &first.name_any()).await?.join("; ");
    let words = format!("was moved off node {IDLE}, whose pods all fit on other nodes in use");
    ensure!(told.contains(&words), "{told}");
    let log = cluster.logs(&ns, &second.name_any(), Some("main")).await?;
    let report = line(&log, "report").context("no report")?;
    ensure!(report.to_string().contains(&MIB.to_string()), "{report}");
    // It stays there.
    stays("the moved server", quiet, || async {
        let pods = servers(cluster, &ns).await?;
        let is_same = pods.len() == 1 && pods[0].uid() == second.uid();
        Ok(Seen::when(is_same, format!("{} pods", pods.len())))
    })
    .await?;
    cluster.limits_hold().await
}
