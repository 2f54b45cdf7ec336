//! What a tenant can do to get more than its share, and what comes of it in every mode.
//!
//! The table below is the one in `docs/modes-and-fences.md`: each row is run, and the page is compared
//! with what was seen.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::{Gpus, Hardware};
use aliquot_tests::pod::phase_of;
use aliquot_tests::share::{line, pod};
use anyhow::{Context, Result, bail, ensure};
use api::Mode;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use serde_json::json;

use crate::modes::policy;

/// What each tenant is granted, MiB.
const SHARE: u64 = 2000;
/// The watchdog's slack, MiB.
const SLACK: u64 = 16;

/// What becomes of a tenant's appetite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It gets its share and no more.
    Held,
    /// It gets no memory at all: CUDA's error.
    Refused(u64),
    /// It gets more, and the watchdog ends its container.
    Killed,
    /// It gets more and keeps it.
    Escapes,
}

use Outcome::{Held, Killed, Refused};

impl Outcome {
    fn words(self) -> String {
        match self {
            Held => "held at its share".to_owned(),
            Refused(code) => format!("no memory: CUDA error {code}"),
            Killed => "killed by the watchdog".to_owned(),
            Self::Escapes => "**escapes**".to_owned(),
        }
    }
}

/// In words, the script before it takes all that it gets, and what comes of it under `mps`,
/// `mps-isolated` and `time-slicing`.
const TABLE: [(&str, &str, [Outcome; 3]); 11] = [
    ("takes all it can get", "", [Held, Held, Killed]),
    (
        "takes the MPS variables out of its environment",
        "unset-mps",
        [Refused(46), Killed, Killed],
    ),
    (
        "opens the device itself",
        "direct",
        [Refused(46), Killed, Killed],
    ),
    (
        "names a pipe directory where nobody listens",
        "env CUDA_MPS_PIPE_DIRECTORY=/nowhere",
        [Refused(46), Killed, Killed],
    ),
    (
        "raises the limit in its environment",
        "raise 30000",
        [Held, Held, Killed],
    ),
    (
        "takes the limit out of its environment",
        "unset-limits",
        [Held, Held, Killed],
    ),
    (
        "adds a limit for a card that it does not have",
        "stray-limit",
        [Held, Refused(2), Killed],
    ),
    (
        "forks three processes, each with less than the share",
        "fork 3 1500",
        [Killed, Killed, Killed],
    ),
    (
        "as root, raises the limit through the control pipe, for a process that comes later",
        "keep-going drive-raise 30000 unset-limits",
        [Killed, Killed, Killed],
    ),
    (
        "sets the card's compute mode",
        "keep-going set-mode DEFAULT direct",
        [Refused(46), Killed, Killed],
    ),
    (
        "as root, ends the control daemon, then goes without",
        "keep-going drive \"quit -t 0\" unset-mps",
        [Killed, Killed, Killed],
    ),
];

const MODES: [Mode; 3] = [Mode::Mps, Mode::MpsIsolated, Mode::TimeSlicing];

/// The page's table.
fn table() -> String {
    let mut text = String::from("| a tenant that |");
    for mode in MODES {
        let _ = write!(text, " `{mode}` |");
    }
    text.push_str("\n|---|---|---|---|\n");
    for (what, _, outcomes) in TABLE {
        let _ = write!(text, "| {what} |");
        for outcome in outcomes {
            let _ = write!(text, " {} |", outcome.words());
        }
        text.push('\n');
    }
    text
}

pub(crate) async fn the_table_in_the_docs_is_the_one_that_is_run(
    cluster: &mut Cluster,
) -> Result<()> {
    let page = cluster.programs.tree.join("docs/modes-and-fences.md");
    let page = std::fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    ensure!(
        page.contains(&table()),
        "docs/modes-and-fences.md should have\n{}",
        table()
    );
    Ok(())
}

pub(crate) async fn under_mps_a_hostile_tenant_gets_its_share_or_its_end(
    cluster: &mut Cluster,
) -> Result<()> {
    all(cluster, 0).await
}

pub(crate) async fn under_mps_isolated_a_hostile_tenant_gets_its_share_or_its_end(
    cluster: &mut Cluster,
) -> Result<()> {
    all(cluster, 1).await
}

pub(crate) async fn under_time_slicing_a_hostile_tenant_gets_its_share_or_its_end(
    cluster: &mut Cluster,
) -> Result<()> {
    all(cluster, 2).await
}

async fn all(cluster: &mut Cluster, at: usize) -> Result<()> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 1))
        .await?;
    policy(cluster, json!({ "defaultMode": MODES[at].as_str() })).await?;
    let outcome = every_row(cluster, at).await;
    policy(cluster, json!({})).await?;
    outcome
}

async fn every_row(cluster: &mut Cluster, at: usize) -> Result<()> {
    let ns = cluster.namespace().await?;
    let neighbour = pod(
        &ns,
        "neighbour",
        &[("gpu-memory", "1000")],
        "alloc 500 hold",
    );
    cluster.run_share(&neighbour).await?;
    let mut wrong = Vec::new();
    for (row, (what, before, expected)) in TABLE.into_iter().enumerate() {
        let name = format!("t{row}");
        let grow = if before.starts_with("fork") {
            "hold"
        } else {
            "grow 100 hold"
        };
        let script = format!("{before} {grow}");
        let mib = SHARE.to_string();
        let manifest = pod(&ns, &name, &[("gpu-memory", &mib)], script.trim());
        cluster.apply_one(&manifest).await?;
        let outcome = outcome(cluster, &ns, &name).await.context(what)?;
        if outcome != expected[at] {
            wrong.push(format!("{what}: {}", outcome.words()));
        }
        cluster.delete_pod(&ns, &name).await?;
        // The last one ends the daemon, and with it what its server holds.
        if row + 1 < TABLE.len() || MODES[at] != Mode::Mps {
            let beside = cluster.pods(&ns).get("neighbour").await?;
            ensure!(
                phase_of(&beside) == "Running" && restarts(&beside) == 0,
                "{what}: the neighbour ended"
            );
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|s| s.container_statuses.as_ref());
    statuses
        .into_iter()
        .flatten()
        .map(|s| s.restart_count)
        .sum()
}

/// Waits until it is clear what became of a tenant.
async fn outcome(cluster: &Cluster, ns: &str, name: &str) -> Result<Outcome> {
    let pods = cluster.pods(ns);
    let mut settled: Option<Instant> = None;
    let mut kept = 0;
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        let pod = pods.get(name).await?;
        if let Some(ended) = ended(&pod) {
            if ended.exit_code == 137 {
                return Ok(Killed);
            }
            let log = cluster.logs(ns, name, None).await?;
            let last = line(&log, "grow").with_context(|| log.clone())?;
            let code = last["code"].as_u64();
            return Ok(Refused(code.with_context(|| log.clone())?));
        }
        if phase_of(&pod) == "Running" {
            let log = cluster.logs(ns, name, None).await.unwrap_or_default();
            let taken = line(&log, "grow").or_else(|| line(&log, "fork"));
            if let Some(taken) = taken.filter(|_| settled.is_none()) {
                if let (None, Some(code)) = (taken["held_mib"].as_u64(), taken["code"].as_u64()) {
                    return Ok(Refused(code));
                }
                kept = taken["held_mib"].as_u64().unwrap_or(0);
                settled = Some(Instant::now());
            }
        }
        // Well after the watchdog would have acted.
        if settled.is_some_and(|at| at.elapsed() > Duration::from_millis(1500)) {
            return Ok(if kept <= SHARE + SLACK {
                Held
            } else {
                Outcome::Escapes
            });
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("{name}: nothing became of it within 30 s")
}

/// How a pod's container ended, if it did.
fn ended(pod: &Pod) -> Option<&ContainerStateTerminated> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    status.state.as_ref()?.terminated.as_ref()
}

/// From the driver's own account: the time from the moment at which a process holds more
/// than its share to the moment at which it holds nothing.
pub(crate) async fn the_watchdog_acts_within_a_quarter_of_a_second(
    cluster: &mut Cluster,
) -> Result<()> {
    const ROUNDS: usize = 20;
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 1))
        .await?;
    policy(cluster, json!({ "defaultMode": "time-slicing" })).await?;
    let times = measured(cluster, ROUNDS).await;
    policy(cluster, json!({})).await?;
    let mut times = times?;
    times.sort_unstable();
    // One of twenty may meet a moment in which the machine does something else.
    let (median, worst) = (times[ROUNDS / 2], times[ROUNDS - 2]);
    #[expect(clippy::print_stdout, reason = "the figure is worth a line")]
    {
        println!(
            "violation to end, {ROUNDS} rounds: median {median:?}, all but one within {worst:?}"
        );
    }
    ensure!(worst <= Duration::from_millis(250), "{times:?}");
    Ok(())
}

async fn measured(cluster: &mut Cluster, rounds: usize) -> Result<Vec<Duration>> {
    let ns = cluster.namespace().await?;
    let mut times = Vec::new();
    let names: Vec<String> = (0..rounds).map(|round| format!("r{round}")).collect();
    for name in &names {
        let script = "context await /tmp/go alloc 3000 hold";
        cluster
            .apply_one(&pod(&ns, name, &[("gpu-memory", "2000")], script))
            .await?;
    }
    let gpus = cluster.gpus.as_ref().context("no GPUs")?;
    for name in &names {
        let running = cluster.pod_phase(&ns, name, "Running").await?;
        cluster.said(&ns, name, "main", "context").await?;
        let uid = running.metadata.uid.context("a UID")?;
        // Looked at while the command goes on: its container may end before it does.
        let touch = ["/bin/busybox", "touch", "/tmp/go"];
        let exec = cluster.kubectl.exec(&ns, name, "main", &touch);
        let (_, time) = tokio::join!(exec, violation(gpus, &uid));
        times.push(time.with_context(|| name.clone())?);
        // It was the watchdog who ended it.
        let failed = cluster.pod_phase(&ns, name, "Failed").await?;
        let code = ended(&failed).map(|ended| ended.exit_code);
        ensure!(code == Some(137), "{name} ended with {code:?}");
        cluster.delete_pod(&ns, name).await?;
    }
    Ok(times)
}

/// How long a pod holds more than its 2,000 MiB, at most: from the last look at which it
/// did not to the first at which it held nothing any more.
///
/// Polled closer than waits are: the figure is its business.
async fn violation(gpus: &Gpus, uid: &str) -> Result<Duration> {
    const LIMIT: Duration = Duration::from_secs(10);
    let asked = Instant::now();
    let mut begin = asked;
    loop {
        let look = Instant::now();
        match held(gpus, uid).await? {
            Some(mib) if mib <= 2000 => begin = look,
            Some(_) => break,
            // All of it was between two looks.
            None => return Ok(begin.elapsed()),
        }
        ensure!(asked.elapsed() < LIMIT, "it takes nothing");
    }
    while held(gpus, uid).await?.is_some() {
        ensure!(begin.elapsed() < LIMIT, "it lives");
    }
    Ok(begin.elapsed())
}

/// What a pod's processes hold by the driver's account, MiB; `None`: it has none there.
pub(crate) async fn held(gpus: &Gpus, uid: &str) -> Result<Option<u64>> {
    let status = gpus.driver.control(&["status"]).await?;
    let held = status.lines().filter(|line| line.contains(uid));
    Ok(held
        .filter_map(|line| line.split('\t').nth(4)?.parse::<u64>().ok())
        .reduce(|one, other| one + other))
}
