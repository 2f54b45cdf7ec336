//! What one look at all cards says: plain values, nothing of NVML's.

use crate::attribute::Origin;
use crate::gpu::{ComputeMode, GpuUuid, Slice};
use api::Mib;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// One look at the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Whether NVML answers.
    pub driver: Driver,
    /// The cards, each followed by its slices, in NVML's order. Empty unless the driver is up.
    pub devices: Vec<Device>,
}

/// Whether NVML answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Driver {
    /// It does.
    Up {
        /// `570.172.08`.
        version: String,
    },
    /// NVML answered a moment ago, and the library is being loaded again. The last observation
    /// stays in use, and this one has no devices.
    Late {
        /// The version of the driver that answered last.
        version: String,
        /// Why NVML does not answer, in one line.
        reason: String,
    },
    /// It does not; the owner tries again.
    Gone {
        /// One line.
        reason: String,
    },
}

impl Driver {
    /// Returns the version of the driver that answers, or that answered a moment ago.
    pub fn version(&self) -> Option<&str> {
        match self {
            Self::Up { version } | Self::Late { version, .. } => Some(version),
            Self::Gone { .. } => None,
        }
    }
}

impl Default for Driver {
    fn default() -> Self {
        Self::Gone {
            reason: "NVML is not up yet".to_owned(),
        }
    }
}

/// Which cards' processes are to be sampled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Cards with shares that have a limit.
    pub cards: BTreeSet<GpuUuid>,
    /// There is a suspicion: the next sample decides, and is taken soon.
    pub closely: bool,
}

/// A look at the processes of some of the watched cards. Each card is sampled on its own, so that a
/// slow card does not delay the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// In the order in which they were asked.
    pub cards: Vec<CardSample>,
}

/// One look at the processes of one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardSample {
    /// Which card.
    pub uuid: GpuUuid,
    /// The time before the call: the answer may be as old as this.
    pub at: Instant,
    /// Every process with a context, once, by pid.
    pub processes: Vec<Process>,
}

/// One card, or one slice of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// What does not change while the driver is up.
    pub identity: Identity,
    /// What does; `Err` with one line when the card does not answer.
    pub reading: Result<Reading, UnreadableCard>,
}

/// What does not change while the driver is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `GPU-...`.
    pub uuid: GpuUuid,
    /// NVML's order.
    pub index: u32,
    /// The N of `/dev/nvidiaN`.
    pub minor: u32,
    /// As NVML names it.
    pub product: String,
    /// Bus id.
    pub pci: String,
    /// `major.minor`.
    pub compute_capability: String,
    /// Where the driver says one.
    pub numa: Option<u32>,
    /// UUIDs or bus ids of linked cards, or `nvswitch`; sorted.
    pub nvlink_peers: Vec<String>,
    /// `None`: it is a card.
    pub slice: Option<Slice>,
}

/// Why a card did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableCard {
    /// One line.
    pub reason: String,
    /// The driver has lost it; else it may well answer at the next look.
    pub lost: bool,
    /// True if a call about it has not returned. The programs that run on it may be unaffected.
    pub hangs: bool,
}

/// What changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The card has no memory of its own, so that NVML reports none. The other amounts are 0.
    pub unified: bool,
    /// T.
    pub total: Mib,
    /// The driver's own, rounded up.
    pub reserved: Mib,
    /// By everyone.
    pub used: Mib,
    /// Whether the card did any work in the driver's last sample; `None` where the driver does not say.
    pub busy: Option<bool>,
    /// Which processes may create a context.
    pub compute_mode: ComputeMode,
    /// MIG mode is on.
    pub mig: bool,
    /// Some of its slices cannot be listed or identified, so that it is not known who uses them.
    pub slices_unknown: bool,
    /// Every process with a context, once, by pid.
    pub processes: Vec<Process>,
    /// Why a process may be missing, or listed without its memory; `None`: the lists are complete.
    pub unseen: Option<String>,
    /// Health counters, as far as the card has them.
    pub counters: Counters,
}

impl Reading {
    /// Returns whether one of the processes for which `own` is true worked since the look before. `None`:
    /// the driver does not tell. `servers` has the pids of MPS servers.
    ///
    /// The driver's samples of processes are believed only as far as the card agrees. On a card that is
    /// busy while no process of it has a sample, or while an MPS server has one, work is not told apart,
    /// and nothing is known of any process there. Nothing is known of slices in MIG mode either, for
    /// which NVML has no such samples.
    pub fn has_worked(
        &self,
        own: impl Fn(&Process) -> bool,
        servers: &BTreeSet<u32>,
    ) -> Option<bool> {
        let works = |process: &Process| process.works == Some(true);
        if self.processes.iter().any(|one| own(one) && works(one)) {
            return Some(true);
        }
        let untold =
            |one: &Process| one.works.is_none() || (servers.contains(&one.pid) && works(one));
        if self.unseen.is_some() || self.processes.iter().any(untold) {
            return None;
        }
        let told_apart = !self.busy? || self.processes.iter().any(works);
        told_apart.then_some(false)
    }
}

/// One process on one card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// As NVML says it.
    pub pid: u32,
    /// `None` where the driver does not say.
    pub memory: Option<Mib>,
    /// It is a client of an MPS server, and does not draw.
    pub mps_client: bool,
    /// Per cent of SM time in the last 1.5 s; `None` where the driver does not say, and in
    /// samples, which are of memory.
    pub sm_percent: Option<u32>,
    /// Whether it computed, encoded or decoded in that time; `None` where the driver does not
    /// say, and in samples.
    pub works: Option<bool>,
    /// Where it belongs; the same of one process in every sample.
    pub origin: Arc<Origin>,
}

/// Health counters; `None` where the card has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Rows wait for a reset to be remapped.
    pub remap_pending: Option<bool>,
    /// Remapping failed.
    pub remap_failed: Option<bool>,
    /// Uncorrected memory errors since the driver was loaded.
    pub uncorrected: Option<u64>,
    /// Field 230: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset.
    pub recovery_action: Option<u32>,
}

/// A fault that the driver reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xid {
    /// On which card, or on which slice of it.
    pub gpu: GpuUuid,
    /// NVIDIA's number; 999 where the driver does not know.
    pub number: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, works: Option<bool>) -> Process {
        Process {
            pid,
            works,
            ..Process::default()
        }
    }

    fn seen(busy: Option<bool>, processes: &[(u32, Option<bool>)]) -> Option<bool> {
        let reading = Reading {
            busy,
            processes: (processes.iter())
                .map(|(pid, works)| process(*pid, *works))
                .collect(),
            ..Reading::default()
        };
        reading.has_worked(|one| one.pid == 1, &BTreeSet::from([9]))
    }

    #[test]
    fn a_share_is_idle_only_where_all_work_of_its_card_is_told_apart() {
        let (yes, no) = (Some(true), Some(false));
        for (busy, processes, expected) in [
            (yes, &[(1, yes), (9, yes)][..], yes),
            (no, &[(1, yes)], yes),
            (no, &[(1, no), (9, no)], no),
            // It has no process at all.
            (no, &[], no),
            (yes, &[(1, no), (2, yes)], no),
            // The card is busy, and no process has a sample.
            (yes, &[(1, no), (2, no)], None),
            (yes, &[], None),
            // The driver attributes the clients' work to the server.
            (yes, &[(1, no), (2, yes), (9, yes)], None),
            (no, &[(1, no), (9, yes)], None),
            (no, &[(1, no), (2, None)], None),
            (None, &[(1, no)], None),
        ] {
            assert_eq!(seen(busy, processes), expected, "{busy:?} {processes:?}");
        }
        let hidden = Reading {
            busy: no,
            unseen: Some("the driver does not tell its MPS processes".into()),
            ..Reading::default()
        };
        assert_eq!(hidden.has_worked(|_| true, &BTreeSet::new()), None);
    }
}
