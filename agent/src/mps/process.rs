//! Processes on this node as the supervisor needs them: whether one still is the one that
//! it was, which ones belong to a pipe directory, and signals.
//!
//! In: pids, a `/proc`. Out: facts. A pid alone names no process: it is compared with the
//! time at which its process started.

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// One process, for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its pid.
    pub pid: u32,
    /// Clock ticks after boot at which it started.
    started: u64,
}

/// Reads processes below a `/proc`.
#[derive(Clone, Debug)]
pub struct Processes {
    root: PathBuf,
}

impl Processes {
    /// Below this `/proc`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The living process of this pid; a zombie does not live.
    pub fn find(&self, pid: u32) -> Option<Process> {
        let stat = std::fs::read_to_string(self.file(pid, "stat")).ok()?;
        let (state, started) = parse_stat(&stat)?;
        (!matches!(state, 'Z' | 'X')).then_some(Process { pid, started })
    }

    /// Whether it is the same process, and lives.
    pub fn lives(&self, process: Process) -> bool {
        self.find(process.pid) == Some(process)
    }

    /// The control daemon that wrote its pid into this pipe directory, if it lives.
    pub fn daemon_of(&self, pipe: &Path) -> Option<Process> {
        let text = std::fs::read_to_string(pipe.join("nvidia-cuda-mps-control.pid")).ok()?;
        let process = self.find(text.trim().parse().ok()?)?;
        self.belongs(process.pid, b"nvidia-cuda-mps-control", pipe)
            .then_some(process)
    }

    /// Servers that were started for this pipe directory and live.
    pub fn servers_of(&self, pipe: &Path) -> Vec<Process> {
        self.all()
            .filter(|pid| self.belongs(*pid, b"nvidia-cuda-mps-server", pipe))
            .filter_map(|pid| self.find(pid))
            .collect()
    }

    /// Processes in whose mount namespace this pipe directory is mounted: whoever could be
    /// a client of it. None where containers have no mounts of their own.
    pub fn with_mount_of(&self, pipe: &Path) -> Vec<Process> {
        let Some(tail) = tail_of(pipe) else {
            return Vec::new();
        };
        self.all()
            .filter(|pid| {
                std::fs::read_to_string(self.file(*pid, "mountinfo"))
                    .is_ok_and(|mounts| mounts.lines().any(|line| is_mount_of(line, &tail)))
            })
            .filter_map(|pid| self.find(pid))
            .collect()
    }

    /// Whether `pid` runs `program` with this pipe directory in its environment.
    fn belongs(&self, pid: u32, program: &[u8], pipe: &Path) -> bool {
        let Ok(command) = std::fs::read(self.file(pid, "cmdline")) else {
            return false;
        };
        let Ok(environ) = std::fs::read(self.file(pid, "environ")) else {
            return false;
        };
        is_program(&command, program) && names_pipe(&environ, pipe.as_os_str())
    }

    fn all(&self) -> impl Iterator<Item = u32> {
        std::fs::read_dir(&self.root)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
    }

    fn file(&self, pid: u32, name: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(name)
    }
}

impl Process {
    /// SIGKILL to it, or to its group where it leads one. A process that is gone is no error.
    pub fn kill(self) {
        let Ok(pid) = i32::try_from(self.pid) else {
            return;
        };
        let pid = Pid::from_raw(pid);
        // Only a leader's group has its pid; anyone else has none of that number.
        if killpg(pid, Signal::SIGKILL).is_err() {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
}

/// State and start time; the name in between may hold anything, parentheses too.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // Field 22, the state being the third.
    let started = fields.nth(18)?.parse().ok()?;
    Some((state, started))
}

/// Whether one of a command line's first arguments ends with this name: an interpreter or
/// a program of many names may come first.
fn is_program(command: &[u8], program: &[u8]) -> bool {
    command
        .split(|byte| *byte == 0)
        .take(3)
        .any(|argument| argument.ends_with(program))
}

fn names_pipe(environ: &[u8], pipe: &OsStr) -> bool {
    environ
        .split(|byte| *byte == 0)
        .any(|pair| pair.strip_prefix(b"CUDA_MPS_PIPE_DIRECTORY=") == Some(pipe.as_bytes()))
}

/// `<name>/pipe`: what a mount's root in its file system ends with, wherever that is mounted.
fn tail_of(pipe: &Path) -> Option<String> {
    let name = pipe.parent()?.file_name()?.to_str()?;
    Some(format!("/{name}/{}", pipe.file_name()?.to_str()?))
}

/// The fourth field of a line of mountinfo is the root of the mount in its file system.
fn is_mount_of(line: &str, tail: &str) -> bool {
    line.split(' ')
        .nth(3)
        .is_some_and(|root| root.ends_with(tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_itself_until_it_ends() {
        let processes = Processes::new("/proc");
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let process = processes.find(child.id()).unwrap();
        assert!(processes.lives(process));
        let other = Process {
            started: process.started + 1,
            ..process
        };
        assert!(!processes.lives(other));
        process.kill();
        child.wait().unwrap();
        assert!(!processes.lives(process));
        assert_eq!(processes.find(process.pid), None);
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "42 (a) S 1 (b)) R 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 1";
        assert_eq!(parse_stat(stat), Some(('R', 987_654)));
        assert_eq!(parse_stat(""), None);
        assert_eq!(parse_stat("42 (a) R 1"), None);
    }

    #[test]
    fn a_daemon_is_known_by_its_program_and_its_pipe_directory() {
        assert!(is_program(
            b"/usr/bin/nvidia-cuda-mps-control\0-f\0",
            b"nvidia-cuda-mps-control"
        ));
        assert!(is_program(
            b"/bin/x\0nvidia-cuda-mps-server\0",
            b"nvidia-cuda-mps-server"
        ));
        assert!(!is_program(
            b"cat\0a\0b\0nvidia-cuda-mps-server\0",
            b"nvidia-cuda-mps-server"
        ));
        let environ = b"A=1\0CUDA_MPS_PIPE_DIRECTORY=/run/aliquot/mps/GPU-1/pipe\0";
        assert!(names_pipe(
            environ,
            OsStr::new("/run/aliquot/mps/GPU-1/pipe")
        ));
        assert!(!names_pipe(environ, OsStr::new("/run/aliquot/mps/GPU-1")));
    }

    #[test]
    fn a_pid_file_that_names_another_program_is_no_daemon() {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("nvidia-cuda-mps-control.pid");
        let processes = Processes::new("/proc");
        for text in [std::process::id().to_string(), "x".into(), String::new()] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(processes.daemon_of(tmp.path()), None);
        }
    }

    #[test]
    fn a_mount_of_the_pipe_directory_is_found_wherever_it_comes_from() {
        let tail = tail_of(Path::new("/run/aliquot/mps/GPU-1/pipe")).unwrap();
        let line = "1208 1190 0:24 /aliquot/mps/GPU-1/pipe /run/aliquot/mps/pipe rw,nosuid - tmpfs tmpfs rw";
        assert!(is_mount_of(line, &tail));
        assert!(!is_mount_of(&line.replace("GPU-1", "GPU-2"), &tail));
        assert!(!is_mount_of("", &tail));
    }
}
