//! What a `ResourceClaim` wants of devices.

use super::{Amounts, DeviceToleration, Front};
use crate::ids::{ClaimUid, FilterName};
use std::sync::Arc;

/// A claim of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceClaim {
    /// `metadata.uid`.
    pub uid: ClaimUid,
    /// `namespace/name`.
    pub name: Arc<str>,
    /// Made for this pod alone, and without devices as long as the pod waits: false for a waiting
    /// pod whose claim has some. Pods that differ in nothing but such claims are alike.
    pub own: bool,
    /// It stands in for the whole GPUs in the pod's resources (KEP-5004) on nodes that give them by
    /// [`Front::Claim`](super::Front), and is ignored on the others. A pod has at most one such
    /// claim, and then requests no shares.
    pub stands_in: bool,
    /// Its request.
    pub wants: Arc<DeviceWants>,
}

impl DeviceClaim {
    /// The maximum number of pods that use a claim at the same time: Kubernetes'
    /// `ResourceClaimReservedForMaxSize`.
    pub const MOST_USERS: usize = 256;

    /// A pod that has its whole GPUs so has the claim's devices.
    pub(crate) fn is_used(&self, front: Front) -> bool {
        !self.stands_in || front == Front::Claim
    }
}

/// The content of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceWants {
    /// All of them have to be satisfied, in this order.
    pub requests: Vec<DeviceRequest>,
    /// Between the devices of several requests.
    pub constraints: Vec<Constraint>,
}

impl DeviceWants {
    /// Most devices of a claim: Kubernetes' `AllocationResultsMaxSize`.
    pub const MOST: usize = 32;
}

/// One request of a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceRequest {
    /// Its name in the claim.
    pub name: Arc<str>,
    /// The first that can be had (`firstAvailable`, KEP-4816); one without a name: `exactly`.
    pub alternatives: Vec<Alternative>,
}

/// What satisfies a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Alternative {
    /// The name of a sub-request.
    pub name: Option<Arc<str>>,
    /// Which devices will do.
    pub filter: FilterName,
    /// How many of them.
    pub count: Count,
    /// At least so much of each.
    pub capacity: Amounts,
    /// Taints that do not matter.
    pub tolerations: Vec<DeviceToleration>,
    /// For monitoring: also devices that others hold.
    pub admin: bool,
    /// What queues count for each device, in nano-GPU.
    pub nano: u64,
}

/// How many devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Count {
    /// This number.
    Exactly(u64),
    /// All that the filter selects on the node, at least one.
    All,
}

/// What devices of several requests must have alike, or must not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Constraint {
    /// Of which requests: `<request>` or `<request>/<alternative>`. Empty: of all.
    pub requests: Vec<Arc<str>>,
    /// By full name, `<domain>/<name>`. A device without it does not satisfy the constraint.
    pub attribute: Arc<str>,
    /// `distinctAttribute`: no two devices have the same value. Else `matchAttribute`: all have.
    pub distinct: bool,
}

impl Constraint {
    /// Whether it applies to devices of that alternative of that request.
    pub(crate) fn concerns(&self, request: &DeviceRequest, alternative: &Alternative) -> bool {
        let named = |name: &Arc<str>| {
            *name == request.name
                || alternative.name.as_ref().is_some_and(|sub| {
                    name.strip_prefix(&*request.name)
                        .and_then(|rest| rest.strip_prefix('/'))
                        == Some(&**sub)
                })
        };
        self.requests.is_empty() || self.requests.iter().any(named)
    }
}

impl DeviceRequest {
    /// What queues count for it: of alternatives, for the one that counts most. All devices of a
    /// node count as one (KAI).
    pub(crate) fn nano(&self) -> u128 {
        let of = |one: &Alternative| match one.count {
            Count::Exactly(count) => u128::from(count) * u128::from(one.nano),
            Count::All => u128::from(one.nano),
        };
        self.alternatives.iter().map(of).max().unwrap_or(0)
    }
}
