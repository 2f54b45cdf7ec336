//! Which pods have to be grouped, and which of them must wait for it.

use super::rules::SPARK;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use proto::names::kai;

/// A pod of ours that is in no group yet. Who carries a group already was put there by a
/// person, by KAI or by us, and stays there.
pub(crate) fn is_ungrouped(pod: &Pod, scheduler: &str) -> bool {
    is_live(pod, scheduler) && group_of(pod).is_none()
}

/// The group that a pod of ours says it is in, by name: where that is not there, it is made
/// anew if it was ours.
pub(super) fn is_in(pod: &Pod, scheduler: &str) -> Option<String> {
    let group = group_of(pod)?;
    is_live(pod, scheduler).then(|| group.to_owned())
}

/// Whether a pod stands on a node.
pub(super) fn is_bound(pod: &Pod) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    node.is_some_and(|node| !node.is_empty())
}

/// Whether it may not be placed before its group is decided: its owner may say more about it
/// than the pod does. A pod alone is placed as a group of its own, which is what it then
/// becomes.
pub fn must_wait(pod: &Pod, scheduler: &str) -> bool {
    !is_bound(pod) && is_ungrouped(pod, scheduler) && !is_alone(pod)
}

/// A pod that nobody owns says everything itself, unless it asks for what only groups have, or
/// is an application's driver, whose group others join.
pub(super) fn is_alone(pod: &Pod) -> bool {
    pod.owner_references().is_empty()
        && !SPARK.iter().all(|key| pod.labels().contains_key(*key))
        && !pod
            .annotations()
            .keys()
            .any(|key| key.starts_with(kai::PREFIX))
}

fn group_of(pod: &Pod) -> Option<&str> {
    let group = pod.annotations().get(kai::POD_GROUP)?;
    (!group.is_empty()).then_some(group)
}

/// Ours, and neither over nor on its way out.
fn is_live(pod: &Pod, scheduler: &str) -> bool {
    let spec = pod.spec.as_ref();
    let ours = spec.and_then(|spec| spec.scheduler_name.as_deref()) == Some(scheduler);
    ours && !is_over(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// Whether all its containers have ended.
pub(super) fn is_over(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
