//! A machine on the test bench: the driver as a process, control daemons,
//! workloads, all of them ended with the test.
// Each test program uses its own part; clippy takes helpers outside a test for no test.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use sim_gpu::paths::Root;

/// The multi-call program.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_sim-gpu");

/// A child that dies with its owner.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid().cast_signed()), signal)
            .unwrap();
    }

    /// Waits for the end, at most ten seconds.
    pub fn end(&mut self) -> Option<i32> {
        let mut status = None;
        until("the process ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }
}

/// Polls until it is so; ten seconds are a failure.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !so() {
        assert!(Instant::now() < deadline, "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// A driver and its root.
pub struct Machine {
    driver: Option<Running>,
    pub root: Root,
    pub cards: Vec<String>,
    folder: tempfile::TempDir,
}

impl Machine {
    /// Starts a driver with these arguments besides the root.
    pub fn start(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Servers and tenants of other users must be able to come here.
        open_to_all(folder.path());
        let root = Root::new(folder.path().join("root"));
        let mut machine = Self {
            driver: None,
            root,
            cards: Vec::new(),
            folder,
        };
        machine.restart(args);
        machine
    }

    pub fn restart(&mut self, args: &[&str]) {
        self.driver = None;
        let mut child = Command::new(PROGRAM)
            .args(["driver", "--root"])
            .arg(self.root.path())
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines: Vec<String> = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok)
            .take_while(|line| line != "ready")
            .collect();
        self.cards = lines
            .iter()
            .filter_map(|line| Some(line.split_once("UUID: ")?.1.split_once(')')?.0.to_owned()))
            .collect();
        assert!(!self.cards.is_empty(), "the driver started");
        self.driver = Some(Running(child));
    }

    pub fn stop(&mut self) {
        self.driver = None;
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(["sim-gpu", program])
            .env("SIM_ROOT", self.root.path());
        for key in [
            "CUDA_VISIBLE_DEVICES",
            "CUDA_MPS_PIPE_DIRECTORY",
            "SIM_WORKLOAD",
        ] {
            command.env_remove(key);
        }
        command
    }

    pub fn ctl(&self, args: &[&str]) -> String {
        let output = Command::new(PROGRAM)
            .args(["ctl", "--root"])
            .arg(self.root.path())
            .args(args)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub fn smi(&self, args: &[&str]) -> (i32, String) {
        let output = self.command("nvidia-smi").args(args).output().unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stdout).unwrap(),
        )
    }

    /// MiB in use on the first card.
    pub fn used(&self) -> u64 {
        let args = [
            "-i",
            "0",
            "--query-gpu=memory.used",
            "--format=csv,noheader,nounits",
        ];
        self.smi(&args).1.trim().parse().unwrap()
    }

    pub fn tenant<'a>(&'a self, script: &str) -> Tenant<'a> {
        Tenant {
            machine: self,
            script: script.to_owned(),
            env: Vec::new(),
            uid: None,
        }
    }

    /// A control daemon over the first card.
    pub fn daemon(&self, args: &[&str]) -> Daemon<'_> {
        Daemon::start(self, args)
    }
}

/// A workload to be.
pub struct Tenant<'a> {
    machine: &'a Machine,
    script: String,
    env: Vec<(String, String)>,
    uid: Option<u32>,
}

impl Tenant<'_> {
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    pub fn limit(self, mib: u64) -> Self {
        self.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", &format!("0={mib}M"))
    }

    pub fn uid(mut self, uid: u32) -> Self {
        self.uid = Some(uid);
        self
    }

    fn command(&self) -> Command {
        use std::os::unix::process::CommandExt;
        let mut command = self.machine.command("workload");
        command
            .env("SIM_WORKLOAD", &self.script)
            .stdin(Stdio::null());
        command.envs(self.env.iter().cloned());
        if let Some(uid) = self.uid {
            command.uid(uid).gid(uid);
        }
        command
    }

    /// Runs to the end: exit code and lines.
    pub fn run(&self) -> (i32, Vec<Value>) {
        let output: Output = self.command().output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        (
            output.status.code().unwrap_or(-1),
            lines
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok())
                .collect(),
        )
    }

    /// The last line of a run.
    pub fn last(&self) -> Value {
        self.run().1.pop().unwrap()
    }

    /// Starts it, to be read line by line.
    pub fn spawn(&self) -> Live {
        let mut child = self.command().stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Live {
            process: Running(child),
            lines,
        }
    }
}

/// A running workload.
pub struct Live {
    pub process: Running,
    lines: BufReader<ChildStdout>,
}

impl Live {
    /// The next line; `Null` at the end.
    pub fn line(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or(Value::Null)
    }

    /// Reads up to the line of this verb.
    pub fn reach(&mut self, verb: &str) -> Value {
        loop {
            let line = self.line();
            assert!(!line.is_null(), "the workload ended before `{verb}`");
            if line["do"] == verb {
                return line;
            }
        }
    }
}

/// A control daemon in the foreground.
pub struct Daemon<'a> {
    pub process: Running,
    pub pipe: PathBuf,
    pub log: PathBuf,
    machine: &'a Machine,
}

impl<'a> Daemon<'a> {
    fn start(machine: &'a Machine, args: &[&str]) -> Self {
        let (pipe, log) = (machine.path("pipe"), machine.path("log"));
        for folder in [&pipe, &log] {
            std::fs::create_dir_all(folder).unwrap();
            open_to_all(folder);
        }
        let said = std::fs::File::create(log.join("daemon.log")).unwrap();
        let child = machine
            .command("nvidia-cuda-mps-control")
            .arg("-f")
            .args(args)
            .env("CUDA_MPS_PIPE_DIRECTORY", &pipe)
            .env("CUDA_MPS_LOG_DIRECTORY", &log)
            .env("CUDA_VISIBLE_DEVICES", &machine.cards[0])
            .stdout(said)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let daemon = Self {
            process: Running(child),
            pipe,
            log,
            machine,
        };
        let id = format!("{}\n", daemon.process.pid());
        until("the daemon listens", || {
            std::fs::read_to_string(daemon.pipe.join("nvidia-cuda-mps-control.pid"))
                .is_ok_and(|text| text == id)
        });
        daemon
    }

    /// Runs the CLI: exit code and lines.
    pub fn cli(&self, commands: &str) -> (i32, Vec<String>) {
        self.cli_as(None, commands)
    }

    pub fn cli_as(&self, uid: Option<u32>, commands: &str) -> (i32, Vec<String>) {
        use std::os::unix::process::CommandExt;
        let mut command = self.machine.command("nvidia-cuda-mps-control");
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn().unwrap();
        // Without a daemon the program ends before it reads.
        let _ = writeln!(child.stdin.take().unwrap(), "{commands}");
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (
            output.status.code().unwrap(),
            text.lines().map(str::to_owned).collect(),
        )
    }

    /// One answer line of one command.
    pub fn ask(&self, command: &str) -> String {
        self.cli(command).1.join("\n")
    }

    /// Starts a server for our user and waits until it takes clients.
    pub fn warm(&self) -> String {
        self.ask(&format!("start_server -uid {}", nix::unistd::geteuid()));
        let mut server = String::new();
        until("the server is active", || {
            server = self.ask("get_server_list");
            !server.is_empty() && self.ask(&format!("get_server_status {server}")) == "ACTIVE"
        });
        server
    }

    /// A workload that was given this daemon's directory.
    pub fn tenant(&self, script: &str) -> Tenant<'_> {
        self.machine
            .tenant(script)
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipe.to_str().unwrap())
            .env("CUDA_VISIBLE_DEVICES", &self.machine.cards[0])
    }

    /// What it and its servers wrote.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log.join("daemon.log")).unwrap_or_default()
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        // Servers without a daemon end after their last client; those end with their tests.
        let _ = self.process.0.kill();
    }
}

fn open_to_all(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
}
