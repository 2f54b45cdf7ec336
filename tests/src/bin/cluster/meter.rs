//! What a run costs: API writes, processor time, memory.
//!
//! In: the API server's metrics page and `/proc`. Out: differences, per pod.
#![expect(clippy::print_stdout, reason = "rows of a table")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::daemon::Daemon;
use anyhow::{Context, Result};

/// Verbs that change something.
const WRITES: [&str; 5] = ["POST", "PUT", "PATCH", "APPLY", "DELETE"];
/// Clock ticks of `/proc` in a second.
const TICKS: f64 = 100.0;
/// A scheduler that wrote nothing for this long has finished.
const QUIET: Duration = Duration::from_secs(3);
/// Largest number of such waits.
const LOOKS: usize = 60;

/// All counters at one moment.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Writes taken or refused by the API server, by what was written.
    writes: BTreeMap<String, u64>,
    /// Processor time of the API server, of etcd, of the scheduler, in seconds.
    cpu: [f64; 3],
    /// Resident memory of the scheduler now and at most, MiB.
    memory: [u64; 2],
}

impl Meter {
    pub(crate) async fn read(cluster: &Cluster, scheduler: Option<&Daemon>) -> Result<Self> {
        let [api_server, etcd] = cluster.control_plane.pids().context("no API server")?;
        let mut meter = Self {
            writes: writes(cluster).await?,
            cpu: [seconds(api_server)?, seconds(etcd)?, 0.0],
            memory: [0, 0],
        };
        if let Some(pid) = scheduler.and_then(Daemon::pid) {
            meter.cpu[2] = seconds(pid)?;
            meter.memory = [memory(pid, "VmRSS:")?, memory(pid, "VmHWM:")?];
        }
        Ok(meter)
    }

    /// The use since then, for this many pods.
    #[expect(clippy::cast_precision_loss)]
    pub(crate) fn since(&self, before: &Self, pods: usize) -> String {
        let pods = pods as f64;
        let writes: u64 = self.difference(before).values().sum();
        let ms = |at: usize| (self.cpu[at] - before.cpu[at]) * 1000.0 / pods;
        let mut text = format!(
            "{:.2} writes a pod, CPU a pod: API server {:.2} ms, etcd {:.2} ms",
            writes as f64 / pods,
            ms(0),
            ms(1)
        );
        if self.cpu[2] > 0.0 {
            let [now, most] = self.memory;
            let _ = write!(
                text,
                ", scheduler {:.2} ms; its memory {now} MiB, at most {most}",
                ms(2)
            );
        }
        text
    }

    /// The API server's processor time since then, in seconds.
    pub(crate) fn api_server_since(&self, before: &Self) -> f64 {
        self.cpu[0] - before.cpu[0]
    }

    /// What the scheduler holds.
    pub(crate) fn memory(&self) -> String {
        let [now, most] = self.memory;
        format!("the scheduler has {now} MiB of memory, at most {most}")
    }

    /// The same by what was written.
    #[expect(clippy::cast_precision_loss)]
    pub(crate) fn writes_since(&self, before: &Self, pods: usize) -> String {
        let mut text = "writes a pod:".to_owned();
        for (what, count) in self.difference(before) {
            let each = count as f64 / pods as f64;
            if each >= 0.01 {
                let _ = write!(text, " {what} {each:.2};");
            }
        }
        text
    }

    fn difference(&self, before: &Self) -> BTreeMap<&str, u64> {
        self.writes
            .iter()
            .map(|(what, count)| {
                let old = before.writes.get(what).copied().unwrap_or_default();
                (what.as_str(), count.saturating_sub(old))
            })
            .collect()
    }
}

/// Waits until nothing is written any more.
pub(crate) async fn settled(cluster: &Cluster, scheduler: &Daemon) -> Result<Meter> {
    let mut last = Meter::read(cluster, Some(scheduler)).await?;
    for _ in 0..LOOKS {
        tokio::time::sleep(QUIET).await;
        let now = Meter::read(cluster, Some(scheduler)).await?;
        // The lease is renewed all the time, and its owner is no burst.
        let news: u64 = now
            .difference(&last)
            .into_iter()
            .filter(|(what, _)| !what.contains("leases"))
            .map(|(_, count)| count)
            .sum();
        last = now;
        if news < 3 {
            break;
        }
    }
    Ok(last)
}

async fn writes(cluster: &Cluster) -> Result<BTreeMap<String, u64>> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let page = cluster.client.request_text(request).await?;
    let mut writes = BTreeMap::new();
    for line in page.lines() {
        let Some(rest) = line.strip_prefix("apiserver_request_total{") else {
            continue;
        };
        let Some((labels, count)) = rest.rsplit_once("} ") else {
            continue;
        };
        let label = |name: &str| {
            let from = labels.split(',').find_map(|pair| pair.strip_prefix(name))?;
            Some(from.trim_start_matches("=\"").trim_end_matches('"'))
        };
        let (verb, resource) = (label("verb"), label("resource"));
        let (Some(verb), Some(resource)) = (verb, resource) else {
            continue;
        };
        // Made for the moment, and kept nowhere.
        let passing = resource.ends_with("reviews");
        if !WRITES.contains(&verb) || passing || label("dry_run").is_some_and(|dry| !dry.is_empty())
        {
            continue;
        }
        let part = label("subresource").unwrap_or_default();
        let slash = if part.is_empty() { "" } else { "/" };
        let count: f64 = count.parse()?;
        *writes
            .entry(format!("{verb} {resource}{slash}{part}"))
            .or_default() += whole(count);
    }
    Ok(writes)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(count: f64) -> u64 {
    count as u64
}

/// Processor time that a process has used.
fn seconds(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(')').context("stat")?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut next = || fields.next().and_then(|field| field.parse::<f64>().ok());
    Ok((next().context("utime")? + next().context("stime")?) / TICKS)
}

/// From now on, `at most` in [`Meter::memory`] is since this call.
pub(crate) fn forget_peak(daemon: &Daemon) -> Result<()> {
    let pid = daemon.pid().context("no scheduler")?;
    // proc(5): 5 resets the peak resident set size.
    Ok(std::fs::write(format!("/proc/{pid}/clear_refs"), "5")?)
}

/// A line of a process's memory, in MiB.
fn memory(pid: u32, field: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib: u64 = line
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .with_context(|| field.to_owned())?;
    Ok(kib >> 10)
}

/// Times of one kind.
pub(crate) fn row(name: &str, times: &mut [Duration]) {
    times.sort();
    let millis = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1000.0);
    println!(
        "{name}, {} times: p50 {:.0} ms, p99 {:.0} ms, least {:.0} ms, most {:.0} ms",
        times.len(),
        millis(quantile(times, 50)),
        millis(quantile(times, 99)),
        millis(times.first()),
        millis(times.last()),
    );
}

/// The percentile of the sorted values.
fn quantile(sorted: &[Duration], percent: usize) -> Option<&Duration> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1))
}
