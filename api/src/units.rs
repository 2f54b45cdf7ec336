//! Quantities and closed sets that several crates use.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Mebibytes of GPU memory.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(transparent)]
pub struct Mib(pub u64);

impl Mib {
    /// `None` when the sum does not fit: more memory than any machine has, so a caller refuses.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// `None` when `other` is larger.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }

    /// The difference, never below zero.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Whole MiB in `bytes`; the rest is cut, so that nothing is promised that is not there.
    pub fn floor_of_bytes(bytes: u64) -> Self {
        Self(bytes >> 20)
    }

    /// `None` when the bytes do not fit in 64 bits.
    pub fn bytes(self) -> Option<u64> {
        self.0.checked_mul(1 << 20)
    }
}

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB", self.0)
    }
}

/// Billionths of a GPU: the unit of queue accounting, so that fractions add up exactly.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(transparent)]
pub struct NanoGpu(pub u64);

impl NanoGpu {
    /// One whole GPU.
    pub const ONE: Self = Self(1_000_000_000);
}

/// How a card is shared. A card is in one mode at a time.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The whole card for one pod.
    Exclusive,
    /// One MPS server per card, compute mode `EXCLUSIVE_PROCESS`.
    Mps,
    /// One MPS server per share, compute mode `DEFAULT`.
    MpsIsolated,
    /// The driver's time slices; memory is watched, not fenced.
    TimeSlicing,
}

impl Mode {
    /// The name in objects and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Mps => "mps",
            Self::MpsIsolated => "mps-isolated",
            Self::TimeSlicing => "time-slicing",
        }
    }

    /// The mode of that name.
    pub fn parse(name: &str) -> Option<Self> {
        [
            Self::Exclusive,
            Self::Mps,
            Self::MpsIsolated,
            Self::TimeSlicing,
        ]
        .into_iter()
        .find(|mode| mode.as_str() == name)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What stops a share that takes more than its limit, strongest first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Fence {
    /// The driver's memory limit on the container's cgroup.
    DriverLimit,
    /// An MPS server's default, which is the share's own limit.
    ServerLimit,
    /// An MPS client limit per process.
    ClientLimit,
    /// Nothing but the watchdog.
    WatchdogOnly,
}

/// How strong a fence is, in one of three words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strength {
    /// The driver or the kernel refuses the allocation.
    Hard,
    /// MPS stops ordinary programs; the watchdog ends a program that works around it.
    Guarded,
    /// Only the watchdog acts, after the allocation.
    Watched,
}

impl Strength {
    /// The word that users read.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hard => "Hard",
            Self::Guarded => "Guarded",
            Self::Watched => "Watched",
        }
    }
}

impl Fence {
    /// How strong it is.
    pub fn strength(self) -> Strength {
        match self {
            Self::DriverLimit => Strength::Hard,
            Self::ServerLimit | Self::ClientLimit => Strength::Guarded,
            Self::WatchdogOnly => Strength::Watched,
        }
    }

    /// Returns the value of that name.
    pub fn parse(name: &str) -> Option<Self> {
        [
            Self::DriverLimit,
            Self::ServerLimit,
            Self::ClientLimit,
            Self::WatchdogOnly,
        ]
        .into_iter()
        .find(|fence| fence.as_str() == name)
    }

    /// Its strength and its name, as users read them.
    pub fn words(self) -> String {
        format!("{} by {self}", self.strength().as_str())
    }

    /// The name in objects and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DriverLimit => "DriverLimit",
            Self::ServerLimit => "ServerLimit",
            Self::ClientLimit => "ClientLimit",
            Self::WatchdogOnly => "WatchdogOnly",
        }
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
