//! KAI's queues, pod groups and topologies → the core's.
//!
//! Units: GPUs → nano-GPU, millicores stay, MB of 10^6 bytes → bytes; -1 is unlimited.

use super::classes::Class;
use super::duration::{duration, whole};
use super::idle_rule::IdleRule;
use crate::limits::Limits;
use api::gpu_quota::ProductBounds;
use api::kai;
use kube::ResourceExt as _;
use proto::names::kai as names;
use proto::names::queue::QUOTA_BY_PRODUCT;
use scheduler_core::ids::{GroupName, QueueName, SetName, TopologyName};
use scheduler_core::model::{
    Grace, PodGroup, PodSet, Preemptibility, ProductQuota, ProductUnit, Queue, QueueResource,
    SubGroup, Topology, TopologyRule, Weight,
};
use scheduler_core::units::{Bound, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Ends the sentence about a group that is not tried again.
const PARKED: &str = " (schedulingBackoff: 1, so that it is not tried again in this node pool until the condition UnschedulableOnNodePool is deleted)";
/// The priority of a queue that does not set one.
const QUEUE_PRIORITY: i32 = 100;
/// Work of a lower priority may be evicted where the group does not say.
const PREEMPTIBLE_BELOW: i32 = 100;
/// The pod set of a group without sub-groups.
const DEFAULT_SET: &str = "default";

/// When an object was made, milliseconds since 1970.
pub(super) fn created(meta: &kube::api::ObjectMeta) -> Time {
    let stamp = meta.creation_timestamp.as_ref();
    Time(stamp.map_or(0, |stamp| {
        u64::try_from(stamp.0.as_millisecond()).unwrap_or(0)
    }))
}

/// A queue.
pub(super) fn queue(queue: &kai::Queue) -> Queue {
    let spec = &queue.spec;
    let resources = spec.resources.clone().unwrap_or_default();
    let (products, bad_products) = products(queue);
    // If the rule cannot be read, no pod of the queue or of the queues below gives way: the rule may
    // have been meant otherwise.
    let (idle, bad_idle) = match IdleRule::of(queue) {
        Ok(rule) => (rule, None),
        Err(why) => (
            IdleRule::NEVER,
            Some(format!("{why}; until then nobody gives way")),
        ),
    };
    Queue {
        name: QueueName::from(queue.name_any()),
        parent: spec
            .parent_queue
            .as_deref()
            .filter(|parent| !parent.is_empty())
            .map(QueueName::new),
        display_name: spec
            .display_name
            .as_deref()
            .filter(|name| !name.is_empty())
            .map(Arc::from),
        priority: spec.priority.unwrap_or(QUEUE_PRIORITY),
        created: created(&queue.metadata),
        gpu: resource(resources.gpu, 1e9),
        cpu: resource(resources.cpu, 1.0),
        memory: resource(resources.memory, 1e6),
        products,
        bad_products,
        preempt_min_runtime: duration(spec.preempt_min_runtime.as_deref()),
        reclaim_min_runtime: duration(spec.reclaim_min_runtime.as_deref()),
        idle_after: idle.after,
        idle_exempt_from: idle.exempt_from,
        bad_idle: bad_idle.map(|why| Arc::from(why.replace('\n', " "))),
    }
}

/// What it gets of single GPU products, and what of its annotation is not used.
fn products(queue: &kai::Queue) -> (Vec<ProductQuota>, Option<Arc<str>>) {
    let Some(text) = queue.annotations().get(QUOTA_BY_PRODUCT) else {
        return (Vec::new(), None);
    };
    let (rows, wrong) = api::gpu_quota::read(text);
    let rows = rows.into_iter().map(|row| {
        let gpus = |gpus| bound(gpus, 1e9);
        // -1 is unlimited, and other negative values are not read.
        let memory = |mib| u64::try_from(mib).map_or(Bound::Unlimited, Bound::Exactly);
        let (unit, quota, limit) = match row.bounds {
            ProductBounds::Gpus { quota, limit } => {
                (ProductUnit::Gpus, quota.map(gpus), limit.map(gpus))
            }
            ProductBounds::Memory { quota, limit } => {
                (ProductUnit::Memory, quota.map(memory), limit.map(memory))
            }
        };
        ProductQuota {
            product: Arc::from(row.product),
            unit,
            quota,
            limit: limit.unwrap_or(Bound::Unlimited),
        }
    });
    let wrong: Vec<String> = wrong.iter().map(ToString::to_string).collect();
    let wrong = (!wrong.is_empty()).then(|| Arc::from(wrong.join("; ").replace('\n', " ")));
    (rows.collect(), wrong)
}

fn resource(resource: kai::QueueResource, unit: f64) -> QueueResource {
    QueueResource {
        quota: bound(resource.quota, unit),
        limit: bound(resource.limit, unit),
        weight: Weight(whole(resource.over_quota_weight * 1e6)),
        usage: 0,
    }
}

/// -1 is unlimited; other negative values are invalid and read as 0.
#[allow(clippy::float_cmp)] // -1 is written as -1.
fn bound(amount: f64, unit: f64) -> Bound {
    if amount == -1.0 {
        Bound::Unlimited
    } else {
        Bound::Exactly(whole(amount * unit))
    }
}

/// Go's text of a duration; a negative one is for ever. What cannot be read says nothing.
fn grace(text: Option<&str>) -> Option<Grace> {
    match text?.strip_prefix('-') {
        Some(length) => duration(Some(length)).map(|_| Grace::Never),
        None => duration(text).map(Grace::For),
    }
}

/// Name of a pod group in the core.
pub(super) fn group_name(namespace: &str, name: &str) -> GroupName {
    GroupName::from(format!("{namespace}/{name}"))
}

/// A pod group with the value of its priority class.
pub(super) fn group(group: &kai::PodGroup, class: Class, limits: &Limits, pool: &str) -> PodGroup {
    let priority = class.value;
    let spec = &group.spec;
    let namespace = group.namespace().unwrap_or_default();
    let annotation = |key: &str| group.annotations().get(key).map(String::as_str);
    PodGroup {
        name: group_name(&namespace, &group.name_any()),
        uid: Arc::from(group.uid().unwrap_or_default()),
        queue: QueueName::new(
            spec.queue
                .as_deref()
                .filter(|queue| !queue.is_empty())
                .unwrap_or(names::DEFAULT_QUEUE),
        ),
        priority,
        preemptibility: preemptibility(spec.preemptibility.as_deref(), priority),
        created: created(&group.metadata),
        root: tree(spec, limits),
        mark_unschedulable: spec.mark_unschedulable.unwrap_or(true),
        parked: parked(group, pool),
        last_start: stamp(annotation(names::LAST_START)),
        stale_since: stamp(annotation(names::STALE_SINCE)),
        succeeded: succeeded(annotation(proto::names::pod_group::SUCCEEDED)),
        staleness_grace: grace(
            spec.staleness_grace_period
                .as_deref()
                .or(annotation(names::STALENESS_GRACE)),
        ),
        preemption_delay: duration(
            spec.preemption_delay
                .as_deref()
                .or(annotation(names::PREEMPTION_DELAY)),
        )
        .unwrap_or_default(),
        last_evicted: stamp(annotation(names::LAST_EVICTION)),
        never_preempts: class.never_preempts,
    }
}

/// Reads the counts of succeeded members; an annotation that cannot be parsed counts as absent.
fn succeeded(text: Option<&str>) -> BTreeMap<SetName, u32> {
    let counts = text.and_then(|text| serde_json::from_str::<BTreeMap<&str, u32>>(text).ok());
    let counts = counts.unwrap_or_default().into_iter();
    let counts = counts.map(|(set, count)| (SetName::new(set), count));
    counts.collect()
}

/// `schedulingBackoff: 1`: a group that was tried once in this node pool, and in no other since, waits
/// until a user changes the backoff, the pool or the condition that says so (KAI,
/// `cluster_info.go`: `isPodGroupUpForScheduler`).
fn parked(group: &kai::PodGroup, pool: &str) -> Option<Arc<str>> {
    if group.spec.scheduling_backoff != Some(1) {
        return None;
    }
    let conditions = &group.status.as_ref()?.scheduling_conditions;
    // Of those without a number the last.
    let last = conditions
        .iter()
        .max_by_key(|one| one.transition_id.parse::<u64>().unwrap_or(0))?;
    if last.node_pool != pool {
        return None;
    }
    let why = last.message.strip_suffix(PARKED).unwrap_or(&last.message);
    Some(Arc::from(format!("{why}{PARKED}")))
}

/// Returns the preemptibility by KAI's word. Without one of these words, the priority decides.
pub(super) fn preemptibility(word: Option<&str>, priority: i32) -> Preemptibility {
    match word {
        Some(names::PREEMPTIBLE) => Preemptibility::Preemptible,
        Some(names::SEMI_PREEMPTIBLE) => Preemptibility::SemiPreemptible,
        Some(names::NON_PREEMPTIBLE) => Preemptibility::NonPreemptible,
        _ => (priority < PREEMPTIBLE_BELOW).into(),
    }
}

/// RFC 3339.
fn stamp(text: Option<&str>) -> Option<Time> {
    let stamp: jiff::Timestamp = text?.parse().ok()?;
    u64::try_from(stamp.as_millisecond()).ok().map(Time)
}

fn tree(spec: &kai::PodGroupSpec, limits: &Limits) -> SubGroup {
    let topology = rule(spec.topology_constraint.as_ref());
    if spec.sub_groups.is_empty() {
        return SubGroup {
            topology,
            sets: vec![PodSet {
                name: SetName::new(DEFAULT_SET),
                min: spec
                    .min_member
                    .and_then(|min| u32::try_from(min).ok())
                    .unwrap_or(1),
                topology: None,
            }],
            ..SubGroup::default()
        };
    }
    let mut children: Children = BTreeMap::new();
    for sub in spec.sub_groups.iter().take(limits.max_sub_groups as usize) {
        let parent = sub.parent.as_deref().filter(|name| !name.is_empty());
        children.entry(parent).or_default().push(sub);
    }
    let mut root = branch(
        &children,
        None,
        &mut BTreeSet::new(),
        limits.max_sub_group_depth,
    );
    root.min_children = needed(spec.min_sub_group);
    root.topology = topology;
    root
}

/// How many children must be satisfied.
fn needed(min: Option<i32>) -> Option<u32> {
    min.and_then(|min| u32::try_from(min).ok())
}

/// Sub-groups by their parent's name.
type Children<'a> = BTreeMap<Option<&'a str>, Vec<&'a kai::SubGroup>>;

/// What has `parent` as its parent. A sub-group that is its own ancestor has no root
/// and is left out, as is one whose parent is missing, that is too deep or one too many: its
/// pods name a set that is not there.
fn branch<'a>(
    all: &Children<'a>,
    parent: Option<&'a str>,
    seen: &mut BTreeSet<&'a str>,
    levels: u32,
) -> SubGroup {
    let mut out = SubGroup::default();
    let Some(below) = levels.checked_sub(1) else {
        return out;
    };
    for sub in all.get(&parent).into_iter().flatten() {
        let name = sub.name.as_str();
        if !seen.insert(name) {
            continue;
        }
        let topology = rule(sub.topology_constraint.as_ref());
        if !name.is_empty() && all.contains_key(&Some(name)) {
            let mut group = branch(all, Some(name), seen, below);
            group.name = Some(SetName::new(name));
            group.min_children = needed(sub.min_sub_group);
            group.topology = topology;
            out.groups.push(group);
        } else {
            out.sets.push(PodSet {
                name: SetName::new(name),
                min: u32::try_from(sub.min_member.unwrap_or(1)).unwrap_or(1),
                topology,
            });
        }
    }
    out
}

fn rule(constraint: Option<&kai::TopologyConstraint>) -> Option<TopologyRule> {
    let constraint = constraint?;
    let text = |text: &Option<String>| -> Option<Arc<str>> {
        text.as_deref()
            .filter(|text| !text.is_empty())
            .map(Arc::from)
    };
    Some(TopologyRule {
        topology: TopologyName::new(text(&constraint.topology)?),
        required: text(&constraint.required_topology_level),
        preferred: text(&constraint.preferred_topology_level),
    })
}

/// A topology.
pub(super) fn topology(topology: &kai::Topology) -> Topology {
    Topology {
        name: TopologyName::from(topology.name_any()),
        levels: topology
            .spec
            .levels
            .iter()
            .map(|level| Arc::from(level.node_label.as_str()))
            .collect(),
        aliases: topology
            .spec
            .levels
            .iter()
            .filter_map(|level| {
                let alias = level.alias.as_deref().filter(|alias| !alias.is_empty())?;
                Some((Arc::from(alias), Arc::from(level.node_label.as_str())))
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests;
