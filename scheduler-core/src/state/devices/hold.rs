//! What claims hold: the devices that a decision picked for them, and the pods for whose sake
//! they have them.

use crate::ids::ClaimUid;
use crate::model::{AllocatedDevice, NodeTerm};
use crate::state::keys::{NodeKey, TaskKey};
use crate::state::way::As;
use std::sync::Arc;

/// A claim, as it is; or as it will be when those who have it now have left, and it is given
/// other devices for those of them that get another place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot {
    pub claim: ClaimUid,
    pub again: bool,
}

impl Slot {
    pub(crate) fn now(claim: &ClaimUid) -> Self {
        Self {
            claim: claim.clone(),
            again: false,
        }
    }
}

/// Devices that a decision picked for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Picked {
    pub devices: Arc<[AllocatedDevice]>,
    /// Nodes that can use them: for one of these. `None`: all.
    pub nodes: Option<Arc<[NodeTerm]>>,
}

/// A pod with a place, one on its way out or one that is promised a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub task: TaskKey,
    pub node: NodeKey,
    pub how: As,
}

/// What holds a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimHold {
    /// Made for one pod.
    pub own: bool,
    /// `None`: what the API server shows.
    pub picked: Option<Picked>,
    pub users: Vec<User>,
}

impl ClaimHold {
    pub(crate) fn count(&self, how: As) -> u32 {
        let users = self.users.iter().filter(|user| user.how == how);
        u32::try_from(users.count()).unwrap_or(u32::MAX)
    }
}

/// What a claim of a pod had.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) claim: ClaimUid,
    pub(crate) picked: Picked,
}

/// Devices that count, and how.
pub(crate) type Counted = Vec<(Arc<[AllocatedDevice]>, As)>;
