//! The group as an object, and what has to change in an existing one. Pure.
//!
//! A person may edit a group's queue, node pool, `markUnschedulable` and `schedulingBackoff`: these
//! are written when the group is created and never again. So is a topology constraint, unless the
//! workload itself names a topology.

use super::draft::Draft;
use super::object::Reference;
use api::PodGroup;
use api::kai::PodGroupSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use proto::names::kai;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The group as it is created.
pub(super) fn group(draft: &Draft) -> PodGroup {
    let some = |map: &BTreeMap<String, String>| (!map.is_empty()).then(|| map.clone());
    PodGroup {
        metadata: ObjectMeta {
            name: Some(draft.name.clone()),
            namespace: Some(draft.namespace.clone()),
            labels: some(&draft.labels),
            annotations: some(&draft.annotations),
            owner_references: Some(vec![owner(&draft.owner)]),
            ..ObjectMeta::default()
        },
        spec: PodGroupSpec {
            // KAI's definitions of pod groups demand at least one.
            min_member: (draft.min_parts.is_none())
                .then(|| i32::try_from(draft.min.max(1)).unwrap_or(i32::MAX)),
            min_sub_group: draft
                .min_parts
                .map(|min| i32::try_from(min.max(0)).unwrap_or(i32::MAX)),
            queue: Some(draft.queue.clone()),
            priority_class_name: Some(draft.class.clone()),
            preemptibility: draft.preemptibility.clone(),
            topology_constraint: draft.topology.clone(),
            sub_groups: draft.sub_groups.clone(),
            ..PodGroupSpec::default()
        },
        status: None,
    }
}

fn owner(owner: &Reference) -> OwnerReference {
    OwnerReference {
        api_version: owner.api_version.clone(),
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
        ..OwnerReference::default()
    }
}

/// The patch that brings an existing group up to date, or nothing if it is.
pub(super) fn change(found: &PodGroup, wanted: &PodGroup) -> Option<Value> {
    let mut meta = Map::new();
    let kept = [kai::NODE_POOL_LABEL, kai::QUEUE_LABEL, kai::QUEUE_LABEL_OLD];
    let labels = news(
        found.metadata.labels.as_ref(),
        wanted.metadata.labels.as_ref(),
        &kept,
    );
    let annotations = news(
        found.metadata.annotations.as_ref(),
        wanted.metadata.annotations.as_ref(),
        &[],
    );
    for (field, pairs) in [("labels", labels), ("annotations", annotations)] {
        if !pairs.is_empty() {
            meta.insert(field.to_owned(), Value::Object(pairs));
        }
    }
    if found.metadata.owner_references != wanted.metadata.owner_references {
        meta.insert(
            "ownerReferences".to_owned(),
            json!(wanted.metadata.owner_references),
        );
    }
    let mut spec = Map::new();
    let (old, new) = (&found.spec, &wanted.spec);
    let mut differs = |field: &str, same: bool, value: Value| {
        if !same {
            spec.insert(field.to_owned(), value);
        }
    };
    differs(
        "minMember",
        old.min_member == new.min_member,
        json!(new.min_member),
    );
    differs(
        "minSubGroup",
        old.min_sub_group == new.min_sub_group,
        json!(new.min_sub_group),
    );
    differs(
        "priorityClassName",
        old.priority_class_name == new.priority_class_name,
        json!(new.priority_class_name),
    );
    differs(
        "preemptibility",
        old.preemptibility.as_deref().unwrap_or_default()
            == new.preemptibility.as_deref().unwrap_or_default(),
        json!(new.preemptibility),
    );
    let named = |spec: &PodGroupSpec| {
        let constraint = spec.topology_constraint.as_ref();
        constraint.is_some_and(|it| it.topology.as_ref().is_some_and(|name| !name.is_empty()))
    };
    differs(
        "topologyConstraint",
        !named(new)
            || old.topology_constraint.clone().unwrap_or_default()
                == new.topology_constraint.clone().unwrap_or_default(),
        // With null for levels that are no longer asked for: a merge would keep them.
        json!(new.topology_constraint.as_ref().map(|constraint| json!({
            "topology": constraint.topology,
            "requiredTopologyLevel": constraint.required_topology_level,
            "preferredTopologyLevel": constraint.preferred_topology_level,
        }))),
    );
    differs(
        "subGroups",
        old.sub_groups == new.sub_groups,
        json!(new.sub_groups),
    );
    if meta.is_empty() && spec.is_empty() {
        return None;
    }
    // The patch fails if the group has been changed since it was read.
    meta.insert(
        "resourceVersion".to_owned(),
        json!(found.metadata.resource_version),
    );
    Some(json!({"metadata": meta, "spec": spec}))
}

/// The wanted pairs that are missing or have another value.
fn news(
    found: Option<&BTreeMap<String, String>>,
    wanted: Option<&BTreeMap<String, String>>,
    kept: &[&str],
) -> Map<String, Value> {
    let same = |key: &String, value: &String| found.and_then(|map| map.get(key)) == Some(value);
    wanted
        .into_iter()
        .flatten()
        .filter(|(key, value)| !kept.contains(&key.as_str()) && !same(key, value))
        .map(|(key, value)| (key.clone(), Value::String(value.clone())))
        .collect()
}
