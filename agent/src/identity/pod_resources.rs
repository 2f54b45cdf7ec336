//! `PodResources`: what it confirms, and what it can identify alone.

use super::{Holder, IdentityError};
use crate::ledger::{AllocId, HolderKey};
use crate::pods::{ContainerKind, PodView};
use crate::resource::Resource;
use proto::podresources::PodResources;
use std::collections::BTreeSet;

/// Whether `PodResources` contradicts a holder. It does not list ordinary init containers, so it
/// cannot confirm or contradict these.
///
/// # Errors
/// [`IdentityError::Contradicted`].
pub fn contradicts(
    pod: &PodView,
    container: &str,
    resource: Resource,
    ids: &BTreeSet<String>,
    listed: Option<&PodResources>,
) -> Result<(), IdentityError> {
    let init = pod
        .container(container)
        .is_some_and(|c| c.kind == ContainerKind::Init);
    let agrees = listed.is_some_and(|listed| {
        listed
            .containers
            .iter()
            .any(|c| c.name == container && device_ids(c, resource) == *ids)
    });
    if init || agrees {
        return Ok(());
    }
    Err(IdentityError::Contradicted {
        pod: pod.identity.to_string(),
        container: container.to_owned(),
    })
}

/// Without a checkpoint: the one container that `PodResources` lists with these IDs. `allocated`
/// returns the allocation that the kubelet has for it.
///
/// # Errors
/// [`IdentityError::Ambiguous`] wherever two readings are possible, an init container's included.
pub fn by_list(
    pods: &[&PodView],
    listed: &[PodResources],
    resource: Resource,
    ids: &BTreeSet<String>,
    allocated: impl FnOnce(&HolderKey) -> Option<AllocId>,
) -> Result<Holder, IdentityError> {
    let mut found = listed.iter().flat_map(|pod| {
        pod.containers
            .iter()
            .filter(|c| device_ids(c, resource) == *ids)
            .map(move |c| (pod, c))
    });
    let (listed, container) = found.next().ok_or(IdentityError::NotRecorded)?;
    let pod = pods
        .iter()
        .find(|pod| pod.identity.namespace == listed.namespace && pod.identity.name == listed.name)
        .ok_or_else(|| {
            IdentityError::PodUnknown(format!("{}/{}", listed.namespace, listed.name))
        })?;
    let key = HolderKey {
        pod_uid: pod.identity.uid.clone(),
        container: container.name.clone(),
    };
    let init =
        (pod.containers.iter()).any(|c| c.kind == ContainerKind::Init && c.tokens.max(c.whole) > 0);
    let one = found.next().is_none() && !init;
    match allocated(&key).filter(|_| one) {
        Some(alloc) => Ok(Holder {
            pod_uid: key.pod_uid,
            container: key.container,
            alloc,
        }),
        None => Err(IdentityError::Ambiguous {
            pod: pod.identity.to_string(),
            uid: pod.identity.uid.clone(),
        }),
    }
}

/// The kubelet gives one entry per ID.
fn device_ids(
    container: &proto::podresources::ContainerResources,
    resource: Resource,
) -> BTreeSet<String> {
    container
        .devices
        .iter()
        .filter(|devices| devices.resource_name == resource.name())
        .flat_map(|devices| devices.device_ids.iter().cloned())
        .collect()
}
