//! `aliquot demo`: a whole cluster in one process, with simulated cards.
//!
//! - `place`: its directory; `cleanup`: the clean-up, whatever happens.
//! - `cluster`: all parts started, over `driver` and `embed`; `group`: those that end together;
//!   `paths`: where those of a node are.
//! - `walkthrough`: the applied objects; `scenario`, `scenario_runner`: scenarios (`--scenario`); `watch`:
//!   the observed state; `log`: changes; `display`, `print`: output.
//!
//! In: the command line. Out: a picture on a terminal, a log elsewhere, an exit code. Never touches
//! another cluster, nor anything outside of its directory but `--kubeconfig-out`.

pub(crate) mod cleanup;
mod cluster;
mod display;
mod driver;
mod embed;
mod group;
mod log;
mod paths;
mod place;
mod print;
mod scenario;
mod scenario_runner;
pub(crate) mod walkthrough;
mod watch;

use crate::manifest;
use crate::view::ClusterView;
use anyhow::Context as _;
use cleanup::CleanupProcess;
use cluster::{Cluster, HardwareControl};
use display::Display;
use driver::Cards;
use futures::FutureExt as _;
use place::Place;
use print::{complain, picture, say};
use scenario::Scenario;
use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch as channel;
use walkthrough::{Role, Step, Want};

/// Changes that come closer together than this are shown as one.
const QUIET: Duration = Duration::from_millis(100);
/// Interval at which the output of containers is read.
const AGAIN: Duration = Duration::from_millis(200);

/// Flags of `aliquot demo`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of nodes.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    nodes: u32,
    /// Cards of every node: T4, L4, RTX-6000-Ada, A100-40, A100-80 or H100-80, and how many.
    #[arg(long, value_name = "PRESET[:COUNT]", default_value = "H100-80")]
    gpu: Cards,
    /// Apply these manifests instead of the built-in pods; may be given several times.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print when everything is placed as expected, then exit: code 0, or 1 with what is missing.
    #[arg(long)]
    once: bool,
    /// With --once: seconds after which a pod that is not placed counts as missing.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, requires = "once")]
    deadline: u64,
    /// Run one scenario from beginning to end, on a cluster of the size that it needs, then exit.
    #[arg(long, value_enum, value_name = "NAME", conflicts_with_all = ["files", "once", "nodes"])]
    scenario: Option<Scenario>,
    /// Write a kubeconfig for kubectl; removed at the end.
    #[arg(long, value_name = "PATH")]
    kubeconfig_out: Option<PathBuf>,
    /// Serve metrics, and write their addresses for Prometheus (`file_sd_configs`); removed at the end.
    #[arg(long, value_name = "PATH")]
    prometheus_out: Option<PathBuf>,
    /// Log to standard error instead of a file.
    #[arg(short, long)]
    verbose: bool,
}

/// Runs the demo.
pub(crate) fn run(args: &Args) -> ExitCode {
    let mut objects = Vec::new();
    for file in &args.files {
        match manifest::read(file) {
            Ok(documents) => objects.extend(documents),
            Err(error) => return refuse(&error),
        }
    }
    let place = match Place::make() {
        Ok(place) => place,
        Err(error) => return refuse(&anyhow::Error::new(error).context("no temporary directory")),
    };
    let cleanup = match CleanupProcess::start(place.path()) {
        Ok(cleanup) => cleanup,
        Err(error) => {
            let _ = std::fs::remove_dir_all(place.path());
            return refuse(&anyhow::Error::new(error).context("no process beside this one"));
        }
    };
    let outcome = start_logs(args, &place).and_then(|()| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        let outcome = runtime.block_on(play(args, &place, objects));
        runtime.shutdown_timeout(Duration::from_secs(2));
        outcome
    });
    for path in args.kubeconfig_out.iter().chain(&args.prometheus_out) {
        let _ = std::fs::remove_file(path);
    }
    let code = match outcome {
        Ok(code) => code,
        Err(error) => {
            complain(&format!("aliquot demo: {error:#}"));
            ExitCode::FAILURE
        }
    };
    let kept = (code != ExitCode::SUCCESS && !args.verbose)
        .then(|| keep_log(&place))
        .flatten();
    cleanup.finish();
    if let Some(kept) = kept {
        complain(&format!("the log is in {}", kept.display()));
    }
    code
}

/// The log of a failure outlives the directory.
fn keep_log(place: &Place) -> Option<PathBuf> {
    let name = place.path().file_name()?.to_string_lossy().into_owned();
    let kept = place.path().with_file_name(format!("{name}.log"));
    std::fs::copy(place.log(), &kept).ok()?;
    Some(kept)
}

fn refuse(error: &anyhow::Error) -> ExitCode {
    complain(&format!("aliquot demo: {error:#}"));
    ExitCode::from(2)
}

fn start_logs(args: &Args, place: &Place) -> anyhow::Result<()> {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter);
    let started = if args.verbose {
        logs.with_writer(std::io::stderr).try_init()
    } else {
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(place.log())?;
        logs.with_ansi(false)
            .with_writer(std::sync::Mutex::new(file))
            .try_init()
    };
    started.map_err(|error| anyhow::anyhow!("logs cannot be written: {error}"))
}

/// Starts the cluster, plays, ends the cluster.
async fn play(args: &Args, place: &Place, objects: Vec<Value>) -> anyhow::Result<ExitCode> {
    let begin = Instant::now();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (mut nodes, mut gpu) = (args.nodes, args.gpu.clone());
    if let Some(scenario) = args.scenario {
        (nodes, gpu.count) = scenario.size();
    }
    let mut cluster = tokio::select! {
        cluster = Cluster::start(place, nodes, &gpu, args.prometheus_out.is_some()) => cluster?,
        _ = interrupt.recv() => return Ok(ExitCode::from(130)),
        _ = terminate.recv() => return Ok(ExitCode::from(143)),
    };
    if let Some(path) = &args.kubeconfig_out {
        std::fs::write(path, cluster.api.kubeconfig())
            .with_context(|| format!("{} cannot be written", path.display()))?;
    }
    if let Some(path) = &args.prometheus_out {
        let targets =
            serde_json::json!([{"targets": cluster.metrics, "labels": {"job": "aliquot"}}]);
        std::fs::write(path, targets.to_string())
            .with_context(|| format!("{} cannot be written", path.display()))?;
    }
    let (views, seen) = channel::channel(ClusterView::default());
    let (client, page) = (cluster.client.clone(), cluster.page.clone());
    let hardware = cluster.hardware(place);
    let acting = async {
        match args.scenario {
            Some(scenario) => scenario_runner::tell(scenario, &client, &hardware, seen).await,
            None => perform(args, (&client, &hardware), &page, objects, seen, begin).await,
        }
    };
    let outcome = tokio::select! {
        outcome = acting => outcome,
        () = watch::run(client.clone(), views) => Err(anyhow::anyhow!("the watch of the cluster ended")),
        why = cluster.broken() => Err(why),
        _ = interrupt.recv() => Ok(ExitCode::SUCCESS),
        _ = terminate.recv() => Ok(ExitCode::SUCCESS),
    };
    tokio::select! {
        () = cluster.shut_down() => {}
        // After a second signal the user does not wait any more; the clean-up process ends the
        // rest.
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    outcome
}

/// Applies, then shows: once, or without end.
async fn perform(
    args: &Args,
    (client, hardware): (&kube::Client, &HardwareControl),
    page: &str,
    objects: Vec<Value>,
    mut seen: channel::Receiver<ClusterView>,
    begin: Instant,
) -> anyhow::Result<ExitCode> {
    let mut display = Display::new(begin, args.once, head(args, page));
    let deadline = begin + Duration::from_secs(args.deadline);
    let told = objects.is_empty();
    let roles = {
        let applying = if told {
            tell(args, client, seen.clone(), deadline).left_future()
        } else {
            bring(client, objects).right_future()
        };
        tokio::pin!(applying);
        loop {
            tokio::select! {
                roles = &mut applying => break roles?,
                changed = seen.changed() => {
                    changed?;
                    tokio::time::sleep(QUIET).await;
                    display.see(&seen.borrow_and_update())?;
                }
                () = display.resized() => display.draw()?,
            }
        }
    };
    if args.once {
        let limit = told.then_some(hardware);
        return settle(&roles, limit, seen, deadline, begin).await;
    }
    let views = seen.clone();
    let limit = async {
        if !told {
            return std::future::pending().await;
        }
        limit(hardware, views).await
    };
    tokio::pin!(limit);
    let mut waits = true;
    loop {
        display.see(&seen.borrow_and_update())?;
        tokio::select! {
            line = &mut limit, if waits => {
                waits = false;
                display.tell(&line)?;
                if let Some(line) = walkthrough::neighbours(&seen.borrow()) {
                    display.tell(&line)?;
                }
            }
            changed = seen.changed() => {
                changed?;
                tokio::time::sleep(QUIET).await;
            }
            () = display.resized() => display.draw()?,
        }
    }
}

/// The first lines of output.
fn head(args: &Args, page: &str) -> String {
    let how = match &args.kubeconfig_out {
        Some(path) => format!("kubectl --kubeconfig {}", path.display()),
        None => "--kubeconfig-out FILE gives kubectl a way in".to_owned(),
    };
    let nodes = match args.nodes {
        1 => "1 node".to_owned(),
        many => format!("{many} nodes"),
    };
    format!(
        "A cluster of {nodes} with {} x {} each; {how}; Ctrl-C ends it.\nIts status page: {page}\n",
        args.gpu.count, args.gpu.preset,
    )
}

/// Waits until the greedy tenant runs into its limit; returns its output.
async fn limit(hardware: &HardwareControl, seen: channel::Receiver<ClusterView>) -> String {
    loop {
        let view = seen.borrow().clone();
        let log = hardware.log(&view, walkthrough::GREEDY);
        if let Some(told) = log.and_then(|log| scenario::refused(&log, walkthrough::GREEDY)) {
            return told;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// How long the walkthrough waits for cards of nodes that may never have them.
const AGENTS_START: Duration = Duration::from_secs(10);

/// The walkthrough, step by step: the next begins when the last is placed.
async fn tell(
    args: &Args,
    client: &kube::Client,
    mut seen: channel::Receiver<ClusterView>,
    deadline: Instant,
) -> anyhow::Result<Vec<Role>> {
    for queue in walkthrough::queues() {
        manifest::apply(client, &queue).await?;
    }
    // The first pod goes to the first node only if that is there.
    let all = usize::try_from(args.nodes * args.gpu.count)?;
    let there = seen.wait_for(|view| view.cards().filter(|(_, card)| card.ready).count() == all);
    let _ = tokio::time::timeout(AGENTS_START, there).await;
    let mut roles = Vec::new();
    for Step { role, object } in walkthrough::steps(args.nodes, args.gpu.count) {
        manifest::apply(client, &object).await?;
        let placed = seen.wait_for(|view| walkthrough::settled(&role, view));
        let in_time = if args.once {
            tokio::time::timeout_at(deadline.into(), placed)
                .await
                .is_ok()
        } else {
            placed.await?;
            true
        };
        roles.push(role);
        if !in_time {
            break;
        }
    }
    Ok(roles)
}

/// The user's own manifests, all at once.
async fn bring(client: &kube::Client, objects: Vec<Value>) -> anyhow::Result<Vec<Role>> {
    let mut roles = Vec::new();
    let mut known = api::lint::Cluster::of_scheduler(proto::names::kai::SCHEDULER_NAME);
    for object in objects {
        let findings = api::lint::of(&object, &known);
        let applied = manifest::apply(client, &object).await?;
        for finding in &findings {
            complain(&format!("{} {}: {finding}", applied.kind, applied.name));
        }
        if applied.kind == "PriorityClass" {
            known.classes.insert(applied.name.clone());
        }
        if let Some(caveat) = manifest::caveat(&applied) {
            complain(&caveat);
        }
        if applied.kind == "Pod" {
            roles.push(Role {
                namespace: applied.namespace,
                name: applied.name,
                want: if findings.iter().any(|one| one.costs_the_gpu) {
                    Want::Gpu
                } else {
                    Want::Runs
                },
            });
        }
    }
    Ok(roles)
}

/// Waits until everything is as expected, prints it, and reports what is missing.
async fn settle(
    roles: &[Role],
    hardware: Option<&HardwareControl>,
    mut seen: channel::Receiver<ClusterView>,
    deadline: Instant,
    begin: Instant,
) -> anyhow::Result<ExitCode> {
    let told = seen.wait_for(|view| walkthrough::missing(roles, view).is_empty());
    let in_time = tokio::time::timeout_at(deadline.into(), told).await.is_ok();
    let view = seen.borrow().clone();
    say(&picture(&view));
    if roles.is_empty() {
        complain(
            "missing: a pod: the files contain none, so nothing was decided. The demo has no controllers: apply the pods themselves, or ask `aliquot simulate -f FILE`, which takes workloads apart",
        );
        return Ok(ExitCode::FAILURE);
    }
    let refused = match hardware.filter(|_| in_time) {
        Some(hardware) => {
            let limit = limit(hardware, seen.clone());
            tokio::time::timeout_at(deadline.into(), limit).await.ok()
        }
        None => None,
    };
    if let Some(line) = &refused {
        say(&format!("\n{line}\n"));
    }
    let without = walkthrough::without_gpu(roles, &view);
    for line in &without {
        complain(&format!("missing: {line}"));
    }
    if in_time && without.is_empty() && (hardware.is_none() || refused.is_some()) {
        say(&format!(
            "\nEverything is as expected, after {:.1} s.\n",
            begin.elapsed().as_secs_f64()
        ));
        return Ok(ExitCode::SUCCESS);
    }
    if in_time && hardware.is_some() {
        complain("missing: demo/greedy: has not run into its limit");
    }
    for line in walkthrough::missing(roles, &view) {
        complain(&format!("missing: {line}"));
    }
    Ok(ExitCode::FAILURE)
}
