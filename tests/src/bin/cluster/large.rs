//! A large cluster, by hand: thousands of nodes, one in ten of them with cards; many pods
//! that run, every second one another scheduler's; others that wait for cards. What the
//! scheduler's process holds of it, and how long it decides after a hundred changes.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::ops::Range;
use std::time::{Duration, Instant};

use aliquot_tests::burst::{Bound, DATA, as_users_have, make, plain, running, whole};
use aliquot_tests::cluster::Cluster;
use aliquot_tests::http;
use aliquot_tests::simulated_agents::make_node;
use anyhow::{Result, ensure};
use futures::{StreamExt, TryFutureExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::meter::{self, Meter};
use crate::scale_setup::{CARDS, LIMIT, LOAD, Sizes, admit, names, start, start_with, stop};

/// The ratio of nodes to nodes with cards.
pub(crate) const WITH_CARDS: usize = 10;
const AT_ONCE: usize = 64;
/// Rounds of a hundred changes.
const TURNS: usize = 10;
/// Pods of each kind that go and come in one round: a hundred changes in all.
const EACH: usize = 25;

/// `sizes.nodes` are all nodes, `sizes.pods` all pods that run, `sizes.pending` those that
/// wait. The simulated agents are the nodes with cards.
pub(crate) async fn large(cluster: &Cluster, sizes: &Sizes) -> Result<()> {
    let agents = cluster.simulated_agents()?.nodes.clone();
    let cards = agents.len() * CARDS as usize;
    let least = cards + 2 * TURNS * EACH;
    ensure!(
        cards > TURNS * EACH && sizes.pods > least,
        "{cards} cards and {} pods are too few for {TURNS} rounds: more than {} and {least} are needed",
        sizes.pods,
        TURNS * EACH,
    );
    let bare: Vec<String> = (0..sizes.nodes - agents.len())
        .map(|at| format!("plain-{at:05}"))
        .collect();
    let begin = Instant::now();
    stream::iter(&bare)
        .map(|name| make_node(&cluster.client, name, 0).map_ok(drop))
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    println!(
        "{} more nodes without cards, made in {:.1} s",
        bare.len(),
        seconds(begin)
    );
    make_data(cluster).await?;
    let begin = Instant::now();
    let count = sizes.pods.saturating_sub(cards);
    let foreign = |at: usize| running_pod(at, &bare, "default-scheduler");
    let own = |at: usize| running_pod(at, &bare, "kai-scheduler");
    let others = (0..count).filter(|at| at % 2 == 1).map(foreign);
    make(&cluster.client, others).await?;
    let mut ours: Vec<Value> = (0..count).filter(|at| at % 2 == 0).map(own).collect();
    ours.extend(whole_cards("holds", cards));
    admit(cluster, &ours).await?;
    run_them(cluster, 0..count, "runs").await?;
    println!(
        "{count} pods that run and {cards} that want a card, made in {:.1} s",
        seconds(begin)
    );
    let begin = Instant::now();
    let mut scheduler = start(cluster, "scheduler").await?;
    scheduler.ready().await?;
    println!("  ready after {:.1} s", seconds(begin));
    let mut bound = Bound::follow(cluster.client.clone(), LOAD);
    bound.reach(count + cards, LIMIT).await?;
    println!("  every card taken after {:.1} s", seconds(begin));
    run_them(cluster, 0..cards, "holds").await?;
    make(&cluster.client, whole_cards("waits", sizes.pending)).await?;
    let settled = meter::settled(cluster, &scheduler.daemon).await?;
    println!(
        "  {} wait, and all is said, after {:.1} s; {}",
        sizes.pending,
        seconds(begin),
        settled.memory()
    );
    let mark = scheduler.daemon.mark()?;
    for turn in 0..TURNS {
        changes(cluster, turn).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    let said = scheduler.daemon.said_since(mark)?;
    let mut took: Vec<Duration> = said
        .lines()
        .filter_map(|line| line.rsplit_once("micros=")?.1.trim().parse().ok())
        .map(Duration::from_micros)
        .collect();
    meter::row(
        "  a decision in which something was done, in ten rounds of 100 changes",
        &mut took,
    );
    println!(
        "  {}",
        Meter::read(cluster, Some(&scheduler.daemon))
            .await?
            .memory()
    );
    for page in ["/snapshot", "/get-snapshot"] {
        meter::forget_peak(&scheduler.daemon)?;
        let begin = Instant::now();
        let length = http::length(&scheduler.replica.metrics(), page).await?;
        println!(
            "  {page}: {} MiB in {:.1} s; {}",
            length >> 20,
            seconds(begin),
            Meter::read(cluster, Some(&scheduler.daemon))
                .await?
                .memory()
        );
    }
    scheduler.daemon.alive()?;
    drop(bound);
    stop(cluster, scheduler).await?;
    // With all groups there, as a process finds a cluster that has had a scheduler before.
    for args in [vec![], vec!["--node-pool=".to_owned()]] {
        let with = if args.is_empty() {
            ""
        } else {
            " with a node pool"
        };
        let mut again = start_with(cluster, "scheduler", args).await?;
        again.ready().await?;
        let settled = meter::settled(cluster, &again.daemon).await?;
        println!("  after its restart{with} {}", settled.memory());
        stop(cluster, again).await?;
    }
    Ok(())
}

/// Makes the claim that half of the pods name: bound, so that nobody waits for it.
async fn make_data(cluster: &Cluster) -> Result<()> {
    let size = json!({ "storage": "1Ti" });
    for manifest in [
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": DATA },
            "spec": {
                "capacity": size, "accessModes": ["ReadWriteMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": { "namespace": LOAD, "name": DATA },
                "nfs": { "server": "storage.example", "path": "/data" },
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "namespace": LOAD, "name": DATA,
                "annotations": { "pv.kubernetes.io/bind-completed": "yes" },
            },
            "spec": {
                "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": DATA,
                "resources": { "requests": size },
            },
        }),
    ] {
        cluster.apply_one(&manifest).await?;
    }
    // The controllers, which would bind them, are stopped.
    let bound = Patch::Merge(json!({ "status": { "phase": "Bound" } }));
    let claims = Api::<PersistentVolumeClaim>::namespaced(cluster.client.clone(), LOAD);
    claims
        .patch_status(DATA, &PatchParams::default(), &bound)
        .await?;
    Ok(())
}

fn whole_cards(prefix: &str, count: usize) -> Vec<Value> {
    let pods = names(prefix, count, |name| whole(LOAD, name, 1));
    pods.into_iter()
        .enumerate()
        .map(|(at, pod)| as_users_have(pod, at))
        .collect()
}

fn seconds(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64()
}

/// Reports these as running, as their kubelets would.
async fn run_them(cluster: &Cluster, which: Range<usize>, prefix: &str) -> Result<()> {
    let pods = cluster.pods(LOAD);
    let status = Patch::Merge(json!({ "status": running() }));
    stream::iter(which)
        .map(|at| {
            let (pods, status) = (pods.clone(), status.clone());
            async move {
                let params = PatchParams::default();
                let name = format!("{prefix}-{at:05}");
                pods.patch_status(&name, &params, &status).await.map(drop)
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    Ok(())
}

/// Pods with and without a card go, and as many come, all within a moment.
async fn changes(cluster: &Cluster, turn: usize) -> Result<()> {
    let pods = cluster.pods(LOAD);
    let now = DeleteParams::default().grace_period(0);
    let first = turn * EACH;
    let gone = (first..first + EACH)
        .flat_map(|at| [format!("holds-{at:05}"), format!("runs-{:05}", 2 * at)]);
    stream::iter(gone)
        .map(|name| {
            let (pods, now) = (pods.clone(), now.clone());
            async move { pods.delete(&name, &now).await.map(drop) }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    let mut new = Vec::new();
    for at in first..first + EACH {
        new.push(whole(LOAD, &format!("new-{at:05}"), 1));
        new.push(without_cards(&format!("small-{at:05}"), "kai-scheduler"));
    }
    make(&cluster.client, new).await
}

fn without_cards(name: &str, scheduler: &str) -> Value {
    let mut pod = plain(LOAD, name);
    pod["spec"]["schedulerName"] = json!(scheduler);
    pod["spec"]["containers"][0]["resources"] =
        json!({ "requests": { "cpu": "100m", "memory": "64Mi" } });
    pod
}

fn running_pod(at: usize, nodes: &[String], scheduler: &str) -> Value {
    let mut pod = without_cards(&format!("runs-{at:05}"), scheduler);
    pod["spec"]["nodeName"] = json!(nodes[at % nodes.len()]);
    as_users_have(pod, at / 2)
}
