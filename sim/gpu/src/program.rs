//! `sim-gpu driver` and `sim-gpu ctl`: starting the machine and changing it.
//! Owns their arguments.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use nix::sys::signal::{SigSet, Signal};

use crate::client::Driver;
use crate::driver::{Options, serve};
use crate::hardware::{Hardware, Preset};
use crate::paths::{ROOT_ENV, Root};
use crate::wire::Message;

/// How to call the program.
pub const USAGE: &str = "\
usage: sim-gpu driver --root DIR (--hardware FILE | --preset NAME [--count N] [--driver VERSION])
                      [--seed TEXT] [--nvml-library FILE] [--binary FILE] [--nodes device|plain]
       sim-gpu ctl --root DIR status
       sim-gpu ctl --root DIR lost|restore GPU
       sim-gpu ctl --root DIR xid NUMBER --gpu GPU
       sim-gpu ctl --root DIR stranger --gpu GPU --mib N
       sim-gpu ctl --root DIR set KEY VALUE --gpu GPU
       sim-gpu ctl --root DIR call NAME hang|answer|CODE [--gpu GPU] [--times N]
       sim-gpu nvidia-smi|nvidia-cuda-mps-control|nvidia-cuda-mps-server|workload ...
GPU is an index or a UUID. Presets: T4 L4 RTX-6000-Ada A100-40 A100-80 H100-80.
Keys: ecc-corrected ecc-uncorrected remapped-corrected remapped-uncorrected remapped-pending
      remapped-failed recovery-action temperature mig reserved-mib sigkill-faults-server
      mps-listed-late-ms answer-ms
      process-lists compute-list mps-list graphics-list: NVML's return code, 0 for the list
      create-instance mig-device attributes event-types register-events: NVML's return code, 0 for success
      process-memory-unavailable.
A call NAME of NVML (nvmlDeviceGetCount_v2; * is every call) answers CODE, or hangs until it is set
to answer: the next N calls, or all; of one card, or of any.
";

/// Options (`--name value`) and the other arguments.
struct Arguments {
    options: Vec<(String, String)>,
    words: Vec<String>,
}

impl Arguments {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut parsed = Self {
            options: Vec::new(),
            words: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.strip_prefix("--") {
                None => parsed.words.push(arg.clone()),
                Some(name) => {
                    let (name, value) = match name.split_once('=') {
                        Some((name, value)) => (name, value.to_owned()),
                        None => (
                            name,
                            args.next()
                                .ok_or_else(|| format!("--{name} needs a value"))?
                                .clone(),
                        ),
                    };
                    parsed.options.push((name.to_owned(), value));
                }
            }
        }
        Ok(parsed)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.options
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }

    fn root(&self) -> Root {
        self.get("root").map_or_else(Root::from_env, Root::new)
    }
}

/// `sim-gpu driver`: serves until SIGTERM or SIGINT.
pub fn driver(args: &[String]) -> ExitCode {
    // Blocked before any thread starts, so that every thread inherits it.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    let _ = signals.thread_block();
    let running = match options(args).and_then(|o| serve(o).map_err(|e| e.to_string())) {
        Ok(running) => running,
        Err(error) => return fail(&error),
    };
    for card in running.cards() {
        say(&format!(
            "GPU {}: {} (UUID: {}) {} MiB",
            card.index, card.name, card.uuid, card.total_mib
        ));
    }
    say("ready");
    let _ = signals.wait();
    drop(running);
    ExitCode::SUCCESS
}

fn options(args: &[String]) -> Result<Options, String> {
    let args = Arguments::parse(args)?;
    let mut hardware = match (args.get("hardware"), args.get("preset")) {
        (Some(file), None) => Hardware::read(&PathBuf::from(file)).map_err(|e| e.to_string())?,
        (None, Some(preset)) => {
            let count = args
                .get("count")
                .unwrap_or("1")
                .parse()
                .map_err(|_| "--count needs a number")?;
            Hardware::of(Preset::parse(preset).map_err(|e| e.to_string())?, count)
        }
        _ => return Err("one of --hardware and --preset is needed".to_owned()),
    };
    if let Some(version) = args.get("driver") {
        version.clone_into(&mut hardware.driver_version);
    }
    if let Some(seed) = args.get("seed") {
        seed.clone_into(&mut hardware.seed);
    }
    let binary = match args.get("binary") {
        Some(path) => Some(PathBuf::from(path)),
        None => std::env::current_exe().ok(),
    };
    Ok(Options {
        root: args.root().path().to_owned(),
        hardware,
        nvml_library: args.get("nvml-library").map(PathBuf::from),
        plain_nodes: args.get("nodes") == Some("plain"),
        binary,
    })
}

/// `sim-gpu ctl`: changes a running machine.
pub fn ctl(args: &[String]) -> ExitCode {
    match control(args) {
        Ok(lines) => {
            for line in &lines {
                say(line);
            }
            ExitCode::SUCCESS
        }
        Err(error) => fail(&error),
    }
}

fn control(args: &[String]) -> Result<Vec<String>, String> {
    let args = Arguments::parse(args)?;
    let root = args.root();
    let word = |at: usize| args.words.get(at).map(String::as_str);
    let verb = word(0).ok_or(USAGE)?;
    let gpu = |at: usize| word(at).or(args.get("gpu")).unwrap_or("0");
    let name = |request: Message, gpu: &str| match gpu.parse::<u32>() {
        Ok(index) => request.with("index", index),
        Err(_) => request.with("gpu", gpu),
    };
    let request = match verb {
        "status" => Message::new("ctl-status"),
        "lost" | "restore" => name(Message::new(&format!("ctl-{verb}")), gpu(1)),
        "xid" => name(
            Message::new("ctl-xid").with("xid", word(1).ok_or(USAGE)?),
            gpu(2),
        ),
        "set" => {
            let (key, value) = (word(1).ok_or(USAGE)?, word(2).ok_or(USAGE)?);
            name(
                Message::new("ctl-set")
                    .with("key", key)
                    .with("value", value),
                gpu(3),
            )
        }
        "call" => {
            let (call, does) = (word(1).ok_or(USAGE)?, word(2).ok_or(USAGE)?);
            let request = Message::new("ctl-call")
                .with("call", call)
                .with("does", does)
                .with_some("times", args.get("times"));
            match args.get("gpu") {
                Some(gpu) => name(request, gpu),
                None => request,
            }
        }
        "stranger" => return stranger(&root, gpu(1), args.get("mib").ok_or(USAGE)?),
        _ => return Err(USAGE.to_owned()),
    };
    let answer = Driver::connect(&root)
        .and_then(|mut d| d.call(&request))
        .map_err(|e| e.to_string())?;
    Ok(match verb {
        "status" => answer
            .rows("processes")
            .into_iter()
            .map(|row| row.join("\t"))
            .collect(),
        _ => vec![answer.get("gpu").unwrap_or_default()],
    })
}

/// A process of its own that takes memory without asking MPS; answers its pid. It ends with the
/// driver, or by `kill PID`.
fn stranger(root: &Root, gpu: &str, mib: &str) -> Result<Vec<String>, String> {
    let binary = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut child = Command::new(binary)
        .args(["sim-gpu", "workload", "direct", "alloc", mib, "hold"])
        .env(ROOT_ENV, root.path())
        .env("CUDA_VISIBLE_DEVICES", gpu)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| e.to_string())?;
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(
        child.stdout.take().ok_or("the stranger has no output")?,
    ));
    for line in lines.by_ref() {
        let line = line.map_err(|e| e.to_string())?;
        let value: serde_json::Value = serde_json::from_str(&line).map_err(|e| e.to_string())?;
        match (value["do"].as_str(), value["ok"].as_bool()) {
            (Some("hold"), _) => return Ok(vec![child.id().to_string()]),
            (_, Some(false)) => return Err(line),
            _ => {}
        }
    }
    Err("the stranger ended at once".to_owned())
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Says why on standard error; exit code 1.
pub fn fail(reason: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "sim-gpu: {}", reason.trim_end());
    ExitCode::FAILURE
}
