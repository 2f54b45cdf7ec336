//! KAI's own objects, as their CRDs define them: what Aliquot reads unchanged.
//!
//! Units are KAI's: GPUs, millicores, MB of 10^6 bytes; -1 is unlimited, 0 or unset
//! nothing (`pkg/apis/scheduling/v2/queue_types.go`).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A team's part of the cluster.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "scheduling.run.ai",
    version = "v2",
    kind = "Queue",
    plural = "queues",
    status = "QueueStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Priority", "type":"integer", "jsonPath":".spec.priority"}"#,
    printcolumn = r#"{"name":"Parent", "type":"string", "jsonPath":".spec.parentQueue"}"#,
    printcolumn = r#"{"name":"Children", "type":"string", "jsonPath":".status.childQueues"}"#,
    printcolumn = r#"{"name":"DisplayName", "type":"string", "jsonPath":".spec.displayName"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct QueueSpec {
    /// Replaces the name in metrics and messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Empty: a top-level queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_queue: Option<String>,
    /// Quota, limit and weight per resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<QueueResources>,
    /// 100 when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Go duration; inherited when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt_min_runtime: Option<String>,
    /// Go duration; inherited when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_min_runtime: Option<String>,
}

/// The three resources that queues divide.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueResources {
    /// GPUs, fractions allowed.
    #[serde(default)]
    pub gpu: QueueResource,
    /// Millicores.
    #[serde(default)]
    pub cpu: QueueResource,
    /// MB of 10^6 bytes.
    #[serde(default)]
    pub memory: QueueResource,
}

/// One resource of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueResource {
    /// Guaranteed; -1 unlimited.
    #[serde(default)]
    pub quota: f64,
    /// Never more than; -1 unlimited, 0 nothing.
    #[serde(default)]
    pub limit: f64,
    /// Weight in the division of what is left over.
    #[serde(default)]
    pub over_quota_weight: f64,
}

/// What the scheduler reports of a queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// Declared by KAI.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub child_queues: Vec<String>,
    /// Of the subtree.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub allocated: BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
    /// Of the subtree.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub allocated_non_preemptible:
        BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
    /// Of the subtree.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requested: BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
}

/// Pods that are placed together.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "scheduling.run.ai",
    version = "v2alpha2",
    kind = "PodGroup",
    plural = "podgroups",
    shortname = "pg",
    namespaced,
    status = "PodGroupStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupSpec {
    /// How many pods must fit at once; 1 when unset. With 0 each pod starts by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_member: Option<i32>,
    /// How many of the sub-groups without a parent must fit; all of them when unset, none of
    /// them with 0. Not beside `minMember`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_sub_group: Option<i32>,
    /// Leaf queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The global default, else value 50, when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// `preemptible` or `non-preemptible`; unset: preemptible below priority 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptibility: Option<String>,
    /// Where the group must or should be together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_constraint: Option<TopologyConstraint>,
    /// Leaf sub-groups become pod sets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sub_groups: Vec<SubGroup>,
    /// Whether to write `PodScheduled=False`; true when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark_unschedulable: Option<bool>,
    /// -1 or unset: retry for ever; 1: one failed cycle in a node pool parks the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_backoff: Option<i32>,
    /// A Go duration: how long what is left of a gang below `minMember` may stay; negative:
    /// for ever. `None`: what the scheduler's configuration says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staleness_grace_period: Option<String>,
    /// A Go duration that the group waits before it may evict others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_delay: Option<String>,
}

/// Levels of a [`Topology`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyConstraint {
    /// Name of the topology.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// All in one domain of this level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_topology_level: Option<String>,
    /// In one domain of this level where that is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_topology_level: Option<String>,
}

/// A part of a group with its own minimum.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubGroup {
    /// Unique in the group.
    pub name: String,
    /// How many of its pods must fit; 0 is none. A sub-group without sub-groups must say it,
    /// one with sub-groups must not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_member: Option<i32>,
    /// How many of its sub-groups must fit; all of them when unset, none of them with 0. Only
    /// where there are sub-groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_sub_group: Option<i32>,
    /// Another sub-group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Of this part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_constraint: Option<TopologyConstraint>,
}

/// What the scheduler reports of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupStatus {
    /// KAI's legacy phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Pods that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<i32>,
    /// Pods that wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<i32>,
    /// Why it waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scheduling_conditions: Vec<SchedulingCondition>,
}

/// Why a group waits in a node pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingCondition {
    /// `UnschedulableOnNodePool`.
    #[serde(rename = "type", default)]
    pub type_: String,
    /// Which pool.
    #[serde(default)]
    pub node_pool: String,
    /// `Unschedulable`.
    #[serde(default)]
    pub reason: String,
    /// One line.
    #[serde(default)]
    pub message: String,
    /// `True`.
    #[serde(default)]
    pub status: String,
    /// Rises with each change.
    #[serde(default, rename = "transitionID")]
    pub transition_id: String,
}

/// The levels of a data centre, by node label.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kai.scheduler",
    version = "v1alpha1",
    kind = "Topology",
    plural = "topologies",
    derive = "Default",
    derive = "PartialEq"
)]
pub struct TopologySpec {
    /// From the widest to the narrowest.
    pub levels: Vec<TopologyLevel>,
}

/// One level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyLevel {
    /// The label whose values are this level's domains.
    pub node_label: String,
    /// Another name of the level, for constraints of workloads. No other level's, and no
    /// node label of the topology.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
}
