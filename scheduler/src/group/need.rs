//! Which pods need a group, and which of them must wait for it.

use super::rules::SPARK;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use proto::names::kai;

/// A pod of this scheduler that names no group yet. A pod that names one was put into it by a
/// person, by KAI or by us, and stays there.
pub(crate) fn is_ungrouped(pod: &Pod, scheduler: &str) -> bool {
    is_live(pod, scheduler) && group_of(pod).is_none()
}

/// The name of the group that a pod of this scheduler says it is in. If that group does not exist
/// and was ours, it is created again.
pub(super) fn is_in(pod: &Pod, scheduler: &str) -> Option<String> {
    let group = group_of(pod)?;
    is_live(pod, scheduler).then(|| group.to_owned())
}

/// Whether a pod is bound.
pub(super) fn is_bound(pod: &Pod) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    node.is_some_and(|node| !node.is_empty())
}

/// Whether a pod must not be placed before its group is decided, because its owners may say more
/// about it than the pod does. A pod without an owner is placed as a group of its own, which is
/// the group that it then gets.
///
/// `alone_too`: the admin may say more about such pods, too.
pub fn must_wait(pod: &Pod, scheduler: &str, alone_too: bool) -> bool {
    !is_bound(pod) && is_ungrouped(pod, scheduler) && (alone_too || !is_alone(pod))
}

/// Whether everything about a pod's group is in the pod itself. That is true of pods without an
/// owner, except for those that ask for what only groups have, and for Spark drivers and pods in a
/// `PodGroup` of Kubernetes, whose group other pods join.
pub(super) fn is_alone(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    pod.owner_references().is_empty()
        && spec.is_none_or(|spec| spec.scheduling_group.is_none())
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

/// Whether a pod belongs to this scheduler, and has neither ended nor is being deleted.
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
