//! Requests of containers to cards, and their assignments.

use super::Mode;
use crate::ids::{ContainerName, GpuUuid};
use crate::units::{Mib, NanoGpu, Percent};
use std::sync::Arc;

/// One container's request to cards.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerAsk {
    /// Which container.
    pub container: ContainerName,
    /// True for an init container that ends before the next container starts, so that both use a card
    /// in turn. False for a sidecar, which goes on, and for app containers.
    pub init: bool,
    /// How much.
    pub ask: Ask,
}

impl ContainerAsk {
    /// What an app container asks.
    #[must_use]
    pub fn of(container: &str, ask: Ask) -> Self {
        Self {
            container: ContainerName::new(container),
            init: false,
            ask,
        }
    }
}

/// Whole cards, or a part of some.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ask {
    /// `nvidia.com/gpu: n`.
    Whole(u32),
    /// A part.
    Share(Share),
}

/// A part of one or several cards.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share {
    /// Of each card.
    pub amount: Amount,
    /// The most that it may use of each card, if that is more: the part above [`Self::amount`] is
    /// not reserved.
    pub burst: Option<Amount>,
    /// How many cards, all different, all on one node. 0 is a bad request.
    pub devices: u32,
    /// Compute ceiling, where the user set one.
    pub compute: Option<Percent>,
    /// Where the user named a mode.
    pub mode: Option<Mode>,
}

impl Share {
    /// Of one card, in the mode that the node gives.
    #[must_use]
    pub const fn of(amount: Amount) -> Self {
        Self {
            amount,
            burst: None,
            devices: 1,
            compute: None,
            mode: None,
        }
    }
}

/// How much of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Amount {
    /// Exactly this many MiB.
    Memory(Mib),
    /// Billionths of a card, 1 to 1,000,000,000.
    Fraction(NanoGpu),
}

/// What one container holds: the content of its part of the grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerGrant {
    /// Which container.
    pub container: ContainerName,
    /// Its cards, in the node's order.
    pub cards: Vec<GpuUuid>,
    /// What of each of them is kept for it, and its limit, unless [`Self::burst`] is; in mode
    /// `exclusive` the smallest grantable of them.
    pub memory: Mib,
    /// Its limit on each of them, where that is more than [`Self::memory`].
    pub burst: Option<Mib>,
    /// Compute ceiling.
    pub compute: Percent,
    /// How the cards are shared.
    pub mode: Mode,
    /// Set where the last share of a card got its remainder.
    pub note: Option<Arc<str>>,
    /// What of each card it asked for, and is charged in queues, where that is not
    /// [`Self::memory`]. Never read from its pod again once it is granted.
    pub asked: Option<Amount>,
}

/// How a node gives the whole GPUs in a pod's resources (`nvidia.com/gpu`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Front {
    /// By its device plugin: they count against those that the node lists.
    #[default]
    Plugin,
    /// By the claim that stands in for them ([`super::DeviceClaim::stands_in`]).
    Claim,
}
