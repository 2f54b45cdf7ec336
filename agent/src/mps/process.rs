//! Processes on this node as the supervisor needs them: whether one still is the one that
//! it was, which ones belong to a pipe directory, and signals.
//!
//! In: pids, a `/proc`. Out: facts. A pid alone names no process: it is compared with the
//! time at which its process started.

use crate::attribute;
use crate::attribute::cgroup::Membership;
use nix::sys::stat::{major, minor};
use nix::unistd::Pid;
use proto::names;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
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

    /// Sends SIGKILL to a process, and to its process group if it leads one. It does nothing if the
    /// process is gone, even if another process now has the same pid.
    pub fn kill(&self, process: Process) {
        let group = i32::try_from(process.pid).ok().map(Pid::from_raw);
        let its = |pid: &u32| {
            let pid = i32::try_from(*pid).map(Pid::from_raw);
            pid.is_ok_and(|pid| nix::unistd::getpgid(Some(pid)).ok() == group)
        };
        // The number of this group is not reused while its leader lives.
        let members: Vec<Process> = if leads_its_group(process) && self.lives(process) {
            self.all()
                .filter(its)
                .filter_map(|pid| self.find(pid))
                .collect()
        } else {
            Vec::new()
        };
        self.end(process);
        for member in members {
            self.end(member);
        }
    }

    /// Sends SIGKILL through a pidfd, which cannot come to refer to another process.
    fn end(&self, process: Process) {
        let pid = i32::try_from(process.pid).ok();
        let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) else {
            return;
        };
        // The handle is opened before the check, so that both concern the same process.
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
            return;
        };
        if self.lives(process) {
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
    }

    /// The control daemon of this pipe directory, if it lives. No file in that directory is used:
    /// tenants write there.
    pub fn daemon_of(&self, pipe: &Path) -> Option<Process> {
        self.running(b"nvidia-cuda-mps-control", pipe)
            .find(|process| leads_its_group(*process))
    }

    /// Servers that were started for this pipe directory and live.
    pub fn servers_of(&self, pipe: &Path) -> Vec<Process> {
        self.running(b"nvidia-cuda-mps-server", pipe).collect()
    }

    /// Processes in our own container or pod: a tenant may name its own as it likes.
    fn running(&self, program: &'static [u8], pipe: &Path) -> impl Iterator<Item = Process> {
        let own = std::fs::read_to_string(self.root.join("self/cgroup")).unwrap_or_default();
        self.all()
            .filter(move |pid| self.belongs(*pid, program, pipe))
            .filter(move |pid| {
                let its = std::fs::read_to_string(self.file(*pid, "cgroup"));
                its.is_ok_and(|its| is_beside(&own, &its))
            })
            .filter_map(|pid| self.find(pid))
    }

    /// Processes in whose mount namespace this pipe directory is mounted: its possible clients.
    /// Empty if containers have no mounts of their own.
    pub fn with_mount_of(&self, pipe: &Path) -> Vec<Process> {
        let Ok(meta) = std::fs::metadata(pipe) else {
            return Vec::new();
        };
        let (major, minor) = (major(meta.dev()), minor(meta.dev()));
        let device = format!("{major}:{minor}");
        self.all()
            .filter(|pid| {
                std::fs::read_to_string(self.file(*pid, "mountinfo"))
                    .is_ok_and(|mounts| mounts.lines().any(|line| is_mount_of(line, &device)))
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
        attribute::pids(&self.root).into_iter().flatten()
    }

    fn file(&self, pid: u32, name: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(name)
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

/// The daemon was started as the leader of a group; its command line was not.
fn leads_its_group(process: Process) -> bool {
    let Ok(pid) = i32::try_from(process.pid) else {
        return false;
    };
    let pid = Pid::from_raw(pid);
    nix::unistd::getpgid(Some(pid)) == Ok(pid)
}

/// Whether two texts of `/proc/<pid>/cgroup` name places in the same pod, as those of a container
/// and of its successor do. Outside of a pod: the same cgroup.
fn is_beside(own: &str, its: &str) -> bool {
    Membership::all(its).all(|its| {
        let ours = Membership::all(own).find(|ours| ours.controllers == its.controllers);
        ours.is_some_and(|ours| {
            ours.path == its.path || ours.pod().is_some() && ours.pod() == its.pod()
        })
    })
}

/// Whether a line of mountinfo is the mount of this file system in a container. The third
/// field is its device, the fifth where it is mounted.
fn is_mount_of(line: &str, device: &str) -> bool {
    let mut fields = line.split(' ').skip(2);
    fields.next() == Some(device) && fields.nth(1) == Some(names::container::MPS_PIPE)
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
        // A process with the same pid but another start time is left alone.
        processes.kill(other);
        // The pause gives a wrongly sent signal time to take effect.
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(processes.lives(process));
        processes.kill(process);
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
    fn a_process_of_another_pod_is_no_daemon_whatever_it_calls_itself() {
        let uid = "0f6b1c1e-4d5c-4f5e-9a64-3a1f0e5d7c21";
        let other = "ffffffff-ffff-ffff-ffff-ffffffffffff";
        let own = &format!("4:memory:/kubepods/pod{uid}/a\n0::/\n");
        assert!(is_beside(own, own));
        let in_pod = |uid, at| format!("4:memory:/kubepods/pod{uid}/{at}\n0::/\n");
        assert!(is_beside(own, &in_pod(uid, "b")));
        assert!(!is_beside(own, &in_pod(other, "a")));
        assert!(!is_beside(own, &in_pod(other, "a/b")));
        // The daemon of a supervisor that has started again: containerd, CRI-O with runc and with
        // crun, which puts the processes one level deeper.
        for container in [
            "cri-containerd-$.scope",
            "crio-$.scope",
            "crio-$.scope/container",
        ] {
            let at = |uid: &str, below: &str| {
                let uid = uid.replace('-', "_");
                format!("0::/kubepods.slice/kubepods-pod{uid}.slice/{below}\n")
            };
            let successor = at(uid, &container.replace('$', "b"));
            let before = container.replace('$', "a");
            for below in [before.as_str(), "aliquot-mps-GPU-1"] {
                assert!(is_beside(&successor, &at(uid, below)), "{below}");
                assert!(!is_beside(&successor, &at(other, below)), "{below}");
            }
        }
        // A container that is not below its pod's cgroup has its neighbours in other pods.
        let loose = |uid: &str| {
            let uid = uid.replace('-', "_");
            format!("4:memory:/a/kubepods-pod{uid}.slice:cri-containerd:a\n")
        };
        assert!(!is_beside(&loose(uid), &loose(other)));
        // Not started by a kubelet.
        assert!(is_beside("0::/\n", "0::/\n"));
        assert!(!is_beside("0::/a\n", "0::/b\n"));
    }

    #[test]
    fn a_mount_of_the_pipe_directory_is_found_wherever_it_comes_from() {
        let line = "1208 1190 0:24 / /run/aliquot/mps/pipe rw,nosuid - tmpfs tmpfs rw";
        assert!(is_mount_of(line, "0:24"));
        assert!(!is_mount_of(line, "0:25"));
        // The node's own.
        let node = line.replace("mps/pipe", "mps/GPU-1/tenant/pipe");
        assert!(!is_mount_of(&node, "0:24"));
        assert!(!is_mount_of("", "0:24"));
    }
}
