//! The simulated GPU, in the order of the data's way:
//!
//! - [`hardware`]: the hardware, from a readable file or a preset;
//! - [`paths`], [`wire`], [`cuda`]: paths, the format of lines, names of errors;
//! - [`driver`]: the process that owns cards, memory, processes and faults;
//! - [`client`]: how a process talks to it, and libcuda's behaviour on top;
//! - [`mps`]: the control daemon and its servers;
//! - [`smi`] is `nvidia-smi`;
//! - [`workload`]: the programs in the containers, vLLM's stand-in among them;
//! - [`program`]: the command line of the driver and its control.
//!
//! One program under several names: [`multicall`].

#![forbid(unsafe_code)]

pub mod client;
pub mod cuda;
pub mod driver;
pub mod hardware;
pub mod mps;
pub mod paths;
pub mod program;
pub mod smi;
pub mod wire;
pub mod workload;

use std::path::Path;
use std::process::ExitCode;

/// The names under which [`multicall`] is some other program.
pub const NAMES: [&str; 5] = [
    "nvidia-smi",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "workload",
    "vllm",
];

/// Whether these arguments (the program's name first) are for [`multicall`]:
/// by the name, or by a first argument `sim-gpu`. A binary that embeds the
/// simulation asks this first thing in `main`.
pub fn is_multicall(args: &[String]) -> bool {
    name(args).is_some_and(|name| NAMES.contains(&name))
        || args.get(1).is_some_and(|arg| arg == "sim-gpu")
}

/// Runs the program that the arguments name.
pub fn multicall(args: Vec<String>) -> ExitCode {
    let mut args = args;
    let program = match name(&args) {
        Some(name) if NAMES.contains(&name) => name.to_owned(),
        _ => {
            args.drain(..args.len().min(1));
            if args.first().is_some_and(|arg| arg == "sim-gpu") {
                args.remove(0);
            }
            match args.first() {
                Some(program) => program.clone(),
                None => return program::fail(program::USAGE),
            }
        }
    };
    let rest = args.get(1..).unwrap_or_default();
    match program.as_str() {
        "driver" => program::driver(rest),
        "ctl" => program::ctl(rest),
        "workload" => workload::run(rest),
        "vllm" => workload::vllm(rest),
        "nvidia-smi" => smi::run(rest),
        "nvidia-cuda-mps-control" => mps::control(rest),
        "nvidia-cuda-mps-server" => mps::server(),
        _ => program::fail(program::USAGE),
    }
}

fn name(args: &[String]) -> Option<&str> {
    Path::new(args.first()?).file_name()?.to_str()
}
