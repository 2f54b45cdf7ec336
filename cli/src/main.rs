//! `aliquot`: the command line, one file or folder per verb.
//!
//! - [`demo`]: a whole cluster in one process; [`hook`]: what its runtimes run.
//!
//! The demo starts this program again under other names, so those come first: the hook of
//! the containers, the simulated driver with its MPS daemons and workloads, the reaper.
#![forbid(unsafe_code)]

mod demo;
mod hook;

use clap::{Parser, Subcommand};
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
    if args.get(1).is_some_and(|arg| arg == demo::reaper::VERB) {
        return demo::reaper::run(args.get(2));
    }
    match Cli::parse().verb {
        Verb::Demo(args) => demo::run(&args),
    }
}
