//! Ordinary manifests: rules between pods that run under any Kubernetes scheduler.

use std::collections::BTreeMap;
use std::time::Duration;

use aliquot_tests::burst::plain;
use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::image::WORKLOAD_IMAGE;
use aliquot_tests::pod::describe;
use aliquot_tests::share::why_pending;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(40);
/// A label of our own: nothing else on the nodes has it.
const ZONE: &str = "test.aliquot.dev/zone";
const HOST: &str = "kubernetes.io/hostname";

/// Simulated nodes, each with its zone.
async fn zones(cluster: &mut Cluster, nodes: &[(&str, &str)]) -> Result<()> {
    let names: Vec<&str> = nodes.iter().map(|(name, _)| *name).collect();
    cluster.simulate_nodes(&names, 1).await?;
    let api: Api<Node> = Api::all(cluster.client.clone());
    for (name, zone) in nodes {
        let labels = json!({ "metadata": { "labels": { ZONE: zone } } });
        api.patch(name, &PatchParams::default(), &Patch::Merge(labels))
            .await?;
    }
    Ok(())
}

/// A pod with that label that goes to a node with a zone.
fn pod(namespace: &str, name: &str, app: &str) -> Value {
    let mut pod = plain(namespace, name);
    pod["metadata"]["labels"]["app"] = json!(app);
    pod["spec"]["nodeSelector"] = json!({ "type": "kwok" });
    pod
}

/// Pods of that label by the value of their node's label.
async fn places(
    cluster: &Cluster,
    namespace: &str,
    app: &str,
    key: &str,
) -> Result<BTreeMap<String, usize>> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let nodes = nodes.list(&ListParams::default()).await?.items;
    let pods = ListParams::default().labels(&format!("app={app}"));
    let mut places = BTreeMap::new();
    for pod in cluster.pods(namespace).list(&pods).await?.items {
        let at = pod.spec.and_then(|spec| spec.node_name);
        let node = nodes.iter().find(|node| Some(node.name_any()) == at);
        let value = node.and_then(|node| node.labels().get(key));
        if let Some(value) = value {
            *places.entry(value.clone()).or_default() += 1;
        }
    }
    Ok(places)
}

/// Until a pod has a reason with these words.
async fn waits_for(cluster: &Cluster, namespace: &str, name: &str, words: &str) -> Result<()> {
    until(&format!("{name} told that {words}"), LONG, || async {
        let pod: Pod = cluster.pods(namespace).get(name).await?;
        let told = why_pending(&pod).unwrap_or_default();
        Ok(Seen::when(
            told.contains(words),
            format!("{told} {}", describe(&pod)),
        ))
    })
    .await
}

pub(crate) async fn replicas_that_avoid_each_other_stand_on_different_nodes(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("L4", 1)).await?;
    zones(
        cluster,
        &[("kwok-a", "a"), ("kwok-b", "b"), ("kwok-c", "c")],
    )
    .await?;
    let ns = cluster.namespace().await?;
    let mut template = pod(&ns, "", "web");
    template["spec"]["affinity"] = json!({ "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{
            "labelSelector": { "matchLabels": { "app": "web" } }, "topologyKey": HOST }] } });
    template["spec"]["restartPolicy"] = json!("Always");
    cluster
        .apply_one(&json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "namespace": ns, "name": "web" },
            "spec": {
                "replicas": 4,
                "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": template["metadata"]["labels"] },
                    "spec": template["spec"],
                },
            },
        }))
        .await?;
    until(
        "three nodes with one replica each, one waits",
        LONG,
        || async {
            let places = places(cluster, &ns, "web", HOST).await?;
            let pods = cluster.pods(&ns).list(&ListParams::default()).await?.items;
            let why = pods.iter().filter_map(why_pending);
            let told = why.filter(|why| why.contains("didn't match pod anti-affinity rules"));
            let told = told.count();
            ensure!(
                places.values().all(|pods| *pods == 1),
                "two on one node: {places:?}"
            );
            let done = places.len() == 3 && told == 1;
            Ok(Seen::when(done, format!("{places:?}, {told} told")))
        },
    )
    .await?;
    // A pod that they avoid is not placed either, though it has no such rule.
    cluster.apply_one(&pod(&ns, "stranger", "web")).await?;
    let kept_out = "didn't satisfy existing pods anti-affinity rules";
    waits_for(cluster, &ns, "stranger", kept_out).await
}

pub(crate) async fn pods_are_spread_over_zones_and_the_one_too_many_waits(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("L4", 1)).await?;
    // Two nodes in one zone: it gets no more than the others.
    let nodes = [
        ("kwok-a", "a"),
        ("kwok-a2", "a"),
        ("kwok-b", "b"),
        ("kwok-c", "c"),
    ];
    zones(cluster, &nodes).await?;
    let ns = cluster.namespace().await?;
    let spread = |name: String| {
        let mut pod = pod(&ns, &name, "even");
        pod["spec"]["topologySpreadConstraints"] = json!([{
            "maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": { "matchLabels": { "app": "even" } } }]);
        pod
    };
    for at in 0..6 {
        cluster.apply_one(&spread(format!("even-{at}"))).await?;
    }
    until("two in each zone", LONG, || async {
        let places = places(cluster, &ns, "even", ZONE).await?;
        let done = places.len() == 3 && places.values().all(|pods| *pods == 2);
        Ok(Seen::when(done, format!("{places:?}")))
    })
    .await?;
    // With one zone closed, one more goes to each of the others and no further.
    let api: Api<Node> = Api::all(cluster.client.clone());
    let closed = json!({ "spec": { "unschedulable": true } });
    api.patch("kwok-c", &PatchParams::default(), &Patch::Merge(closed))
        .await?;
    for at in 6..9 {
        cluster.apply_one(&spread(format!("even-{at}"))).await?;
    }
    until("three, three and two", LONG, || async {
        let places = places(cluster, &ns, "even", ZONE).await?;
        ensure!(
            places.values().sum::<usize>() <= 8,
            "not spread: {places:?}"
        );
        Ok(Seen::when(
            places.values().sum::<usize>() == 8,
            format!("{places:?}"),
        ))
    })
    .await?;
    let mut waiting = Vec::new();
    for pod in cluster.pods(&ns).list(&ListParams::default()).await?.items {
        if pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_none())
        {
            waiting.push(pod.name_any());
        }
    }
    let [one] = waiting.as_slice() else {
        anyhow::bail!("{waiting:?} wait");
    };
    waits_for(
        cluster,
        &ns,
        one,
        "didn't match pod topology spread constraints",
    )
    .await
}

pub(crate) async fn a_pod_goes_where_the_one_is_that_it_wants_to_be_near(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("L4", 1)).await?;
    zones(
        cluster,
        &[("kwok-a", "a"), ("kwok-b", "b"), ("kwok-c", "c")],
    )
    .await?;
    let (ns, other) = (cluster.namespace().await?, cluster.namespace().await?);
    let mut follower = pod(&ns, "follower", "follower");
    follower["spec"]["affinity"] = json!({ "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{
            "labelSelector": { "matchLabels": { "app": "cache" } },
            "namespaceSelector": { "matchLabels": { "test.aliquot.dev/kind": "cache" } },
            "topologyKey": ZONE }] } });
    cluster.apply_one(&follower).await?;
    waits_for(cluster, &ns, "follower", "didn't match pod affinity rules").await?;
    // One of another scheduler, in a namespace that is not meant yet.
    let mut cache = pod(&other, "cache", "cache");
    cache["spec"]["schedulerName"] = json!("nobody");
    cache["spec"]["nodeName"] = json!("kwok-b");
    cluster.apply_one(&cache).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let waiting: Pod = cluster.pods(&ns).get("follower").await?;
    ensure!(
        waiting
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_none()),
        "bound beside a pod that its rule does not mean: {}",
        describe(&waiting)
    );
    let api: Api<Namespace> = Api::all(cluster.client.clone());
    let labels = json!({ "metadata": { "labels": { "test.aliquot.dev/kind": "cache" } } });
    api.patch(&other, &PatchParams::default(), &Patch::Merge(labels))
        .await?;
    until("bound in that zone", LONG, || async {
        let places = places(cluster, &ns, "follower", ZONE).await?;
        Ok(Seen::when(places.contains_key("b"), format!("{places:?}")))
    })
    .await
}

pub(crate) async fn two_pods_with_one_host_port_are_never_on_one_node(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("L4", 1)).await?;
    let ns = cluster.namespace().await?;
    // On the real node, whose kubelet permanently rejects a pod whose port is taken.
    let with_port = |name: &str, address: Option<&str>| {
        let mut pod = plain(&ns, name);
        let mut port = json!({ "containerPort": 80, "hostPort": 18_080 });
        if let Some(address) = address {
            port["hostIP"] = json!(address);
        }
        pod["spec"]["nodeSelector"] = json!({ HOST: aliquot_tests::node::NAME });
        pod["spec"]["containers"] = json!([{ "name": "main", "image": WORKLOAD_IMAGE,
            "command": ["/bin/sleep", "600"], "ports": [port] }]);
        pod
    };
    cluster
        .apply_one(&with_port("one", Some("127.0.0.1")))
        .await?;
    cluster.pod_phase(&ns, "one", "Running").await?;
    cluster
        .apply_one(&with_port("two", Some("127.0.0.2")))
        .await?;
    cluster.pod_phase(&ns, "two", "Running").await?;
    cluster.apply_one(&with_port("all", None)).await?;
    waits_for(
        cluster,
        &ns,
        "all",
        "didn't have free ports for the requested pod ports",
    )
    .await?;
    cluster.delete_pods(&ns, ["one", "two"]).await?;
    cluster.pod_phase(&ns, "all", "Running").await?;
    Ok(())
}

pub(crate) async fn a_pod_waits_for_its_config_map_and_runs_when_it_is_there(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("L4", 1)).await?;
    let ns = cluster.namespace().await?;
    let mut told = plain(&ns, "told");
    told["spec"]["nodeSelector"] = json!({ HOST: aliquot_tests::node::NAME });
    told["spec"]["containers"] = json!([{ "name": "main", "image": WORKLOAD_IMAGE,
        "command": ["/bin/sleep", "600"],
        "envFrom": [{ "configMapRef": { "name": "settings" } }] }]);
    cluster.apply_one(&told).await?;
    waits_for(
        cluster,
        &ns,
        "told",
        "ConfigMap: Missing required configmaps: [settings].",
    )
    .await?;
    let settings = json!({ "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "namespace": ns, "name": "settings" }, "data": { "MODE": "fast" } });
    cluster.apply_one(&settings).await?;
    cluster.pod_phase(&ns, "told", "Running").await?;
    Ok(())
}
