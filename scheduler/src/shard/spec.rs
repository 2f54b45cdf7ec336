//! KAI's `SchedulingShard.spec`, and what its arguments mean for a core.
//!
//! As in KAI an unknown action is refused, an unknown plugin or flag is passed over; here
//! that is said. What KAI's plugins do is built in and cannot be left out.

use super::file::{Remark, remark};
use scheduler_core::units::{Duration, NanoGpu};
use scheduler_core::{Placement, Step};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_saphyr::Spanned;
use std::cmp::Reverse;
use std::fmt;
use std::marker::PhantomData;

/// Flags of KAI's scheduler whose meaning is not about decisions, or built in here.
const PASSED: [&str; 26] = [
    "cpu-worker-node-label-key",
    "detailed-fit-errors",
    "enable-profiler",
    "feature-gates",
    "gpu-worker-node-label-key",
    "inform",
    "kubeconfig",
    "leader-elect",
    "listen-address",
    "lock-object-namespace",
    "master",
    "metrics-namespace",
    "mig-worker-node-label-key",
    "num-of-status-recording-workers",
    "partition-label-value",
    "plugin-server-port",
    "profiler-api-port",
    "qps",
    "burst",
    "queue-label-key",
    "resource-reservation-app-label",
    "schedule-period",
    "scheduler-name",
    "update-pod-eviction-condition",
    "use-scheduling-signatures",
    "v",
];
/// Plugins of KAI, all of which are built in.
const PLUGINS: [&str; 22] = [
    "dynamicresources",
    "elastic",
    "gpupack",
    "gpusharingorder",
    "gpuspread",
    "kubeflow",
    "minruntime",
    "nodeavailability",
    "nodeplacement",
    "nominatednode",
    "podaffinity",
    "predicates",
    "priority",
    "proportion",
    "ray",
    "reflectjoborder",
    "resourcetype",
    "snapshot",
    "subgrouporder",
    "taskorder",
    "topology",
    "tensorfusion",
];
const BILLION: f64 = 1e9;

/// A map in the order in which it is written, its keys with their lines.
#[derive(Debug)]
pub(super) struct Pairs<V>(Vec<(Spanned<String>, V)>);

impl<V> Default for Pairs<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Pairs<V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for All<V> {
            type Value = Pairs<V>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("names with values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<V>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        from.deserialize_map(All(PhantomData))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Spec {
    #[serde(default)]
    args: Pairs<Spanned<String>>,
    #[serde(default)]
    placement_strategy: Strategies,
    partition_label_value: Option<String>,
    queue_depth_per_action: Option<Spanned<Pairs<i64>>>,
    #[serde(default)]
    min_runtime: MinRuntime,
    k_value: Option<Spanned<f64>>,
    #[serde(rename = "usageDBConfig")]
    usage_db_config: Option<Spanned<serde_json::Value>>,
    #[serde(default)]
    plugins: Pairs<Plugin>,
    #[serde(default)]
    actions: Pairs<Enabled>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Strategies {
    gpu: Option<Spanned<String>>,
    cpu: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MinRuntime {
    preempt_min_runtime: Option<Spanned<String>>,
    reclaim_min_runtime: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Plugin {
    enabled: Option<bool>,
    #[expect(dead_code, reason = "what the plugins do comes in one order here")]
    priority: Option<i64>,
    #[serde(default)]
    arguments: Pairs<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Enabled {
    enabled: Option<bool>,
    priority: Option<i64>,
}

/// What of it is not about the core.
pub(super) struct Read {
    pub(super) pool: String,
    pub(super) pool_key: Option<String>,
}

/// Sets `core` as `spec` says.
pub(super) fn read(
    spec: Spec,
    core: &mut scheduler_core::Config,
    remarks: &mut Vec<Remark>,
) -> Result<Read, Remark> {
    let mut read = Read {
        pool: String::new(),
        pool_key: None,
    };
    for (name, value) in &spec.args.0 {
        flag(name, value, core, &mut read, remarks)?;
    }
    if let Some(pool) = spec.partition_label_value {
        read.pool = pool;
    }
    if let Some(gpu) = &spec.placement_strategy.gpu {
        core.gpu_placement = placement(gpu)?;
    }
    if let Some(cpu) = &spec.placement_strategy.cpu {
        core.cpu_placement = placement(cpu)?;
    }
    if let Some(time) = &spec.min_runtime.preempt_min_runtime {
        core.preempt_min_runtime = duration(time)?;
    }
    if let Some(time) = &spec.min_runtime.reclaim_min_runtime {
        core.reclaim_min_runtime = duration(time)?;
    }
    if let Some(k) = &spec.k_value {
        core.k_value = billionths(k, "kValue", k.value, 0.0)?;
    }
    for (name, plugin) in &spec.plugins.0 {
        arguments(name, plugin, core, remarks)?;
    }
    if !spec.actions.0.is_empty() {
        core.actions = actions(&spec.actions)?;
    }
    if let Some(depths) = &spec.queue_depth_per_action {
        let why = "queueDepthPerAction has no effect: every job of a queue is looked at";
        if !depths.value.0.is_empty() {
            remarks.push(remark(depths, why));
        }
    }
    if let Some(usage) = &spec.usage_db_config {
        let why = "usageDBConfig has no effect: past use is not read";
        remarks.push(remark(usage, why));
    }
    Ok(read)
}

fn flag(
    name: &Spanned<String>,
    value: &Spanned<String>,
    core: &mut scheduler_core::Config,
    read: &mut Read,
    remarks: &mut Vec<Remark>,
) -> Result<(), Remark> {
    match name.value.trim_start_matches('-') {
        "max-consolidation-preemptees" => {
            let count: i64 = value
                .value
                .parse()
                .map_err(|_| remark(value, format!("{} is no number of jobs", value.value)))?;
            core.consolidation_jobs = u32::try_from(count).ok();
        }
        "default-staleness-grace-period" => {
            core.staleness_grace = if value.value.trim_start().starts_with('-') {
                None
            } else {
                Some(duration(value)?)
            };
        }
        "nodepool-label-key" if !value.value.is_empty() => {
            read.pool_key = Some(value.value.clone());
        }
        "partition-label-value" => read.pool.clone_from(&value.value),
        "full-hierarchy-fairness" | "allow-consolidating-reclaim" => {
            if !truth(value)? {
                let why = format!("{} cannot be switched off", name.value);
                remarks.push(remark(name, why));
            }
        }
        "restrict-node-scheduling" => {
            if truth(value)? {
                let why = format!(
                    "{} has no effect: every node of the pool is used, also one without a worker's label; taint the others, or give the pool's label to fewer",
                    name.value
                );
                remarks.push(remark(name, why));
            }
        }
        "schedule-csi-storage" => {
            if truth(value)? {
                let why = format!("{} has no effect", name.value);
                remarks.push(remark(name, why));
            }
        }
        "nodepool-label-key" => {}
        known if PASSED.contains(&known) => {}
        _ => remarks.push(remark(
            name,
            format!("{} is no flag that has an effect", name.value),
        )),
    }
    Ok(())
}

fn arguments(
    name: &Spanned<String>,
    plugin: &Plugin,
    core: &mut scheduler_core::Config,
    remarks: &mut Vec<Remark>,
) -> Result<(), Remark> {
    let on = plugin.enabled != Some(false);
    match name.value.as_str() {
        "gpupack" if on => core.card_placement = Some(Placement::Binpack),
        "gpuspread" if on => core.card_placement = Some(Placement::Spread),
        // Without the one KAI has the other.
        "gpupack" => core.card_placement = Some(Placement::Spread),
        "gpuspread" => {}
        known if PLUGINS.contains(&known) => {
            if !on {
                let why = format!("plugin {known} is built in and cannot be switched off");
                remarks.push(remark(name, why));
            }
        }
        other => {
            remarks.push(remark(name, format!("plugin {other} is not known")));
            return Ok(());
        }
    }
    for (key, value) in &plugin.arguments.0 {
        match (name.value.as_str(), key.value.as_str()) {
            ("nodeplacement", "gpu") => core.gpu_placement = placement(value)?,
            ("nodeplacement", "cpu") => core.cpu_placement = placement(value)?,
            ("proportion", "kValue") => {
                core.k_value = billionths(value, "kValue", number(value)?, 0.0)?;
            }
            ("proportion", "relcaimerSaturationMultiplier") => {
                core.saturation_multiplier =
                    billionths(value, &key.value, number(value)?, 1.0)?.max(NanoGpu::ONE.0);
            }
            ("minruntime", "defaultPreemptMinRuntime") => {
                core.preempt_min_runtime = duration(value)?;
            }
            ("minruntime", "defaultReclaimMinRuntime") => {
                core.reclaim_min_runtime = duration(value)?;
            }
            ("minruntime", "reclaimResolveMethod") if value.value == "lca" => {}
            (plugin, key_name) => {
                let why = format!("argument {key_name} of plugin {plugin} has no effect");
                remarks.push(remark(key, why));
            }
        }
    }
    Ok(())
}

/// KAI's priorities where none is given; higher goes first, ties by name.
fn actions(wanted: &Pairs<Enabled>) -> Result<Vec<Step>, Remark> {
    let mut all = vec![
        ("allocate", Step::Allocate, 500, true),
        ("consolidation", Step::Consolidation, 400, true),
        ("reclaim", Step::Reclaim, 300, true),
        ("preempt", Step::Preempt, 200, true),
        ("stalegangeviction", Step::StaleGangEviction, 100, true),
    ];
    for (name, action) in &wanted.0 {
        let found = all.iter_mut().find(|(known, ..)| *known == name.value);
        let Some((_, _, priority, on)) = found else {
            let known = "allocate, consolidation, reclaim, preempt or stalegangeviction";
            return Err(remark(
                name,
                format!("action {} is none of {known}", name.value),
            ));
        };
        *priority = action.priority.unwrap_or(*priority);
        *on = action.enabled.unwrap_or(*on);
    }
    all.retain(|(.., on)| *on);
    all.sort_by_key(|(name, _, priority, _)| (Reverse(*priority), *name));
    Ok(all.into_iter().map(|(_, step, ..)| step).collect())
}

fn placement(text: &Spanned<String>) -> Result<Placement, Remark> {
    match text.value.as_str() {
        "binpack" => Ok(Placement::Binpack),
        "spread" => Ok(Placement::Spread),
        // Ours.
        "fragmentation" => Ok(Placement::Fragmentation),
        other => Err(remark(
            text,
            format!("{other} is neither binpack nor spread nor fragmentation"),
        )),
    }
}

/// Go's truth (`strconv.ParseBool`), as KAI's flags read it.
fn truth(text: &Spanned<String>) -> Result<bool, Remark> {
    match text.value.as_str() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => Err(remark(text, format!("{other} is neither true nor false"))),
    }
}

/// Go's duration.
fn duration(text: &Spanned<String>) -> Result<Duration, Remark> {
    crate::convert::queue::duration(Some(&text.value)).ok_or_else(|| {
        remark(
            text,
            format!("{} is no duration, such as 90s or 5m", text.value),
        )
    })
}

fn number(text: &Spanned<String>) -> Result<f64, Remark> {
    let no = |_| remark(text, format!("{} is no number", text.value));
    text.value.parse().map_err(no)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be neither negative nor too large"
)]
fn billionths<T>(at: &Spanned<T>, name: &str, value: f64, least: f64) -> Result<u64, Remark> {
    if value.is_finite() && (least..=BILLION).contains(&value) {
        Ok((value * BILLION).round() as u64)
    } else {
        Err(remark(at, format!("{name} is at least {least}")))
    }
}
