//! Gauges by queue and GPU product, for the products that queues name.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use scheduler_core::QueueView;
use scheduler_core::model::ProductUnit;
use std::sync::atomic::AtomicU64;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    queue_name: String,
    product: String,
}

type Series = Family<Labels, Gauge<f64, AtomicU64>>;

/// Quota, limit and allocation.
#[derive(Debug, Default)]
struct UnitMeters {
    quota: Series,
    limit: Series,
    held: Series,
}

/// In the unit in which a queue counts the product.
#[derive(Debug, Default)]
pub(super) struct ProductMeters {
    gpus: UnitMeters,
    memory: UnitMeters,
}

impl ProductMeters {
    pub(super) fn register(&self, registry: &mut Registry) {
        for (name, help, series) in [
            (
                "queue_product_quota_gpus",
                "Quota of the queue of that GPU product; -1: unlimited; absent where the queue says none",
                &self.gpus.quota,
            ),
            (
                "queue_product_limit_gpus",
                "Limit of the queue of that GPU product; -1: unlimited",
                &self.gpus.limit,
            ),
            (
                "queue_product_allocated_gpus",
                "GPUs of that product that are allocated to the queue's pods",
                &self.gpus.held,
            ),
            (
                "queue_product_memory_quota_bytes",
                "Quota of the queue of memory of that GPU product, where the queue counts it in MiB; -1: unlimited; absent where the queue says none",
                &self.memory.quota,
            ),
            (
                "queue_product_memory_limit_bytes",
                "Limit of the queue of memory of that GPU product, where the queue counts it in MiB; -1: unlimited",
                &self.memory.limit,
            ),
            (
                "queue_product_memory_allocated_bytes",
                "Memory of GPUs of that product that is allocated to the queue's pods, where the queue counts it in MiB",
                &self.memory.held,
            ),
        ] {
            registry.register(name, help, series.clone());
        }
    }

    /// Sets all of them again: they are few.
    pub(super) fn set(&self, views: &[QueueView]) {
        for of in [&self.gpus, &self.memory] {
            for series in [&of.quota, &of.limit, &of.held] {
                series.clear();
            }
        }
        for view in views {
            for one in &view.products {
                let of = Labels {
                    queue_name: view.queue.to_string(),
                    product: one.row.product.to_string(),
                };
                let unit = one.row.unit;
                let (meters, scale) = match unit {
                    ProductUnit::Gpus => (&self.gpus, 1.0),
                    ProductUnit::Memory => (&self.memory, BYTES_PER_MIB),
                };
                let amount = |billionths| whole(billionths) * scale;
                // A bound without end is -1, as in KAI's specs.
                let bound = |bound| unit.billionths(bound).map_or(-1.0, amount);
                if let Some(quota) = one.row.quota {
                    meters.quota.get_or_create(&of).set(bound(quota));
                }
                meters.limit.get_or_create(&of).set(bound(one.row.limit));
                meters.held.get_or_create(&of).set(amount(one.held));
            }
        }
    }
}

const BYTES_PER_MIB: f64 = 1_048_576.0;

#[allow(clippy::cast_precision_loss)] // A gauge is a float.
fn whole(billionths: u128) -> f64 {
    billionths as f64 / 1e9
}
