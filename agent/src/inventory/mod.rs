//! What the node has: cards, what of them can be granted, their health.
//!
//! Pure. In: NVML's readings, the admin's policy, time as a value. Out: [`Inventory`]. Must never:
//! read NVML, a clock or a file.

pub mod build;
mod front;
pub mod health;
pub mod mig;

pub use front::Front;
pub use health::Health;

use crate::gpu::{ComputeMode, GpuUuid, Slice};
use crate::resource::Resource;
use api::units::Fence;
use api::{Mib, Mode};
use cdi::hook::Backend;

/// All cards of the node and why it offers nothing, where it does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// NVIDIA driver; empty while NVML is not up.
    pub driver_version: String,
    /// In NVML's order, each card in MIG mode before its slices, which are rows of their own. A
    /// card that was seen once stays, lost, until the agent restarts; a slice is gone with its
    /// instance.
    pub cards: Vec<Card>,
}

impl Inventory {
    /// The card of that UUID.
    pub fn card(&self, uuid: &GpuUuid) -> Option<&Card> {
        self.cards.iter().find(|card| card.uuid == *uuid)
    }

    /// Returns true if the driver limits cgroups on all of these cards.
    pub fn driver_limits<'a>(&self, mut cards: impl Iterator<Item = &'a GpuUuid>) -> bool {
        cards.all(|uuid| {
            let card = self.card(uuid);
            card.is_some_and(|card| card.driver_limits.backend().is_some())
        })
    }

    /// Whether some card can be allocated whole other than by claim. Assumed for unknown cards.
    pub fn any_whole_beside_claims(&self) -> bool {
        let may = |card: &Card| {
            card.only_front != Some(Front::Dra)
                && card.resource == Resource::Whole
                && card.switchable.contains(&Mode::Exclusive)
        };
        self.cards.is_empty() || self.cards.iter().any(may)
    }
}

/// Whether a card's driver keeps memory limits per cgroup, by a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DriverLimits {
    /// The driver is too old, or the card is in MIG mode: there is nothing to probe.
    #[default]
    None,
    /// No probe has answered yet.
    Unknown,
    /// The probe failed, and this says which part is missing.
    Missing(String),
    /// The card had limits, and two probes in a row found that it lacks this part.
    Lost(String),
    /// The probe was limited.
    Kept(Backend),
}

impl DriverLimits {
    /// Returns what keeps the limits. `None`: no limits hold.
    pub fn backend(&self) -> Option<Backend> {
        match self {
            Self::Kept(backend) => Some(*backend),
            Self::None | Self::Unknown | Self::Missing(_) | Self::Lost(_) => None,
        }
    }
}

/// One card, or one slice of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Its name.
    pub uuid: GpuUuid,
    /// NVML's order.
    pub index: u32,
    /// The N of `/dev/nvidiaN`; not always the index. A slice has its card's.
    pub minor: u32,
    /// As NVML names it.
    pub product: String,
    /// T: the card's total.
    pub total: Mib,
    /// The driver's reserve, the MPS server's, the admin's. G = total - reserved.
    pub reserved: Mib,
    /// As the driver says, strangers and contexts included.
    pub used: Mib,
    /// Processes that no grant explains.
    pub strangers: Vec<Stranger>,
    /// The most that limits may sum to: G less what strangers hold.
    pub grantable: Mib,
    /// Whether anything may be placed on it.
    pub health: Health,
    /// As the driver has it now.
    pub compute_mode: ComputeMode,
    /// Shares are not offered on MIG cards.
    pub mig: bool,
    /// What makes it a slice; `None`: it is a card.
    pub slice: Option<Slice>,
    /// Under which resource it is offered whole.
    pub resource: Resource,
    /// By the admin: nothing new.
    pub cordoned: bool,
    /// By the admin: another plugin on this node does not know it.
    pub hidden_from_other_plugins: bool,
    /// By the admin: the only mode it is used in.
    pub only_mode: Option<Mode>,
    /// By the admin: the only way its shares are granted. `None`: by either.
    pub only_front: Option<Front>,
    /// The modes in which it can be used while idle.
    pub switchable: Vec<Mode>,
    /// The state of the driver's memory limits for cgroups, as the last probes found it.
    pub driver_limits: DriverLimits,
    /// By the admin: no share on it is behind a weaker one.
    pub minimum_fence: Option<Fence>,
    /// CUDA compute capability, `major.minor`.
    pub compute_capability: String,
    /// PCI bus id, `00000000:01:00.0`.
    pub pci: String,
    /// NUMA node, if the driver reports one.
    pub numa: Option<u32>,
    /// UUIDs of cards that a link joins to it, or `nvswitch`.
    pub nvlink_peers: Vec<String>,
    /// What one MPS server's context takes of it; one of them is in `reserved`.
    pub server_reserve: Mib,
    /// Containers that may hold a share of it.
    pub client_slots: u32,
    /// What a fraction is allowed beside its part, for the CUDA context.
    pub context_allowance: Mib,
}

impl Card {
    /// G: what could be granted if no stranger held anything.
    pub fn capacity(&self) -> Mib {
        self.total.saturating_sub(self.reserved)
    }

    /// Profile of a slice; empty of a card, and of a slice whose profile has no name.
    pub fn mig_profile(&self) -> String {
        let profile = self.slice.as_ref().and_then(|slice| slice.profile);
        profile
            .map(|profile| profile.to_string())
            .unwrap_or_default()
    }
}

/// A GPU process that no grant explains.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stranger {
    /// On the host.
    pub pid: u32,
    /// Its name.
    pub command: String,
    /// Its pod, where its cgroup names one.
    pub pod_uid: Option<String>,
    /// Its container, where it has one.
    pub container_id: Option<String>,
    /// What it holds.
    pub memory: Mib,
}
