//! `ResourceClaim`s: what each requests, has, and for which pods it is reserved.

use super::super::rules;
use super::pools::amounts;
use super::stand_in;
use k8s_openapi::api::core::v1::Pod as KubePod;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim, ResourceClaimSpec};
use kube::ResourceExt as _;
use proto::names::kai;
use scheduler_core::Event;
use scheduler_core::ids::{ClaimUid, PoolName};
use scheduler_core::model::{AllocatedDevice, Allocation, DeviceClaim};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a claim has.
#[derive(Clone, Debug, PartialEq)]
struct Has {
    devices: Arc<[AllocatedDevice]>,
    nodes: Option<Arc<[scheduler_core::model::NodeTerm]>>,
}

/// A claim, as far as it matters.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Claim {
    pub uid: ClaimUid,
    /// UID of the pod that it was made for.
    pub made_for: Option<String>,
    pub leaving: bool,
    pub spec: ResourceClaimSpec,
    /// Its label.
    pub queue: Option<String>,
    has: Option<Has>,
    /// UIDs of the pods for which it is reserved.
    consumers: BTreeSet<String>,
}

impl Claim {
    fn of(claim: &ResourceClaim, queue_label: &str) -> Self {
        let owners = claim.owner_references().iter();
        let mut made_for = owners.filter(|one| one.kind == "Pod" && one.controller == Some(true));
        let status = claim.status.as_ref();
        let reserved = status.and_then(|status| status.reserved_for.as_deref());
        let allocation = status.and_then(|status| status.allocation.as_ref());
        let label = |key: &str| claim.labels().get(key).cloned();
        Self {
            uid: stand_in::uid_of(&claim.metadata),
            made_for: made_for.next().map(|owner| owner.uid.clone()),
            leaving: claim.metadata.deletion_timestamp.is_some(),
            queue: label(queue_label).or_else(|| label(kai::QUEUE_LABEL)),
            spec: claim.spec.clone().unwrap_or_default(),
            has: allocation.map(has),
            consumers: reserved
                .unwrap_or_default()
                .iter()
                .map(|one| one.uid.clone())
                .collect(),
        }
    }

    pub(super) fn is_allocated(&self) -> bool {
        self.has.is_some()
    }

    /// Its first device, where it has some.
    pub(super) fn devices(&self) -> &[AllocatedDevice] {
        self.has.as_ref().map_or(&[], |has| &has.devices)
    }

    /// UIDs of the pods for which it is reserved.
    pub(super) fn consumers(&self) -> impl Iterator<Item = &String> {
        self.consumers.iter()
    }

    /// No more pods can use it.
    pub(super) fn is_full(&self, pod: &str) -> bool {
        self.consumers.len() >= DeviceClaim::MOST_USERS && !self.consumers.contains(pod)
    }
}

fn has(allocation: &AllocationResult) -> Has {
    let devices = allocation.devices.iter();
    let results = devices.flat_map(|devices| devices.results.iter().flatten());
    let devices = results.map(|one| AllocatedDevice {
        request: Arc::from(one.request.as_str()),
        device: PoolName::new(&one.driver, &one.pool).device(&one.device),
        admin: one.admin_access == Some(true),
        consumed: (one.consumed_capacity.as_ref())
            .map(|consumed| amounts(consumed.iter()))
            .or_else(|| one.share_id.as_ref().map(|_| BTreeMap::new())),
    });
    let nodes = allocation.node_selector.as_ref();
    Has {
        devices: devices.collect(),
        nodes: nodes.map(|selector| {
            selector
                .node_selector_terms
                .iter()
                .map(rules::term)
                .collect()
        }),
    }
}

/// All claims, and what the core was told of them.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// By namespace and name.
    of: BTreeMap<String, Claim>,
    /// Claims that are reserved for a pod, by its UID.
    reserved: BTreeMap<String, BTreeSet<String>>,
    /// Pods that have ended and for which claims are still reserved.
    ended: BTreeSet<String>,
    told: BTreeMap<ClaimUid, Allocation>,
}

impl Claims {
    pub(super) fn get(&self, name: &str) -> Option<&Claim> {
        self.of.get(name)
    }

    /// A claim is there, or another than before. `None`: it is as it was.
    pub(super) fn claim(
        &mut self,
        object: &ResourceClaim,
        queue_label: &str,
    ) -> Option<Vec<Event>> {
        let name = name_of(object);
        let claim = Claim::of(object, queue_label);
        if self.of.get(&name) == Some(&claim) {
            return None;
        }
        // One of the same name that was deleted in between.
        let mut events = match self.of.get(&name) {
            Some(old) if old.uid != claim.uid => self.gone(&name),
            _ => Vec::new(),
        };
        self.forget_consumers(&name);
        for pod in &claim.consumers {
            let claims = self.reserved.entry(pod.clone()).or_default();
            claims.insert(name.clone());
        }
        self.of.insert(name.clone(), claim);
        let reserved = &self.reserved;
        self.ended.retain(|pod| reserved.contains_key(pod));
        events.extend(self.tell(&name));
        Some(events)
    }

    pub(super) fn gone(&mut self, name: &str) -> Vec<Event> {
        self.forget_consumers(name);
        let reserved = &self.reserved;
        self.ended.retain(|pod| reserved.contains_key(pod));
        let Some(claim) = self.of.remove(name) else {
            return Vec::new();
        };
        let known = self.told.remove(&claim.uid);
        known.map(|_| Event::Freed(claim.uid)).into_iter().collect()
    }

    fn forget_consumers(&mut self, name: &str) {
        let before = self.of.get(name).map(|claim| claim.consumers.clone());
        for pod in before.into_iter().flatten() {
            if let Some(claims) = self.reserved.get_mut(&pod) {
                claims.remove(name);
                if claims.is_empty() {
                    self.reserved.remove(&pod);
                }
            }
        }
    }

    /// A pod has ended or is gone: Kubernetes' controller is about to take its claims from it.
    pub(super) fn pod_ended(&mut self, uid: &str) -> Vec<Event> {
        let Some(claims) = self.reserved.get(uid).cloned() else {
            return Vec::new();
        };
        if !self.ended.insert(uid.to_owned()) {
            return Vec::new();
        }
        claims.iter().filter_map(|name| self.tell(name)).collect()
    }

    /// It is there, whatever was said before.
    pub(super) fn pod_there(&mut self, uid: &str) -> Vec<Event> {
        if !self.ended.remove(uid) {
            return Vec::new();
        }
        let claims = self.reserved.get(uid).cloned().unwrap_or_default();
        claims.iter().filter_map(|name| self.tell(name)).collect()
    }

    /// What the core does not know of the claim yet.
    fn tell(&mut self, name: &str) -> Option<Event> {
        let claim = self.of.get(name)?;
        let Some(has) = &claim.has else {
            let known = self.told.remove(&claim.uid);
            return known.map(|_| Event::Freed(claim.uid.clone()));
        };
        let is_there = |pod: &&String| !self.ended.contains(*pod);
        let consumers = claim.consumers.iter().filter(is_there).count();
        let allocation = Allocation {
            claim: claim.uid.clone(),
            devices: Arc::clone(&has.devices),
            nodes: has.nodes.clone(),
            consumers: u32::try_from(consumers).unwrap_or(u32::MAX),
            leaving: consumers == 0 && !claim.consumers.is_empty(),
        };
        if self.told.get(&claim.uid) == Some(&allocation) {
            return None;
        }
        self.told.insert(claim.uid.clone(), allocation.clone());
        Some(Event::Allocated(allocation))
    }
}

/// Namespace and name.
pub(super) fn name_of(claim: &ResourceClaim) -> String {
    format!(
        "{}/{}",
        claim.namespace().unwrap_or_default(),
        claim.name_any()
    )
}

/// One claim of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// Namespace and name.
    pub claim: String,
    /// It has to be made for the pod.
    pub own: bool,
}

/// The claims of a pod; one that has no name yet as what it is called in the pod.
pub(super) fn named(pod: &KubePod) -> Vec<Result<Named, String>> {
    let namespace = pod.namespace().unwrap_or_default();
    let claims = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.resource_claims.as_ref());
    let status = pod.status.as_ref();
    let made = status.and_then(|status| status.resource_claim_statuses.as_deref());
    let made = made.unwrap_or_default();
    let name = |name: &String, own| Named {
        claim: format!("{namespace}/{name}"),
        own,
    };
    let claims = claims.into_iter().flatten().filter_map(|one| {
        if let Some(by_name) = &one.resource_claim_name {
            return Some(Ok(name(by_name, false)));
        }
        let Some(made) = made.iter().find(|made| made.name == one.name) else {
            return Some(Err(one.name.clone()));
        };
        // Without a name: none was needed.
        let claim = made.resource_claim_name.as_ref()?;
        Some(Ok(name(claim, true)))
    });
    claims.collect()
}
