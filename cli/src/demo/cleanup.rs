//! Clean-up: a process beside the demo that waits for its end.
//!
//! However the demo ends, by Ctrl-C or by SIGKILL, the pipe between them closes. Then every process
//! that was started for this demo is ended, and its directory is removed. Such a process is
//! recognized by that directory: it is in its environment, its arguments or its working directory,
//! and no other process knows its random name.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Cleaning up is given up after this.
const LONGEST: Duration = Duration::from_secs(10);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(10);

/// First argument of the process.
pub(crate) const VERB: &str = "demo-cleanup";

/// The demo's side: dropping it, or dying, lets the clean-up process act.
#[derive(Debug)]
pub(super) struct CleanupProcess(Child);

impl CleanupProcess {
    /// Starts it, out of reach of the terminal's Ctrl-C.
    pub(super) fn start(directory: &Path) -> std::io::Result<Self> {
        use std::os::unix::process::CommandExt as _;
        Command::new(std::env::current_exe()?)
            .arg(VERB)
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map(Self)
    }

    /// Cleans up and waits for it.
    pub(super) fn finish(mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The process itself.
pub(crate) fn run(directory: Option<&String>) -> ExitCode {
    let Some(directory) = directory.map(PathBuf::from) else {
        return ExitCode::from(2);
    };
    // Whatever this was called with.
    if !super::place::is_ours(&directory) {
        return ExitCode::from(2);
    }
    let mut nothing = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut nothing);
    // An ending process may still create a file: repeat until the directory is gone.
    let deadline = Instant::now() + LONGEST;
    while directory.exists() && Instant::now() < deadline {
        for pid in processes_of(&directory) {
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        for mount in mounts_below(&directory) {
            let _ = nix::mount::umount2(&mount, nix::mount::MntFlags::MNT_DETACH);
        }
        if std::fs::remove_dir_all(&directory).is_err() {
            std::thread::sleep(AGAIN);
        }
    }
    ExitCode::SUCCESS
}

/// Mount points below the directory, innermost first: a supervisor that runs as root
/// mounts memory for its servers.
fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut found: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from)
        .filter(|path| path.starts_with(directory))
        .collect();
    found.reverse();
    found
}

/// All processes that know the directory, except this one.
fn processes_of(directory: &Path) -> Vec<nix::unistd::Pid> {
    use std::os::unix::ffi::OsStrExt as _;
    let needle = directory.as_os_str().as_bytes();
    let own = std::process::id();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        if pid == own {
            continue;
        }
        let says = |file: &str| {
            std::fs::read(entry.path().join(file)).is_ok_and(|bytes| contains(&bytes, needle))
        };
        let is_there = std::fs::read_link(entry.path().join("cwd"))
            .is_ok_and(|path| path.starts_with(directory));
        let zombie = std::fs::read_to_string(entry.path().join("stat")).is_ok_and(|stat| {
            stat.rsplit(") ")
                .next()
                .is_some_and(|rest| rest.starts_with('Z'))
        });
        if (is_there || says("environ") || says("cmdline")) && !zombie {
            found.push(nix::unistd::Pid::from_raw(pid.cast_signed()));
        }
    }
    found
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}
