//! The MPS stand-ins: `nvidia-cuda-mps-control` and `nvidia-cuda-mps-server`.
//!
//! - [`cli`]: the control program without options: commands in, answers out;
//! - `serve`: the control program with `-d` or `-f`; `daemon`: its state;
//! - `commands`: what the daemon understands;
//! - `limits`: the limits of clients;
//! - `pipe`, `server`: the daemon's and the server's end of a server;
//! - `log`: the two log files.
//!
//! Environment: `CUDA_MPS_PIPE_DIRECTORY`, `CUDA_MPS_LOG_DIRECTORY`,
//! `CUDA_VISIBLE_DEVICES` (renumbers), the limits' variables as defaults, and
//! `SIM_ROOT`.

pub mod cli;
mod commands;
mod daemon;
mod limits;
mod log;
mod pipe;
mod serve;
mod server;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::client::Driver;
use crate::client::process::DEFAULT_PIPE_DIRECTORY;
use crate::paths::Root;
use crate::wire::Message;

/// Set for the process that `-d` leaves behind.
const DETACHED_ENV: &str = "SIM_MPS_DETACHED";

pub use server::run as server;

/// `nvidia-cuda-mps-control`.
pub fn control(args: &[String]) -> ExitCode {
    let has = |names: &[&str]| args.iter().any(|arg| names.contains(&arg.as_str()));
    let multiuser = has(&["-multiuser-server", "-M"]);
    if multiuser && !knows_several_users() {
        // It takes itself for a client, as the programs of 535 and 550 do.
        complain("Cannot find MPS control daemon process");
        return ExitCode::FAILURE;
    }
    if multiuser && !nix::unistd::geteuid().is_root() {
        complain("-multiuser-server needs root");
        return ExitCode::FAILURE;
    }
    if has(&["-S", "--static-partitioning", "-p", "-a", "--apply"]) {
        complain("static partitions and protocol 3 are not simulated");
        return ExitCode::FAILURE;
    }
    match () {
        () if has(&["-v"]) => {
            complain("MPS control, simulated, protocol 2");
            ExitCode::SUCCESS
        }
        () if has(&["-f"]) => foreground(multiuser),
        () if has(&["-d"]) => detach(args),
        () => cli::run(),
    }
}

/// Returns whether the program has the option `-multiuser-server`: from 555 on.
fn knows_several_users() -> bool {
    let asked = Driver::connect(&Root::from_env())
        .and_then(|mut driver| driver.call(&Message::new("habits")));
    let version = asked.ok().and_then(|habits| habits.get("driver"));
    let branch = version.and_then(|text| text.split('.').next()?.parse::<u32>().ok());
    branch.is_none_or(|branch| branch >= 555)
}

fn foreground(multiuser: bool) -> ExitCode {
    let detached = std::env::var_os(DETACHED_ENV).is_some();
    if detached {
        // Fails only for a leader of a process group, which a fresh child is not.
        let _ = nix::unistd::setsid();
    }
    let folder = match std::env::var_os("CUDA_MPS_LOG_DIRECTORY") {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => PathBuf::from("/var/log/nvidia-mps"),
    };
    serve::run(&cli::pipe_directory(), &folder, multiuser, !detached)
}

/// `-d`: a detached daemon; returns once it can be reached.
fn detach(args: &[String]) -> ExitCode {
    let Ok(program) = std::env::current_exe() else {
        return ExitCode::FAILURE;
    };
    let rest = args.iter().filter(|arg| *arg != "-d");
    let child = Command::new(program)
        .args(["sim-gpu", "nvidia-cuda-mps-control", "-f"])
        .args(rest)
        .env(DETACHED_ENV, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            complain(&error.to_string());
            return ExitCode::FAILURE;
        }
    };
    let pid_file = cli::pipe_directory().join("nvidia-cuda-mps-control.pid");
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Ok(Some(_)) = child.try_wait() {
            return ExitCode::FAILURE;
        }
        let written = std::fs::read_to_string(&pid_file).unwrap_or_default();
        if written.trim() == child.id().to_string() {
            return ExitCode::SUCCESS;
        }
        if Instant::now() > deadline {
            complain(&format!("no daemon in {DEFAULT_PIPE_DIRECTORY} after 10 s"));
            return ExitCode::FAILURE;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
