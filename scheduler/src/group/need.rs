//! Which pods have to be grouped, and which of them must wait for it.

use super::rules::SPARK;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use proto::names::kai;

/// A pod of ours that is in no group yet. Who carries a group already was put there by a
/// person, by KAI or by us, and stays there.
pub(crate) fn is_ungrouped(pod: &Pod, scheduler: &str) -> bool {
    let spec = pod.spec.as_ref();
    let ours = spec.and_then(|spec| spec.scheduler_name.as_deref()) == Some(scheduler);
    let status = pod.status.as_ref();
    let over = matches!(
        status.and_then(|status| status.phase.as_deref()),
        Some("Succeeded" | "Failed")
    );
    let group = pod.annotations().get(kai::POD_GROUP);
    ours && !over && pod.metadata.deletion_timestamp.is_none() && group.is_none_or(String::is_empty)
}

/// The group that a pod of ours waits in, by name: where that is gone, it is made anew if it
/// was ours.
pub(super) fn waits_in(pod: &Pod, scheduler: &str) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let group = pod.annotations().get(kai::POD_GROUP)?;
    let waits = spec.scheduler_name.as_deref() == Some(scheduler)
        && spec.node_name.as_deref().is_none_or(str::is_empty)
        && pod.metadata.deletion_timestamp.is_none()
        && !group.is_empty();
    waits.then(|| group.clone())
}

/// Whether it may not be placed before it is in its group: its owner may say more about it
/// than the pod does. A pod that nobody owns says everything itself and is placed as a
/// group of its own, which is what it then becomes, unless it asks for what only groups have,
/// or is an application's driver, whose group others join.
pub fn must_wait(pod: &Pod, scheduler: &str) -> bool {
    let bound = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .is_some_and(|node| !node.is_empty());
    !bound
        && is_ungrouped(pod, scheduler)
        && (!pod.owner_references().is_empty()
            || SPARK.iter().all(|key| pod.labels().contains_key(*key))
            || pod
                .annotations()
                .keys()
                .any(|key| key.starts_with(kai::PREFIX)))
}
