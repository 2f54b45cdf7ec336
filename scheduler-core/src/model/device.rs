//! Devices as their drivers publish them, for dynamic resource allocation (DRA).

use super::{Effect, Node, NodeTerm};
use crate::ids::{ClaimUid, DeviceId, FilterName, GpuUuid, NodeName, PoolName};
use crate::units::Quantity;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Amounts by name.
pub type Amounts = BTreeMap<Arc<str>, Quantity>;

/// A pool of devices: the newest generation of its `ResourceSlice`s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePool {
    /// Its driver and its name.
    pub name: PoolName,
    /// Why nothing of it is allocated now. `None`: it is as it should be.
    pub fault: Option<PoolFault>,
    /// In the order in which they are tried: by slice, and as the slice lists them.
    pub devices: Vec<Device>,
    /// What devices of the pool share, by counter set (KEP-4815).
    pub counters: BTreeMap<Arc<str>, Amounts>,
}

/// An error in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolFault {
    /// Some of its slices are missing: its driver is about to write them.
    Incomplete,
    /// Its slices contradict each other, one sentence.
    Invalid(Arc<str>),
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Unique in its pool.
    pub name: Arc<str>,
    /// Where it can be used.
    pub nodes: DeviceNodes,
    /// `allowMultipleAllocations`: several claims may hold parts of it (KEP-5075).
    pub shared: bool,
    /// What claims can request of it.
    pub capacity: BTreeMap<Arc<str>, Capacity>,
    /// By full name, `<domain>/<name>`: what constraints compare.
    pub attributes: BTreeMap<Arc<str>, Attribute>,
    /// What it consumes of its pool's counters while it is allocated, by counter set.
    pub consumes: BTreeMap<Arc<str>, Amounts>,
    /// What keeps claims away that do not tolerate it (KEP-5055).
    pub taints: Vec<DeviceTaint>,
    /// Its driver has to make it ready before its pod is bound (KEP-5007).
    pub waits: bool,
    /// It becomes the node's own where it is allocated.
    pub binds_to_node: bool,
    /// Filters that select it.
    pub selected_by: BTreeSet<FilterName>,
    /// Filters that have no answer for it, and why, one sentence: a request with one gets no
    /// devices on a node that can use this one.
    pub unanswered: BTreeMap<FilterName, Arc<str>>,
    /// The card of one of our agents that it is.
    pub card: Option<GpuUuid>,
    /// A GPU that no agent of ours counts: it is a part of what queues divide.
    pub gpu: bool,
}

/// Where a device can be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceNodes {
    /// Nowhere.
    #[default]
    None,
    /// On this node.
    Node(NodeName),
    /// On nodes for which one of these holds.
    Terms(Vec<NodeTerm>),
    /// On all.
    All,
}

impl DeviceNodes {
    /// Whether this node is one of them.
    pub(crate) fn has(&self, node: &Node) -> bool {
        match self {
            Self::None => false,
            Self::Node(name) => *name == node.name,
            Self::Terms(terms) => terms.iter().any(|term| term.matches(node)),
            Self::All => true,
        }
    }

    /// The only one, where the device says which.
    pub(crate) fn only(&self) -> Option<&NodeName> {
        match self {
            Self::Node(name) => Some(name),
            Self::None | Self::Terms(_) | Self::All => None,
        }
    }
}

/// The capacity of one resource, and the valid requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// In all.
    pub has: Quantity,
    /// The default amount. `None`: all of it.
    pub default: Option<Quantity>,
    /// A request is rounded up to one of these, in ascending order.
    pub values: Vec<Quantity>,
    /// Or to a step of this.
    pub range: Option<Range>,
}

/// From where to where a request may be, and in which steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// At least.
    pub min: Option<Quantity>,
    /// At most.
    pub max: Option<Quantity>,
    /// Above `min`, in steps of this.
    pub step: Option<Quantity>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// A number.
    Int(i64),
    /// Yes or no.
    Bool(bool),
    /// Words.
    Text(Arc<str>),
    /// A semantic version in its minimal form.
    Version(Arc<str>),
}

/// A taint of a device. Taints whose effect is neither `NoSchedule` nor `NoExecute` do nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceTaint {
    /// Its key.
    pub key: Arc<str>,
    /// Its value, empty where none.
    pub value: Arc<str>,
    /// What it does.
    pub effect: Effect,
}

/// A toleration of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceToleration {
    /// `None`: every key.
    pub key: Option<Arc<str>>,
    /// Of the taints with the key: any, or those of one value.
    pub value: Option<Arc<str>>,
    /// `None`: every effect.
    pub effect: Option<Effect>,
}

impl DeviceToleration {
    /// Kubernetes' `resourceclaim.ToleratesTaint`.
    pub(crate) fn tolerates(&self, taint: &DeviceTaint) -> bool {
        self.effect.is_none_or(|effect| effect == taint.effect)
            && self.key.as_ref().is_none_or(|key| *key == taint.key)
            && self
                .value
                .as_ref()
                .is_none_or(|value| *value == taint.value)
    }
}

impl DeviceTaint {
    /// Whether it keeps new claims away at all.
    pub(crate) fn keeps_away(&self) -> bool {
        matches!(self.effect, Effect::NoSchedule | Effect::NoExecute)
    }
}

/// A claim that has devices, as the API server shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// `metadata.uid`.
    pub claim: ClaimUid,
    /// `status.allocation.devices.results`.
    pub devices: Arc<[AllocatedDevice]>,
    /// `status.allocation.nodeSelector`: one of these must hold for the node; `None`: every node.
    pub nodes: Option<Arc<[NodeTerm]>>,
    /// How many of the pods in `reservedFor` exist.
    pub consumers: u32,
    /// All pods in `reservedFor` have ended: Kubernetes' controller is about to take the devices
    /// from it.
    pub leaving: bool,
}

/// One device of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedDevice {
    /// `<request>`, or `<request>/<alternative>`.
    pub request: Arc<str>,
    /// Which device.
    pub device: DeviceId,
    /// For monitoring: it takes nothing away from others.
    pub admin: bool,
    /// A part of a shared device. `None`: the whole device.
    pub consumed: Option<Amounts>,
}

impl DevicePool {
    /// Whether what the pool's devices share is enough for these together (KEP-4815).
    pub(crate) fn counters_suffice<'a>(
        &'a self,
        consumers: impl Iterator<Item = &'a Device>,
    ) -> bool {
        let sets = self.counters.iter();
        let mut left: BTreeMap<(&str, &str), Quantity> = sets
            .flat_map(|(set, counters)| {
                let counters = counters.iter();
                counters.map(move |(name, has)| ((&**set, &**name), *has))
            })
            .collect();
        for (set, counters) in consumers.flat_map(|device| &device.consumes) {
            for (name, amount) in counters {
                if let Some(left) = left.get_mut(&(&**set, &**name)) {
                    *left = left.less(*amount);
                }
            }
        }
        left.values().all(|left| left.0 >= 0)
    }
}
