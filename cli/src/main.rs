//! `aliquot`: the command line, one file or folder per verb.
//!
//! - [`connect`]: the connection to a cluster; [`report`]: results, and how they are printed;
//!   [`failure`]: one sentence and an exit code; [`progress`]: progress of long work.
//! - [`inventory`]: `nodes`, `cards`, `shares`; [`top`], over [`view`]: cards and pending pods.
//! - [`shadow`]: the scheduler's core, fed by lists; [`queues`]: the tree of queues.
//! - [`usage`]: `report`: memory granted and not used.
//! - [`explain`]: why a pod waits.
//! - [`trial`]: `fit`, `simulate`: pods that do not exist yet; [`manifest`]: their files.
//! - [`lint`]: mistakes in manifests.
//! - [`plan`]: what a cluster without Aliquot would gain from it.
//! - [`record`]: `snapshot`, `replay`; [`actions`]: decisions, as a table.
//! - [`doctor`]: findings with their fixes.
//! - [`events`]; [`cordon`]: `cordon`, `uncordon`; [`keys`]: these alone write.
//! - [`demo`]: a whole cluster in one process; [`hook`]: what its runtimes run.
//!
//! The demo starts this program again under other names, so those come first: the hook of
//! the containers, the simulated driver with its MPS daemons and workloads, the clean-up process.
#![forbid(unsafe_code)]

mod actions;
mod connect;
mod cordon;
mod demo;
mod doctor;
mod events;
mod explain;
mod failure;
mod hook;
mod inventory;
mod keys;
mod lint;
mod manifest;
mod plan;
mod progress;
mod queues;
mod record;
#[cfg(test)]
mod reference;
mod report;
mod shadow;
mod top;
mod trial;
mod usage;
mod view;

use crate::failure::end;
use clap::{CommandFactory as _, Parser, Subcommand};
use std::process::ExitCode;

/// GPU sharing for Kubernetes by the MiB, enforced.
#[derive(Debug, Parser)]
#[command(name = "aliquot", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// A whole cluster in one process, with simulated cards: no cluster and no GPU needed.
    Demo(demo::Args),
    /// Cards with their granted, used and free memory, the shares on them, and waiting pods.
    Top(top::Args),
    /// Nodes with an agent, and what they offer.
    Nodes(inventory::Args),
    /// Every card: mode, state, memory.
    Cards(inventory::Args),
    /// Which container holds which part of which card, and what enforces it.
    Shares(inventory::ShareArgs),
    /// What was granted and what was not used, by queue, namespace or workload, and its cost.
    Report(usage::Args),
    /// The tree of queues: quota, limit, fair share, used, pending.
    Queues(queues::Args),
    /// Why a pod waits, card by card, and the cheapest change that would let it run.
    Explain(explain::Args),
    /// How often a request fits now, and where.
    Fit(trial::FitArgs),
    /// What a cluster would gain from shares, and which pods the policies would refuse; needs no Aliquot
    /// there.
    Plan(plan::Args),
    /// Mistakes in manifests that Kubernetes accepts without a word; needs no cluster. Exit code 1 if
    /// there are any.
    Lint(lint::Args),
    /// What the scheduler would do with these manifests, evictions included.
    Simulate(trial::SimulateArgs),
    /// The scheduler's events about pods, newest last.
    Events(events::Args),
    /// Stop placing pods on a card; running pods stay.
    Cordon(cordon::Args),
    /// Allow pods on a card again.
    Uncordon(cordon::Args),
    /// The keys that sign grants: list them, rotate the signing key, stop trusting one.
    Keys(keys::Args),
    /// The cluster as the event list that rebuilds it, for replay, simulate and bug reports.
    Snapshot(record::SnapshotArgs),
    /// What the scheduler decides on a recorded cluster.
    Replay(record::ReplayArgs),
    /// Problems of a cluster, or of the node that this runs on, each with its fix.
    Doctor(doctor::Args),
    /// A completion script for your shell, on standard output.
    Completion {
        /// Which shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args_os()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    if hook::is_meant(&args) {
        return hook::run(&args);
    }
    if sim_gpu::is_multicall(&args) {
        return sim_gpu::multicall(args);
    }
    if args.get(1).is_some_and(|arg| arg == demo::cleanup::VERB) {
        return demo::cleanup::run(args.get(2));
    }
    match Cli::parse().verb {
        Verb::Demo(args) => demo::run(&args),
        Verb::Top(args) => end("top", top::run(&args)),
        Verb::Nodes(args) => end("nodes", inventory::nodes(&args)),
        Verb::Cards(args) => end("cards", inventory::cards(&args)),
        Verb::Shares(args) => end("shares", inventory::shares(&args)),
        Verb::Report(args) => end("report", usage::run(&args)),
        Verb::Queues(args) => end("queues", queues::run(&args)),
        Verb::Explain(args) => end("explain", explain::run(&args)),
        Verb::Fit(args) => end("fit", trial::fit(&args)),
        Verb::Plan(args) => end("plan", plan::run(&args)),
        Verb::Lint(args) => end("lint", lint::run(&args)),
        Verb::Simulate(args) => end("simulate", trial::simulate(&args)),
        Verb::Events(args) => end("events", events::run(&args)),
        Verb::Cordon(args) => end("cordon", cordon::run(&args, true)),
        Verb::Uncordon(args) => end("uncordon", cordon::run(&args, false)),
        Verb::Keys(args) => end("keys", keys::run(&args)),
        Verb::Snapshot(args) => end("snapshot", record::snapshot(&args)),
        Verb::Replay(args) => end("replay", record::replay(&args)),
        Verb::Doctor(args) => end("doctor", doctor::run(&args)),
        Verb::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "aliquot", &mut script);
            let said = report::say(&String::from_utf8_lossy(&script));
            end("completion", said.map(|()| ExitCode::SUCCESS))
        }
    }
}
