//! What was granted and not used, in GPU-hours and MiB-hours, from the history.
//!
//! All numbers are thousandths of GPU-hours, or MiB-hours, rounded down.

use super::{Answer, NO_QUEUES, Pods, Rights, Rows};
use crate::history::{PERIOD, Tenant, Used};
use scheduler_core::units::Time;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const HOUR: u64 = 3600;

/// How rows of a report are grouped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ReportBy {
    /// Queues.
    #[default]
    Queue,
    /// Namespaces.
    Namespace,
    /// Workloads: what made the pods.
    Owner,
}

impl ReportBy {
    /// The value in queries and flags.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Namespace => "namespace",
            Self::Owner => "owner",
        }
    }
}

/// The arguments of a report.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::page) struct Report {
    #[serde(default)]
    pub(in crate::page) by: ReportBy,
    /// Number of hours back; 24 when unset.
    pub(in crate::page) hours: Option<u64>,
}

pub(super) fn rows(report: &Report, rights: &Rights, rows: &Rows) -> Answer {
    if !rights.queues && report.by == ReportBy::Queue {
        return Answer::Denied(NO_QUEUES);
    }
    let hours = report.hours.unwrap_or(24);
    let from = Time(rows.now.0.saturating_sub(hours.saturating_mul(HOUR * 1000)));
    // Whole hours are kept: the one in which the window begins is left out, unless it is this one.
    let open = Time(rows.now.0 / (HOUR * 1000) * (HOUR * 1000));
    let from = Time(from.0.div_ceil(HOUR * 1000) * HOUR * 1000).min(open);
    let known = rows.history.ledger.since(from);
    let mut sums: BTreeMap<(&str, &str, &str), BTreeMap<&str, Used>> = BTreeMap::new();
    let mut hidden = Used::default();
    for (tenant, used) in &known.tenants {
        let sees = rights.pods == Pods::All || rights.sees(&tenant.namespace);
        match key(tenant, report.by, sees, rights.queues) {
            Some(key) => {
                let products = sums.entry(key).or_default();
                products.entry(&tenant.product).or_default().add(*used);
            }
            None => hidden.add(*used),
        }
    }
    let table: Vec<Value> = sums
        .iter()
        .map(|((queue, namespace, owner), products)| {
            let mut all = Used::default();
            for used in products.values() {
                all.add(*used);
            }
            let mut row = of(&all);
            row["queue"] = json!(queue);
            row["namespace"] = json!(namespace);
            row["owner"] = json!(owner);
            let products = products.iter();
            let products = products.map(|(name, used)| ((*name).to_owned(), of(used)));
            row["products"] = Value::Object(products.collect());
            row
        })
        .collect();
    let idle = rights.cards.then(|| {
        json!({
            "gpuHours": known.idle.gpu / HOUR, "freeGpuHours": known.idle.gpu_free / HOUR,
            "grantableMibHours": known.idle.grantable / HOUR,
            "freeMibHours": known.idle.free / HOUR,
        })
    });
    Answer::Json(json!({
        "by": report.by.as_str(), "from": known.from.map(|at| at.0), "until": rows.now.0 / PERIOD.0 * PERIOD.0,
        "seconds": known.idle.seconds, "ownersFrom": known.owners_from.map(|at| at.0),
        "since": rows.history.since().0, "rows": table, "cards": idle,
        "hidden": (hidden != Used::default()).then(|| of(&hidden)),
    }))
}

fn of(used: &Used) -> Value {
    json!({
        "gpuHours": used.gpu / HOUR, "unusedGpuHours": unused_gpu(used) / HOUR,
        "grantedMibHours": used.granted / HOUR, "unusedMibHours": used.unused / HOUR,
        "longestIdleMinutes": used.longest_idle,
    })
}

/// The key of a tenant's sum; `None`: the user may not see it.
fn key(tenant: &Tenant, by: ReportBy, sees: bool, queues: bool) -> Option<(&str, &str, &str)> {
    let queue = if queues { &*tenant.queue } else { "" };
    match by {
        ReportBy::Queue => Some((queue, "", "")),
        ReportBy::Namespace => sees.then_some(("", &*tenant.namespace, "")),
        ReportBy::Owner => sees.then_some((queue, &*tenant.namespace, &*tenant.owner)),
    }
}

/// The part of the GPUs that its unused memory is of what was granted.
fn unused_gpu(used: &Used) -> u64 {
    let part = u128::from(used.gpu) * u128::from(used.unused) / u128::from(used.granted.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_list_pods_sees_sums_of_queues_alone() {
        let tenant = Tenant {
            queue: "q".into(),
            namespace: "ns".into(),
            owner: "Job/a".into(),
            product: "L4".into(),
        };
        assert_eq!(
            key(&tenant, ReportBy::Queue, false, true),
            Some(("q", "", ""))
        );
        assert_eq!(key(&tenant, ReportBy::Namespace, false, true), None);
        assert_eq!(key(&tenant, ReportBy::Owner, false, true), None);
        assert_eq!(
            key(&tenant, ReportBy::Owner, true, false),
            Some(("", "ns", "Job/a"))
        );
        let used = Used {
            gpu: 1000,
            granted: 200,
            unused: 50,
            longest_idle: 0,
        };
        assert_eq!(unused_gpu(&used), 250);
    }
}
