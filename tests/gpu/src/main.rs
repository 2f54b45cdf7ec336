//! `tests/gpu/run`: what this project says of a GPU, asked of one.
//!
//! - [`mod@machine`]: the driver, real or simulated; [`transcript`]: what was run.
//! - [`cuda`], [`program`], [`tenant`]: a CUDA program of ours, and how it is asked.
//! - [`server`]: an MPS daemon of our own.
//! - [`claims`], [`questions`]: of NVIDIA's programs.
//! - [`node`], [`enter`], [`shares`]: of our agent, supervisor and hook on this driver.
//! - [`report`]: the page that comes of it.
//! - [`violations`]: a figure: how long more than a share is held.
//!
//! Must never change a setting of a card, or leave a process or a file behind.

mod claims;
mod control;
mod cuda;
mod enter;
mod machine;
mod node;
mod program;
mod questions;
mod report;
mod server;
mod shares;
mod tenant;
mod transcript;
mod violations;

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand};
use machine::{Machine, StandIns};
use report::{Part, Verdict};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

/// Asks a GPU what this project says of it.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Claims and questions, on this machine's driver or on the simulated one.
    Ask(Ask),
    /// How long the watchdog lets a program have more than its share.
    Violations(Violations),
    /// A CUDA program that does what its words say.
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
struct Ask {
    /// On the simulated driver, with the stand-ins for NVML and libcuda of this folder.
    #[arg(long, value_name = "FOLDER")]
    simulated: Option<PathBuf>,
    /// The page goes there too: a file, or a folder where it is named by driver and card.
    #[arg(long)]
    out: Option<PathBuf>,
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

/// Everything, one after the other; whether all that was claimed holds.
fn run(ask: &Ask) -> anyhow::Result<bool> {
    let machine = machine(ask.simulated.as_deref())?;
    let before = machine.settings()?;
    fit(&machine, &before)?;
    machine.smi(&[])?;
    let mut parts = vec![Part {
        text: "what was found".to_owned(),
        verdict: Verdict::Answer(before.trim().replace('\n', "; ")),
        transcript: machine.transcript.take(),
    }];
    let wanted = |text: &str| {
        ask.only
            .as_ref()
            .is_none_or(|only| text.contains(only.as_str()))
    };
    let claims = claims::CLAIMS.iter().chain(questions::QUESTIONS);
    for (text, run) in claims.filter(|(text, _)| wanted(text)) {
        let verdict = run(&machine);
        tell(&mut parts, &machine, text, verdict);
    }
    let of_shares: Vec<_> = shares::CLAIMS
        .iter()
        .filter(|(text, _)| wanted(text))
        .collect();
    if !of_shares.is_empty() {
        runtime()?.block_on(async {
            match node::Node::start(&machine).await {
                Ok(mut node) => {
                    for (text, run) in of_shares {
                        let mut verdict = run(&machine, &mut node).await;
                        // The next one finds idle cards.
                        if let Err(error) = node.clear().await {
                            verdict = verdict.and(Err(error));
                        }
                        tell(&mut parts, &machine, text, verdict);
                    }
                    node.end().await;
                }
                Err(error) => tell(&mut parts, &machine, "a node starts", Err(error)),
            }
        });
    }
    let after = machine.settings()?;
    let same = if before == after {
        Verdict::Holds("compute mode, persistence mode and MIG mode as before".into())
    } else {
        Verdict::Differs(after)
    };
    tell(
        &mut parts,
        &machine,
        "every setting of every card is as it was found",
        Ok(same),
    );
    publish(ask, &machine, &parts)?;
    Ok(parts
        .iter()
        .all(|part| !matches!(part.verdict, Verdict::Differs(_))))
}

fn measure(asked: &Violations) -> anyhow::Result<bool> {
    let machine = machine(asked.simulated.as_deref())?;
    fit(&machine, &machine.settings()?)?;
    runtime()?.block_on(violations::measure(&machine, asked.rounds.max(1)))
}

/// Where logs go, and what is asked.
fn machine(simulated: Option<&Path>) -> anyhow::Result<Machine> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    match simulated {
        Some(folder) => Machine::simulated(&StandIns {
            nvml: folder.join("libnvidia_ml.so"),
            cuda: folder.join("libsim_libcuda.so"),
        }),
        None => Machine::real(),
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
}

/// Refuses a machine on which asking would disturb somebody, or say nothing.
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

fn tell(parts: &mut Vec<Part>, machine: &Machine, text: &str, verdict: anyhow::Result<Verdict>) {
    let part = Part {
        text: text.to_owned(),
        verdict: verdict.unwrap_or_else(|error| Verdict::Differs(format!("{error:#}"))),
        transcript: machine.transcript.take(),
    };
    let _ = writeln!(std::io::stdout(), "{}", report::line(&part));
    parts.push(part);
}

fn publish(ask: &Ask, machine: &Machine, parts: &[Part]) -> anyhow::Result<()> {
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
    std::fs::write(&file, report::page(&title, &facts, parts))
        .with_context(|| file.display().to_string())?;
    let _ = writeln!(std::io::stdout(), "\nwritten to {}", file.display());
    Ok(())
}
