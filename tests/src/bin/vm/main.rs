//! The program behind `tests/vm/run`: claims about a node as users have it, in a virtual machine.
//!
//! Started outside, it runs itself once for each claim, which enters namespaces of its own and runs
//! itself again there: every claim has a machine from the kept disk and a control plane that
//! knows nothing of another's.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod cgroups;
mod cluster;
mod installed;
mod node;
mod power;
mod restarts;

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::daemon;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::namespace::{self, Work};
use aliquot_tests::programs::Programs;
use aliquot_tests::virtual_machine::{Disk, Runtime, VirtualMachine};
use anyhow::{Context as _, Result, anyhow, bail};
use clap::Parser;
use cluster::MachineCluster;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

/// A cluster whose node is a machine of its own.
/// The longest time for one claim. A claim takes 4 to 6 minutes on an emulated machine.
const LIMIT: Duration = Duration::from_mins(20);
/// The number of lines of each log that are printed when a claim has failed.
const LOG_LINES: usize = 15;

/// Claims about a node in a virtual machine.
#[derive(Debug, Parser)]
struct Options {
    /// The work folder; set when the program runs itself inside the namespaces.
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
    /// The one claim that this process is for; set when the program runs itself.
    #[arg(long, hide = true)]
    claim: Option<String>,
    /// Folder of kube-apiserver, kubelet, containerd and so on.
    #[arg(long)]
    daemons: PathBuf,
    /// Folder of this workspace's programs.
    #[arg(long)]
    programs: PathBuf,
    /// Folder of this workspace's statically linked programs.
    #[arg(long)]
    static_programs: PathBuf,
    /// Layout of the image of `deploy/image`.
    #[arg(long)]
    image: PathBuf,
    /// Folder of the machine's disk, as `tests/vm/image` prints it.
    #[arg(long)]
    disk: PathBuf,
    /// Root of the source tree.
    #[arg(long)]
    tree: PathBuf,
    /// Runs the claims whose name contains it.
    filter: Option<String>,
}

/// A claim: its name is the sentence.
struct Claim {
    name: &'static str,
    runtime: Runtime,
    run: for<'a> fn(&'a mut MachineCluster) -> LocalBoxFuture<'a, Result<()>>,
}

macro_rules! claims {
    ($($runtime:ident $module:ident :: $name:ident),* $(,)?) => {
        [$(Claim {
            name: concat!(stringify!($module), "::", stringify!($name)),
            runtime: Runtime::$runtime,
            run: |cluster| Box::pin($module::$name(cluster)),
        }),*]
    };
}

fn all() -> impl Iterator<Item = Claim> {
    claims![
        Runc node::a_share_has_its_limit_on_a_node_with_systemd_and_cgroup_v2,
        Runc restarts::killed_programs_end_no_share_and_know_them_again,
        Crun restarts::killed_programs_end_no_share_with_crun,
        Runc restarts::systemd_containerd_and_kubelet_restart_under_a_share,
        Runc power::a_power_cut_ends_what_ran_and_leaks_nothing,
    ]
    .into_iter()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<ExitCode> {
    let options = Options::parse();
    let Some(name) = &options.claim else {
        return each(options.filter.as_deref()).await;
    };
    let Some(root) = options.inside.clone() else {
        return namespace::enter().await;
    };
    let claim = all().find(|claim| claim.name == name);
    one(options, Work::at(root), &claim.context("no such claim")?).await
}

/// Runs this program for each claim, one after the other.
async fn each(filter: Option<&str>) -> Result<ExitCode> {
    let chosen: Vec<Claim> = all()
        .filter(|claim| filter.is_none_or(|filter| claim.name.contains(filter)))
        .collect();
    if chosen.is_empty() {
        bail!("no claim has {} in its name", filter.unwrap_or_default());
    }
    println!("{} claims", chosen.len());
    let mut failed = 0;
    for claim in &chosen {
        let status = tokio::process::Command::new(std::env::current_exe()?)
            .args(["--claim", claim.name])
            .args(std::env::args_os().skip(1))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .status()
            .await?;
        match status.code() {
            Some(0) => {}
            // After an interrupt the other claims are not run either.
            Some(code @ (130 | 143)) => return Ok(ExitCode::from(u8::try_from(code)?)),
            _ => failed += 1,
        }
    }
    println!("{} passed, {failed} failed", chosen.len() - failed);
    Ok(ExitCode::from(u8::from(failed > 0)))
}

/// Runs one claim inside its namespaces and prints the result.
async fn one(options: Options, work: Work, claim: &Claim) -> Result<ExitCode> {
    let begin = Instant::now();
    let disk = Disk(options.disk);
    let programs = Programs {
        daemons: options.daemons,
        ours: options.programs,
        ours_static: options.static_programs,
        operators: None,
        extended: None,
        image: Some(options.image),
        helm: None,
        tree: options.tree,
    };
    let logs = work.logs();
    let mut outcome = async {
        let hardware = Hardware::preset("RTX-6000-Ada", 1);
        let ours = programs.clone();
        let mut cluster = Cluster::start_on(programs, work, async |place| {
            VirtualMachine::start(&place, &ours, &disk, &hardware, claim.runtime).await
        })
        .await?;
        let booted = cluster.started.1;
        let outcome = attempt(&mut cluster, claim).await;
        let cost = cluster.node.processor_seconds().unwrap_or_default();
        if outcome.is_err() {
            installed::keep_journal(&cluster).await;
        }
        outcome.map(|()| (booted, cost))
    }
    .await;
    if let Err(error) = &mut outcome {
        *error = anyhow!("{error:#}");
    }
    let seconds = begin.elapsed().as_secs_f32();
    match outcome {
        Ok((booted, cost)) => {
            let booted = booted.as_secs_f32();
            println!(
                "ok {} {seconds:.1}s (node Ready after {booted:.1}s; {cost:.0}s of processors since the last boot)",
                claim.name
            );
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            println!("FAIL {}: {error:#} ({seconds:.1}s)", claim.name);
            for entry in std::fs::read_dir(&logs)?.flatten() {
                let end = daemon::tail(&entry.path(), 0, LOG_LINES);
                if !end.is_empty() {
                    println!("  {}:\n{end}", entry.file_name().to_string_lossy());
                }
            }
            println!("logs are kept in {}", logs.display());
            Ok(ExitCode::FAILURE)
        }
    }
}

async fn attempt(cluster: &mut MachineCluster, claim: &Claim) -> Result<()> {
    let run = AssertUnwindSafe((claim.run)(cluster)).catch_unwind();
    match tokio::time::timeout(LIMIT, run).await {
        Err(_) => Err(anyhow!("not done within {LIMIT:?}")),
        Ok(Ok(outcome)) => outcome.and_then(|()| cluster.alive()),
        Ok(Err(panic)) => {
            let message = panic.downcast_ref::<String>().cloned();
            Err(anyhow!(
                "{}",
                message.unwrap_or_else(|| "panicked".to_owned())
            ))
        }
    }
}
