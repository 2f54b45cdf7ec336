//! NVML's lists of processes: which process is on which list, and when that changes.
//!
//! In: pids, as this process sees them. Out: [`ListEntry`]s. A driver that names the pids of
//! another namespace shows none of ours.

use crate::machine::{Machine, Missing};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time between two samples.
const AGAIN: Duration = Duration::from_millis(10);
/// After the last program's end.
const AFTER: Duration = Duration::from_millis(500);

/// The library.
pub(crate) struct Lists(Nvml);

/// A process on these lists, from this moment on.
pub(crate) struct ListEntry {
    pid: u32,
    /// Since the first sample.
    at: Duration,
    /// `C`, `M` and `G` for the lists of compute processes, of MPS and of graphics.
    on: String,
}

impl ListEntry {
    /// One process's way over the lists.
    pub(crate) fn told(sights: &[Self], pid: u32) -> String {
        let own = sights.iter().filter(|sight| sight.pid == pid);
        let told: Vec<String> = own
            .map(|sight| format!("{} ms {}", sight.at.as_millis(), sight.on))
            .collect();
        told.join(", ")
    }
}

impl Lists {
    pub(crate) fn load(machine: &Machine) -> anyhow::Result<Self> {
        let path = machine.root.join("usr/lib64/libnvidia-ml.so.1");
        if !path.exists() {
            return Err(Missing::error("this machine has no libnvidia-ml.so.1"));
        }
        Ok(Self(Nvml::builder().lib_path(path.as_os_str()).init()?))
    }

    /// The lists that a process is on; what a list answers instead of itself.
    pub(crate) fn of(&self, card: &str, pid: u32) -> Result<String, NvmlError> {
        let device = self.0.device_by_uuid(card)?;
        let mut on = Vec::new();
        for (name, list) in [
            ("C", device.running_compute_processes()),
            ("M", device.mps_running_compute_processes()),
            ("G", device.running_graphics_processes()),
        ] {
            match list {
                Ok(list) if list.iter().any(|process| process.pid == pid) => {
                    on.push(name.to_owned());
                }
                Ok(_) => {}
                Err(error) => on.push(format!("{name}: {error}")),
            }
        }
        Ok(if on.is_empty() {
            "none".to_owned()
        } else {
            on.join("+")
        })
    }

    /// Samples every 10 ms until the stop, and a little longer.
    pub(crate) fn follow(
        &self,
        card: &str,
        pids: &[u32],
        stop: &AtomicBool,
    ) -> Result<Vec<ListEntry>, NvmlError> {
        let begin = Instant::now();
        let mut sights: Vec<ListEntry> = Vec::new();
        let mut stopped: Option<Instant> = None;
        while stopped.is_none_or(|at| at.elapsed() < AFTER) {
            let look = Instant::now();
            for pid in pids {
                let on = self.of(card, *pid)?;
                let last = sights.iter().rev().find(|sight| sight.pid == *pid);
                if last.is_none_or(|last| last.on != on) {
                    let at = begin.elapsed();
                    sights.push(ListEntry { pid: *pid, at, on });
                }
            }
            if stopped.is_none() && stop.load(Ordering::SeqCst) {
                stopped = Some(Instant::now());
            }
            std::thread::sleep(AGAIN.saturating_sub(look.elapsed()));
        }
        Ok(sights)
    }
}
