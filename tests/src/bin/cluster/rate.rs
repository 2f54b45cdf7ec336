//! Pods that come at a rate while others wait: how long each waits for its node, and for its
//! reason. Ends in bounded time, and reports pods that were not placed within it.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use aliquot_tests::burst::{Bound, clear, fraction, judge, make, make_one, whole};
use aliquot_tests::cluster::Cluster;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client};
use proto::names::kai;
use serde_json::{Value, json};

use crate::jobs::{clear_jobs, employ, job, make_jobs};
use crate::meter::{self, Meter};
use crate::scale_setup::{CARDS, LIMIT, LOAD, Sizes, gang, member, names, start, stop};

/// Time for the rest after the last pod was created.
const REST: Duration = Duration::from_mins(2);

/// Pods come at a rate, where four fifths of all cards are taken and many others wait for
/// what there is not; in the middle of it a queue takes back its own.
pub(crate) async fn arrivals(cluster: &Cluster, sizes: &Sizes, rate: u32) -> Result<()> {
    let cards = sizes.nodes * CARDS as usize;
    let (filled, reclaimed) = (cards * 4 / 5, (cards / 16).min(250));
    for (queue, quota) in [("guest", 0), ("owner", reclaimed)] {
        cluster.apply_one(&queue_of(queue, quota)).await?;
    }
    mark(cluster, reclaimed).await?;
    let mut scheduler = start(cluster, "scheduler").await?;
    scheduler.ready().await?;
    cluster.simulated_agents()?.heard().await?;
    let mut bound = Bound::follow(cluster.client.clone(), LOAD);
    // The marked nodes are full of guests, others take the rest of the four fifths.
    let guests = names("guest", reclaimed, |name| {
        let mut pod = in_queue(whole(LOAD, name, 1), "guest");
        pod["spec"]["nodeSelector"] = json!({ "marked": "yes" });
        pod
    });
    let fillers = names("filler", filled - reclaimed, |name| {
        let mut pod = whole(LOAD, name, 1);
        pod["spec"]["nodeSelector"] = json!({ "marked": "no" });
        pod
    });
    make(&cluster.client, guests).await?;
    make(&cluster.client, fillers).await?;
    bound.reach(filled, LIMIT).await?;
    let begin = Instant::now();
    let infeasible = names("infeasible", sizes.pending, |name| {
        let mut pod = whole(LOAD, name, 1);
        pod["spec"]["nodeSelector"] = json!({ "marked": "nowhere" });
        pod
    });
    make(&cluster.client, infeasible).await?;
    let made = begin.elapsed();
    let told = reasons(cluster, sizes.pending).await?;
    scheduler.daemon.alive()?;
    println!(
        "\n{rate} pods/s, {filled} of {cards} cards taken, {} pods wait (made in {:.1} s; the last has its reason {:.1} s later)",
        sizes.pending,
        made.as_secs_f64(),
        told.as_secs_f64()
    );
    let mut alone = Vec::new();
    for at in 0..5 {
        alone.push(reason_of_one(cluster, &format!("alone-{at}")).await?);
    }
    meter::row("  made to reason shown, one pod", &mut alone);
    let before = Meter::read(cluster, Some(&scheduler.daemon)).await?;
    // No more than there is room for: a card takes nine of them beside its reserve.
    let marked = reclaimed.div_ceil(CARDS as usize) * CARDS as usize;
    let free = (cards - marked).saturating_sub(filled - reclaimed);
    let comers = (free * 9).min(if rate < 100 { 1000 } else { 2000 });
    let mut made = BTreeMap::new();
    let mut tick = tokio::time::interval(Duration::from_secs(1) / rate);
    let mut under_way = stream::FuturesUnordered::new();
    for at in 0..comers {
        tick.tick().await;
        if at == comers / 2 {
            cluster.apply_one(&owners(reclaimed)).await?;
            for pod in owner_pods(reclaimed) {
                let client = cluster.client.clone();
                under_way.push(tokio::spawn(come(client, pod)));
            }
        }
        let name = format!("comer-{at:05}");
        let mut pod = fraction(LOAD, &name, "0.1");
        pod["spec"]["nodeSelector"] = json!({ "marked": "no" });
        under_way.push(tokio::spawn(come(cluster.client.clone(), pod)));
    }
    while let Some(come) = under_way.next().await {
        let (name, at) = come??;
        made.insert(name, at);
    }
    if let Err(error) = bound.reach(filled + comers + reclaimed, REST).await {
        println!("  MISSED: {error:#}");
    }
    let after = Meter::read(cluster, Some(&scheduler.daemon)).await?;
    let times = bound.times();
    let took = |prefix: &str| -> Vec<Duration> {
        made.iter()
            .filter(|(name, _)| name.starts_with(prefix))
            .filter_map(|(name, made)| Some(times.get(name)?.saturating_duration_since(*made)))
            .collect()
    };
    meter::row("  made to bound", &mut took("comer"));
    meter::row(
        &format!("  a gang of {reclaimed} that takes back its cards, made to bound"),
        &mut took("owner"),
    );
    println!("    {}", after.since(&before, comers + reclaimed));
    println!("    {}", after.writes_since(&before, comers + reclaimed));
    judge(cluster, LOAD).await?;
    drop(bound);
    stop(cluster, scheduler).await?;
    clear(cluster, LOAD).await
}

/// Jobs of one pod come at a rate, where four fifths of all cards are taken by Jobs, and many
/// other Jobs of as many different requests wait for what there is not.
pub(crate) async fn owned(cluster: &mut Cluster, sizes: &Sizes) -> Result<()> {
    /// Different requests among those that wait.
    const REQUESTS: usize = 100;
    const RATE: u32 = 20;
    /// Half a minute's, or what there is room for.
    const COMERS: usize = 600;
    let cards = sizes.nodes * CARDS as usize;
    let filled = cards * 4 / 5;
    let comers = ((cards - filled) * 9).min(COMERS);
    mark(cluster, 0).await?;
    employ(cluster)?;
    let mut scheduler = start(cluster, "scheduler").await?;
    scheduler.ready().await?;
    cluster.simulated_agents()?.heard().await?;
    let mut bound = Bound::follow(cluster.client.clone(), LOAD);
    let fillers = names("filler", filled, |name| job(&whole(LOAD, name, 1)));
    make_jobs(&cluster.client, fillers).await?;
    bound.reach(filled, LIMIT).await?;
    let waiting = (0..sizes.pending).map(|at| {
        let mut pod = whole(LOAD, &format!("infeasible-{at:05}"), 1);
        pod["spec"]["nodeSelector"] = json!({ "marked": "nowhere" });
        pod["spec"]["containers"][0]["resources"]["requests"] =
            json!({ "cpu": format!("{}m", 1 + at % REQUESTS) });
        job(&pod)
    });
    make_jobs(&cluster.client, waiting).await?;
    reasons(cluster, sizes.pending).await?;
    meter::settled(cluster, &scheduler.daemon).await?;
    println!(
        "\n{RATE} Jobs/s of one pod, {filled} of {cards} cards taken, {} Jobs of {REQUESTS} different requests wait",
        sizes.pending
    );
    let before = Meter::read(cluster, Some(&scheduler.daemon)).await?;
    let mut tick = tokio::time::interval(Duration::from_secs(1) / RATE);
    let mut under_way = stream::FuturesUnordered::new();
    for at in 0..comers {
        tick.tick().await;
        let name = format!("comer-{at:05}");
        let job = job(&fraction(LOAD, &name, "0.1"));
        let client = cluster.client.clone();
        under_way.push(tokio::spawn(async move {
            let submitted = Instant::now();
            make_jobs(&client, [job]).await?;
            anyhow::Ok((name, submitted))
        }));
    }
    let mut submitted = BTreeMap::new();
    while let Some(one) = under_way.next().await {
        let (name, at) = one??;
        submitted.insert(name, at);
    }
    if let Err(error) = bound.reach(filled + comers, REST).await {
        println!("  MISSED: {error:#}");
    }
    let after = Meter::read(cluster, Some(&scheduler.daemon)).await?;
    let times = bound.times();
    // A pod's name is its Job's with a suffix.
    let job_of = |pod: &str| pod.rsplit_once('-').map(|(job, _)| job.to_owned());
    let mut took: Vec<Duration> = times
        .iter()
        .filter_map(|(pod, bound)| {
            let submitted = submitted.get(&job_of(pod)?)?;
            Some(bound.saturating_duration_since(*submitted))
        })
        .collect();
    meter::row("  a Job submitted to its pod bound", &mut took);
    println!("    {}", after.since(&before, comers));
    println!("    {}", after.writes_since(&before, comers));
    judge(cluster, LOAD).await?;
    drop(bound);
    stop(cluster, scheduler).await?;
    clear_jobs(cluster).await
}

async fn come(client: Client, pod: Value) -> Result<(String, Instant)> {
    let name = pod["metadata"]["name"]
        .as_str()
        .context("a name")?
        .to_owned();
    make_one(&client, pod).await?;
    Ok((name, Instant::now()))
}

fn queue_of(name: &str, quota: usize) -> Value {
    let free = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
    json!({
        "apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
        "metadata": { "name": name },
        "spec": { "parentQueue": "default-parent-queue", "resources": { "cpu": free, "memory": free,
            "gpu": { "quota": quota, "limit": -1, "overQuotaWeight": 1 } } },
    })
}

fn in_queue(mut pod: Value, queue: &str) -> Value {
    pod["metadata"]["labels"] = json!({ kai::QUEUE_LABEL: queue });
    pod
}

fn owners(size: usize) -> Value {
    let mut group = gang("owners", size);
    group["spec"]["queue"] = json!("owner");
    group
}

fn owner_pods(size: usize) -> Vec<Value> {
    names("owner", size, |name| {
        let mut pod = in_queue(member(name, "owners"), "owner");
        pod["spec"]["nodeSelector"] = json!({ "marked": "yes" });
        pod
    })
}

/// As many nodes as hold these cards are marked, the others are marked as not.
async fn mark(cluster: &Cluster, cards: usize) -> Result<()> {
    let marked = cards.div_ceil(CARDS as usize);
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    for (at, name) in cluster.simulated_agents()?.nodes.iter().enumerate() {
        let label = if at < marked { "yes" } else { "no" };
        let patch = json!({ "metadata": { "labels": { "marked": label } } });
        nodes
            .patch_metadata(
                name,
                &kube::api::PatchParams::default(),
                &kube::api::Patch::Merge(patch),
            )
            .await?;
    }
    Ok(())
}

/// Waits until this many pods have a reason; returns the time.
async fn reasons(cluster: &Cluster, wanted: usize) -> Result<Duration> {
    let begin = Instant::now();
    let pods = cluster.pods(LOAD);
    until("every reason", LIMIT, || async {
        let listed = pods
            .list(&ListParams::default().fields("spec.nodeName="))
            .await?;
        let told = listed
            .iter()
            .filter(|pod| aliquot_tests::share::why_pending(pod).is_some())
            .count();
        Ok(Seen::when(told >= wanted, format!("{told} of {wanted}")))
    })
    .await?;
    Ok(begin.elapsed())
}

async fn reason_of_one(cluster: &Cluster, name: &str) -> Result<Duration> {
    let mut pod = whole(LOAD, name, 1);
    pod["spec"]["nodeSelector"] = json!({ "marked": "nowhere" });
    make_one(&cluster.client, pod).await?;
    let begin = Instant::now();
    let pods = cluster.pods(LOAD);
    while begin.elapsed() < Duration::from_mins(1) {
        if aliquot_tests::share::why_pending(&pods.get(name).await?).is_some() {
            return Ok(begin.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    anyhow::bail!("{name} has no reason within a minute")
}
