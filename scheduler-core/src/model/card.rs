//! Physical cards, as agents say them, and how they are shared.

use super::TopologyManager;
use crate::ids::{GpuUuid, NodeName};
use crate::units::Mib;
use std::fmt;
use std::sync::Arc;

/// How a card is shared. A card is in one mode at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// The whole card for one pod.
    Exclusive,
    /// One MPS server per card.
    Mps,
    /// One MPS server per share.
    MpsIsolated,
    /// The driver's time slices; memory is watched, not fenced.
    TimeSlicing,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Exclusive,
        Self::Mps,
        Self::MpsIsolated,
        Self::TimeSlicing,
    ];

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
        Self::ALL.into_iter().find(|mode| mode.as_str() == name)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What keeps a share within its memory, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fence {
    /// The agent's watchdog, after the fact.
    WatchdogOnly,
    /// A limit that a tenant can take out, up to the largest limit on the card.
    ClientLimit,
    /// An MPS server's own limit.
    ServerLimit,
    /// The driver's limit on the container.
    DriverLimit,
}

impl Fence {
    /// All of them, weakest first.
    pub const ALL: [Self; 4] = [
        Self::WatchdogOnly,
        Self::ClientLimit,
        Self::ServerLimit,
        Self::DriverLimit,
    ];

    /// The name in objects and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::WatchdogOnly => "WatchdogOnly",
            Self::ClientLimit => "ClientLimit",
            Self::ServerLimit => "ServerLimit",
            Self::DriverLimit => "DriverLimit",
        }
    }

    /// The fence of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fence| fence.as_str() == name)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an agent says of its node's cards: always all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCards {
    /// Which node.
    pub node: NodeName,
    /// Mode of a share whose pod names none.
    pub default_mode: Mode,
    /// `Some(sentence)` when the node offers no shares, with the agent's reason.
    pub not_offering: Option<Arc<str>>,
    /// In any order.
    pub cards: Vec<Card>,
    /// What the kubelet aligns to NUMA zones. `None`: it refuses no pod for that.
    pub topology_manager: Option<TopologyManager>,
}

impl NodeCards {
    /// Of a node that offers shares.
    pub fn offered(node: &str, mode: Mode, cards: impl IntoIterator<Item = Card>) -> Self {
        Self {
            node: NodeName::new(node),
            default_mode: mode,
            not_offering: None,
            cards: cards.into_iter().collect(),
            topology_manager: None,
        }
    }
}

/// One physical card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Identifies the card everywhere else.
    pub uuid: GpuUuid,
    /// NVML's order on the node.
    pub index: u32,
    /// As NVML names it.
    pub product: Arc<str>,
    /// T: as NVML reports it.
    pub total: Mib,
    /// The driver's and the admin's reserve; G = total - reserved.
    pub reserved: Mib,
    /// The most that limits may sum to now: G less what strangers hold, quantised.
    pub grantable: Mib,
    /// MiB held by processes without a grant, quantised. For messages, and a card with
    /// strangers is not idle for whole use.
    pub strangers: Mib,
    /// The mode it is in while in use; `None` while idle.
    pub mode: Option<Mode>,
    /// What it can switch to while idle (the admin's pinning included); the mode it is
    /// in counts as well.
    pub switchable: Vec<Mode>,
    /// Whether a share on it would start now. Matters only while the card is in use.
    pub ready: bool,
    /// `Some(reason)` when unhealthy.
    pub unhealthy: Option<Arc<str>>,
    /// The admin wants nothing new on it.
    pub cordoned: bool,
    /// MIG is enabled: no shares, no whole use by us.
    pub mig: bool,
    /// It is a slice of a card in MIG mode, which the node gives as a whole GPU: no shares.
    pub slice: bool,
    /// MPS clients that the card takes, and how many shares may therefore be on it at
    /// once in the MPS modes. 0: not limited.
    pub client_slots: u32,
    /// NUMA node, if the driver reports one.
    pub numa: Option<u32>,
    /// UUIDs of cards with a direct link; empty where none.
    pub nvlink_peers: Vec<GpuUuid>,
    /// True when the card hangs on an `NVSwitch`: linked with all such cards of the node.
    pub nvswitch: bool,
    /// MiB that a fraction gets beside floor(f x T), for the CUDA context.
    pub allowance: Mib,
    /// Where the kubelet shows it.
    pub pool: Pool,
    /// No share is placed on it that would have, or leave another with, a weaker fence.
    pub minimum_fence: Option<Fence>,
    /// Its driver limits the memory of a container by itself: every share has that fence.
    pub driver_limits: bool,
}

impl Card {
    /// A healthy, idle card with `total` MiB, all of it grantable, that may be used in
    /// every mode.
    pub fn named(uuid: &str, index: u32, product: &str, total: u64) -> Self {
        Self {
            uuid: GpuUuid::new(uuid),
            index,
            product: Arc::from(product),
            total: Mib(total),
            reserved: Mib(0),
            grantable: Mib(total),
            strangers: Mib(0),
            mode: None,
            switchable: Mode::ALL.to_vec(),
            ready: true,
            unhealthy: None,
            cordoned: false,
            mig: false,
            slice: false,
            client_slots: 48,
            numa: None,
            nvlink_peers: Vec::new(),
            nvswitch: false,
            allowance: Mib(0),
            pool: Pool::Unknown,
            minimum_fence: None,
            driver_limits: false,
        }
    }
}

/// In which of the kubelet's resources a card is seen allocatable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pool {
    /// The agent has not reported it (yet): nothing is derived from it.
    #[default]
    Unknown,
    /// As a whole GPU. Shares may open it too: their tokens are offered all along.
    Whole,
    /// As a whole GPU and without tokens, as while a pod holds it whole: shares wait
    /// until the kubelet shows its tokens again.
    WholeOnly,
    /// For shares only: whole use waits until the kubelet shows the card as whole again.
    Shared,
    /// Not offered at all.
    None,
}
