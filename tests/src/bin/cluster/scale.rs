//! `tests/cluster/bench scheduler`: the scheduler's figures against a real API server.
//!
//! Nodes and agents are simulated, everything else is real: objects in etcd, admission, token
//! reviews, signed grants. Where there is something to compare with, both are taken in turn in the
//! same run: so that other load affects both.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use aliquot_tests::burst::{Bound, clear, fraction, judge, make, make_one, whole};
use aliquot_tests::cluster::Cluster;
use aliquot_tests::namespace::Work;
use aliquot_tests::programs::Programs;
use aliquot_tests::scheduler::{Replica, Scheduler};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use proto::names::kai;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::meter::{self, Meter};
use crate::scale_setup::{
    CARDS, LIMIT, LOAD, Sizes, admit, free_lease, gang, member, names, start, stop,
};
use crate::{jobs, large, rate};

/// As the scheduler's default.
const WRITES_AT_ONCE: usize = 64;
/// Of a profile.
const PROFILED_S: u32 = 10;

pub(crate) async fn scheduler(programs: Programs, work: Work, sizes: Sizes) -> Result<ExitCode> {
    let mut cluster = Cluster::start(programs, work).await?;
    cluster.install().await?;
    cluster.admit().await?;
    cluster.make_namespace(LOAD).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), LOAD);
    until("the default account", Duration::from_secs(30), || async {
        let account = accounts.get_opt("default").await?;
        Ok(Seen::from_option(account, "none"))
    })
    .await?;
    let begin = Instant::now();
    let by_hand = sizes.only.as_deref() == Some("large");
    let nodes = if by_hand {
        sizes.nodes / large::WITH_CARDS
    } else {
        sizes.nodes
    };
    cluster.gather(nodes, CARDS).await?;
    println!(
        "{nodes} nodes of {CARDS} cards, made in {:.1} s",
        begin.elapsed().as_secs_f64()
    );
    if by_hand {
        large::large(&cluster, &sizes).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let asked = |part: &str| sizes.only.as_deref().is_none_or(|only| part.contains(only));
    if asked("whole") {
        let pods = names("whole", sizes.pods, |name| whole(LOAD, name, 1));
        paired(&cluster, "one-GPU pods", &pods, sizes.rounds, &sizes).await?;
    }
    if asked("shares") {
        let pods = names("share", sizes.shares, |name| fraction(LOAD, name, "0.1"));
        paired(&cluster, "pods with a tenth of a GPU", &pods, 1, &sizes).await?;
    }
    if asked("jobs") {
        jobs::jobs(&mut cluster, &sizes).await?;
    }
    if asked("gangs") {
        for size in [64, 512] {
            gangs(&cluster, size, sizes.rounds).await?;
        }
    }
    if asked("rate") {
        for rate in [50, 200] {
            rate::arrivals(&cluster, &sizes, rate).await?;
        }
    }
    if asked("owned") {
        rate::owned(&mut cluster, &sizes).await?;
    }
    if asked("agents") {
        agents(&cluster).await?;
    }
    if asked("failover") {
        failover(&cluster, sizes.rounds).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What the API server's processor time goes to for some seconds from now, as its own
/// profiler says: a file for `go tool pprof`.
fn profile(cluster: &Cluster, folder: &Path, name: &str) -> JoinHandle<Result<()>> {
    let kubectl = cluster.kubectl.clone();
    let file = folder.join(format!("api-server-{name}.pprof"));
    tokio::spawn(async move {
        let path = format!("/debug/pprof/profile?seconds={PROFILED_S}");
        let page = kubectl.bytes(&["get", "--raw", &path]).await?;
        tokio::fs::write(&file, page).await?;
        Ok(())
    })
}

/// One time that all were bound.
struct Round {
    /// From the start to the last one.
    all: Duration,
    /// From the first one to the last one.
    burst: Duration,
}

fn round_of(begin: Instant, bound: &Bound) -> Result<Round> {
    let times = bound.times();
    let first = times.values().min().context("none is bound")?;
    let last = times.values().max().context("none is bound")?;
    Ok(Round {
        all: last.duration_since(begin),
        burst: last.duration_since(*first),
    })
}

/// The scheduler, started last, against its bindings sent bare.
async fn paired(
    cluster: &Cluster,
    what: &str,
    pods: &[Value],
    rounds: usize,
    sizes: &Sizes,
) -> Result<()> {
    let profiles = sizes.profiles.as_deref();
    println!(
        "\n{} {what}, there before the scheduler is started",
        pods.len()
    );
    let mut ratios = Vec::new();
    for number in 1..=rounds {
        admit(cluster, pods).await?;
        let before = Meter::read(cluster, None).await?;
        let profiled = profiles.map(|folder| profile(cluster, folder, &format!("ours-{number}")));
        let mut bound = Bound::follow(cluster.client.clone(), LOAD);
        let begin = Instant::now();
        let mut scheduler = start(cluster, "scheduler").await?;
        let reached = bound.reach(pods.len(), LIMIT).await;
        scheduler.daemon.alive()?;
        reached?;
        let ours = round_of(begin, &bound)?;
        let at_last = Meter::read(cluster, Some(&scheduler.daemon)).await?;
        let settled = meter::settled(cluster, &scheduler.daemon).await?;
        if let Some(profiled) = profiled {
            profiled.await??;
        }
        println!(
            "  round {number}: ours {:.2} s, of them {:.2} s from the first binding to the last ({:.0} pods/s)",
            ours.all.as_secs_f64(),
            ours.burst.as_secs_f64(),
            rate(pods.len(), ours.burst),
        );
        println!(
            "    at the last binding: {}",
            at_last.since(&before, pods.len())
        );
        println!("    {}", at_last.writes_since(&before, pods.len()));
        println!(
            "    when all is said:    {}",
            settled.since(&before, pods.len())
        );
        println!("    {}", settled.writes_since(&before, pods.len()));
        let judged = judge(cluster, LOAD).await?;
        ensure!(judged == pods.len(), "{judged} are bound");
        let bindings = bindings(cluster).await?;
        drop(bound);
        stop(cluster, scheduler).await?;
        clear(cluster, LOAD).await?;

        admit(cluster, pods).await?;
        let before = Meter::read(cluster, None).await?;
        let profiled = profiles.map(|folder| profile(cluster, folder, &format!("bare-{number}")));
        let begin = Instant::now();
        let mut bound = Bound::follow(cluster.client.clone(), LOAD);
        bare(cluster, bindings).await?;
        bound.reach(pods.len(), LIMIT).await?;
        let theirs = round_of(begin, &bound)?;
        let after = Meter::read(cluster, None).await?;
        drop(bound);
        if let Some(profiled) = profiled {
            profiled.await??;
        }
        clear(cluster, LOAD).await?;
        let ratio = ours.all.as_secs_f64() / theirs.all.as_secs_f64();
        println!(
            "    the bindings alone, bare: {:.2} s ({:.0} pods/s); {}",
            theirs.all.as_secs_f64(),
            rate(pods.len(), theirs.all),
            after.since(&before, pods.len()),
        );
        println!(
            "    ratio {ratio:.2}, of the bindings' time alone {:.2}",
            ours.burst.as_secs_f64() / theirs.burst.as_secs_f64()
        );
        ratios.push(ratio);
    }
    println!("  ratios: {ratios:.2?}");
    Ok(())
}

#[expect(clippy::cast_precision_loss)]
fn rate(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// Every binding that the scheduler wrote, as it would be written again.
async fn bindings(cluster: &Cluster) -> Result<Vec<Value>> {
    let pods = cluster.pods(LOAD).list(&ListParams::default()).await?;
    let binding = |pod: &Pod| {
        let mut annotations = pod.annotations().clone();
        annotations.remove(kai::POD_GROUP);
        annotations.retain(|key, _| proto::names::grant::PROTECTED.contains(&key.as_str()));
        let mut labels = pod.labels().clone();
        labels.retain(|key, _| key.starts_with(proto::names::grant::GPU_GROUP));
        json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": pod.name_any(), "namespace": LOAD,
                "annotations": annotations, "labels": labels },
            "target": { "apiVersion": "v1", "kind": "Node",
                "name": pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) },
        })
    };
    Ok(pods.iter().map(binding).collect())
}

/// The same bindings, as the same account, as many at once, without a scheduler.
async fn bare(cluster: &Cluster, bindings: Vec<Value>) -> Result<()> {
    let kubeconfig = Scheduler::kubeconfig(&cluster.work.state(), "scheduler");
    let client = cluster.client_of(&kubeconfig).await?;
    let uids: BTreeMap<String, Option<String>> = cluster
        .pods(LOAD)
        .list_metadata(&ListParams::default())
        .await?
        .into_iter()
        .map(|pod| (pod.name_any(), pod.uid()))
        .collect();
    let pods: Api<Pod> = Api::namespaced(client, LOAD);
    stream::iter(bindings)
        .map(|mut binding| {
            let (pods, uids) = (&pods, &uids);
            async move {
                let name = binding["metadata"]["name"].as_str().context("a name")?;
                let name = name.to_owned();
                binding["metadata"]["uid"] = json!(uids.get(&name).context("no such pod")?);
                pods.create_subresource::<Value, kube::core::Status>(
                    "binding",
                    &name,
                    &PostParams::default(),
                    &binding,
                )
                .await
                .with_context(|| name.clone())?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(WRITES_AT_ONCE)
        .try_collect()
        .await
}

/// Gangs, one after the other, on a cluster that is empty but for them.
async fn gangs(cluster: &Cluster, size: usize, rounds: usize) -> Result<()> {
    let mut scheduler = start(cluster, "scheduler").await?;
    scheduler.ready().await?;
    cluster.simulated_agents()?.heard().await?;
    let (mut all, mut spread) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let group = format!("gang-{size}-{round}");
        cluster.apply_one(&gang(&group, size)).await?;
        let mut bound = Bound::follow(cluster.client.clone(), LOAD);
        let pods = names(&group, size, |name| member(name, &group));
        make(&cluster.client, pods).await?;
        let begin = Instant::now();
        bound.reach(size, LIMIT).await?;
        let times = bound.times();
        let first = times.values().min().context("none is bound")?;
        let last = times.values().max().context("none is bound")?;
        all.push(last.saturating_duration_since(begin));
        spread.push(last.duration_since(*first));
        judge(cluster, LOAD).await?;
        drop(bound);
        clear(cluster, LOAD).await?;
    }
    println!("\ngang of {size} pods with a card each, {rounds} times");
    meter::row("  last pod made to last pod bound", &mut all);
    meter::row("  first binding to last binding", &mut spread);
    stop(cluster, scheduler).await
}

/// What the scheduler holds of nodes and agents alone.
async fn agents(cluster: &Cluster) -> Result<()> {
    let mut scheduler = start(cluster, "scheduler").await?;
    scheduler.ready().await?;
    cluster.simulated_agents()?.heard().await?;
    let settled = meter::settled(cluster, &scheduler.daemon).await?;
    println!(
        "\n{} agents connected: {}",
        cluster.simulated_agents()?.nodes.len(),
        settled.memory()
    );
    stop(cluster, scheduler).await
}

/// Two replicas; the one that acts is killed while pods come, again and again.
async fn failover(cluster: &Cluster, rounds: usize) -> Result<()> {
    let (mut gaps, mut released) = (Vec::new(), Vec::new());
    for round in 0..rounds * 2 {
        let kill = round % 2 == 0;
        free_lease(cluster).await?;
        let mut pair = {
            let api = aliquot_tests::control_plane::url();
            let replicas = [1, 2].map(|number| Replica::of_several(number, api.clone()));
            crate::burst::Pair::start(cluster, replicas).await?
        };
        let mut bound = Bound::follow(cluster.client.clone(), LOAD);
        let first = fraction(LOAD, "first", "0.1");
        make_one(&cluster.client, first).await?;
        bound.reach(1, LIMIT).await?;
        let acting = pair.acting(cluster).await?;
        let begin = Instant::now();
        if kill {
            pair.replicas[acting].daemon.kill().await?;
        } else {
            pair.replicas[acting].daemon.stop().await?;
        }
        make_one(&cluster.client, fraction(LOAD, "second", "0.1")).await?;
        bound.reach(2, LIMIT).await?;
        let times = if kill { &mut gaps } else { &mut released };
        times.push(begin.elapsed());
        drop(bound);
        pair.stop(cluster).await?;
        clear(cluster, LOAD).await?;
    }
    println!(
        "\ntwo replicas, agents of {} nodes at both",
        cluster.simulated_agents()?.nodes.len()
    );
    meter::row(
        "  the acting one killed, until the other has bound a pod",
        &mut gaps,
    );
    meter::row("  the acting one told to end, until then", &mut released);
    Ok(())
}
