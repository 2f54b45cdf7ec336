//! The panels of the KAI Scheduler's dashboards, against a real Prometheus that reads our pages.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::ports::SCHEDULER_METRICS;
use aliquot_tests::prometheus::Prometheus;
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::time::Duration;

/// What its queries ask, panel by panel (`docs/metrics/grafana` and `docs/metrics` of KAI's
/// repository, 2026): `$S` is the scheduler's namespace and pods, `$I` Grafana's rate interval.
///
/// Left out is one panel, the latency of plugins: there are none to time, which
/// `docs/migration.md` says. So is `DCGM_FI_DEV_GPU_UTIL`, which DCGM's exporter has, and
/// `kai_queue_gpu_usage_devices`, which no release of KAI exports.
const PANELS: [(&str, &[&str]); 12] = [
    (
        "End-to-End Scheduling Latency",
        &["max by (pod) (kai_e2e_scheduling_latency_milliseconds{$S}) / 1000"],
    ),
    (
        "Session Open/Close Latency",
        &[
            "max by (pod) (kai_open_session_latency_milliseconds{$S}) / 1000",
            "max by (pod) (kai_close_session_latency_milliseconds{$S}) / 1000",
        ],
    ),
    (
        "Action Scheduling Latency",
        &[
            "max by (action) (kai_action_scheduling_latency_milliseconds{$S, action=~\".*\"}) / 1000",
        ],
    ),
    (
        "PodGroups Acted On vs Scheduled",
        &[
            "sum by (action) (rate(kai_podgroups_acted_on_by_action{$S, action=~\".*\"}[$I]))",
            "sum by (action) (rate(kai_podgroups_scheduled_by_action{$S, action=~\".*\"}[$I]))",
        ],
    ),
    (
        "Scenario Simulation and Filtering",
        &[
            "sum by (action) (rate(kai_scenarios_simulation_by_action{$S, action=~\".*\"}[$I]))",
            "sum by (action) (rate(kai_scenarios_filtered_by_action{$S, action=~\".*\"}[$I]))",
        ],
    ),
    (
        "Task Scheduling Latency Quantiles",
        &[
            "histogram_quantile(0.50, sum by (le) (rate(kai_task_scheduling_latency_milliseconds_bucket{$S}[$I]))) / 1000",
            "histogram_quantile(0.90, sum by (le) (rate(kai_task_scheduling_latency_milliseconds_bucket{$S}[$I]))) / 1000",
            "histogram_quantile(0.99, sum by (le) (rate(kai_task_scheduling_latency_milliseconds_bucket{$S}[$I]))) / 1000",
        ],
    ),
    (
        "Binder Latency Quantiles",
        &[
            "histogram_quantile(0.50, sum by (le) (rate(kai_task_bind_latency_milliseconds_bucket{$S}[$I]))) / 1000",
            "histogram_quantile(0.90, sum by (le) (rate(kai_task_bind_latency_milliseconds_bucket{$S}[$I]))) / 1000",
            "histogram_quantile(0.99, sum by (le) (rate(kai_task_bind_latency_milliseconds_bucket{$S}[$I]))) / 1000",
        ],
    ),
    (
        "Preemption",
        &["sum(rate(kai_total_preemption_attempts{$S}[$I]))"],
    ),
    (
        "Evictions",
        &[
            "sum by (action, nodepool) (rate(kai_pod_group_evicted_pods_total{$S, action=~\".*\"}[$I]))",
        ],
    ),
    ("Usage", &["kai_queue_gpu_usage"]),
    ("Fair share", &["kai_queue_fair_share_gpu"]),
    ("Allocated", &["kai_queue_allocated_gpus"]),
];

const SCHEDULER: &str = "namespace=~\"aliquot-system\", pod=~\".*\"";
const INTERVAL: &str = "30s";

/// Needs the only card for itself.
fn large(ns: &str, name: &str, class: &str) -> Value {
    let mut large = pod(ns, name, &[("gpu-memory", "12000")], "report hold");
    large["metadata"]["labels"] = json!({ "priorityClassName": class });
    large
}

/// A pod takes the card of another, and a third, for which no room is made, waits.
async fn preempt(cluster: &Cluster, ns: &str, round: usize) -> Result<()> {
    let name = |what: &str| format!("{what}-{round}");
    cluster
        .run_share(&large(ns, &name("train"), "train"))
        .await?;
    cluster
        .apply_one(&large(ns, &name("build"), "build-preemptible"))
        .await?;
    cluster.pod_phase(ns, &name("build"), "Running").await?;
    cluster
        .apply_one(&large(ns, &name("late"), "build-preemptible"))
        .await?;
    cluster.delete_pods(ns, ["late", "build"].map(name)).await?;
    Ok(())
}

pub(crate) async fn kais_panels_are_not_empty(cluster: &mut Cluster) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let labels = json!({ "namespace": "aliquot-system", "pod": "aliquot-scheduler-0" });
    let prometheus = Prometheus::start(cluster, &[(SCHEDULER_METRICS, labels)]).await?;
    let outcome = filled(cluster, &prometheus, &ns).await;
    let stopped = prometheus.stop().await;
    outcome.and(stopped)
}

async fn filled(cluster: &Cluster, prometheus: &Prometheus, ns: &str) -> Result<()> {
    // A rate is of two samples at least, the first before anything happened.
    for round in 0..3 {
        preempt(cluster, ns, round).await?;
    }
    // What its variables offer.
    let first = "kai_e2e_scheduling_latency_milliseconds";
    let namespaces = prometheus.label_values("namespace", first).await?;
    ensure!(namespaces == ["aliquot-system"], "{namespaces:?}");
    let pods = prometheus.label_values("pod", first).await?;
    ensure!(pods == ["aliquot-scheduler-0"], "{pods:?}");
    let actions = "kai_action_scheduling_latency_milliseconds";
    let actions = prometheus.label_values("action", actions).await?;
    for action in ["allocate", "consolidation", "preempt", "reclaim"] {
        ensure!(actions.iter().any(|one| one == action), "{actions:?}");
    }
    for (title, queries) in PANELS {
        for query in queries {
            let query = query.replace("$S", SCHEDULER).replace("$I", INTERVAL);
            until(title, Duration::from_secs(10), || async {
                let values = prometheus.query(&query).await?;
                // Grafana draws no line through what is not a number.
                let drawn = values.iter().any(|value| value.is_finite());
                Ok(Seen::when(drawn, format!("{query}: {values:?}")))
            })
            .await?;
        }
    }
    Ok(())
}
