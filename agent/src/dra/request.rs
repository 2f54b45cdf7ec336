//! An allocated `ResourceClaim` and the pod it is reserved for → what the ledger is asked for.
//! Pure.
//!
//! The authority is the claim's allocation, as the API server has it: the kubelet's call names
//! the claim and nothing else. What this front does not serve yet is refused, each with one
//! sentence, which the kubelet shows in the pod's events.

use super::{mode_of, slice, walls};
use crate::ledger::{AllocId, Claim, Front};
use crate::node::State;
use api::grant::PodIdentity;
use api::{Mib, quantity};
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::api::resource::v1::{
    DeviceAllocationResult, DeviceRequestAllocationResult, ResourceClaim,
    ResourceClaimConsumerReference,
};
use proto::dra;
use proto::names::dra::{self as words, DRIVER};

/// What a claim was allocated of this driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// `namespace/name`.
    pub claim: String,
    /// Its name.
    pub name: String,
    /// What its share is prepared as.
    pub alloc: AllocId,
    /// Name of the request, without that of a subrequest.
    pub request: String,
    /// The pool: a node's name.
    pub pool: String,
    /// The device.
    pub device: String,
    /// Of several shares of one device, which.
    pub share_id: Option<String>,
    /// Of the card.
    pub memory: Mib,
    /// Namespace of claim and pod.
    pub namespace: String,
    /// The pod that it is reserved for: name and UID.
    pub pod: (String, String),
}

/// Reads what the kubelet asks to prepare.
///
/// # Errors
/// One sentence: the claim is another, or asks for what this node does not serve.
pub fn allocated(
    object: &ResourceClaim,
    asked: &dra::Claim,
    node: &str,
) -> Result<Allocated, String> {
    let claim = format!("{}/{}", asked.namespace, asked.name);
    let uid = object.metadata.uid.as_deref().unwrap_or_default();
    if uid != asked.uid {
        return Err(format!(
            "claim {claim} was deleted and created again: its UID is {uid}, the kubelet asks for {}",
            asked.uid
        ));
    }
    let alloc =
        AllocId::of_claim(uid).ok_or_else(|| format!("claim {claim}: UID {uid} is no UUID"))?;
    let status = object.status.as_ref();
    let devices = status
        .and_then(|status| status.allocation.as_ref())
        .and_then(|allocation| allocation.devices.as_ref())
        .ok_or_else(|| format!("claim {claim} is not allocated"))?;
    let result = ours(devices, &claim, node)?;
    let memory = memory(result, &claim)?;
    let reserved = status.and_then(|status| status.reserved_for.as_deref());
    let pod = consumer(reserved.unwrap_or_default(), &claim)?;
    let request = result.request.split('/').next().unwrap_or_default();
    Ok(Allocated {
        claim,
        name: asked.name.clone(),
        alloc,
        request: request.to_owned(),
        pool: result.pool.clone(),
        device: result.device.clone(),
        share_id: result.share_id.clone(),
        memory,
        namespace: asked.namespace.clone(),
        pod,
    })
}

/// The one device of this driver and node.
fn ours<'a>(
    devices: &'a DeviceAllocationResult,
    claim: &str,
    node: &str,
) -> Result<&'a DeviceRequestAllocationResult, String> {
    let configured = devices.config.iter().flatten().any(|config| {
        let opaque = config.opaque.as_ref();
        opaque.is_some_and(|opaque| opaque.driver == DRIVER)
    });
    if configured {
        return Err(format!(
            "claim {claim} has a configuration for {DRIVER}, which takes none: remove spec.devices.config"
        ));
    }
    let results = devices.results.iter().flatten();
    let mut ours = results.filter(|result| result.driver == DRIVER);
    let (Some(result), None) = (ours.next(), ours.next()) else {
        return Err(format!(
            "claim {claim} is allocated several devices of {DRIVER}, or none: ask for exactly one in a claim"
        ));
    };
    if result.admin_access == Some(true) {
        return Err(format!(
            "claim {claim} asks for adminAccess, which {DRIVER} does not give: remove it"
        ));
    }
    if result.pool != node {
        return Err(format!(
            "claim {claim} is allocated from pool {}, this node's is {node}",
            result.pool
        ));
    }
    Ok(result)
}

fn memory(result: &DeviceRequestAllocationResult, claim: &str) -> Result<Mib, String> {
    let consumed = result.consumed_capacity.as_ref();
    consumed
        .and_then(|consumed| consumed.get(words::MEMORY))
        .and_then(|amount| quantity::mib_up(&amount.0))
        .filter(|memory| memory.0 > 0)
        .ok_or_else(|| {
            format!(
                "the allocation of claim {claim} consumes no {} of device {}: it needs Kubernetes with the feature DRAConsumableCapacity, on by default from 1.36",
                words::MEMORY,
                result.device
            )
        })
}

/// Name and UID of the one pod that the claim is reserved for.
fn consumer(
    reserved: &[ResourceClaimConsumerReference],
    claim: &str,
) -> Result<(String, String), String> {
    let [consumer] = reserved else {
        return Err(format!(
            "claim {claim} is reserved for {} consumers: {DRIVER} gives a claim to exactly one pod; make one for each by a ResourceClaimTemplate",
            reserved.len()
        ));
    };
    let group = consumer.api_group.as_deref().unwrap_or_default();
    if consumer.resource != "pods" || !group.is_empty() {
        return Err(format!(
            "claim {claim} is reserved for {} {}, not for a pod",
            consumer.resource, consumer.name
        ));
    }
    Ok((consumer.name.clone(), consumer.uid.clone()))
}

/// What a claim was allocated, of every driver; `None` where it is not allocated.
pub(super) fn results(
    claim: &ResourceClaim,
) -> Option<impl Iterator<Item = &DeviceRequestAllocationResult>> {
    let allocation = claim.status.as_ref()?.allocation.as_ref()?;
    Some(allocation.devices.as_ref()?.results.iter().flatten())
}

/// A pod's claims: the name in the pod, and the object's, which is given or was made by a
/// template.
pub(super) fn claims_of(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
    let spec = pod.spec.as_ref();
    let claims = spec.and_then(|spec| spec.resource_claims.as_deref());
    let status = pod.status.as_ref();
    let made = status.and_then(|status| status.resource_claim_statuses.as_deref());
    claims.unwrap_or_default().iter().filter_map(move |of| {
        let mut made = made.unwrap_or_default().iter();
        let made = made.find(|made| made.name == of.name);
        let object = of.resource_claim_name.as_deref();
        let object = object.or_else(|| made?.resource_claim_name.as_deref());
        Some((of.name.as_str(), object?))
    })
}

/// The pod's container that gets the share.
///
/// # Errors
/// One sentence: the pod is another, must not have a share, or the share is not one
/// container's.
pub fn holder(
    pod: &Pod,
    allocated: &Allocated,
    node: &str,
) -> Result<(PodIdentity, String), String> {
    let claim = &allocated.claim;
    let (name, uid) = &allocated.pod;
    let identity = PodIdentity {
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        namespace: allocated.namespace.clone(),
        name: name.clone(),
    };
    if identity.uid != *uid {
        return Err(format!(
            "claim {claim} is reserved for pod {identity} with UID {uid}, and that pod's is {}",
            identity.uid
        ));
    }
    let spec = pod.spec.as_ref();
    let spec = spec.filter(|spec| spec.node_name.as_deref() == Some(node));
    let spec = spec.ok_or_else(|| {
        format!("claim {claim} is reserved for pod {identity}, which is not on node {node}")
    })?;
    let names: Vec<&str> = claims_of(pod)
        .filter(|(_, of)| *of == allocated.name)
        .map(|(name, _)| name)
        .collect();
    let takes = |container: &&Container| {
        let resources = container.resources.as_ref();
        let claims = resources.and_then(|resources| resources.claims.as_deref());
        let mut claims = claims.unwrap_or_default().iter();
        claims.any(|of| names.contains(&of.name.as_str()))
    };
    let all = || {
        spec.init_containers
            .iter()
            .flatten()
            .chain(&spec.containers)
    };
    let mut takers = all().filter(takes);
    let (Some(container), None) = (takers.next(), takers.next()) else {
        return Err(format!(
            "claim {claim} is used by several containers of pod {identity}, or by none: {DRIVER} gives a claim to exactly one container"
        ));
    };
    match walls::way_around(spec) {
        Some(way) => Err(format!(
            "pod {identity} must not have a share of a GPU: {way}"
        )),
        None => Ok((identity, container.name.clone())),
    }
}

/// What the ledger is asked for.
///
/// # Errors
/// One sentence: the device is no card of this node, or cannot be shared.
pub fn claim(
    state: &State,
    allocated: &Allocated,
    pod: PodIdentity,
    container: String,
) -> Result<Claim, String> {
    let mut cards = state.inventory.cards.iter();
    let card = cards
        .find(|card| slice::device_name(&card.uuid) == allocated.device)
        .ok_or_else(|| {
            format!(
                "claim {} is allocated device {}, which is no card of this node",
                allocated.claim, allocated.device
            )
        })?;
    let mode = mode_of(state, card).ok_or_else(|| {
        format!(
            "claim {}: card {} cannot be shared now",
            allocated.claim, card.uuid
        )
    })?;
    Ok(Claim {
        pod,
        container,
        gpus: vec![card.uuid.clone()],
        memory: allocated.memory,
        kept: allocated.memory,
        compute_percent: 100,
        mode,
        // By another scheduler.
        decision: String::new(),
        front: Front::Dra,
    })
}

#[cfg(test)]
mod tests;
