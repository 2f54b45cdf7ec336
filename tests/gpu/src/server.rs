//! An MPS control daemon of our own, with directories of its own, without the supervisor: what
//! NVIDIA's programs say, word by word.
//!
//! Owns the daemon; dropping it ends it. The card stays in the compute mode that it has.

use crate::control;
use crate::machine::{Card, Machine};
use crate::tenant::ProgramEnv;
use anyhow::{Context as _, bail};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// For a daemon to listen, or a server to be there.
const START: Duration = Duration::from_secs(30);
/// For the control program to answer.
const ANSWER: Duration = Duration::from_secs(20);
/// Time between two checks.
const AGAIN: Duration = Duration::from_millis(20);

/// A running daemon.
#[derive(Debug)]
pub(crate) struct Server<'a> {
    machine: &'a Machine,
    card: String,
    dir: PathBuf,
    child: Child,
    /// Its servers, as far as they were seen: one whose daemon is gone does not end by itself.
    seen: RefCell<BTreeSet<u32>>,
}

impl<'a> Server<'a> {
    /// A daemon over one card. `multiuser`: one server for all users.
    pub(crate) fn start(
        machine: &'a Machine,
        name: &str,
        card: &Card,
        multiuser: bool,
    ) -> anyhow::Result<Self> {
        let dir = machine.work.join("m").join(name);
        for part in ["pipe", "log"] {
            std::fs::create_dir_all(dir.join(part))?;
        }
        let mut command = Command::new(machine.control()?);
        command.arg("-f");
        if multiuser {
            command.arg("-multiuser-server");
        }
        // In the foreground it writes there, and its servers do: it makes no file.
        let log = std::fs::File::create(dir.join("log/daemon.log"))?;
        let child = command
            .envs(machine.env())
            .env("CUDA_MPS_PIPE_DIRECTORY", dir.join("pipe"))
            .env("CUDA_MPS_LOG_DIRECTORY", dir.join("log"))
            .env("CUDA_VISIBLE_DEVICES", &card.uuid)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("nvidia-cuda-mps-control")?;
        let mut server = Self {
            machine,
            card: card.uuid.clone(),
            dir,
            child,
            seen: RefCell::default(),
        };
        let flag = if multiuser { " -multiuser-server" } else { "" };
        machine.transcript.note(format!(
            "# daemon {name}: nvidia-cuda-mps-control -f{flag}, CUDA_VISIBLE_DEVICES={}",
            card.uuid
        ));
        let begin = Instant::now();
        while server.quietly("get_server_list")?.0 != Some(0) {
            if let Some(status) = server.child.try_wait()? {
                bail!(
                    "the control daemon ended at its start: {status}: {}",
                    server.log()
                );
            }
            if begin.elapsed() > machine.left(START) {
                bail!("the control daemon does not answer: {}", server.log());
            }
            std::thread::sleep(AGAIN);
        }
        Ok(server)
    }

    /// With this default limit, and a server that has it.
    pub(crate) fn limited(
        machine: &'a Machine,
        name: &str,
        card: &Card,
        mib: u64,
    ) -> anyhow::Result<Self> {
        let server = Self::start(machine, name, card, false)?;
        server.say(&format!("set_default_device_pinned_mem_limit 0 {mib}M"))?;
        server.spawn()?;
        Ok(server)
    }

    /// Starts a server and waits until it is there; its pid.
    pub(crate) fn spawn(&self) -> anyhow::Result<u32> {
        let uid = nix::unistd::geteuid();
        self.say(&format!("start_server -uid {uid}"))?;
        self.wait("a server", Self::pid)
    }

    /// The pid of its server.
    pub(crate) fn pid(&self) -> anyhow::Result<Option<u32>> {
        let (_, said) = self.quietly("get_server_list")?;
        let pid = said.lines().find_map(|line| line.trim().parse().ok());
        self.seen.borrow_mut().extend(pid);
        Ok(pid)
    }

    /// Polls until there is an answer.
    pub(crate) fn wait<T>(
        &self,
        what: &str,
        mut ask: impl FnMut(&Self) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let begin = Instant::now();
        loop {
            if let Some(answer) = ask(self)? {
                return Ok(answer);
            }
            if begin.elapsed() > self.machine.left(START) {
                bail!("{what}: not within {START:?}, or its time: {}", self.log());
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// A command of its language, and what it says.
    pub(crate) fn say(&self, command: &str) -> anyhow::Result<(Option<i32>, String)> {
        let (exit, said) = self.quietly(command)?;
        self.machine
            .transcript
            .ran(&format!("mps: {command}"), exit, &said);
        Ok((exit, said))
    }

    /// The same, kept out of the transcript.
    pub(crate) fn quietly(&self, command: &str) -> anyhow::Result<(Option<i32>, String)> {
        let mut program = Command::new(self.machine.control()?);
        program
            .envs(self.machine.env())
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipe());
        control::tell(&mut program, command, self.machine.left(ANSWER))
    }

    /// The control daemon's pid.
    pub(crate) fn daemon(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn pipe(&self) -> PathBuf {
        self.dir.join("pipe")
    }

    /// What a client of it has around it.
    pub(crate) fn around(&self) -> ProgramEnv {
        ProgramEnv::card(&self.card).with(
            "CUDA_MPS_PIPE_DIRECTORY",
            &self.pipe().display().to_string(),
        )
    }

    /// SIGKILL to the control daemon alone.
    pub(crate) fn kill_daemon(&mut self) -> anyhow::Result<()> {
        self.machine
            .transcript
            .note("# SIGKILL to the control daemon");
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// What it and its server wrote.
    pub(crate) fn log(&self) -> String {
        let text = std::fs::read(self.dir.join("log/daemon.log")).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The last lines of that, into the transcript.
    pub(crate) fn show_log(&self) {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(30)..].join("\n");
        self.machine
            .transcript
            .ran("tail daemon.log", Some(0), &tail);
    }

    /// The files in its pipe directory, with their modes.
    pub(crate) fn listing(&self) -> anyhow::Result<String> {
        use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
        let mut rows = Vec::new();
        for entry in std::fs::read_dir(self.pipe())?.flatten() {
            let meta = std::fs::symlink_metadata(entry.path())?;
            let kind = match meta.file_type() {
                kind if kind.is_socket() => "socket",
                kind if kind.is_fifo() => "fifo",
                kind if kind.is_dir() => "folder",
                _ => "file",
            };
            let name = entry.file_name();
            rows.push(format!(
                "{:o} {kind} {}",
                meta.mode() & 0o7777,
                Path::new(&name).display()
            ));
        }
        rows.sort();
        Ok(rows.join("\n"))
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ = self.pid();
        let _ = self.quietly("quit -t 1");
        let begin = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begin.elapsed() < Duration::from_secs(5)
        {
            std::thread::sleep(AGAIN);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in self.seen.borrow().iter() {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            // The pid may belong to another process by now.
            if String::from_utf8_lossy(&command).contains("mps-server") {
                let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
        }
    }
}
