//! The outside of a cluster: its work folder, its namespaces, its end.
//!
//! In: the command line of the cluster program. It is run again, unchanged but for `--inside`, as a
//! child of the first process of new network, mount and process namespaces. Out: its exit code,
//! with everything cleaned up. Must never leave anything behind: the namespaces take their
//! processes and mounts with them, this module removes the cgroup folders and the work folder
//! (kept, with the logs, after a failure).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

use crate::wait::{Seen, until};

/// Every cgroup folder of ours, and every work folder, begins with this, then comes the
/// process id of the run that owns it.
const PREFIX: &str = "aliquot-test-";

/// Exit codes of a program that ended by SIGINT or SIGTERM, as a shell reports them.
const INTERRUPTED: u8 = 130;
const TERMINATED: u8 = 143;

/// The work folder, as both sides know it.
#[derive(Debug, Clone)]
pub struct Work {
    root: PathBuf,
}

impl Work {
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Logs, on disk: they outlive the namespaces.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// Everything else, on a memory file system that ends with the namespaces.
    pub fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// The name of this run's folder in every cgroup hierarchy, and of nothing else.
    pub fn cgroup(&self) -> String {
        self.root
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }
}

/// Runs this program again inside new namespaces and cleans up after it.
pub async fn enter() -> Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        bail!("a cluster needs root: namespaces, mounts and cgroups isolate it");
    }
    sweep();
    let dir = tempfile::Builder::new()
        .prefix(&format!("{PREFIX}{}-", std::process::id()))
        .tempdir()
        .context("work folder")?;
    let work = Work::at(dir.path());
    fs::create_dir(work.logs())?;
    fs::create_dir(work.state())?;

    let outcome = run(&work).await;
    remove_cgroups(&work.cgroup()).await?;
    match outcome {
        // Ended by a signal: no reason is reported.
        Ok(code @ (0 | INTERRUPTED | TERMINATED)) => {
            dir.close().context("remove the work folder")?;
            Ok(ExitCode::from(code))
        }
        Ok(code) => {
            // The inner process has reported it if it ended in order.
            if code > 1 {
                eprintln!("logs are kept in {}", work.logs().display());
            }
            let _ = dir.keep();
            Ok(ExitCode::from(code))
        }
        Err(error) => Err(error),
    }
}

async fn run(work: &Work) -> Result<u8> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut child = tokio::process::Command::new("setpriv")
        // If this process is killed hard, the namespaces go too.
        .args(["--pdeathsig", "KILL", "unshare"])
        .args([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
        ])
        // The first process of the namespace inherits the runtime's orphaned shims and
        // must reap them: a shell does, and `exit` keeps it from being replaced.
        .args(["bash", "-c", "\"$@\"; exit $?", "init"])
        .arg(std::env::current_exe()?)
        .arg("--inside")
        .arg(work.root())
        .args(std::env::args_os().skip(1))
        .stdin(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .context("unshare (util-linux) is needed")?;
    loop {
        tokio::select! {
            status = child.wait() => {
                let code = status?.code().unwrap_or(1);
                return Ok(u8::try_from(code).unwrap_or(1));
            }
            // A terminal sends it to all foreground processes: the inner process ends by it or, as
            // a shell at its prompt, does not.
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {
                child.kill().await?;
                return Ok(TERMINATED);
            }
        }
    }
}

/// Removes cgroup folders of runs that were killed before they could do it themselves.
fn sweep() {
    for hierarchy in cgroup_hierarchies() {
        for entry in fs::read_dir(hierarchy).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let owner = name
                .strip_prefix(PREFIX)
                .and_then(|rest| rest.split('-').next());
            if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                // What still has processes in it refuses, and stays.
                let _ = remove_tree(&entry.path());
            }
        }
    }
}

async fn remove_cgroups(name: &str) -> Result<()> {
    // A process that was killed leaves its cgroup only when the kernel is done with it.
    until(
        "the cgroup folders removed",
        Duration::from_secs(10),
        || async {
            for hierarchy in cgroup_hierarchies() {
                let root = hierarchy.join(name);
                if root.exists() {
                    remove_tree(&root).with_context(|| root.display().to_string())?;
                }
            }
            Ok(Seen::Done(()))
        },
    )
    .await
}

/// Removes a cgroup folder with its children, deepest first.
fn remove_tree(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(folder)
}

/// Where the cgroup hierarchies are mounted: one on v2, several on v1 and hybrid.
pub fn cgroup_hierarchies() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut found: Vec<PathBuf> = mounts
        .lines()
        .filter_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let kind = after.split(' ').next()?;
            (kind == "cgroup" || kind == "cgroup2")
                .then(|| before.split(' ').nth(4).map(PathBuf::from))
                .flatten()
        })
        .collect();
    found.sort();
    found.dedup();
    found
}
