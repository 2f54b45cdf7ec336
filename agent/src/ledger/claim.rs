//! A claim is a request to the ledger for one container.

use super::{AllocId, Claimed, HolderKey, LimitScope, Share, ShareOptions, SharePhase, Turn};
use crate::gpu::GpuUuid;
use crate::inventory::Front;
use api::grant::PodIdentity;
use api::{Mib, Mode};

/// The request of a verified grant, or of a claim's allocation, for one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The pod.
    pub pod: PodIdentity,
    /// The name of the container.
    pub container: String,
    /// The time in which the container runs, relative to the others of its pod.
    pub turn: Turn,
    /// The cards.
    pub gpus: Vec<GpuUuid>,
    /// Limit on each of them.
    pub memory: Mib,
    /// The memory of each card that is kept for it, at most the limit.
    pub kept: Mib,
    /// Compute ceiling, 1 to 100 per cent.
    pub compute_percent: u8,
    /// The mode of the cards.
    pub mode: Mode,
    /// The decision that it came from.
    pub decision: String,
    /// The claim whose allocation it is; `None`: it is a grant.
    pub claimed: Option<Claimed>,
    /// The claim's other requests.
    pub wishes: ShareOptions,
}

impl Claim {
    /// Returns the key of the container that will hold the share.
    pub fn key(&self) -> HolderKey {
        HolderKey {
            pod_uid: self.pod.uid.clone(),
            container: self.container.clone(),
        }
    }

    /// Returns the scope whose shares have one limit together, once it is bound to this allocation.
    pub(super) fn limit_scope(&self, alloc: Option<AllocId>) -> LimitScope {
        match (&self.claimed, alloc) {
            (Some(_), Some(alloc)) => LimitScope::Claim(alloc),
            _ => LimitScope::Container(self.key()),
        }
    }

    /// Returns the front by which it is granted.
    pub(super) fn front(&self) -> Front {
        match self.claimed {
            None => Front::Plugin,
            Some(_) => Front::Dra,
        }
    }

    /// The share of a container that was bound before this agent started.
    pub fn bound(&self, alloc: AllocId) -> Share {
        Share {
            alloc_id: Some(alloc),
            phase: SharePhase::Prepared,
            ..Share::reserved(self, self.gpus.clone())
        }
    }
}

impl Share {
    /// Makes the share of a claim of which nothing has started.
    pub(super) fn reserved(claim: &Claim, gpus: Vec<GpuUuid>) -> Self {
        Self {
            pod: claim.pod.clone(),
            container: claim.container.clone(),
            turn: claim.turn,
            gpus,
            memory: claim.memory,
            kept: claim.kept,
            compute_percent: claim.compute_percent,
            mode: claim.mode,
            decision: claim.decision.clone(),
            claimed: claim.claimed.clone(),
            wishes: claim.wishes.clone(),
            phase: SharePhase::Reserved,
            alloc_id: None,
            fence: None,
            container_id: None,
            used: Mib(0),
            sm_percent: None,
            idle_minutes: None,
        }
    }

    /// Returns true if the share is what this claim asks for.
    pub(super) fn is_of(&self, claim: &Claim) -> bool {
        self.gpus == claim.gpus
            && self.turn == claim.turn
            && self.memory == claim.memory
            && self.kept == claim.kept
            && self.compute_percent == claim.compute_percent
            && self.mode == claim.mode
            && self.decision == claim.decision
            && self.claimed == claim.claimed
    }
}
