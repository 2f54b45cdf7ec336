//! Gauges by queue, under KAI's names, so that its dashboards keep working.

use super::products::ProductMeters;
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

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
#[expect(
    clippy::struct_field_names,
    reason = "fields are named as the labels are"
)]
struct QueueLabels {
    /// KAI's first name for it.
    queue_name: String,
    queue_metadata_name: String,
    queue_display_name: String,
}

impl QueueLabels {
    fn queue(view: &QueueView) -> Self {
        let name = view.queue.to_string();
        Self {
            queue_name: name.clone(),
            queue_metadata_name: name,
            queue_display_name: view.display_name.as_deref().unwrap_or_default().to_owned(),
        }
    }
}

/// As kube-state-metrics has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Resource {
    resource: &'static str,
}

type Series = Family<QueueLabels, Gauge<f64, AtomicU64>>;

/// By queue: fair share, allocation, demand, quota and limit.
#[derive(Debug, Default)]
pub struct QueueMeters {
    info: Series,
    fair: [Series; 3],
    held: [Series; 3],
    fixed: [Series; 3],
    requested: [Series; 3],
    quota: [Series; 3],
    limit: [Series; 3],
    waiting: Series,
    products: ProductMeters,
    usage: [Series; 3],
    capacity: Family<Resource, Gauge<f64, AtomicU64>>,
    known: Mutex<BTreeSet<QueueLabels>>,
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
const FIXED: [(&str, f64); 3] = [
    ("queue_allocated_non_preemptible_gpus", 1e9),
    ("queue_allocated_non_preemptible_cpu_cores", 1e3),
    ("queue_allocated_non_preemptible_memory_bytes", 1.0),
];
const REQUESTED: [(&str, f64); 3] = [
    ("queue_requested_gpus", 1e9),
    ("queue_requested_cpu_cores", 1e3),
    ("queue_requested_memory_bytes", 1.0),
];
const LIMIT: [(&str, f64); 3] = [
    ("queue_limit_gpus", 1e9),
    ("queue_limit_cpu_cores", 1e3),
    ("queue_limit_memory_bytes", 1.0),
];
const USAGE: [(&str, f64); 3] = [
    ("queue_gpu_usage", 1e9),
    ("queue_cpu_usage", 1e9),
    ("queue_memory_usage", 1e9),
];
const CAPACITY: [(&str, f64); 3] = [("nvidia_com_gpu", 1e9), ("cpu", 1e3), ("memory", 1.0)];
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
        kai.register("queue_info", "1 for each queue", meters.info.clone());
        let sets = [
            (&meters.fair, FAIR, "Fair share of the queue"),
            (&meters.held, HELD, "Allocated to the queue's pods"),
            (
                &meters.fixed,
                FIXED,
                "Allocated to the queue's non-preemptible pods",
            ),
            (
                &meters.requested,
                REQUESTED,
                "Allocated to the queue's running pods and requested by its pending ones",
            ),
            (&meters.quota, QUOTA, "Quota of the queue; -1: unlimited"),
            (&meters.limit, LIMIT, "Limit of the queue; -1: unlimited"),
            (
                &meters.usage,
                USAGE,
                "Past use that counts in fair share, as a fraction of the cluster's capacity; 0 if none counts",
            ),
        ];
        for (series, names, help) in sets {
            for (series, (name, _)) in series.iter().zip(names) {
                kai.register(name, help, series.clone());
            }
        }
        let ours = registry.sub_registry_with_prefix("aliquot_scheduler");
        ours.register(
            "queue_waiting_pods",
            "Pods of the queue that wait to be placed",
            meters.waiting.clone(),
        );
        meters.products.register(ours);
        ours.register(
            "capacity",
            "Capacity of all nodes, by resource, with kube-state-metrics' names and units: GPUs, cores, bytes",
            meters.capacity.clone(),
        );
        meters
    }

    /// What all nodes have together, in the core's units.
    pub fn set_capacity(&self, capacity: [u128; 3]) {
        for ((resource, unit), amount) in CAPACITY.into_iter().zip(capacity) {
            let of = Resource { resource };
            let gauge = self.capacity.get_or_create(&of);
            gauge.set(in_unit(amount, unit));
        }
    }

    fn series(&self) -> impl Iterator<Item = &Series> {
        let sets = [
            &self.fair,
            &self.held,
            &self.fixed,
            &self.requested,
            &self.quota,
            &self.limit,
            &self.usage,
        ];
        sets.into_iter()
            .flatten()
            .chain([&self.info, &self.waiting])
    }

    /// Sets all of them; deleted queues are removed.
    pub fn set(&self, views: &[QueueView]) {
        let names: BTreeSet<QueueLabels> = views.iter().map(QueueLabels::queue).collect();
        let mut known = locked(&self.known);
        for gone in known.difference(&names) {
            for series in self.series() {
                series.remove(gone);
            }
        }
        *known = names;
        self.products.set(views);
        for view in views {
            let of = QueueLabels::queue(view);
            self.info.get_or_create(&of).set(1.0);
            self.waiting.get_or_create(&of).set(view.waiting.into());
            let requested = std::array::from_fn(|at| view.held[at].saturating_add(view.wanted[at]));
            set(&self.fair, FAIR, &of, view.fair.unwrap_or_default());
            set(&self.held, HELD, &of, view.held);
            set(&self.fixed, FIXED, &of, view.held_non_preemptible);
            set(&self.requested, REQUESTED, &of, requested);
            set_bounds(&self.quota, QUOTA, &of, view.quota);
            set_bounds(&self.limit, LIMIT, &of, view.limit);
            set(&self.usage, USAGE, &of, view.usage.map(u128::from));
        }
    }
}

/// A bound without end is -1, as in KAI's specs.
fn set_bounds(series: &[Series; 3], names: [(&str, f64); 3], of: &QueueLabels, bounds: [Bound; 3]) {
    for ((series, (_, unit)), bound) in series.iter().zip(names).zip(bounds) {
        let value = match bound {
            Bound::Unlimited => -1.0,
            Bound::Exactly(amount) => in_unit(u128::from(amount), unit),
        };
        series.get_or_create(of).set(value);
    }
}

fn set(series: &[Series; 3], names: [(&str, f64); 3], of: &QueueLabels, amounts: [u128; 3]) {
    for ((series, (_, unit)), amount) in series.iter().zip(names).zip(amounts) {
        series.get_or_create(of).set(in_unit(amount, unit));
    }
}

#[allow(clippy::cast_precision_loss)] // A gauge is a float.
fn in_unit(amount: u128, unit: f64) -> f64 {
    amount as f64 / unit
}
