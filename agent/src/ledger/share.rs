//! One container's hold on one or several cards.

use crate::fence::ActiveFence;
use crate::inventory::GpuUuid;
use api::grant::PodIdentity;
use api::{Mib, Mode};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Name of one answer to the kubelet's `Allocate`: 128 random bits, 32 hex digits. Of a claim
/// it is the claim's UID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocId(u128);

impl AllocId {
    /// From random bits.
    pub fn new(bits: u128) -> Self {
        Self(bits)
    }

    /// From 32 lower-case hex digits; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if text.len() != 32 || !digits {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(Self)
    }
}

impl AllocId {
    /// Of a `ResourceClaim`: its UID's 128 bits, so that what was prepared for a claim is found
    /// by its UID alone. `None` for a UID that is no UUID; the API server makes no other.
    pub fn of_claim(uid: &str) -> Option<Self> {
        let places = [8, 13, 18, 23];
        let dashes = uid.match_indices('-').map(|(place, _)| place);
        (uid.len() == 36 && dashes.eq(places)).then_some(())?;
        Self::parse(&uid.replace('-', ""))
    }
}

impl fmt::Display for AllocId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for AllocId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// By which way shares of a card are granted. A card has one at a time, as it has one mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Front {
    /// By the scheduler's signed grant, over the kubelet's device-plugin API.
    #[default]
    Plugin,
    /// By a `ResourceClaim`'s allocation, over the kubelet's DRA API.
    Dra,
}

impl Front {
    /// The name in messages and in the `ResourceSlice`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plugin => "plugin",
            Self::Dra => "dra",
        }
    }
}

/// A container of a pod: what holds a share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderKey {
    /// `metadata.uid`.
    pub pod_uid: String,
    /// The container's name.
    pub container: String,
}

/// One container's hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Whose pod.
    pub pod: PodIdentity,
    /// Which container.
    pub container: String,
    /// Which cards. What is really held: for whole cards the kubelet's pick may have
    /// been adopted in place of the grant's.
    pub gpus: Vec<GpuUuid>,
    /// Limit on each of them.
    pub memory: Mib,
    /// What of each of them is kept for it: its limit, or less where it may burst.
    pub kept: Mib,
    /// Compute ceiling, 1 to 100 per cent.
    pub compute_percent: u8,
    /// How the cards are shared.
    pub mode: Mode,
    /// The decision that it came from; empty for a pod that another scheduler placed.
    pub decision: String,
    /// By which way it was granted.
    pub front: Front,
    /// How far it has come.
    pub phase: SharePhase,
    /// The allocation it is bound to, from `Prepared` on.
    pub alloc_id: Option<AllocId>,
    /// The fence that is really active, once the hook has checked it and it was read back.
    pub fence: Option<ActiveFence>,
    /// The container as the runtime names it, without `containerd://`, once the hook ran.
    pub container_id: Option<String>,
    /// What its processes hold now, summed over its cards.
    pub used: Mib,
    /// Per cent of SM time that its processes had in the last second, summed over them and
    /// its cards; `None` where the driver does not attribute it.
    pub sm_percent: Option<u32>,
}

impl Share {
    /// Whether its processes are clients of an MPS server.
    pub fn is_served(&self) -> bool {
        matches!(self.mode, Mode::Mps | Mode::MpsIsolated)
    }

    /// What identifies it.
    pub fn key(&self) -> HolderKey {
        HolderKey {
            pod_uid: self.pod.uid.clone(),
            container: self.container.clone(),
        }
    }
}

/// How far a share has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SharePhase {
    /// The pod's grant was seen; nothing started.
    Reserved,
    /// `PreStartContainer` checked it and its CDI file is, or is being, written.
    Prepared,
    /// The hook let its container start.
    Running,
    /// The pod is being deleted, its container or its memory not yet gone.
    Terminating,
}

impl SharePhase {
    /// The name in objects and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "Reserved",
            Self::Prepared => "Prepared",
            Self::Running => "Running",
            Self::Terminating => "Terminating",
        }
    }
}
