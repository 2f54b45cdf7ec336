//! Which pod an allocation is for. Never a guess.
//!
//! Pure. The kubelet does not tell a plugin which pod it allocates for, but records it: its
//! checkpoint holds our answer, our answer holds the `alloc_id`. `PodResources` is the second
//! witness. In: checkpoint, `PodResources`, the pod and its signed grant. Out: a [`Claim`] that the
//! ledger may enter, or one line.

pub mod checkpoint;
pub mod pod_resources;

pub use checkpoint::{Checkpoint, CheckpointError, Entry};

use crate::gpu::GpuUuid;
use crate::ledger::{AllocId, Claim, ShareOptions, Turn};
use crate::pods::{ContainerKind, ContainerView, PodView};
use crate::resource::Resource;
use api::grant::{ContainerGrant, GrantError, NodeIdentity, Verifier};
use api::{Mib, Mode};
use std::collections::BTreeSet;

/// The container that an allocation is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// `metadata.uid`.
    pub pod_uid: String,
    /// The container's name.
    pub container: String,
    /// The allocation.
    pub alloc: AllocId,
}

/// Why the container cannot be identified, or has no right to a device.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Written before `PreStartContainer` is called, by everything that was seen.
    #[error("the kubelet has no record of this allocation yet")]
    NotRecorded,
    /// The kubelet saw the pod before our watch did.
    #[error("pod {0} is not yet in this agent's watch")]
    PodUnknown(String),
    /// The API server was not reached since the agent's start.
    #[error("this node's identity and the cluster's grant keys are not known yet")]
    TrustUnknown,
    /// The second witness says otherwise.
    #[error(
        "the kubelet's PodResources do not list these devices for container {container} of {pod}"
    )]
    Contradicted {
        /// `namespace/name`.
        pod: String,
        /// Its name.
        container: String,
    },
    /// Without the checkpoint, init containers and ambiguous IDs cannot be told apart.
    #[error(
        "the kubelet's checkpoint is unreadable, and PodResources alone does not tell which container of pod {pod} this is: delete the pod, or restart the kubelet, which rewrites the file"
    )]
    Ambiguous {
        /// `namespace/name`.
        pod: String,
        /// Its UID.
        uid: String,
    },
    /// Placed by someone else.
    #[error("pod {0} was not placed by Aliquot's scheduler: it has no grant")]
    NoGrant(String),
    /// Altered, copied, replayed, or of another cluster.
    #[error("pod {pod}: {error}")]
    Grant {
        /// `namespace/name`.
        pod: String,
        /// Why.
        #[source]
        error: GrantError,
    },
    /// The grant has nothing for this container.
    #[error("the grant of pod {pod} has nothing for container {container}")]
    NotGranted {
        /// `namespace/name`.
        pod: String,
        /// Its name.
        container: String,
    },
    /// The grant and the container's resources do not go together.
    #[error("the grant of pod {pod} gives container {container} {granted}, but it holds {held}")]
    Mismatch {
        /// `namespace/name`.
        pod: String,
        /// Its name.
        container: String,
        /// By the grant.
        granted: String,
        /// By the kubelet.
        held: String,
    },
}

impl IdentityError {
    /// Whether waiting can help, because something is only late.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::NotRecorded
            | Self::PodUnknown(_)
            | Self::TrustUnknown
            | Self::Contradicted { .. } => true,
            // A new key is in the ConfigMap before it signs, but our watch may be late.
            Self::Grant { error, .. } => matches!(error, GrantError::UnknownKey(_)),
            _ => false,
        }
    }

    /// Whether only a new decision helps, now that waiting did not.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            Self::NoGrant(_) | Self::Grant { .. } | Self::NotGranted { .. } | Self::Mismatch { .. }
        )
    }
}

/// Every allocation of exactly these IDs, by the checkpoint. Usually one; an init container
/// and the app container that got its IDs are two, and the kubelet may hand one ID to two pods.
pub fn holders(checkpoint: &Checkpoint, resource: Resource, ids: &BTreeSet<String>) -> Vec<Holder> {
    let mut found: Vec<Holder> = checkpoint
        .entries
        .iter()
        .filter(|entry| *entry.resource == resource.name() && entry.ids == *ids)
        .filter_map(|entry| {
            Some(Holder {
                pod_uid: entry.pod_uid.clone(),
                container: entry.container.clone(),
                alloc: entry.alloc?,
            })
        })
        .collect();
    found.sort();
    found
}

/// The right of a container that holds `ids`: its part of its pod's grant, checked.
///
/// # Errors Every check that fails.
pub fn claim(
    pod: &PodView,
    container: &str,
    resource: Resource,
    ids: &BTreeSet<String>,
    verifier: Option<&Verifier>,
    node: &NodeIdentity,
) -> Result<Claim, IdentityError> {
    let verifier = verifier.filter(|_| !node.uid.is_empty());
    let name = pod.identity.to_string();
    let text = pod
        .grant
        .as_deref()
        .ok_or_else(|| IdentityError::NoGrant(name.clone()))?;
    let verifier = verifier.ok_or(IdentityError::TrustUnknown)?;
    let grant = verifier
        .verify(text, &pod.identity, node)
        .map_err(|error| IdentityError::Grant {
            pod: name.clone(),
            error,
        })?;
    let granted = grant
        .containers
        .iter()
        .find(|granted| granted.name == container)
        .ok_or_else(|| IdentityError::NotGranted {
            pod: name.clone(),
            container: container.to_owned(),
        })?;
    let expected = match granted.mode {
        Mode::Exclusive => (Resource::Whole, granted.gpus.len()),
        // One token per container, however many cards its share is spread over.
        _ => (Resource::Share, 1),
    };
    if (resource, ids.len()) != expected {
        return Err(IdentityError::Mismatch {
            pod: name,
            container: container.to_owned(),
            granted: format!("{} of {}", expected.1, expected.0.name()),
            held: format!("{} of {}", ids.len(), resource.name()),
        });
    }
    Ok(to_claim(pod, granted, grant.decision.clone()))
}

/// Every container of a pod's grant, checked, to reserve what has not started yet. Containers that
/// the pod does not have are left out.
///
/// # Errors Every check that fails for the grant as a whole.
pub fn claims(
    pod: &PodView,
    verifier: Option<&Verifier>,
    node: &NodeIdentity,
) -> Result<Vec<Claim>, IdentityError> {
    let Some(text) = pod.grant.as_deref() else {
        return Ok(Vec::new());
    };
    let verifier = verifier
        .filter(|_| !node.uid.is_empty())
        .ok_or(IdentityError::TrustUnknown)?;
    let grant = verifier
        .verify(text, &pod.identity, node)
        .map_err(|error| IdentityError::Grant {
            pod: pod.identity.to_string(),
            error,
        })?;
    Ok(grant
        .containers
        .iter()
        .filter(|granted| pod.container(&granted.name).is_some())
        .map(|granted| to_claim(pod, granted, grant.decision.clone()))
        .collect())
}

/// Whole cards for a pod that another scheduler placed: what the kubelet picked, `memory`
/// of each.
pub fn ungranted(
    pod: &PodView,
    container: &ContainerView,
    ids: &BTreeSet<String>,
    memory: Mib,
) -> Claim {
    Claim {
        pod: pod.identity.clone(),
        container: container.name.clone(),
        turn: turn(pod, &container.name),
        gpus: ids.iter().map(|id| GpuUuid::from(id.as_str())).collect(),
        memory,
        kept: memory,
        compute_percent: 100,
        mode: Mode::Exclusive,
        decision: String::new(),
        claimed: None,
        wishes: ShareOptions::default(),
    }
}

/// Returns when a container of the pod runs beside the others. Without an init container this is the
/// default, which is left out of records, so that older agents can read them.
fn turn(pod: &PodView, container: &str) -> Turn {
    let init = |one: &ContainerView| one.kind == ContainerKind::Init;
    let mut all = pod.containers.iter().zip(0..);
    let own = all.find(|(one, _)| one.name == container);
    own.filter(|_| pod.containers.iter().any(init))
        .map_or_else(Turn::default, |(one, place)| Turn {
            place,
            init: init(one),
        })
}

fn to_claim(pod: &PodView, granted: &ContainerGrant, decision: String) -> Claim {
    let mut gpus: Vec<GpuUuid> = Vec::new();
    for uuid in &granted.gpus {
        let uuid = GpuUuid::from(uuid.as_str());
        if !gpus.contains(&uuid) {
            gpus.push(uuid);
        }
    }
    Claim {
        pod: pod.identity.clone(),
        container: granted.name.clone(),
        turn: turn(pod, &granted.name),
        gpus,
        memory: granted.memory_mib,
        kept: granted.kept(),
        compute_percent: granted.compute_percent.clamp(1, 100),
        mode: granted.mode,
        decision,
        claimed: None,
        wishes: ShareOptions::default(),
    }
}

#[cfg(test)]
mod tests;
