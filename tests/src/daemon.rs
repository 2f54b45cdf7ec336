//! One process of the cluster: its command line, its log, its life.
//!
//! In: a [`Command`]. Out: a running process that can be killed hard, stopped, started again with
//! the same command line. Must never leave a process behind: dropping a daemon kills it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;

use crate::memory::MemoryLimit;

/// Characters of a log line that are shown.
const LINE: usize = 320;

/// How a daemon is started.
#[derive(Debug, Clone)]
pub struct Command {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    env: BTreeMap<OsString, OsString>,
    memory: Option<MemoryLimit>,
}

impl Command {
    /// `name` names the log file too.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            memory: None,
        }
    }

    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// `--flag=value`, the form that every daemon here understands.
    #[must_use]
    pub fn flag(self, flag: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        let mut arg = OsString::from(flag);
        arg.push("=");
        arg.push(value);
        self.arg(arg)
    }

    /// The same with another value, or with this one where it had none.
    #[must_use]
    pub fn replace(mut self, flag: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        let old = format!("{flag}=");
        self.args
            .retain(|arg| !arg.to_string_lossy().starts_with(&old));
        self.flag(flag, value)
    }

    #[must_use]
    pub fn env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.insert(key.into(), value.into());
        self
    }

    /// The kernel kills it where it exceeds that.
    #[must_use]
    pub fn memory(mut self, limit: MemoryLimit) -> Self {
        self.memory = Some(limit);
        self
    }

    /// Starts it; its output is appended to `<logs>/<name>.log`.
    pub fn start(self, logs: &Path) -> Result<Daemon> {
        let log = logs.join(format!("{}.log", self.name));
        // Before it is started: it may write output at once.
        let first = std::fs::metadata(&log).map_or(0, |file| file.len());
        let child = spawn(&self, &log)?;
        Ok(Daemon {
            command: self,
            log,
            first,
            child,
        })
    }
}

/// A started process.
#[derive(Debug)]
pub struct Daemon {
    command: Command,
    log: PathBuf,
    first: u64,
    child: Child,
}

impl Daemon {
    pub fn name(&self) -> &str {
        &self.command.name
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Process id in the cluster's process namespace; `None` once it has been reaped.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Fails with the end of the log if the process has ended by itself.
    pub fn alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            anyhow::bail!(
                "{} ended: {status}\n{}",
                self.name(),
                tail(&self.log, 0, 20)
            );
        }
        Ok(())
    }

    /// SIGKILL, and waits until it is gone.
    pub async fn kill(&mut self) -> Result<()> {
        self.child
            .kill()
            .await
            .with_context(|| format!("kill {}", self.command.name))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self
            .pid()
            .with_context(|| format!("{} has ended", self.name()))?;
        kill(Pid::from_raw(i32::try_from(pid)?), signal)
            .with_context(|| format!("{signal} to {}", self.name()))
    }

    /// SIGTERM, then SIGKILL where that was not enough within five seconds.
    pub async fn stop(&mut self) -> Result<()> {
        let Some(pid) = self.pid() else { return Ok(()) };
        // Gone between the question and the signal is as good as stopped.
        let _ = kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGTERM);
        if tokio::time::timeout(Duration::from_secs(5), self.child.wait())
            .await
            .is_err()
        {
            self.kill().await?;
        }
        Ok(())
    }

    /// Starts it again with the same command line, after it was killed or stopped.
    pub fn start_again(&mut self) -> Result<()> {
        self.child = spawn(&self.command, &self.log)?;
        Ok(())
    }

    /// Its memory limit, if it has one.
    pub fn memory(&self) -> Option<&MemoryLimit> {
        self.command.memory.as_ref()
    }

    /// How it was started.
    pub fn command(&self) -> Command {
        self.command.clone()
    }

    /// Starts it again with something changed.
    pub fn start_again_with(&mut self, change: impl FnOnce(Command) -> Command) -> Result<()> {
        self.command = change(self.command.clone());
        self.start_again()
    }

    /// Stops the daemon, and starts it again with a changed command. Returns the former command,
    /// with which the caller restarts the daemon in the end.
    pub async fn restart_with(
        &mut self,
        change: impl FnOnce(Command) -> Command,
    ) -> Result<Command> {
        let usual = self.command();
        self.stop().await?;
        self.start_again_with(change)?;
        Ok(usual)
    }

    /// What it has written since `mark` bytes into its log.
    pub fn said_since(&self, mark: u64) -> Result<String> {
        let text = std::fs::read(&self.log)?;
        let from = usize::try_from(mark)?.min(text.len());
        Ok(String::from_utf8_lossy(&text[from..]).into_owned())
    }

    /// What it has written since it was first started.
    pub fn said(&self) -> Result<String> {
        self.said_since(self.first)
    }

    /// The present length of its log, for [`Daemon::said_since`].
    pub fn mark(&self) -> Result<u64> {
        Ok(std::fs::metadata(&self.log)?.len())
    }
}

fn spawn(command: &Command, log: &Path) -> Result<Child> {
    let out = OpenOptions::new().create(true).append(true).open(log)?;
    let child = tokio::process::Command::new(&command.program)
        .args(&command.args)
        .envs(&command.env)
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        // A group of its own: Ctrl-C at the terminal is for our parent, which then ends everything
        // in order.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("start {} ({})", command.name, command.program.display()))?;
    if let (Some(memory), Some(pid)) = (&command.memory, child.id()) {
        memory.take(pid)?;
    }
    Ok(child)
}

/// The last lines of what a log holds after its first `from` bytes, indented, long
/// ones cut.
pub fn tail(log: &Path, from: u64, lines: usize) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let from = usize::try_from(from).unwrap_or(usize::MAX).min(text.len());
    let text = String::from_utf8_lossy(&text[from..]);
    let all: Vec<&str> = text.lines().collect();
    let first = all.len().saturating_sub(lines);
    all[first..].iter().fold(String::new(), |mut shown, line| {
        let line: String = line.chars().take(LINE).collect();
        let _ = writeln!(shown, "    {line}");
        shown
    })
}
