//! One container's hold on one or several cards.

use super::{AllocId, HolderKey, ProofName};
use crate::fence::ActiveFence;
use crate::gpu::GpuUuid;
use crate::inventory::Front;
use api::gpu_node::Reaction;
use api::grant::PodIdentity;
use api::units::Fence;
use api::{Mib, Mode};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// When a container runs beside the others of its pod. The rule is the one by which Kubernetes counts
/// requests: an init container has ended before the next container starts, and every other container
/// runs until the pod ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Turn {
    /// The position of the container among those of the pod that ask for cards or take a claim.
    pub place: u32,
    /// True if the container ends before the next one starts.
    pub init: bool,
}

/// The `ResourceClaim` that a share is given by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Claimed {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.name`, in the namespace of its pods.
    pub name: String,
    /// The requests of the claim whose devices the share is. A container takes all of them.
    pub requests: BTreeSet<String>,
}

/// What counts once: what one container holds, or what all containers of a claim, or of one
/// part of it, hold together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitScope {
    /// By annotation.
    Container(HolderKey),
    /// By claim: one share with one limit, however many containers it has.
    Claim(AllocId),
}

/// Requests of a claim, or its class, besides cards and memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ShareOptions {
    /// No weaker fence, whatever share is placed beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_fence: Option<Fence>,
    /// What happens to its containers where they hold more than the share, in place of the
    /// node's: by the class, which is an admin's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_violation: Option<Reaction>,
    /// What happens at least: by the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<Reaction>,
    /// It sees its cards and has no share of them: nothing of it is counted, and nothing is
    /// limited.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub observes: bool,
}

/// One container's share. The containers of one claim have a row each, which differ in their
/// identity and use only: see [`LimitScope`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The pod.
    pub pod: PodIdentity,
    /// The name of the container.
    pub container: String,
    /// When the container runs. This is the default for a share by claim, which is counted once for
    /// all containers of the claim.
    pub turn: Turn,
    /// The cards that are really held: for whole cards the kubelet's pick may have been adopted in
    /// place of the grant's.
    pub gpus: Vec<GpuUuid>,
    /// Limit on each of them.
    pub memory: Mib,
    /// The memory of each card that is kept for it: its limit, or less where it may burst.
    pub kept: Mib,
    /// Compute ceiling, 1 to 100 per cent.
    pub compute_percent: u8,
    /// The mode of the cards.
    pub mode: Mode,
    /// The decision that it came from; empty for a pod that another scheduler placed.
    pub decision: String,
    /// The claim that it is given by; `None`: by the scheduler's grant.
    pub claimed: Option<Claimed>,
    /// The claim's other requests.
    pub wishes: ShareOptions,
    /// How far it has come.
    pub phase: SharePhase,
    /// The allocation it is bound to, from `Prepared` on.
    pub alloc_id: Option<AllocId>,
    /// The fence that is really active, once the hook has checked it and it was read back.
    pub fence: Option<ActiveFence>,
    /// The container as the runtime names it, without `containerd://`, once the hook ran.
    pub container_id: Option<String>,
    /// What its processes hold now, summed over its cards: of this container alone.
    pub used: Mib,
    /// Per cent of SM time that its processes had in the last 1.5 s, summed over them and
    /// its cards; `None` where the driver does not attribute it.
    pub sm_percent: Option<u32>,
    /// The whole minutes for which its container has done no work; `None`: not known.
    pub idle_minutes: Option<u32>,
}

impl Share {
    /// Whether its processes are clients of an MPS server.
    pub fn is_served(&self) -> bool {
        matches!(self.mode, Mode::Mps | Mode::MpsIsolated)
    }

    /// What identifies it.
    pub fn key(&self) -> HolderKey {
        HolderKey {
            pod_uid: self.pod.uid.clone(),
            container: self.container.clone(),
        }
    }

    /// What counts once.
    pub fn limit_scope(&self) -> LimitScope {
        match (&self.claimed, self.alloc_id) {
            (Some(_), Some(alloc)) => LimitScope::Claim(alloc),
            _ => LimitScope::Container(self.key()),
        }
    }

    /// By which way it was granted.
    pub fn front(&self) -> Front {
        match self.claimed {
            None => Front::Plugin,
            Some(_) => Front::Dra,
        }
    }

    /// `namespace/name` of its claim.
    pub fn claim_name(&self) -> Option<String> {
        let claimed = self.claimed.as_ref()?;
        Some(format!("{}/{}", self.pod.namespace, claimed.name))
    }

    /// Name of the file in which the hook proves that it let this container start.
    pub fn proof_name(&self) -> Option<ProofName> {
        Some(ProofName {
            alloc: self.alloc_id?,
            holder: self.claimed.is_some().then(|| self.key()),
        })
    }
}

/// How far a share has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SharePhase {
    /// The pod's grant was seen; nothing started.
    Reserved,
    /// `PreStartContainer` checked it and its CDI file is, or is being, written.
    Prepared,
    /// The hook let its container start.
    Running,
    /// The pod is being deleted, its container or its memory not yet gone.
    Terminating,
}

impl SharePhase {
    /// The name in objects and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "Reserved",
            Self::Prepared => "Prepared",
            Self::Running => "Running",
            Self::Terminating => "Terminating",
        }
    }
}
