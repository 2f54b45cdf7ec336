//! The verbs of a hostile tenant.
//!
//! Each is something that a container can really do to real MPS; whether it
//! helps is the driver's and the daemon's answer, never decided here.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::answer::{memory, number};
use super::state::Workload;
use crate::client::process::{Route, hold_outside_cuda, pipe_directory};
use crate::client::{CallError, Driver};
use crate::cuda::CudaError;
use crate::mps;
use crate::paths;
use crate::wire::Message;

/// One hostile verb.
pub(super) fn step(
    workload: &mut Workload,
    verb: &str,
    operands: &[String],
) -> Result<Value, CallError> {
    let operand = operands.first().map_or("", String::as_str);
    match verb {
        "unset-mps" => {
            workload.env.retain(|key, _| !key.starts_with("CUDA_MPS_"));
            Ok(json!({}))
        }
        "unset-limits" => {
            workload.env.remove("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
            workload.env.remove("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
            Ok(json!({}))
        }
        "raise" => {
            workload.env.insert(
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT".into(),
                format!("0={operand}M"),
            );
            workload
                .env
                .insert("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".into(), "100".into());
            Ok(json!({}))
        }
        "stray-limit" => {
            let old = workload
                .env
                .get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
                .cloned()
                .unwrap_or("0=1M".into());
            workload.env.insert(
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT".into(),
                format!("{old},63=1M"),
            );
            Ok(json!({}))
        }
        "env" => match operand.split_once('=') {
            Some((key, value)) => {
                workload.env.insert(key.to_owned(), value.to_owned());
                Ok(json!({}))
            }
            None => Err(CallError::refused(
                CudaError::InvalidValue,
                "env needs KEY=VALUE",
            )),
        },
        "direct" => {
            workload.route = Route::Direct;
            Ok(json!({}))
        }
        "graphics" | "raw" => hold_outside(workload, verb, operand),
        "set-name" => set_name(operand),
        "clients" => clients(workload, operand),
        "fork" => fork(
            workload,
            operand,
            operands.get(1).map_or("", String::as_str),
        ),
        "drive" => drive(workload, operand).map(|lines| json!({"answers": lines})),
        "drive-raise" => drive_raise(workload, operand),
        "mknod" => make_node(workload, operand),
        "set-mode" => set_mode(workload, operand),
        _ => Err(CallError::refused(
            CudaError::InvalidValue,
            format!("unknown verb {verb}"),
        )),
    }
}

/// Memory past CUDA and MPS, for as long as this process lives.
fn hold_outside(workload: &mut Workload, verb: &str, mib: &str) -> Result<Value, CallError> {
    let (driver, view) = hold_outside_cuda(&workload.root, verb, number(mib)?)?;
    workload.others.push(driver);
    Ok(memory(&view))
}

/// Takes another name, which `/proc/<pid>/comm` shows from then on.
fn set_name(name: &str) -> Result<Value, CallError> {
    let refused =
        |e: &dyn std::fmt::Display| CallError::refused(CudaError::InvalidValue, e.to_string());
    let name = std::ffi::CString::new(name).map_err(|e| refused(&e))?;
    nix::sys::prctl::set_name(&name).map_err(|e| refused(&e))?;
    Ok(json!({}))
}

/// Children with contexts and limits of their own, each of which allocates as much as it can.
fn fork(workload: &Workload, count: &str, mib: &str) -> Result<Value, CallError> {
    let (pids, lines) = children(workload, number(count)?, &["alloc", mib, "hold"])?;
    let held: u64 = lines
        .iter()
        .filter_map(|line| line["held_mib"].as_u64())
        .sum();
    Ok(json!({"children": pids, "held_mib": held, "lines": lines}))
}

/// Children that hold no more than a context each: they use up the server's slots.
fn clients(workload: &Workload, count: &str) -> Result<Value, CallError> {
    let (pids, lines) = children(workload, number(count)?, &["context", "hold"])?;
    let connected = lines.iter().filter(|line| line["ok"] == true).count();
    let refused: BTreeSet<u64> = lines
        .iter()
        .filter_map(|line| line["code"].as_u64())
        .collect();
    Ok(json!({"children": pids, "connected": connected, "codes": refused}))
}

/// Starts children with this script, which run until this process ends. Returns their pids and the
/// first line of each, which has the result of its allocation.
fn children(
    workload: &Workload,
    count: u64,
    script: &[&str],
) -> Result<(Vec<u32>, Vec<Value>), CallError> {
    let mut children = Vec::new();
    for _ in 0..count {
        let mut child = Command::new("/proc/self/exe")
            .args(["sim-gpu", "workload", "die-with-parent"])
            .args(script)
            .env_clear()
            .envs(&workload.env)
            .env(crate::paths::ROOT_ENV, workload.root.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().map(BufReader::new);
        children.push((child, output));
    }
    let mut lines = Vec::new();
    for (_, output) in &mut children {
        let mut line = String::new();
        if let Some(output) = output {
            let _ = output.read_line(&mut line);
        }
        lines.push(serde_json::from_str(&line).unwrap_or(Value::Null));
    }
    let pids = children.iter().map(|(child, _)| child.id()).collect();
    // Their output stays open, and the children hold, until this process ends.
    std::thread::spawn(move || {
        for (mut child, _output) in children {
            let _ = child.wait();
        }
    });
    Ok((pids, lines))
}

/// Sends one command to the control daemon, as `nvidia-cuda-mps-control` would.
fn drive(workload: &Workload, command: &str) -> Result<Vec<String>, CallError> {
    let pipe = pipe_directory(&workload.root, &workload.env);
    let stream = paths::connect(&pipe.join("control"))
        .map_err(|e| CallError::refused(CudaError::MpsConnectionFailed, e.to_string()))?;
    mps::cli::converse(&stream, command).map_err(|e| {
        CallError::refused(
            CudaError::NotPermitted,
            format!("the control daemon refused: {e}"),
        )
    })
}

/// Raises the limit of every server for the clients to come.
fn drive_raise(workload: &Workload, mib: &str) -> Result<Value, CallError> {
    let servers = drive(workload, "get_server_list")?;
    let mut answers = drive(
        workload,
        &format!("set_default_device_pinned_mem_limit 0 {mib}M"),
    )?;
    for server in &servers {
        answers.extend(drive(
            workload,
            &format!("set_device_pinned_mem_limit {server} 0 {mib}M"),
        )?);
        answers.extend(drive(
            workload,
            &format!("set_active_thread_percentage {server} 100"),
        )?);
    }
    Ok(json!({"servers": servers, "answers": answers}))
}

/// Creates a device node that was not granted, as `CAP_MKNOD` allows.
fn make_node(workload: &Workload, minor: &str) -> Result<Value, CallError> {
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    let minor: u64 = minor.parse().unwrap_or(0);
    let path = workload.root.dev().join(format!("nvidia{minor}"));
    mknod(
        &path,
        SFlag::S_IFCHR,
        Mode::from_bits_truncate(0o666),
        makedev(crate::driver::nodes::MAJOR, minor),
    )
    .map_err(|e| CallError::refused(CudaError::NotPermitted, e.to_string()))?;
    Ok(json!({"node": path.display().to_string()}))
}

/// Takes the compute mode's fence down.
fn set_mode(workload: &Workload, mode: &str) -> Result<Value, CallError> {
    let number = match mode {
        "DEFAULT" => "0",
        "PROHIBITED" => "2",
        "EXCLUSIVE_PROCESS" => "3",
        other => other,
    };
    let mut driver = Driver::connect(&workload.root)?;
    driver.call(
        &Message::new("set-mode")
            .with("index", 0)
            .with("mode", number),
    )?;
    Ok(json!({}))
}
