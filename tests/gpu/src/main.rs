//! `tests/gpu/run`: what this project says of a GPU, asked of one.
//!
//! - [`mod@machine`]: the driver, real or simulated; [`transcript`]: what was run.
//! - [`cuda`], [`program`], [`tenant`]: a CUDA program of ours, and its control.
//! - [`server`]: an MPS daemon of our own.
//! - [`gl`], [`files`]: more that such a program does; [`library`]: what it loads.
//! - [`lists`]: NVML's lists of processes.
//! - [`fences`], [`claims`], [`questions`]: of NVIDIA's programs; [`mig`]: of MIG instances.
//! - [`node`], [`enter`], [`shares`]: of our agent, supervisor and hook on this driver.
//! - [`report`]: the page that comes of it.
//! - [`violations`]: a figure: how long more than a share is held.
//!
//! Must never change a setting of a card unasked, or leave a process or a file behind.

mod claims;
mod control;
mod cuda;
mod enter;
mod fences;
mod files;
mod gl;
mod library;
mod lists;
mod machine;
mod mig;
mod node;
mod program;
mod questions;
mod report;
mod server;
mod shares;
mod tenant;
mod transcript;
mod violations;

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, Parser, Subcommand};
use machine::{Machine, Missing, StandIns};
use node::Node;
use report::{Part, Verdict};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

/// The time box of what has none of its own, seconds.
const SECONDS: u64 = 30;

/// Asks a GPU what this project says of it.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Claims and questions, on this machine's driver or on the simulated one.
    Ask(AskArgs),
    /// How long the watchdog lets a program have more than its share.
    Violations(Violations),
    /// A scripted CUDA program.
    Cuda(program::Options),
    /// The same, from inside a container that is a folder.
    #[command(disable_help_flag = true)]
    Enter {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct Violations {
    /// On the simulated driver, with the stand-ins for NVML and libcuda of this folder.
    #[arg(long, value_name = "FOLDER")]
    simulated: Option<PathBuf>,
    /// How many.
    #[arg(long, default_value_t = 100)]
    rounds: usize,
}

#[derive(Debug, Args)]
struct AskArgs {
    /// On the simulated driver, with the stand-ins for NVML and libcuda of this folder.
    #[arg(long, value_name = "FOLDER")]
    simulated: Option<PathBuf>,
    /// The page goes there too: a file, or a folder where it is named by driver and card.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Seconds for all of it. What does not fit into the rest is skipped and reported as skipped.
    #[arg(long, default_value_t = 480)]
    budget: u64,
    /// Mode `mps` is checked too, for which a card is in compute mode `EXCLUSIVE_PROCESS` for some
    /// time.
    #[arg(long)]
    may_set_compute_mode: bool,
    /// Only the claims about slices, on cards that are in MIG mode and have instances.
    #[arg(long)]
    mig: bool,
    /// Only what has this in its text.
    only: Option<String>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args_os()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    let name = args.first().map(Path::new).and_then(Path::file_name);
    if name.is_some_and(|name| name == "aliquot-hook") {
        return hook(args.get(1..).unwrap_or_default());
    }
    if sim_gpu::is_multicall(&args) {
        return sim_gpu::multicall(args);
    }
    let outcome = match Cli::parse().verb {
        Verb::Ask(ask) => run(&ask),
        Verb::Violations(asked) => measure(&asked),
        Verb::Cuda(options) => program::run(&options).map(|()| true),
        Verb::Enter { words } => enter::run(&words).map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error:#}");
            ExitCode::from(2)
        }
    }
}

fn hook(arguments: &[String]) -> ExitCode {
    match aliquot_hook::create_runtime(arguments, std::io::stdin().lock(), SystemTime::now()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            let _ = writeln!(std::io::stderr(), "aliquot: {refusal}");
            ExitCode::FAILURE
        }
    }
}

/// Everything, what is worth most first; whether all that was claimed holds.
fn run(ask: &AskArgs) -> anyhow::Result<bool> {
    let mut machine = machine(ask.simulated.as_deref(), ask.mig)?;
    machine.may_set_mode = ask.may_set_compute_mode;
    let machine = &machine;
    let before = machine.settings()?;
    fit(machine, &before)?;
    machine.smi(&[])?;
    let mut asked = Session {
        machine,
        begin: Instant::now(),
        budget: Duration::from_secs(ask.budget),
        only: ask.only.as_deref().unwrap_or_default(),
        parts: vec![Part {
            text: "what was found".to_owned(),
            verdict: Verdict::Answer(before.trim().replace('\n', "; ")),
            transcript: machine.transcript.take(),
        }],
    };
    if ask.mig {
        for (text, run) in mig::CLAIMS {
            asked.ask(text, SECONDS, *run);
        }
    } else {
        of_cards(&mut asked)?;
    }
    let after = machine.settings()?;
    let same = if before == after {
        Verdict::Holds("compute mode, persistence mode and MIG mode as before".into())
    } else {
        Verdict::Differs(after)
    };
    asked.tell("every setting of every card is as it was found", Ok(same));
    let Session { parts, begin, .. } = asked;
    publish(ask, machine, &parts, begin.elapsed())?;
    Ok(parts
        .iter()
        .all(|part| !matches!(part.verdict, Verdict::Differs(_))))
}

/// What is asked of cards that are not in MIG mode.
fn of_cards(asked: &mut Session<'_>) -> anyhow::Result<()> {
    for (text, seconds, run) in fences::QUESTIONS {
        asked.ask(text, *seconds, *run);
    }
    of_shares(asked)?;
    for (text, run) in claims::CLAIMS.iter().chain(questions::QUESTIONS) {
        asked.ask(text, SECONDS, *run);
    }
    Ok(())
}

/// The checks on a node, which is started for the first of them.
fn of_shares(asked: &mut Session<'_>) -> anyhow::Result<()> {
    let machine = asked.machine;
    runtime()?.block_on(async {
        let mut node = None;
        for (text, seconds, run) in shares::CLAIMS {
            if !asked.fits(text, *seconds) {
                continue;
            }
            let all = async {
                if node.is_none() {
                    node = Some(Node::start(machine).await.context("the node")?);
                }
                let Some(node) = &mut node else {
                    return Err(Missing::error("there is no node"));
                };
                run(machine, node).await
            };
            let limit = Duration::from_secs(*seconds);
            let verdict = tokio::time::timeout(limit, all).await;
            let mut verdict =
                verdict.unwrap_or_else(|_| Err(anyhow!("not done within its {limit:?}")));
            // The next one finds idle cards.
            if let Some(node) = &mut node
                && let Err(error) = node.clear().await
            {
                verdict = verdict.and(Err(error));
            }
            asked.tell(text, verdict);
        }
        if let Some(node) = node {
            node.end().await;
        }
        anyhow::Ok(())
    })
}

/// What has been asked, and the time that is left.
struct Session<'a> {
    machine: &'a Machine,
    begin: Instant,
    budget: Duration,
    only: &'a str,
    parts: Vec<Part>,
}

impl Session<'_> {
    /// Asks, unless it is not wanted or does not fit into what is left.
    fn ask(&mut self, text: &str, seconds: u64, run: fn(&Machine) -> anyhow::Result<Verdict>) {
        if self.fits(text, seconds) {
            let verdict = run(self.machine);
            self.tell(text, verdict);
        }
    }

    /// Whether to check it now, within this number of seconds.
    fn fits(&mut self, text: &str, seconds: u64) -> bool {
        if !text.contains(self.only) {
            return false;
        }
        let left = self.budget.saturating_sub(self.begin.elapsed());
        if left.as_secs() < seconds {
            let why = format!(
                "it may take {seconds} s, and {} of {} s are left: --budget",
                left.as_secs(),
                self.budget.as_secs()
            );
            self.tell(text, Ok(Verdict::NotAsked(why)));
            return false;
        }
        self.machine.within(Duration::from_secs(seconds));
        true
    }

    fn tell(&mut self, text: &str, verdict: anyhow::Result<Verdict>) {
        let verdict = verdict.unwrap_or_else(|error| match error.downcast_ref::<Missing>() {
            Some(missing) => Verdict::NotAsked(missing.to_string()),
            None => Verdict::Differs(format!("{error:#}")),
        });
        let part = Part {
            text: text.to_owned(),
            verdict,
            transcript: self.machine.transcript.take(),
        };
        let _ = writeln!(std::io::stdout(), "{}", report::line(&part));
        self.parts.push(part);
    }
}

fn measure(asked: &Violations) -> anyhow::Result<bool> {
    let machine = machine(asked.simulated.as_deref(), false)?;
    fit(&machine, &machine.settings()?)?;
    runtime()?.block_on(violations::measure(&machine, asked.rounds.max(1)))
}

/// The directory of logs, and the checks. `mig`: a simulated one has slices.
fn machine(simulated: Option<&Path>, mig: bool) -> anyhow::Result<Machine> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    match simulated {
        Some(folder) => {
            let stand_ins = StandIns {
                nvml: folder.join("libnvidia_ml.so"),
                cuda: folder.join("libsim_libcuda.so"),
            };
            Machine::simulated(&stand_ins, mig)
        }
        None => Machine::real(),
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
}

/// Refuses a machine on which the checks would disturb a process, or have no meaning.
fn fit(machine: &Machine, settings: &str) -> anyhow::Result<()> {
    for line in settings.lines() {
        if line
            .split(',')
            .nth(1)
            .is_none_or(|mode| mode.trim() != "Default")
        {
            bail!("a card is not in compute mode DEFAULT, and this changes no setting: {line}");
        }
    }
    let apps = machine.apps()?;
    if let Some((pid, uuid, _)) = apps.first() {
        bail!("process {pid} uses card {uuid}: the cards must be idle");
    }
    if Path::new("/tmp/nvidia-mps/control").exists() {
        bail!("an MPS daemon listens in /tmp/nvidia-mps: programs without one could not be asked");
    }
    Ok(())
}

fn publish(ask: &AskArgs, machine: &Machine, parts: &[Part], took: Duration) -> anyhow::Result<()> {
    let Some(out) = &ask.out else {
        return Ok(());
    };
    let card = machine.cards.first().context("no card")?;
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let facts = [
        ("driver", machine.driver.clone()),
        (
            "card",
            format!(
                "{} x {}, {} MiB",
                machine.cards.len(),
                card.name,
                card.total
            ),
        ),
        ("kernel", kernel.trim().to_owned()),
        ("user", format!("uid {}", nix::unistd::geteuid())),
        ("time", format!("{} of {} s", took.as_secs(), ask.budget)),
    ];
    let kind = if machine.simulated { ", simulated" } else { "" };
    let title = format!("{}, driver {}{kind}", card.name, machine.driver);
    let file = if out.is_dir() {
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || c == '.' {
                c
            } else {
                '-'
            }
        };
        let name: String = format!("{}-{}", machine.driver, card.name)
            .chars()
            .map(plain)
            .collect();
        out.join(format!("{name}.md"))
    } else {
        out.clone()
    };
    // The folder of the tree on this machine is no part of the page.
    let here = format!("{}/", std::env::current_dir()?.display());
    let page = report::page(&title, &facts, parts).replace(&here, "");
    std::fs::write(&file, page).with_context(|| file.display().to_string())?;
    let _ = writeln!(std::io::stdout(), "\nwritten to {}", file.display());
    Ok(())
}
