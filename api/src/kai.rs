//! KAI's own objects, as their CRDs define them: what Aliquot reads unchanged.
//!
//! Units are KAI's: GPUs, millicores, MB of 10^6 bytes; -1 is unlimited, 0 or unset
//! nothing (`pkg/apis/scheduling/v2/queue_types.go`).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::{CustomResource, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
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
    /// Weight in the division of the surplus.
    #[serde(default)]
    pub over_quota_weight: f64,
    /// Refused: no KAI release implements it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lending_limit: Option<f64>,
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
    /// How many pods must fit at once; 1 when unset. With 0 each pod starts independently.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_member: Option<i32>,
    /// How many of the sub-groups without a parent must fit; all of them when unset, none of them
    /// with 0. Not together with `minMember`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_sub_group: Option<i32>,
    /// Leaf queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The global default, else value 50, when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// `preemptible`, `non-preemptible`, or `semi-preemptible`: the pods that its minimum needs are
    /// not preemptible, and the others are. Unset: preemptible below priority 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptibility: Option<String>,
    /// Refused: no KAI release implements it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_non_preemptible: Option<i32>,
    /// Where the group must or should be together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_constraint: Option<TopologyConstraint>,
    /// Leaf sub-groups become pod sets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sub_groups: Vec<SubGroup>,
    /// Whether to write `PodScheduled=False`; true when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark_unschedulable: Option<bool>,
    /// -1 or unset: retry without end; 1: one failed cycle in a node pool parks the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_backoff: Option<i32>,
    /// A Go duration: how long a gang may stay below `minMember` before it is evicted; negative:
    /// without end. `None`: the scheduler's default.
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
    /// In one domain of this level, if possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_topology_level: Option<String>,
}

/// A part of a group with its own minimum.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubGroup {
    /// Unique in the group.
    pub name: String,
    /// How many of its pods must fit; 0 is none. Required for a sub-group without sub-groups, not
    /// allowed for one with sub-groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_member: Option<i32>,
    /// How many of its sub-groups must fit; all of them when unset, none of them with 0. Only for a
    /// sub-group with sub-groups.
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
    /// Why it waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scheduling_conditions: Vec<SchedulingCondition>,
    /// Set for a semi-preemptible group with pods in its core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_state: Option<SchedulingState>,
}

/// Which pods of a semi-preemptible group are not evicted for others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingState {
    /// The names of the pods that the group's minimum needs, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub core_pods: Vec<String>,
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

/// How one node pool is scheduled.
#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kai.scheduler",
    version = "v1",
    kind = "SchedulingShard",
    root = "ShardDefinition",
    plural = "schedulingshards",
    status = "AdminStatus"
)]
#[serde(rename_all = "camelCase")]
pub struct ShardFields {
    /// Flags of KAI's scheduler, without dashes.
    pub args: Option<BTreeMap<String, String>>,
    /// How nodes are chosen; `binpack` when unset.
    pub placement_strategy: Option<PlacementStrategy>,
    /// The shard's nodes: those whose label of node pools has this value; empty: those without it.
    /// Cannot be changed while the scheduler runs.
    pub partition_label_value: Option<String>,
    /// No effect: every job of a queue is tried.
    pub queue_depth_per_action: Option<BTreeMap<String, i64>>,
    /// How long a workload is protected after its start.
    pub min_runtime: Option<MinRuntime>,
    /// How much past use counts in fair share; 1 when unset.
    pub k_value: Option<f64>,
    /// The source of past use; past use does not count when unset.
    #[serde(rename = "usageDBConfig")]
    pub usage_db_config: Option<UsageDbConfig>,
    /// Plugins, by name.
    pub plugins: Option<BTreeMap<String, PluginSettings>>,
    /// Actions, by name.
    pub actions: Option<BTreeMap<String, ActionSettings>>,
}

/// A shard as it is written: what of its spec is not known is named, too, and KAI's definition
/// lets an object have none.
#[derive(Resource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[resource(inherit = "ShardDefinition")]
pub struct SchedulingShard {
    /// Its name, and which of them.
    pub metadata: ObjectMeta,
    /// See [`ShardFields`].
    #[serde(default)]
    pub spec: Map<String, Value>,
    /// See [`conditions`].
    #[serde(default)]
    pub status: Map<String, Value>,
}

/// Where past use comes from.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageDbConfig {
    /// `prometheus`; or `in-memory`, which is not KAI's: the scheduler's own records.
    pub client_type: Option<String>,
    /// URL of Prometheus.
    pub connection_string: Option<String>,
    /// The scheduler's environment variable that has the URL.
    pub connection_string_env_var: Option<String>,
    /// How past use counts.
    pub usage_params: Option<UsageParams>,
}

/// How past use counts. Go durations, or Prometheus': `90s`, `5m`, `1w`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageParams {
    /// Use this long ago counts half; no decay when unset.
    pub half_life_period: Option<String>,
    /// Length of the window; `1w` when unset.
    pub window_size: Option<String>,
    /// `sliding` when unset, `tumbling` or `cron`.
    pub window_type: Option<String>,
    /// When the first of the tumbling windows began.
    pub tumbling_window_start_time: Option<String>,
    /// When a window of the type `cron` begins, in UTC.
    pub cron_string: Option<String>,
    /// Time between two queries; `1m` when unset.
    pub fetch_interval: Option<String>,
    /// An older result is dropped; `5m` when unset.
    pub staleness_period: Option<String>,
    /// Time without a first result after which the condition `UsageStale` is True; `1m` when unset.
    /// Decisions do not wait.
    pub wait_timeout: Option<String>,
    /// `usageQueryTimeout`, `queryResolution`, and the queries: `gpuAllocationMetric`,
    /// `gpuCapacityMetric`, and the same of `cpu` and `memory`.
    pub extra_params: Option<BTreeMap<String, String>>,
}

/// How nodes are chosen: `binpack`, `spread`, or `fragmentation`, which is not KAI's.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct PlacementStrategy {
    /// For pods with GPUs.
    pub gpu: Option<String>,
    /// For pods without.
    pub cpu: Option<String>,
}

/// Go durations.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MinRuntime {
    /// From preemption by workloads of higher priority.
    pub preempt_min_runtime: Option<String>,
    /// From reclaim by other queues.
    pub reclaim_min_runtime: Option<String>,
}

/// One plugin.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct PluginSettings {
    /// True when unset.
    pub enabled: Option<bool>,
    /// No effect: plugins act in KAI's order.
    pub priority: Option<i64>,
    /// By name.
    pub arguments: Option<BTreeMap<String, String>>,
}

/// One action.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ActionSettings {
    /// True when unset; `consolidation` does nothing where a placement spreads.
    pub enabled: Option<bool>,
    /// Higher goes first.
    pub priority: Option<i64>,
}

/// The settings of a KAI installation. Those with an effect are flags of Aliquot's scheduler.
#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kai.scheduler",
    version = "v1",
    kind = "Config",
    root = "ConfigDefinition",
    plural = "configs",
    status = "AdminStatus"
)]
pub struct ConfigFields {
    /// Of all of KAI's programs.
    pub global: Option<GlobalSettings>,
    /// Of the one that binds.
    pub binder: Option<BinderSettings>,
}

/// Compared with our own flags.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GlobalSettings {
    /// `--scheduler-name`.
    pub scheduler_name: Option<String>,
    /// `--queue-label-key`.
    pub queue_label_key: Option<String>,
    /// `--node-pool-label-key`.
    pub node_pool_label_key: Option<String>,
}

/// Compared with our own flags.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BinderSettings {
    /// `--volume-binding-timeout-s`.
    pub volume_binding_timeout_seconds: Option<i64>,
}

/// A `Config` as it is written.
#[derive(Resource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[resource(inherit = "ConfigDefinition")]
pub struct Config {
    /// Its name, and which of them.
    pub metadata: ObjectMeta,
    /// See [`ConfigFields`].
    #[serde(default)]
    pub spec: Map<String, Value>,
    /// See [`conditions`].
    #[serde(default)]
    pub status: Map<String, Value>,
}

/// The scheduler's conditions for the object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AdminStatus {
    /// KAI's `Available`, `Deployed`, `Ready` and `Reconciling`, `KeysIgnored`, and of a shard `UsageStale`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// The conditions of an admin's object, but for those that are none.
pub fn conditions(status: &Map<String, Value>) -> Vec<Condition> {
    let all = status.get("conditions").and_then(Value::as_array);
    let each = all.into_iter().flatten().cloned();
    each.filter_map(|one| serde_json::from_value(one).ok())
        .collect()
}
