//! Pods that name a `PodGroup` of Kubernetes itself (`spec.schedulingGroup`, KEP-4671).
//!
//! The group is one of KAI's with the same pods: as many as its policy `gang` says must be placed
//! at once. Queue, class and similar values are the workload's, by its own rule; values of the
//! object itself have precedence. KAI has this as a design only
//! (`docs/developer/designs/k8s-workload-api`).

use super::draft::{Classes, Draft, constraint_of, group_name};
use super::object::Object;
use super::rule::RuleError;
use proto::names::kai;

/// The API group of the object.
pub(super) const GROUP: &str = "scheduling.k8s.io";
/// Its kind.
pub(super) const KIND: &str = "PodGroup";

/// The name of the object that a pod is in.
pub(super) fn named(pod: &Object) -> Option<&str> {
    pod.text(&["spec", "schedulingGroup", "podGroupName"])
        .filter(|name| !name.is_empty())
}

/// The object, with the values that it takes from the pods' workload.
pub(super) fn with_workload(group: &Object, top: &Object) -> Object {
    let mut both = group.clone();
    both.inherit(top);
    both
}

/// Of a draft for the pod of such an object, the draft of the group.
pub(super) fn settle(
    group: &Object,
    mut draft: Draft,
    classes: &Classes,
) -> Result<Draft, RuleError> {
    if let Some(above) = group.text(&["spec", "parentCompositePodGroupName"]) {
        return Err(RuleError::of(
            group,
            format!("it is part of the CompositePodGroup {above}, which is not supported"),
        ));
    }
    draft.name = group_name(group.name(), group.uid());
    draft.min = min(group)?;
    let named = group.text(&["spec", "priorityClassName"]);
    if group.label(kai::PRIORITY_CLASS_LABEL).is_none()
        && let Some(class) = named.filter(|class| classes.contains(class))
    {
        class.clone_into(&mut draft.class);
    }
    if let Some(level) = level(group)? {
        let own = draft.topology.take().unwrap_or_default();
        let Some(topology) = own.topology.as_deref() else {
            return Err(RuleError::of(
                group,
                format!(
                    "its topology constraint {level} needs the annotation {}, which names the Topology with that level",
                    kai::TOPOLOGY
                ),
            ));
        };
        let preferred = own.preferred_topology_level.as_deref();
        draft.topology = constraint_of(Some(topology), Some(level), preferred);
    }
    Ok(draft)
}

/// How many pods must be placed at once: 1 where each may start alone.
fn min(group: &Object) -> Result<i64, RuleError> {
    let policy = group.fields(&["spec", "schedulingPolicy"]);
    let has = |name: &str| policy.is_some_and(|policy| policy.contains_key(name));
    match group.number(&["spec", "schedulingPolicy", "gang", "minCount"]) {
        Some(min) if min >= 1 => Ok(min),
        None if has("basic") => Ok(1),
        _ => Err(RuleError::of(
            group,
            "its schedulingPolicy is neither basic nor a gang with a minCount from 1 on",
        )),
    }
}

/// The level in a domain of which all its pods must be.
fn level(group: &Object) -> Result<Option<&str>, RuleError> {
    match group.list(&["spec", "schedulingConstraints", "topology"]) {
        [] => Ok(None),
        [one] => Ok(one.get("key").and_then(serde_json::Value::as_str)),
        _ => Err(RuleError::of(
            group,
            "more than one topology constraint is not supported",
        )),
    }
}
