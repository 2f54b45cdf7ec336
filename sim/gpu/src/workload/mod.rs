//! `workload`: a program for images that behaves as CUDA programs do, and as
//! some should not.
//!
//! Owns the script language. In: verbs as arguments, or in `SIM_WORKLOAD`; other arguments (of the
//! program that it replaces) are ignored, and it reports and holds. Out: one JSON line per verb;
//! exit 0, or 1 at the first verb that was refused and should not have been.
//!
//! ```text
//! report | context | alloc N | grow STEP | free | memory | work PERCENT | hold | sleep SECONDS | await FILE
//! vectoradd | fault | exit CODE | keep-going
//! hostile: unset-mps | unset-limits | raise MIB | stray-limit | env K=V | direct
//!          graphics MIB | raw MIB | set-name NAME | clients N | fork N MIB | drive COMMAND | drive-raise MIB | mknod MINOR | set-mode MODE
//! ```
//! Must never: print anything but those lines on standard output.

mod answer;
mod hold;
mod hostile;
mod serve;
mod state;

pub use serve::vllm;

use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use answer::{memory, number, print, println_plain, refusal};
use serde_json::{Map, Value, json};
use state::Workload;

use crate::client::process::{CudaProcess, Environment, Route};
use crate::client::{CallError, Driver};
use crate::cuda::CudaError;
use crate::paths::Root;

/// The environment variable that holds a script for images.
pub const SCRIPT_ENV: &str = "SIM_WORKLOAD";

const VERBS: &[(&str, usize)] = &[
    ("report", 0),
    ("context", 0),
    ("alloc", 1),
    ("grow", 1),
    ("free", 0),
    ("memory", 0),
    ("work", 1),
    ("hold", 0),
    ("sleep", 1),
    ("await", 1),
    ("vectoradd", 0),
    ("fault", 0),
    ("exit", 1),
    ("keep-going", 0),
    ("unset-mps", 0),
    ("unset-limits", 0),
    ("raise", 1),
    ("stray-limit", 0),
    ("env", 1),
    ("direct", 0),
    ("graphics", 1),
    ("raw", 1),
    ("set-name", 1),
    ("clients", 1),
    ("fork", 2),
    ("drive", 1),
    ("drive-raise", 1),
    ("mknod", 1),
    ("set-mode", 1),
    ("die-with-parent", 0),
];

/// Runs a script; `args` are the words after the program's name.
pub fn run(args: &[String]) -> ExitCode {
    // Blocked before anything else, so that a termination that comes early is
    // not lost, even for the first process of a pid namespace.
    hold::block_termination();
    let env: Environment = std::env::vars().collect();
    let words = match choose(args, env.get(SCRIPT_ENV).map(String::as_str)) {
        Ok(words) => words,
        Err(error) => {
            print(&json!({"do": "parse", "ok": false, "message": error}));
            return ExitCode::from(2);
        }
    };
    let mut workload = Workload {
        root: Root::from_env(),
        env,
        route: Route::Usual,
        process: None,
        others: Vec::new(),
        allocations: Vec::new(),
        keep_going: false,
        failed: false,
    };
    let mut words = words.as_slice();
    while let Some((verb, rest)) = words.split_first() {
        let operands = VERBS
            .iter()
            .find(|(name, _)| name == verb)
            .map_or(0, |(_, n)| *n);
        let (operands, rest) = rest.split_at(operands.min(rest.len()));
        words = rest;
        if let Some(code) = workload.step(verb, operands) {
            workload.finish();
            return ExitCode::from(code);
        }
    }
    let failed = workload.failed;
    workload.finish();
    ExitCode::from(u8::from(failed))
}

/// The script to run: the arguments if they are one, else the variable, else the usual.
fn choose(args: &[String], variable: Option<&str>) -> Result<Vec<String>, String> {
    let known = |word: &str| VERBS.iter().any(|(name, _)| *name == word);
    let words: Vec<String> = match args.first() {
        Some(first) if known(first) => args.to_vec(),
        _ => match variable.map(str::trim).filter(|v| !v.is_empty()) {
            Some(text) => split(text),
            None => vec!["report".to_owned(), "hold".to_owned()],
        },
    };
    let mut rest = words.as_slice();
    while let Some((verb, tail)) = rest.split_first() {
        let Some((_, operands)) = VERBS.iter().find(|(name, _)| name == verb) else {
            return Err(format!("unknown verb `{verb}`"));
        };
        if tail.len() < *operands {
            return Err(format!("`{verb}` needs {operands} operand(s)"));
        }
        rest = &tail[*operands..];
    }
    Ok(words)
}

/// Splits at blanks; double quotes keep a word together.
fn split(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (at, part) in text.split('"').enumerate() {
        if at % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

impl Workload {
    /// One verb. `Some` ends the script with this exit code.
    fn step(&mut self, verb: &str, operands: &[String]) -> Option<u8> {
        let operand = operands.first().map_or("", String::as_str);
        let outcome: Result<Value, CallError> = match verb {
            "report" => Ok(self.report()),
            "context" => self.cuda().and_then(|p| p.context(0)).map(|v| memory(&v)),
            "alloc" => number(operand).and_then(|mib| self.allocate(mib)),
            "grow" => number(operand).and_then(|step| self.grow(step)),
            "free" => self.free(),
            "memory" => self.cuda().and_then(|p| p.memory(0)).map(|v| memory(&v)),
            "work" => number(operand).and_then(|p| self.work(p)),
            "vectoradd" => return self.vectoradd(),
            "fault" => self.cuda().and_then(CudaProcess::fault).map(|()| json!({})),
            "die-with-parent" => {
                let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM);
                return None;
            }
            "exit" => return Some(operand.parse().unwrap_or(2)),
            "sleep" => return hold::hold(None, operand.parse().ok()),
            "await" => return hold::until_exists(std::path::Path::new(operand)),
            "hold" => {
                print(&json!({"do": "hold", "ok": true}));
                return Some(hold::hold(self.watch(), None).unwrap_or(0));
            }
            "keep-going" => {
                self.keep_going = true;
                Ok(json!({}))
            }
            _ => hostile::step(self, verb, operands),
        };
        let (ok, mut line) = match outcome {
            Ok(Value::Object(fields)) => (fields.get("ok") != Some(&Value::Bool(false)), fields),
            Ok(_) => (true, Map::new()),
            Err(error) => (false, refusal(&error)),
        };
        line.insert("do".to_owned(), Value::String(verb.to_owned()));
        line.insert("ok".to_owned(), Value::Bool(ok));
        print(&Value::Object(line));
        if !ok {
            self.failed = true;
            if !self.keep_going {
                return Some(1);
            }
        }
        None
    }

    /// The initialised process.
    fn cuda(&mut self) -> Result<&mut CudaProcess, CallError> {
        if self.process.is_none() {
            self.process = Some(CudaProcess::init(&self.root, &self.env, self.route)?);
        }
        self.process
            .as_mut()
            .ok_or_else(|| CallError::refused(CudaError::NotInitialized, "not initialised"))
    }

    /// Everything that reached this container. Never a failure: missing parts are the result.
    fn report(&mut self) -> Value {
        let environment: Map<String, Value> = self
            .env
            .iter()
            .filter(|(k, _)| k.starts_with("CUDA_") || k.starts_with("NVIDIA_"))
            .map(|(k, v)| (k.clone(), Value::String(v.clone())))
            .collect();
        let mut report = json!({
            "pid": std::process::id(),
            "nodes": self.root.card_minors(),
            "environment": environment,
            "pipe_directory": self.env.get("CUDA_MPS_PIPE_DIRECTORY"),
            "thread_percentage": self.env.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
            "memory_limit": self.env.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
        });
        match self.cuda() {
            Err(error) => {
                report["devices"] = json!([]);
                for (key, value) in refusal(&error) {
                    report[key] = value;
                }
            }
            Ok(process) => {
                report["mps_server"] = json!(process.mps.as_ref().map(|m| m.server));
                let mut devices = Vec::new();
                for (ordinal, uuid) in process.visible.clone().into_iter().enumerate() {
                    let mut device = match process.context(ordinal) {
                        Ok(view) => memory(&view),
                        Err(error) => Value::Object(refusal(&error)),
                    };
                    device["uuid"] = Value::String(uuid);
                    devices.push(device);
                }
                report["devices"] = Value::Array(devices);
            }
        }
        report
    }

    fn allocate(&mut self, mib: u64) -> Result<Value, CallError> {
        let process = self.cuda()?;
        process.context(0)?;
        let (id, view) = process.allocate(0, mib)?;
        self.allocations.push((id, mib));
        let mut line = memory(&view);
        line["mib"] = json!(mib);
        Ok(line)
    }

    /// Takes `step` MiB again and again until it is refused; being refused is success.
    fn grow(&mut self, step: u64) -> Result<Value, CallError> {
        if step == 0 {
            return Err(CallError::refused(
                CudaError::InvalidValue,
                "a step of 0 never ends",
            ));
        }
        let mut allocated = 0_u64;
        let mut view = self.cuda()?.context(0)?;
        let error = loop {
            match self.cuda()?.allocate(0, step) {
                Ok((id, now)) => {
                    self.allocations.push((id, step));
                    allocated += step;
                    view = now;
                }
                Err(error) => break error,
            }
        };
        let mut line = memory(&view);
        line["allocated_mib"] = json!(allocated);
        line["refused_at_mib"] = json!(view.held + step);
        for (key, value) in refusal(&error) {
            line[key] = value;
        }
        line["ok"] = Value::Bool(error.code() == CudaError::OutOfMemory.code());
        Ok(line)
    }

    fn free(&mut self) -> Result<Value, CallError> {
        let allocations = std::mem::take(&mut self.allocations);
        let process = self.cuda()?;
        let mut view = process.context(0)?;
        for (id, _) in allocations {
            view = process.free(0, id)?;
        }
        Ok(memory(&view))
    }

    fn work(&mut self, percent: u64) -> Result<Value, CallError> {
        let process = self.cuda()?;
        process.context(0)?;
        let percent = process.work(0, u32::try_from(percent.min(100)).unwrap_or(100))?;
        Ok(json!({"percent": percent}))
    }

    /// What the CUDA sample prints, so that a pod made for it looks right in `kubectl logs`.
    fn vectoradd(&mut self) -> Option<u8> {
        let report = self.report();
        print(&report);
        println_plain("[Vector addition of 50000 elements]");
        match self.allocate(1) {
            Ok(_) => {
                println_plain("Copy input data from the host memory to the CUDA device");
                println_plain("CUDA kernel launch with 196 blocks of 256 threads");
                println_plain("Copy output data from the CUDA device to the host memory");
                println_plain("Test PASSED");
                println_plain("Done");
                None
            }
            Err(error) => {
                println_plain(&format!(
                    "Failed to allocate device vector A (error code {error})!"
                ));
                Some(1)
            }
        }
    }

    /// A handle that notices the driver's end, where the driver was asked for anything.
    fn watch(&self) -> Option<UnixStream> {
        let other = || self.others.first().map(Driver::watch);
        let cuda = self.process.as_ref().map(CudaProcess::watch);
        cuda.or_else(other)?.ok()
    }

    fn finish(&mut self) {
        for other in self.others.drain(..) {
            other.bye();
        }
        if let Some(process) = self.process.take() {
            process.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        split(text)
    }

    #[test]
    fn arguments_win_over_the_variable_and_foreign_ones_are_ignored() {
        let vllm = words("serve facebook/opt-125m --gpu-memory-utilization 0.9");
        assert_eq!(
            choose(&words("alloc 100 hold"), Some("report")).unwrap(),
            ["alloc", "100", "hold"]
        );
        assert_eq!(choose(&vllm, Some("grow 100")).unwrap(), ["grow", "100"]);
        assert_eq!(choose(&vllm, None).unwrap(), ["report", "hold"]);
        assert_eq!(choose(&[], None).unwrap(), ["report", "hold"]);
        assert_eq!(
            choose(
                &[],
                Some("drive \"set_active_thread_percentage 1 2\" exit 3")
            )
            .unwrap(),
            ["drive", "set_active_thread_percentage 1 2", "exit", "3"]
        );
    }

    #[test]
    fn a_broken_script_is_refused_before_it_starts() {
        assert!(choose(&words("alloc"), None).is_err());
        assert!(choose(&words("report dance"), None).is_err());
    }
}
