//! What the cluster is, as plain data: the shell fills these in, events carry them.
//!
//! Nothing here decides. A field that the shell cannot fill keeps its default, which
//! always means "less is allowed", never more.
//! - [`Node`], [`NodeCards`] with its [`Card`]s, [`Volume`], [`DevicePool`] with its [`Device`]s:
//!   what there is.
//! - [`Queue`], [`PodGroup`], [`Topology`]: the tenants, and what belongs together.
//! - [`Pod`] with its [`ContainerAsk`]s, [`Claim`]s, [`DeviceClaim`]s, [`NodeRules`] and
//!   [`PodRules`]: the requests.

mod ask;
mod card;
mod device;
mod device_claim;
mod group;
mod labels;
mod node;
mod pod;
mod pod_rules;
mod queue;
mod rules;
mod topology_manager;
mod volume;

pub use ask::{Amount, Ask, ContainerAsk, ContainerGrant, Front, Share};
pub use card::{Card, Fence, Mode, NodeCards, Pool};
pub use device::{
    AllocatedDevice, Allocation, Amounts, Attribute, Capacity, Device, DeviceNodes, DevicePool,
    DeviceTaint, DeviceToleration, PoolFault, Range,
};
pub use device_claim::{Alternative, Constraint, Count, DeviceClaim, DeviceRequest, DeviceWants};
pub use group::{Grace, PodGroup, PodSet, Preemptibility, SubGroup, Topology, TopologyRule};
pub use labels::Labels;
pub use node::{Effect, LEGACY_MIG, Node, Taint};
pub use pod::{Lead, Phase, Placement, Pod, TaskOrder};
pub use pod_rules::{HostPort, PodRules, PodSelector, PodTerm, PreferredTerm, Spread};
pub use queue::{ProductQuota, ProductUnit, Queue, QueueResource, Weight};
pub use rules::{NodeRules, NodeTerm, Operator, Requirement, Tolerated, Toleration, integer};
pub use topology_manager::{
    AlignedContainer, NumaUse, NumaZone, TopologyManager, TopologyPolicy, TopologyScope,
};
pub use volume::{Attachment, Claim, ClaimRef, Shape, Volume, Want};
