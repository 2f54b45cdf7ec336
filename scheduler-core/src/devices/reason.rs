//! Why devices of a node will not do, in kube-scheduler's words where it has some.

use crate::model::DeviceTaint;
use crate::units::Quantity;
use std::fmt;
use std::sync::Arc;

/// Why the claims of a pod get no devices on a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ClaimsReason {
    /// It wants more devices than a claim can have.
    TooMany(Arc<str>),
    /// For that request there is none left, or not beside the devices of the other requests.
    Request(Arc<str>),
    /// It wants all devices, and not all of them are known.
    Pool {
        request: Arc<str>,
        pool: Arc<str>,
        why: Arc<str>,
    },
    /// Its selectors have no answer for a device that the node can use.
    Unanswered(Arc<str>),
    /// There are more ways to put them together than are tried.
    CutShort(u32),
    /// The number of pods that use the claim has reached its maximum.
    Full,
    /// The claim has devices that this node cannot use.
    Elsewhere,
}

impl fmt::Display for ClaimsReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany(request) => write!(
                f,
                "node(s) cannot allocate all claims: request {request} brings its claim to more than {} devices",
                crate::model::DeviceWants::MOST
            ),
            Self::Request(request) => write!(
                f,
                "node(s) cannot allocate all claims: no device is left for request {request}"
            ),
            Self::Pool { request, pool, why } => write!(
                f,
                "node(s) cannot allocate all claims: request {request} asks for all devices, but resource pool {pool} {why}"
            ),
            Self::Unanswered(why) => {
                write!(f, "node(s) cannot allocate all claims: {why}")
            }
            Self::CutShort(steps) => write!(
                f,
                "node(s) cannot allocate all claims: none was found in {steps} steps"
            ),
            Self::Full => write!(
                f,
                "node(s) cannot allocate all claims: a claim is used by {} pods, and no more can use it",
                crate::model::DeviceClaim::MOST_USERS
            ),
            Self::Elsewhere => f.write_str("resourceclaim not available on the node"),
        }
    }
}

/// Why one device will not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceReason {
    NotSelected,
    Taint(DeviceTaint),
    /// A pod holds the card by annotation: a card has one front at a time.
    Granted,
    /// The pod asks for other cards by annotation.
    OtherFront,
    InUse,
    /// It has no such capacity.
    NoCapacity(Arc<str>),
    /// Its request policy does not allow this amount.
    Policy(Arc<str>),
    Capacity {
        name: Arc<str>,
        free: Quantity,
        has: Quantity,
        wanted: Quantity,
    },
}

impl fmt::Display for DeviceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSelected => f.write_str("not selected"),
            Self::Taint(taint) => {
                write!(f, "untolerated taint {{{}: {}}}", taint.key, taint.value)
            }
            Self::Granted => f.write_str("granted by annotation to a pod"),
            Self::OtherFront => f.write_str("its pod asks for cards by annotation, too"),
            Self::InUse => f.write_str("allocated to another claim"),
            Self::NoCapacity(name) => write!(f, "it has no capacity {name}"),
            Self::Policy(name) => write!(f, "its request policy refuses that much {name}"),
            Self::Capacity {
                name,
                free,
                has,
                wanted,
            } => write!(f, "{name}: {free} of {has} free, {wanted} needed"),
        }
    }
}
