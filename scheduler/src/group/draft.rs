//! What all groups have in common: the name, inherited labels and annotations, the queue, the class.
//!
//! Follows KAI's `pkg/podgrouper/podgrouper/plugins/defaultgrouper`, in the same order of precedence.
//! Comments say where KAI copies something that is left out here.

use super::object::{Object, Reference, at};
use super::types::Types;
use api::kai::{SubGroup, TopologyConstraint};
use proto::names::kai;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// KAI's default class.
pub(super) const TRAIN: &str = "train";
/// Of notebooks.
pub(super) const BUILD: &str = "build";
/// Of servers.
pub(super) const INFERENCE: &str = "inference";

/// Label and annotation with the user of a workload; copied to the group.
const USER: &str = "user";
/// Annotation of a group: its top owner.
const TOP_OWNER: &str = kai::TOP_OWNER;
/// Annotations: the topology domain in which a group must or should be placed together.
pub(super) const TOPOLOGY: &str = kai::TOPOLOGY;
pub(super) const REQUIRED: &str = kai::TOPOLOGY_REQUIRED;
pub(super) const PREFERRED: &str = kai::TOPOLOGY_PREFERRED;

/// Longest name of an object (RFC 1123 subdomain).
const MAX_NAME: usize = 253;

/// The priority classes that exist, and the defaults of types of owners.
#[derive(Clone, Debug, Default)]
pub(super) struct Classes {
    pub(super) names: Arc<BTreeSet<String>>,
    pub(super) types: Arc<Types>,
}

impl Classes {
    pub(super) fn contains(&self, name: &str) -> bool {
        self.names.contains(name)
    }
}

/// A pod group as it should be, and the sub-group of the pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Draft {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) owner: Reference,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) queue: String,
    pub(super) class: String,
    pub(super) preemptibility: Option<String>,
    /// How many pods must be placed at once.
    pub(super) min: i64,
    /// How many of the sub-groups without a parent must be; then `min` says nothing.
    pub(super) min_parts: Option<i64>,
    pub(super) topology: Option<TopologyConstraint>,
    pub(super) sub_groups: Vec<SubGroup>,
    /// The pod's sub-group; none if the group has no sub-groups, or the pod is in none of them.
    pub(super) part: Option<String>,
}

impl Draft {
    /// A group of one pod at least for `top`. Class and similar values come from `owners`, in this
    /// order, then the pod.
    pub(super) fn of(
        top: &Object,
        owners: &[&Object],
        pod: &Object,
        classes: &Classes,
        default_class: &str,
    ) -> Self {
        let mut annotations = inherited(top, "annotations");
        for key in [kai::PREEMPTION_DELAY, kai::STALENESS_GRACE] {
            if let Some(length) = first(owners, pod, |object| object.annotation(key)) {
                annotations.insert(key.to_owned(), length.to_owned());
            }
        }
        if let Some(user) = pod.annotation(USER) {
            annotations
                .entry(USER.to_owned())
                .or_insert(user.to_owned());
        }
        annotations.insert(TOP_OWNER.to_owned(), top_owner(&top.reference()));
        let mut labels = inherited(top, "labels");
        for key in [USER, kai::NODE_POOL_LABEL] {
            if let Some(value) = pod.label(key) {
                labels.entry(key.to_owned()).or_insert(value.to_owned());
            }
        }
        Self {
            namespace: pod.namespace().to_owned(),
            name: group_name(top.name(), top.uid()),
            owner: top.reference(),
            labels,
            annotations,
            queue: queue(top, pod),
            class: class(owners, pod, classes).unwrap_or_else(|| default_class.to_owned()),
            preemptibility: first(owners, pod, preemptibility)
                .map(str::to_owned)
                .or_else(|| {
                    let mut owners = owners.iter().map(|owner| owner.reference());
                    owners.find_map(|owner| classes.types.preemptibility(&owner))
                }),
            min: 1,
            min_parts: None,
            topology: constraint(|key| top.annotation(key)),
            sub_groups: Vec::new(),
            part: None,
        }
    }

    /// The same for a group of one pod: the pod owns the group and gives it its name.
    pub(super) fn of_pod_alone(mut self, pod: &Object) -> Self {
        self.name = group_name(pod.name(), pod.uid());
        self.owner = pod.reference();
        self.min = 1;
        self.min_parts = None;
        self.sub_groups.clear();
        self.part = None;
        self
    }
}

/// The name of the group of a pod without an owner.
pub(crate) fn name_of_pod_alone(name: &str, uid: &str) -> String {
    group_name(name, uid)
}

/// `pg-<owner>-<uid>`; the owner's name is cut where the whole would be too long.
pub(super) fn group_name(name: &str, uid: &str) -> String {
    let room = MAX_NAME.saturating_sub("pg--".len() + uid.len());
    let mut end = room.min(name.len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let name = name.get(..end).unwrap_or_default();
    format!("pg-{name}-{uid}")
}

/// Three annotations, or the same three of a template; none of them: no constraint.
pub(super) fn constraint<'a>(
    annotation: impl Fn(&'static str) -> Option<&'a str>,
) -> Option<TopologyConstraint> {
    constraint_of(
        annotation(TOPOLOGY),
        annotation(REQUIRED),
        annotation(PREFERRED),
    )
}

/// The same from values.
pub(super) fn constraint_of(
    topology: Option<&str>,
    required: Option<&str>,
    preferred: Option<&str>,
) -> Option<TopologyConstraint> {
    let constraint = TopologyConstraint {
        topology: topology.map(str::to_owned),
        required_topology_level: required.map(str::to_owned),
        preferred_topology_level: preferred.map(str::to_owned),
    };
    (constraint != TopologyConstraint::default()).then_some(constraint)
}

/// An annotation of a pod template.
pub(super) fn template_annotation<'a>(template: &'a Value, key: &str) -> Option<&'a str> {
    at(template, &["metadata", "annotations", key])?
        .as_str()
        .filter(|text| !text.is_empty())
}

/// A sub-group of pods, without a parent.
pub(super) fn part(name: &str, min: i64) -> SubGroup {
    SubGroup {
        name: name.to_owned(),
        min_member: Some(i32::try_from(min.max(0)).unwrap_or(i32::MAX)),
        ..SubGroup::default()
    }
}

/// Sub-groups with a parent say that it is one of sub-groups, all of which are needed.
pub(super) fn raise(parts: &mut [SubGroup]) {
    for at in 0..parts.len() {
        let children = parts
            .iter()
            .filter(|child| child.parent.as_ref() == Some(&parts[at].name))
            .count();
        if children > 0 {
            parts[at].min_member = None;
            parts[at].min_sub_group = i32::try_from(children).ok();
        }
    }
}

/// How many pods all sub-groups need together.
pub(super) fn total(parts: &[SubGroup]) -> i64 {
    let of = |part: &SubGroup| part.min_member.map_or(0, i64::from);
    parts.iter().map(of).sum()
}

/// Labels or annotations that a group takes from its owner. Left out are kubectl's copy of the
/// object, our own annotations of pods, and those that describe a running group.
fn inherited(top: &Object, field: &str) -> BTreeMap<String, String> {
    let others = [
        "kubectl.kubernetes.io/last-applied-configuration",
        "deployment.kubernetes.io/revision",
        kai::LAST_START,
        kai::STALE_SINCE,
        kai::LAST_EVICTION,
        kai::POD_GROUP,
        kai::SUB_GROUP_LABEL,
    ];
    top.pairs(field)
        .filter(|(key, _)| {
            !others.contains(key)
                && !key.starts_with("aliquot.dev/")
                && !key.starts_with("runai-gpu-group")
        })
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// The first of these: the queue that a placed pod is charged to, the label of the owner, the
/// label of the pod, the project with the pod's node pool, the default queue.
fn queue(top: &Object, pod: &Object) -> String {
    // The label may have been changed since the pod was placed.
    let granted = pod
        .annotation(proto::names::grant::GRANT)
        .and_then(|text| api::grant::Grant::peek(text).ok())
        .filter(|grant| grant.pod.uid == pod.uid());
    if let Some(queue) = granted.and_then(|grant| grant.queue) {
        return queue;
    }
    let either = |key: &str| top.label(key).or_else(|| pod.label(key));
    let named = either(kai::QUEUE_LABEL).or_else(|| either(kai::QUEUE_LABEL_OLD));
    if let Some(queue) = named {
        return queue.to_owned();
    }
    let Some(project) = either(kai::PROJECT_LABEL) else {
        return kai::DEFAULT_QUEUE.to_owned();
    };
    match pod.label(kai::NODE_POOL_LABEL) {
        Some(pool) => format!("{project}-{pool}"),
        None => project.to_owned(),
    }
}

/// The first priority class that exists: from labels of the owners, labels of the pod, its spec,
/// the types of the owners.
fn class(owners: &[&Object], pod: &Object, classes: &Classes) -> Option<String> {
    let own = owners
        .iter()
        .chain([&pod])
        .filter_map(|object| object.label(kai::PRIORITY_CLASS_LABEL))
        .chain(pod.text(&["spec", "priorityClassName"]));
    let of_type = owners
        .iter()
        .filter_map(|owner| classes.types.class(&owner.reference()));
    own.chain(of_type)
        .find(|name| classes.contains(name))
        .map(str::to_owned)
}

/// One of them; others are ignored.
pub(super) fn preemptibility(object: &Object) -> Option<&str> {
    object
        .label(kai::PREEMPTIBILITY_LABEL)
        .filter(|word| kai::PREEMPTIBILITIES.contains(word))
}

fn first<'a>(
    owners: &[&'a Object],
    pod: &'a Object,
    of: impl Fn(&'a Object) -> Option<&'a str>,
) -> Option<&'a str> {
    owners.iter().copied().chain([pod]).find_map(of)
}

/// KAI writes it as YAML.
fn top_owner(owner: &Reference) -> String {
    let scalar = |text: &str| {
        let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
        let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
            && !words.contains(&text.to_ascii_lowercase().as_str());
        if plain {
            text.to_owned()
        } else {
            json!(text).to_string()
        }
    };
    format!(
        "name: {}\nuid: {}\ngroup: {}\nversion: {}\nkind: {}\n",
        scalar(&owner.name),
        scalar(&owner.uid),
        scalar(owner.group()),
        scalar(owner.version()),
        scalar(&owner.kind),
    )
}
