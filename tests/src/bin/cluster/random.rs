//! Random clusters on a real API server, with the real kube-scheduler beside ours: a pod that
//! one of them finds room for, the other one does, too.
//!
//! The clusters are those of `--bin differential`, which asks kube-scheduler's plugins alone.
//! The nodes have no kubelet and the controllers are stopped, so nothing runs. What the pinned
//! API server refuses to take is left out: taints and tolerations that are compared as numbers, which are alpha there.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::fmt::Debug;
use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::random_cluster;
use aliquot_tests::scheduler::Replica;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount,
};
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use proto::names::kai;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const NAMESPACES: [&str; 3] = ["default", "team-a", "team-b"];
const SCHEDULERS: [&str; 2] = ["default-scheduler", kai::SCHEDULER_NAME];
const QUEUE: &str = "random";
/// From the last object of a cluster until all that watch have seen it. Kinds are watched
/// separately, so an event of one kind says nothing about the others.
const SEEN: Duration = Duration::from_millis(400);
/// What our scheduler says of a pod whose place is on a node that others are leaving.
const PROMISED: &str = "Waits for resources that are being released on node ";
/// Requests under way at once.
const AT_ONCE: usize = 16;

/// The results of all pods.
#[derive(Debug, Default)]
struct Sums {
    /// Both placed it, or neither did.
    agreed: usize,
    /// Of them, those that neither placed.
    unplaced: usize,
    /// Of them, those that they placed on different nodes: a matter of preferences.
    elsewhere: usize,
    /// Of them, those that ours has a place for once others have left it.
    promised: usize,
    /// The API server refused the pod.
    refused: usize,
    differed: Vec<String>,
}

/// Their number.
pub(crate) async fn clusters(cluster: &mut Cluster, count: u64) -> Result<()> {
    // The scheduler of earlier claims has the ports that this one needs.
    cluster.repair().await?;
    cluster.install().await?;
    cluster.make_namespace("team-a").await?;
    cluster.make_namespace("team-b").await?;
    for namespace in NAMESPACES {
        let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), namespace);
        until("the default account", Duration::from_secs(30), || async {
            let account = accounts.get_opt("default").await?;
            Ok(Seen::from_option(account, "none"))
        })
        .await?;
    }
    let all = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
    cluster
        .apply_one(&json!({
            "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": { "name": QUEUE },
            "spec": { "resources": { "cpu": all, "gpu": all, "memory": all } },
        }))
        .await?;
    cluster.control_plane.dismiss_controllers().await?;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let own: Vec<String> = nodes
        .list(&ListParams::default())
        .await?
        .into_iter()
        .map(|node| node.name_any())
        .collect();
    for name in &own {
        cordon(&nodes, name, true).await?;
    }
    let mut theirs = cluster.start_kube_scheduler()?;
    let mut ours = cluster.start_scheduler(Replica::only()).await?;
    ours.ready().await?;
    let compared = compare(cluster, count).await;
    let (ended, died) = (theirs.alive(), ours.daemon.alive());
    theirs.stop().await?;
    ours.daemon.stop().await?;
    for name in &own {
        cordon(&nodes, name, false).await?;
    }
    cluster.control_plane.recall_controllers()?;
    ended?;
    died?;
    let sums = compared?;
    println!(
        "{} agreed, {} differed; {} of them found no room, {} were placed on another node, {} wait for others to leave, {} were refused",
        sums.agreed,
        sums.differed.len(),
        sums.unplaced,
        sums.elsewhere,
        sums.promised,
        sums.refused
    );
    ensure!(sums.differed.is_empty(), "{}", sums.differed.join("\n"));
    // A comparison of nothing would agree as well.
    ensure!(sums.unplaced > 0 && sums.agreed > sums.unplaced, "{sums:?}");
    Ok(())
}

async fn cordon(nodes: &Api<Node>, name: &str, unschedulable: bool) -> Result<()> {
    let patch = Patch::Merge(json!({ "spec": { "unschedulable": unschedulable } }));
    nodes.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn compare(cluster: &Cluster, count: u64) -> Result<Sums> {
    let mut sums = Sums::default();
    for seed in 1..=count {
        let world = random_cluster::cluster(seed);
        make(&cluster.client, &world)
            .await
            .with_context(|| format!("seed {seed}"))?;
        tokio::time::sleep(SEEN).await;
        for pod in world["incoming"].as_array().into_iter().flatten() {
            let [theirs, ours] = [
                place(cluster, pod, SCHEDULERS[0]).await?,
                place(cluster, pod, SCHEDULERS[1]).await?,
            ];
            match (theirs, ours) {
                (None, None) => sums.refused += 1,
                // kube-scheduler never waits for a node that others leave. Ours does where no
                // other has room, or for a preference between pods.
                (Some(theirs), Some(Found::Promised))
                    if theirs == Found::Nowhere || prefers_pods(pod) =>
                {
                    sums.agreed += 1;
                    sums.promised += 1;
                    sums.unplaced += usize::from(theirs == Found::Nowhere);
                }
                (Some(theirs), Some(ours))
                    if (theirs == Found::Nowhere) == (ours == Found::Nowhere) =>
                {
                    sums.agreed += 1;
                    sums.unplaced += usize::from(theirs == Found::Nowhere);
                    sums.elsewhere += usize::from(theirs != ours);
                }
                (theirs, ours) => sums.differed.push(format!(
                    "seed {seed}, {}: kube-scheduler {theirs:?}, Aliquot {ours:?}",
                    pod["metadata"]["name"]
                )),
            }
        }
        clear(&cluster.client)
            .await
            .with_context(|| format!("after seed {seed}"))?;
    }
    Ok(sums)
}

fn prefers_pods(pod: &Value) -> bool {
    let affinity = &pod["spec"]["affinity"];
    ["podAffinity", "podAntiAffinity"]
        .iter()
        .any(|kind| affinity[kind]["preferredDuringSchedulingIgnoredDuringExecution"].is_array())
}

/// What a scheduler says of a pod.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// It is bound there.
    Node(String),
    /// Ours alone says so: it has a place on a node that others are leaving. A preference between
    /// pods is worth more than a node that is free now, as in KAI.
    Promised,
    Nowhere,
}

/// Where that scheduler places the pod, which then goes. `None` if the API server does not take
/// the pod.
async fn place(cluster: &Cluster, pod: &Value, scheduler: &str) -> Result<Option<Found>> {
    let mut pod = pod.clone();
    let namespace = pod["metadata"]["namespace"]
        .as_str()
        .context("a namespace")?
        .to_owned();
    // The same pod twice has two names: a name that is there again is an update for some.
    let name = format!(
        "{}-{scheduler}",
        pod["metadata"]["name"].as_str().context("a name")?
    );
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["labels"][kai::QUEUE_LABEL] = json!(QUEUE);
    pod["spec"]["schedulerName"] = json!(scheduler);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
    let pods = cluster.pods(&namespace);
    match create::<Pod>(&pods, &pod).await {
        Err(kube::Error::Api(status)) if status.code == 422 => return Ok(None),
        made => drop(made?),
    }
    let what = format!("a word of {scheduler} about {name}");
    let found = until(&what, Duration::from_secs(30), || async {
        let pod = pods.get(&name).await?;
        if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) {
            return Ok(Seen::Done(Found::Node(node)));
        }
        let conditions = pod
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref());
        let refused = conditions.into_iter().flatten().find(|one| {
            one.type_ == "PodScheduled" && one.reason.as_deref() == Some("Unschedulable")
        });
        Ok(match refused.map(|one| one.message.as_deref()) {
            Some(Some(message)) if message.starts_with(PROMISED) => Seen::Done(Found::Promised),
            Some(_) => Seen::Done(Found::Nowhere),
            None => Seen::NotYet(format!("{conditions:?}")),
        })
    })
    .await?;
    remove(&pods, &name).await?;
    Ok(Some(found))
}

/// Everything of a cluster but the pods that come to it.
async fn make(client: &Client, world: &Value) -> Result<()> {
    let list = |kind: &str| world[kind].as_array().cloned().unwrap_or_default();
    let params = PatchParams::default();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for namespace in list("namespaces") {
        let name = namespace["metadata"]["name"].as_str().context("a name")?;
        let kind = &namespace["metadata"]["labels"]["kind"];
        let patch = json!({ "metadata": { "labels": { "kind": kind } } });
        namespaces
            .patch(name, &params, &Patch::Merge(patch))
            .await?;
    }
    let nodes: Api<Node> = Api::all(client.clone());
    for node in list("nodes") {
        let name = node["metadata"]["name"].as_str().context("a name")?;
        create(&nodes, &json!({ "metadata": node["metadata"] })).await?;
        let mut taints = node["spec"]["taints"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        // No label value, which a taint's must be.
        taints.retain(|taint| taint["value"] != "-3");
        // Admission marks a new node as not ready, and the controller that would clear it does not
        // run.
        let spec = json!({ "taints": taints, "unschedulable": node["spec"]["unschedulable"] });
        nodes
            .patch(name, &params, &Patch::Merge(json!({ "spec": spec })))
            .await?;
        let mut status = node["status"].clone();
        status["capacity"] = status["allocatable"].clone();
        nodes
            .patch_status(name, &params, &Patch::Merge(json!({ "status": status })))
            .await?;
    }
    let csi_nodes: Api<CSINode> = Api::all(client.clone());
    for node in list("csinodes") {
        create(&csi_nodes, &node).await?;
    }
    storage(client, &list("claims"), &list("volumes")).await?;
    stream::iter(list("pods"))
        .map(|pod| placed(client, pod))
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await
}

/// Claims with their volumes, bound.
async fn storage(client: &Client, claims: &[Value], volumes: &[Value]) -> Result<()> {
    let params = PatchParams::default();
    let bound = Patch::Merge(json!({ "status": { "phase": "Bound" } }));
    let api: Api<PersistentVolume> = Api::all(client.clone());
    let size = json!({ "storage": "1Gi" });
    for (claim, volume) in claims.iter().zip(volumes) {
        let namespace = claim["metadata"]["namespace"]
            .as_str()
            .context("a namespace")?;
        let of_namespace: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
        let mut claim = claim.clone();
        claim["spec"]["resources"]["requests"] = size.clone();
        let made = create(&of_namespace, &claim).await?;
        let mut volume = volume.clone();
        volume["spec"]["capacity"] = size.clone();
        volume["spec"]["claimRef"] =
            json!({ "namespace": namespace, "name": made.name_any(), "uid": made.uid() });
        let volume = create(&api, &volume).await?;
        api.patch_status(&volume.name_any(), &params, &bound)
            .await?;
        of_namespace
            .patch_status(&made.name_any(), &params, &bound)
            .await?;
    }
    Ok(())
}

async fn placed(client: &Client, mut pod: Value) -> Result<()> {
    let namespace = pod["metadata"]["namespace"]
        .as_str()
        .context("a namespace")?
        .to_owned();
    let leaves = !pod["metadata"]["deletionTimestamp"].is_null();
    // Ours might be moved for one that comes.
    pod["spec"]["schedulerName"] = json!(SCHEDULERS[0]);
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let name = create(&pods, &pod).await?.name_any();
    let running = Patch::Merge(json!({ "status": { "phase": "Running" } }));
    pods.patch_status(&name, &PatchParams::default(), &running)
        .await?;
    if leaves {
        pods.delete(&name, &DeleteParams::default()).await?;
    }
    Ok(())
}

async fn clear(client: &Client) -> Result<()> {
    for namespace in NAMESPACES {
        empty::<Pod>(&Api::namespaced(client.clone(), namespace), |_| true).await?;
        empty::<PersistentVolumeClaim>(&Api::namespaced(client.clone(), namespace), |_| true)
            .await?;
    }
    empty::<PersistentVolume>(&Api::all(client.clone()), |_| true).await?;
    let random = |name: &str| name.starts_with("random-");
    empty::<CSINode>(&Api::all(client.clone()), random).await?;
    empty::<Node>(&Api::all(client.clone()), random).await
}

async fn empty<K>(api: &Api<K>, which: impl Fn(&str) -> bool) -> Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let all = api.list(&ListParams::default()).await?;
    let names = all.into_iter().map(|object| object.name_any());
    let names: Vec<String> = names.filter(|name| which(name)).collect();
    let gone = names.iter().map(|name| remove(api, name));
    stream::iter(gone)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// At once, without finalizers and grace.
async fn remove<K>(api: &Api<K>, name: &str) -> Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let now = DeleteParams::default().grace_period(0);
    for outcome in [
        api.patch(name, &PatchParams::default(), &free)
            .await
            .map(drop),
        api.delete(name, &now).await.map(drop),
    ] {
        match outcome {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            outcome => outcome?,
        }
    }
    Ok(())
}

async fn create<K>(api: &Api<K>, object: &Value) -> kube::Result<K>
where
    K: Clone + Serialize + DeserializeOwned + Debug,
{
    let object = serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError)?;
    api.create(&PostParams::default(), &object).await
}
