//! What a pod asks for, as it was read from its annotations and limits.

use crate::units::{Mib, Mode};
use proto::names::resource;
use std::collections::BTreeMap;

/// The annotations of a pod.
pub(super) type Annotations = BTreeMap<String, String>;

/// One pod's request for GPUs. Empty if it requests none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRequest {
    /// In the pod's order, init containers first; only those that ask for something.
    pub containers: Vec<ContainerRequest>,
}

/// What one container asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRequest {
    /// Its name.
    pub name: String,
    /// True for an init container that ends before the next container starts. False for a sidecar
    /// (`restartPolicy: Always`) and for app containers.
    pub init: bool,
    /// Its request.
    pub gpus: GpuRequest,
}

/// Whole cards, or a part of some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuRequest {
    /// `nvidia.com/gpu: N`, N > 0.
    Whole(u32),
    /// `gpu-memory`, `gpu-fraction` or the annotations of the container.
    Share(ShareRequest),
}

/// A part of one or several cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareRequest {
    /// Of each card.
    pub amount: Amount,
    /// The most that it may use of each card, where that is more than [`Self::amount`]; of
    /// the same kind.
    pub limit: Option<Amount>,
    /// How many cards, at least 1, all on one node.
    pub devices: u32,
    /// Compute ceiling, 1 to 100, where the user set one.
    pub compute_percent: Option<u8>,
    /// Where the user named a mode.
    pub mode: Option<Mode>,
}

/// `nano` of a card in thousandths.
const NANO_PER_MILLI: u64 = 1_000_000;

impl ShareRequest {
    /// The extended resource that admission writes beside the token, and how much of it:
    /// what `ResourceQuota` counts.
    pub fn counted(&self) -> (&'static str, u64) {
        let devices = u64::from(self.devices);
        match self.amount {
            Amount::Memory(mib) => (resource::MEMORY_MIB, mib.0.saturating_mul(devices)),
            Amount::Fraction(nano) => (
                resource::MILLI,
                nano.saturating_mul(devices).div_ceil(NANO_PER_MILLI),
            ),
        }
    }
}

/// How much of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Exactly this many MiB.
    Memory(Mib),
    /// Billionths of a card, 1 to 999 999 999.
    Fraction(u64),
}
