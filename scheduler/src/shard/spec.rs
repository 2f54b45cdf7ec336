//! KAI's `SchedulingShard.spec`, and what its arguments mean for a core.
//!
//! As in KAI, an unknown action is an error, and an unknown plugin or flag is ignored. Here this is
//! reported, as is every known key without an effect.

use super::remark::{Remark, remark};
use super::usage;
use super::value::{Pairs, duration};
use crate::label_selector;
use scheduler_core::units::NanoGpu;
use scheduler_core::{GpuJobOrder, Placement, Plugin as Switch, Resolve, Step};
use serde::Deserialize;
use serde_saphyr::Spanned;
use std::cmp::Reverse;

/// Flags of KAI's scheduler without an effect: they do not affect decisions, or the function is
/// implemented differently.
const WITHOUT_EFFECT: [&str; 23] = [
    "burst",
    "detailed-fit-errors",
    "enable-profiler",
    "feature-gates",
    "inform",
    "kubeconfig",
    "leader-elect",
    "listen-address",
    "lock-object-namespace",
    "master",
    "metrics-namespace",
    "mig-worker-node-label-key",
    "num-of-status-recording-workers",
    "plugin-server-port",
    "profiler-api-port",
    "qps",
    "queue-label-key",
    "resource-reservation-app-label",
    "schedule-period",
    "scheduler-name",
    "update-pod-eviction-condition",
    "use-scheduling-signatures",
    "v",
];
/// Flags that [`workers`] reads, which have an effect together only.
const WORKERS: [&str; 3] = [
    "restrict-node-scheduling",
    "gpu-worker-node-label-key",
    "cpu-worker-node-label-key",
];
/// Plugins of KAI whose work is done here and cannot be left out.
const BUILT_IN: [&str; 6] = [
    "numa",
    "predicates",
    "proportion",
    "snapshot",
    "subgrouporder",
    "topology",
];
/// Plugins of KAI whose work nothing does here.
const NOT_BUILT_IN: [&str; 4] = [
    "dynamicresources",
    "reflectjoborder",
    "sg-multinodegang",
    "sg-nodelocalgreedy",
];
const BILLION: f64 = 1e9;

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
    usage_db_config: Option<Spanned<usage::Config>>,
    go_mem_limit: Option<Spanned<serde_json::Value>>,
    go_mem_limit_ratio: Option<Spanned<serde_json::Value>>,
    scenario_search_budgets: Option<Spanned<serde_json::Value>>,
    scenario_search_checkpoints: Option<Spanned<serde_json::Value>>,
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
    priority: Option<Spanned<i64>>,
    #[serde(default)]
    arguments: Pairs<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Enabled {
    enabled: Option<bool>,
    priority: Option<i64>,
}

/// Top-level fields of a shard's spec that are known.
pub(super) const FIELDS: [&str; 13] = [
    "args",
    "placementStrategy",
    "partitionLabelValue",
    "queueDepthPerAction",
    "minRuntime",
    "kValue",
    "usageDBConfig",
    "goMemLimit",
    "goMemLimitRatio",
    "scenarioSearchBudgets",
    "scenarioSearchCheckpoints",
    "plugins",
    "actions",
];

/// What of it is not about the core.
#[derive(Debug)]
pub(super) struct Read {
    /// `None`: it says nothing of a pool.
    pub(super) pool: Option<String>,
    pub(super) pool_key: Option<String>,
    /// `None`: past use does not count.
    pub(super) usage: Option<crate::usage::Settings>,
}

/// Sets `core` as `spec` says.
pub(super) fn read(
    spec: Spec,
    core: &mut scheduler_core::Config,
    remarks: &mut Vec<Remark>,
) -> Result<Read, Remark> {
    let mut read = Read {
        pool: None,
        pool_key: None,
        usage: None,
    };
    workers(&spec.args, core, remarks)?;
    for (name, value) in &spec.args.0 {
        flag(name, value, core, &mut read, remarks)?;
    }
    if let Some(pool) = spec.partition_label_value {
        read.pool = Some(pool);
    }
    if let Some(gpu) = &spec.placement_strategy.gpu {
        core.gpu_placement = placement(gpu, "placementStrategy.gpu")?;
    }
    if let Some(cpu) = &spec.placement_strategy.cpu {
        core.cpu_placement = placement(cpu, "placementStrategy.cpu")?;
    }
    if let Some(time) = &spec.min_runtime.preempt_min_runtime {
        core.preempt_min_runtime = duration(time, "minRuntime.preemptMinRuntime")?;
    }
    if let Some(time) = &spec.min_runtime.reclaim_min_runtime {
        core.reclaim_min_runtime = duration(time, "minRuntime.reclaimMinRuntime")?;
    }
    if let Some(k) = &spec.k_value {
        core.k_value = billionths(k, "kValue", k.value, 0.0)?;
    }
    if let Some(config) = &spec.usage_db_config {
        read.usage = Some(usage::read(config, remarks)?);
    }
    for (name, plugin) in &spec.plugins.0 {
        if switch(name, plugin, core, remarks) {
            arguments(name, plugin, core, remarks)?;
        }
    }
    if !spec.actions.0.is_empty() {
        core.actions = actions(&spec.actions)?;
    }
    if let Some(depths) = &spec.queue_depth_per_action
        && !depths.value.0.is_empty()
    {
        let why = "queueDepthPerAction has no effect: every job of a queue is tried";
        remarks.push(remark(depths, "queueDepthPerAction", why));
    }
    for (value, field, why) in [
        (
            &spec.go_mem_limit,
            "goMemLimit",
            "the scheduler is not a Go program",
        ),
        (
            &spec.go_mem_limit_ratio,
            "goMemLimitRatio",
            "the scheduler is not a Go program",
        ),
        (
            &spec.scenario_search_budgets,
            "scenarioSearchBudgets",
            "searches are bounded in steps (searchBudget)",
        ),
        (
            &spec.scenario_search_checkpoints,
            "scenarioSearchCheckpoints",
            "a search that reaches its limit is repeated with more steps",
        ),
    ] {
        if let Some(value) = value {
            let why = format!("{field} has no effect: {why}");
            remarks.push(remark(value, field, why));
        }
    }
    Ok(read)
}

/// Which nodes are for which pods.
fn workers(
    args: &Pairs<Spanned<String>>,
    core: &mut scheduler_core::Config,
    remarks: &mut Vec<Remark>,
) -> Result<(), Remark> {
    let mut labels = core.workers.clone().unwrap_or_default();
    let mut restricts = core.workers.is_some();
    let mut keys = Vec::new();
    for (name, value) in &args.0 {
        let field = format!("args.{}", name.value);
        let label = match name.value.trim_start_matches('-') {
            "restrict-node-scheduling" => {
                restricts = truth(value, &field)?;
                continue;
            }
            "gpu-worker-node-label-key" => &mut labels.gpu,
            "cpu-worker-node-label-key" => &mut labels.cpu,
            _ => continue,
        };
        if !value.value.is_empty() {
            *label = value.value.as_str().into();
            keys.push((name, field));
        }
    }
    if !restricts {
        for (name, field) in keys {
            let why = format!(
                "{} has no effect without restrict-node-scheduling",
                name.value
            );
            remarks.push(remark(name, &field, why));
        }
    }
    core.workers = restricts.then_some(labels);
    Ok(())
}

fn flag(
    name: &Spanned<String>,
    value: &Spanned<String>,
    core: &mut scheduler_core::Config,
    read: &mut Read,
    remarks: &mut Vec<Remark>,
) -> Result<(), Remark> {
    let field = format!("args.{}", name.value);
    let mut say = |why: String| remarks.push(remark(name, &field, why));
    match name.value.trim_start_matches('-') {
        "max-consolidation-preemptees" => {
            let no = |_| {
                remark(
                    value,
                    &field,
                    format!("{} is not a number of jobs", value.value),
                )
            };
            let count: i64 = value.value.parse().map_err(no)?;
            core.consolidation_jobs = u32::try_from(count).ok();
        }
        "default-staleness-grace-period" => {
            core.staleness_grace = if value.value.trim_start().starts_with('-') {
                None
            } else {
                Some(duration(value, &field)?)
            };
        }
        "nodepool-label-key" if !value.value.is_empty() => {
            read.pool_key = Some(value.value.clone());
        }
        "nodepool-label-key" => {}
        "partition-label-value" => read.pool = Some(value.value.clone()),
        "full-hierarchy-fairness" | "allow-consolidating-reclaim" => {
            if !truth(value, &field)? {
                say(format!("{} cannot be switched off", name.value));
            }
        }
        known if WORKERS.contains(&known) => {}
        "schedule-csi-storage" => {
            if truth(value, &field)? {
                say(format!("{} has no effect", name.value));
            }
        }
        known if WITHOUT_EFFECT.contains(&known) => {
            say(format!("{} has no effect", name.value));
        }
        _ => say(format!("{} is no flag of KAI's scheduler", name.value)),
    }
    Ok(())
}

/// `enabled` and `priority` of a plugin; whether there is one of that name.
fn switch(
    name: &Spanned<String>,
    plugin: &Plugin,
    core: &mut scheduler_core::Config,
    remarks: &mut Vec<Remark>,
) -> bool {
    let on = plugin.enabled != Some(false);
    let field = format!("plugins.{}", name.value);
    let mut say = |part: &str, why: String| {
        remarks.push(remark(name, &format!("{field}{part}"), why));
    };
    match name.value.as_str() {
        "gpupack" if on => core.card_placement = Some(Placement::Binpack),
        "gpuspread" if on => core.card_placement = Some(Placement::Spread),
        // Without the one KAI has the other.
        "gpupack" => core.card_placement = Some(Placement::Spread),
        "gpuspread" => {}
        // KAI has it off unless it is named.
        "gpujoborder" => core.gpu_job_order = on.then_some(GpuJobOrder::PreferLarger),
        // KAI has it on unless it is switched off.
        "backgroundpods" => core.background = on.then(label_selector::background),
        known => match Switch::named(known) {
            Some(switch) if on => {
                core.without.remove(&switch);
            }
            Some(switch) => {
                core.without.insert(switch);
            }
            None if BUILT_IN.contains(&known) => {
                if !on {
                    let why = format!("plugin {known} is built in and cannot be switched off");
                    say(".enabled", why);
                }
            }
            None if NOT_BUILT_IN.contains(&known) => {
                if on {
                    say("", format!("plugin {known} of KAI is not built in"));
                }
            }
            None => {
                say("", format!("plugin {known} is not known"));
                return false;
            }
        },
    }
    if plugin.priority.is_some() {
        let why = format!("priority of plugin {} has no effect", name.value);
        say(".priority", format!("{why}: plugins act in KAI's order"));
    }
    true
}

fn arguments(
    name: &Spanned<String>,
    plugin: &Plugin,
    core: &mut scheduler_core::Config,
    remarks: &mut Vec<Remark>,
) -> Result<(), Remark> {
    for (key, value) in &plugin.arguments.0 {
        let field = format!("plugins.{}.arguments.{}", name.value, key.value);
        match (name.value.as_str(), key.value.as_str()) {
            ("nodeplacement", "gpu") => core.gpu_placement = placement(value, &field)?,
            ("nodeplacement", "cpu") => core.cpu_placement = placement(value, &field)?,
            ("proportion", "kValue") => {
                core.k_value = billionths(value, &field, number(value, &field)?, 0.0)?;
            }
            // KAI's documents have the second name, its code the first.
            ("proportion", "relcaimerSaturationMultiplier" | "reclaimerUtilizationMultiplier") => {
                core.saturation_multiplier =
                    billionths(value, &field, number(value, &field)?, 1.0)?.max(NanoGpu::ONE.0);
            }
            ("minruntime", "defaultPreemptMinRuntime") => {
                core.preempt_min_runtime = duration(value, &field)?;
            }
            ("minruntime", "defaultReclaimMinRuntime") => {
                core.reclaim_min_runtime = duration(value, &field)?;
            }
            ("minruntime", "reclaimResolveMethod") => {
                core.reclaim_resolve = match value.value.as_str() {
                    "lca" => Resolve::Lca,
                    "queue" => Resolve::Queue,
                    other => {
                        let why = format!("{other} is neither lca nor queue");
                        return Err(remark(value, &field, why));
                    }
                };
            }
            ("gpujoborder", "mode") => {
                let order = match value.value.as_str() {
                    "prefer-larger" => GpuJobOrder::PreferLarger,
                    "prefer-smaller" => GpuJobOrder::PreferSmaller,
                    other => {
                        let why = format!("{other} is neither prefer-larger nor prefer-smaller");
                        return Err(remark(value, &field, why));
                    }
                };
                // Only where the plugin is enabled.
                core.gpu_job_order = core.gpu_job_order.map(|_| order);
            }
            ("backgroundpods", "labelSelector") => {
                let labels = label_selector::parse(&value.value);
                let labels = labels.map_err(|why| remark(value, &field, why))?;
                core.background = core.background.take().map(|_| labels);
            }
            ("proportion", "queuePriorityInQuotaReclaim") => {
                core.queue_priority_in_quota = truth(value, &field)?;
            }
            (plugin, key_name) => {
                let why = format!("argument {key_name} of plugin {plugin} has no effect");
                remarks.push(remark(key, &field, why));
            }
        }
    }
    Ok(())
}

/// KAI's default priorities; higher comes first, ties by name.
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
            let field = format!("actions.{}", name.value);
            let why = format!("action {} is none of {known}", name.value);
            return Err(remark(name, &field, why));
        };
        *priority = action.priority.unwrap_or(*priority);
        *on = action.enabled.unwrap_or(*on);
    }
    all.retain(|(.., on)| *on);
    all.sort_by_key(|(name, _, priority, _)| (Reverse(*priority), *name));
    Ok(all.into_iter().map(|(_, step, ..)| step).collect())
}

fn placement(text: &Spanned<String>, field: &str) -> Result<Placement, Remark> {
    match text.value.as_str() {
        "binpack" => Ok(Placement::Binpack),
        "spread" => Ok(Placement::Spread),
        // Ours.
        "fragmentation" => Ok(Placement::Fragmentation),
        other => Err(remark(
            text,
            field,
            format!("{other} is neither binpack nor spread nor fragmentation"),
        )),
    }
}

/// Go's truth (`strconv.ParseBool`), as KAI's flags read it.
fn truth(text: &Spanned<String>, field: &str) -> Result<bool, Remark> {
    match text.value.as_str() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => {
            let why = format!("{other} is neither true nor false");
            Err(remark(text, field, why))
        }
    }
}

fn number(text: &Spanned<String>, field: &str) -> Result<f64, Remark> {
    let no = |_| remark(text, field, format!("{} is not a number", text.value));
    text.value.parse().map_err(no)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be neither negative nor too large"
)]
fn billionths<T>(at: &Spanned<T>, field: &str, value: f64, least: f64) -> Result<u64, Remark> {
    if value.is_finite() && (least..=BILLION).contains(&value) {
        Ok((value * BILLION).round() as u64)
    } else {
        let name = field.rsplit('.').next().unwrap_or(field);
        let why = format!("{name} is at least {least} and at most {BILLION}");
        Err(remark(at, field, why))
    }
}
