//! Gauges by queue, under KAI's names, so that its dashboards keep working.

use crate::lock::locked;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use scheduler_core::QueueView;
use scheduler_core::units::Bound;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    queue_name: String,
}

type Series = Family<Of, Gauge<f64, AtomicU64>>;

/// By queue: fair share, what is held, quota.
#[derive(Debug, Default)]
pub struct QueueMeters {
    fair: [Series; 3],
    held: [Series; 3],
    quota: [Series; 3],
    known: Mutex<BTreeSet<String>>,
}

/// Names behind `kai_`, by GPU, CPU, memory, and their unit in the core's.
const FAIR: [(&str, f64); 3] = [
    ("queue_fair_share_gpu", 1e9),
    ("queue_fair_share_cpu_cores", 1e3),
    ("queue_fair_share_memory_gb", 1e9),
];
const HELD: [(&str, f64); 3] = [
    ("queue_allocated_gpus", 1e9),
    ("queue_allocated_cpu_cores", 1e3),
    ("queue_allocated_memory_bytes", 1.0),
];
const QUOTA: [(&str, f64); 3] = [
    ("queue_deserved_gpus", 1e9),
    ("queue_quota_cpu_cores", 1e3),
    ("queue_quota_memory_bytes", 1.0),
];

impl QueueMeters {
    /// New ones, in this registry.
    pub fn registered(registry: &mut Registry) -> Self {
        let meters = Self::default();
        let kai = registry.sub_registry_with_prefix("kai");
        let sets = [
            (&meters.fair, FAIR, "What the queue deserves now"),
            (&meters.held, HELD, "What the queue's pods hold"),
            (&meters.quota, QUOTA, "What the queue is guaranteed"),
        ];
        for (series, names, help) in sets {
            for (series, (name, _)) in series.iter().zip(names) {
                kai.register(name, help, series.clone());
            }
        }
        meters
    }

    /// Sets all of them; queues that are gone are shown no more.
    pub fn set(&self, views: &[QueueView]) {
        let names: BTreeSet<String> = views.iter().map(|view| view.queue.to_string()).collect();
        let mut known = locked(&self.known);
        for gone in known.difference(&names) {
            let of = Of {
                queue_name: gone.clone(),
            };
            for series in [&self.fair, &self.held, &self.quota].into_iter().flatten() {
                series.remove(&of);
            }
        }
        *known = names;
        for view in views {
            let of = Of {
                queue_name: view.queue.to_string(),
            };
            set(&self.fair, FAIR, &of, view.fair.unwrap_or_default());
            set(&self.held, HELD, &of, view.held);
            // A quota without end is -1, as in KAI's specs.
            let quota = view.quota.map(|bound| match bound {
                Bound::Unlimited => None,
                Bound::Exactly(amount) => Some(u128::from(amount)),
            });
            for ((series, (_, unit)), amount) in self.quota.iter().zip(QUOTA).zip(quota) {
                let value = amount.map_or(-1.0, |amount| in_unit(amount, unit));
                series.get_or_create(&of).set(value);
            }
        }
    }
}

fn set(series: &[Series; 3], names: [(&str, f64); 3], of: &Of, amounts: [u128; 3]) {
    for ((series, (_, unit)), amount) in series.iter().zip(names).zip(amounts) {
        series.get_or_create(of).set(in_unit(amount, unit));
    }
}

#[allow(clippy::cast_precision_loss)] // A gauge is a float.
fn in_unit(amount: u128, unit: f64) -> f64 {
    amount as f64 / unit
}
