//! Finds the container to which a process belongs.

use super::observation::Device;
use crate::attribute::{self, Origin};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// The containers of processes, cached for a short time. Reading them is most of the cost of a sample
/// of a card's processes.
#[derive(Debug, Default)]
pub(super) struct Origins(BTreeMap<u32, Known>);

/// The container in which a process was found.
#[derive(Debug, Default)]
struct Known {
    origin: Arc<Origin>,
    /// A pidfd of the process. It never refers to another process that gets the same number later.
    /// `None` if the process had ended.
    process: Option<OwnedFd>,
}

impl Known {
    /// Returns true if the process has not ended, so that no other process has its number.
    fn lives(&self) -> bool {
        let Some(process) = &self.process else {
            return false;
        };
        let mut ended = [PollFd::new(process, PollFlags::IN)];
        matches!(poll(&mut ended, Some(&Timespec::default())), Ok(0))
    }
}

impl Origins {
    /// Reads the container of a process again.
    pub(super) fn read(&mut self, proc_root: &Path, pid: u32) -> Arc<Origin> {
        let known = self.0.entry(pid).or_default();
        if !known.lives() {
            let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
            // The pidfd is opened first, so that everything read after that belongs to this process.
            known.process = number.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        }
        let origin = attribute::origin(proc_root, pid);
        if *known.origin != origin {
            known.origin = Arc::new(origin);
        }
        Arc::clone(&known.origin)
    }

    /// Returns the known container of a process, or reads it if the process is new or has ended.
    pub(super) fn known(&mut self, proc_root: &Path, pid: u32) -> Arc<Origin> {
        match self.0.get(&pid) {
            Some(known) if *known.origin != Origin::default() && known.lives() => {
                Arc::clone(&known.origin)
            }
            _ => self.read(proc_root, pid),
        }
    }

    /// Drops all processes that are on none of these cards.
    pub(super) fn keep(&mut self, devices: &[Device]) {
        let readings = devices
            .iter()
            .filter_map(|device| device.reading.as_ref().ok());
        let pids: BTreeSet<u32> = readings
            .flat_map(|reading| reading.processes.iter().map(|process| process.pid))
            .collect();
        self.0.retain(|pid, _| pids.contains(pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_number_that_another_process_gets_is_read_again() {
        let proc_root = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id();
        let folder = proc_root.path().join(pid.to_string());
        std::fs::create_dir(&folder).unwrap();
        let put = |container: &str| {
            let pod = "0f6b1c1e-4d5c-4f5e-9a64-3a1f0e5d7c21";
            let line = format!("0::/kubepods/burstable/pod{pod}/{container}\n");
            std::fs::write(folder.join("cgroup"), line).unwrap();
        };
        let (one, other) = ("1".repeat(64), "2".repeat(64));
        put(&one);
        let mut origins = Origins::default();
        let mut container = || origins.known(proc_root.path(), pid).container_id.clone();
        assert_eq!(container().as_ref(), Some(&one));
        put(&other);
        assert_eq!(container().as_ref(), Some(&one), "it is not read each time");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(container().as_ref(), Some(&other));
    }
}
