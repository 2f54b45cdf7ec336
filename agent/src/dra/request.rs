//! An allocated `ResourceClaim` → the request to the ledger. Pure.
//!
//! The authority is the claim's allocation, as the API server has it: the kubelet's call names the
//! claim and nothing else. Unsupported claims are refused, each with one sentence, which the
//! kubelet shows in the pod's events.

use crate::ledger::AllocId;
use crate::node::claims::parts::{Allocated, Config, Device};
use api::ShareConfig;
use api::quantity;
use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceAllocationResult, DeviceRequestAllocationResult,
    ResourceClaim, ResourceClaimConsumerReference,
};
use proto::dra;
use proto::names::dra::{self as words, DRIVER};
use std::collections::{BTreeMap, BTreeSet};

/// `source` of a configuration that its `DeviceClass` has.
const FROM_CLASS: &str = "FromClass";

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
    let reserved = status.and_then(|status| status.reserved_for.as_deref());
    Ok(Allocated {
        uid: uid.to_owned(),
        alloc,
        namespace: asked.namespace.clone(),
        name: asked.name.clone(),
        devices: ours(devices, &claim, node)?,
        reserved: consumers(reserved.unwrap_or_default(), &claim)?,
    })
}

/// The devices of this driver and node.
fn ours(
    allocation: &DeviceAllocationResult,
    claim: &str,
    node: &str,
) -> Result<Vec<Device>, String> {
    let results = allocation.results.iter().flatten();
    let ours = results.filter(|result| result.driver == DRIVER);
    let devices: Vec<Device> = ours
        .map(|result| device(allocation, result, claim, node))
        .collect::<Result<_, _>>()?;
    if devices.is_empty() {
        return Err(format!("claim {claim} is allocated no device of {DRIVER}"));
    }
    Ok(devices)
}

fn device(
    allocation: &DeviceAllocationResult,
    result: &DeviceRequestAllocationResult,
    claim: &str,
    node: &str,
) -> Result<Device, String> {
    if result.pool != node {
        return Err(format!(
            "claim {claim} is allocated from pool {}, this node's is {node}",
            result.pool
        ));
    }
    let consumed = result.consumed_capacity.as_ref();
    let memory = consumed.and_then(|consumed| consumed.get(words::MEMORY));
    let request = result.request.split('/').next().unwrap_or_default();
    Ok(Device {
        request: request.to_owned(),
        pool: result.pool.clone(),
        device: result.device.clone(),
        share_id: result.share_id.clone(),
        memory: memory.and_then(|amount| quantity::mib_up(&amount.0)),
        observes: result.admin_access == Some(true),
        config: config(allocation, &result.request, claim)?,
    })
}

/// What class and claim configure for a request, the claim last. One that names the main request
/// is for each of its subrequests.
fn config(
    allocation: &DeviceAllocationResult,
    request: &str,
    claim: &str,
) -> Result<Config, String> {
    let mut all = Config::default();
    let main = request.split('/').next().unwrap_or_default();
    let for_this = |config: &&DeviceAllocationConfiguration| {
        let mut requests = config.requests.iter().flatten().peekable();
        requests.peek().is_none() || requests.any(|of| of == request || of == main)
    };
    let configs = allocation.config.iter().flatten();
    let mut configs: Vec<_> = configs.filter(for_this).collect();
    configs.sort_by_key(|config| config.source != FROM_CLASS);
    for config in configs {
        let opaque = config.opaque.as_ref();
        let Some(opaque) = opaque.filter(|opaque| opaque.driver == DRIVER) else {
            continue;
        };
        let one = ShareConfig::parse(&opaque.parameters.0)
            .map_err(|why| format!("claim {claim}: {why}"))?;
        all.mode = one.mode.or(all.mode);
        all.compute_percent = one.compute_percent.or(all.compute_percent);
        // Strongest first: neither takes away what the other asks for.
        let minima = [all.minimum_fence, one.minimum_fence];
        all.minimum_fence = minima.into_iter().flatten().min();
        let reaction = if config.source == FROM_CLASS {
            &mut all.on_violation
        } else {
            &mut all.at_least
        };
        *reaction = one.on_violation.or(*reaction);
    }
    Ok(all)
}

/// The pods that the claim is reserved for: by UID their names.
fn consumers(
    reserved: &[ResourceClaimConsumerReference],
    claim: &str,
) -> Result<BTreeMap<String, String>, String> {
    if reserved.is_empty() {
        return Err(format!("claim {claim} is reserved for no pod"));
    }
    let mut pods = BTreeMap::new();
    for consumer in reserved {
        let group = consumer.api_group.as_deref().unwrap_or_default();
        if consumer.resource != "pods" || !group.is_empty() {
            return Err(format!(
                "claim {claim} is reserved for {} {}, not for a pod",
                consumer.resource, consumer.name
            ));
        }
        pods.insert(consumer.uid.clone(), consumer.name.clone());
    }
    Ok(pods)
}

/// The UIDs of the pods that the claim of this UID is reserved for; `None`: it is another claim,
/// or not allocated.
pub fn reserved_for(object: &ResourceClaim, uid: &str) -> Option<BTreeSet<String>> {
    (object.metadata.uid.as_deref() == Some(uid)).then_some(())?;
    let status = object.status.as_ref()?;
    status.allocation.as_ref()?;
    let consumers = consumers(status.reserved_for.as_deref().unwrap_or_default(), "").ok()?;
    Some(consumers.into_keys().collect())
}

/// What a claim was allocated, of every driver; `None` where it is not allocated.
pub(super) fn results(
    claim: &ResourceClaim,
) -> Option<impl Iterator<Item = &DeviceRequestAllocationResult>> {
    let allocation = claim.status.as_ref()?.allocation.as_ref()?;
    Some(allocation.devices.as_ref()?.results.iter().flatten())
}

#[cfg(test)]
mod tests;
