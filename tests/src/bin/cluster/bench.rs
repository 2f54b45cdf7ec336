//! `tests/cluster/bench`: the agent's figures on real daemons, as one table.
//!
//! A share pod and the same pod without a GPU take turns, so that whatever else the
//! machine does falls on both. Times are taken where a client sees them: from the watch
//! event with the node's name to the watch event with the container running.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::namespace::Work;
use aliquot_tests::programs::Programs;
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{WatchEvent, WatchParams};
use serde_json::Value;

/// Restarts of the agent from which the time to registration is taken.
const STARTS: usize = 20;

pub(crate) async fn bench(programs: Programs, work: Work, pairs: usize) -> Result<ExitCode> {
    let mut cluster = Cluster::start(programs, work).await?;
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 1))
        .await?;
    println!(
        "node Ready after {:.1} s\n",
        cluster.started.1.as_secs_f32()
    );

    let (share, plain) = bind_to_started(&mut cluster, pairs).await?;
    println!("bind to container started, {pairs} interleaved pairs");
    row("  share pod", share.clone());
    row("  the same pod without a GPU", plain.clone());
    println!(
        "  difference at the median: {:.1} ms\n",
        millis(median(share)) - millis(median(plain))
    );

    let metrics = cluster.gpus.as_ref().context("no GPUs")?.metrics().await?;
    for (what, metric) in [
        ("Allocate", "aliquot_allocate_seconds"),
        ("PreStartContainer", "aliquot_prestart_seconds"),
    ] {
        match histogram(&metrics, metric) {
            Some(buckets) => println!(
                "{what}, from the agent's histogram of {} calls: p50 <= {} ms, p99 <= {} ms",
                buckets.last().map_or(0, |bucket| bucket.1),
                bound(&buckets, 0.5),
                bound(&buckets, 0.99)
            ),
            None => println!("{what}: the agent has no metric {metric}"),
        }
    }

    let starts = start_to_registered(&mut cluster).await?;
    println!();
    row(
        &format!("agent's start to its registration taken by the kubelet, {STARTS} starts"),
        starts,
    );
    let memory = memory(&cluster)?;
    println!(
        "agent's memory: resident {} KiB, anonymous {} KiB",
        memory.0, memory.1
    );
    cluster.clean().await?;
    Ok(ExitCode::SUCCESS)
}

async fn bind_to_started(
    cluster: &mut Cluster,
    pairs: usize,
) -> Result<(Vec<Duration>, Vec<Duration>)> {
    let ns = cluster.namespace().await?;
    let (mut share, mut plain) = (Vec::new(), Vec::new());
    // One of each that is not counted: the image is pulled, the MPS server started.
    for at in 0..=pairs {
        let with = pod(
            &ns,
            &format!("share-{at}"),
            &[("gpu-memory", "2000")],
            "report hold",
        );
        let without = pod(&ns, &format!("plain-{at}"), &[], "report hold");
        for (manifest, times) in [(with, &mut share), (without, &mut plain)] {
            let took = time_one(cluster, &ns, &manifest).await?;
            if at > 0 {
                times.push(took);
            }
        }
    }
    Ok((share, plain))
}

pub(crate) async fn time_one(cluster: &Cluster, ns: &str, manifest: &Value) -> Result<Duration> {
    let name = manifest["metadata"]["name"].as_str().context("a name")?;
    let pods = cluster.pods(ns);
    let parameters = WatchParams::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(60);
    let mut events = pods.watch(&parameters, "0").await?.boxed();
    cluster.apply_one(manifest).await?;
    let mut bound = None;
    let took = loop {
        let event = events.try_next().await?.context("the watch ended")?;
        let (WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else {
            continue;
        };
        if bound.is_none()
            && pod
                .spec
                .as_ref()
                .is_some_and(|spec| spec.node_name.is_some())
        {
            bound = Some(Instant::now());
        }
        if started(&pod) {
            break bound.context("running before it was bound")?.elapsed();
        }
    };
    cluster.delete_pod(ns, name).await?;
    Ok(took)
}

fn started(pod: &Pod) -> bool {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().any(|status| {
        status
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some())
    })
}

async fn start_to_registered(cluster: &mut Cluster) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let mark = cluster.node.kubelet.mark()?;
        let agent = &mut cluster.gpus.as_mut().context("no GPUs")?.agent;
        agent.stop().await?;
        let begin = Instant::now();
        agent.start_again()?;
        times.push(registration(cluster, mark, begin).await?);
        // The next start finds a kubelet that is done with this one.
        let metrics = cluster.gpus.as_ref().context("no GPUs")?;
        until("the agent's metrics", Duration::from_secs(10), || async {
            metrics.metrics().await.map(|_| Seen::Done(()))
        })
        .await?;
    }
    Ok(times)
}

/// Looks at the kubelet's log every half millisecond: the polling of conditions
/// elsewhere is too coarse for this.
async fn registration(cluster: &Cluster, mark: u64, begin: Instant) -> Result<Duration> {
    while begin.elapsed() < Duration::from_secs(10) {
        let said = cluster.node.kubelet.said_since(mark)?;
        if said.lines().any(|line| {
            line.contains("Got registration request")
                && line.contains(proto::names::resource::SHARE)
        }) {
            return Ok(begin.elapsed());
        }
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    bail!("no registration within 10 s")
}

/// Resident and anonymous KiB of the agent.
fn memory(cluster: &Cluster) -> Result<(u64, u64)> {
    let pid = cluster
        .gpus
        .as_ref()
        .and_then(|gpus| gpus.agent.pid())
        .context("no agent")?;
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let field = |name: &str| {
        let line = rollup.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
            .context("smaps_rollup")
    };
    Ok((field("Rss:")?, field("Anonymous:")?))
}

fn row(name: &str, mut times: Vec<Duration>) {
    times.sort();
    println!(
        "{name}: p50 {:.1} ms, p99 {:.1} ms, least {:.1} ms, most {:.1} ms",
        millis(median(times.clone())),
        millis(quantile(&times, 0.99)),
        millis(times.first().copied().unwrap_or_default()),
        millis(times.last().copied().unwrap_or_default()),
    );
}

pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    quantile(&times, 0.5)
}

/// The least value that at least this part of the sorted ones does not pass.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
fn quantile(sorted: &[Duration], part: f64) -> Duration {
    let rank = (sorted.len() as f64 * part).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Upper bounds in seconds and cumulative counts of a Prometheus histogram, over all its
/// label sets.
pub(crate) fn histogram(metrics: &str, name: &str) -> Option<Vec<(f64, u64)>> {
    let mut buckets: Vec<(f64, u64)> = Vec::new();
    for line in metrics
        .lines()
        .filter(|line| line.starts_with(&format!("{name}_bucket")))
    {
        let bound = line.split("le=\"").nth(1)?.split('"').next()?;
        let bound = if bound == "+Inf" {
            f64::INFINITY
        } else {
            bound.parse().ok()?
        };
        let count: u64 = line.rsplit(' ').next()?.parse().ok()?;
        match buckets
            .iter_mut()
            .find(|bucket| bucket.0.total_cmp(&bound).is_eq())
        {
            Some(bucket) => bucket.1 += count,
            None => buckets.push((bound, count)),
        }
    }
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    (!buckets.is_empty()).then_some(buckets)
}

/// The bound, in ms, of the bucket that holds this part of all calls.
#[expect(clippy::cast_precision_loss)]
pub(crate) fn bound(buckets: &[(f64, u64)], part: f64) -> String {
    let all = buckets.last().map_or(0, |bucket| bucket.1) as f64;
    let found = buckets.iter().find(|bucket| bucket.1 as f64 >= all * part);
    found.map_or_else(|| "?".to_owned(), |bucket| format!("{}", bucket.0 * 1000.0))
}
