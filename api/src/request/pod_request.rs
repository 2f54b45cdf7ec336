//! A pod's request for GPUs, as it was read from its annotations and limits.

use crate::units::{Mib, Mode};
use proto::names::resource;
use std::collections::BTreeMap;

/// The annotations of a pod, by key.
pub(super) type Annotations = BTreeMap<String, String>;

/// One pod's request for GPUs. It is empty if the pod requests none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRequest {
    /// The containers that request GPUs, in the pod's order, init containers first.
    pub containers: Vec<ContainerRequest>,
}

/// The request of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRequest {
    /// The name of the container.
    pub name: String,
    /// True for an init container that ends before the next container starts. False for a sidecar
    /// (`restartPolicy: Always`) and for app containers.
    pub init: bool,
    /// The whole cards or the share that the container requests.
    pub gpus: GpuRequest,
}

/// A request is for whole cards, or for a part of some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuRequest {
    /// `nvidia.com/gpu: N`, N > 0.
    Whole(u32),
    /// `gpu-memory`, `gpu-fraction` or the annotations of the container.
    Share(ShareRequest),
}

/// A request for the same part of one or several cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareRequest {
    /// The amount that is requested of each card.
    pub amount: Amount,
    /// The most that it may use of each card, where that is more than [`Self::amount`]; of
    /// the same kind.
    pub limit: Option<Amount>,
    /// The number of cards, at least 1, all on one node.
    pub devices: u32,
    /// The compute ceiling in percent, 1 to 100. `None`: the user set none.
    pub compute_percent: Option<u8>,
    /// The sharing mode. `None`: the user named none.
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

/// A part of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Exactly this many MiB.
    Memory(Mib),
    /// Billionths of a card, 1 to 999 999 999.
    Fraction(u64),
}
