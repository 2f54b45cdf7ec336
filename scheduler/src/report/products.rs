//! Gauges by queue and GPU product, for the products that queues name.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use scheduler_core::QueueView;
use scheduler_core::units::Bound;
use std::sync::atomic::AtomicU64;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    queue_name: String,
    product: String,
}

type Series = Family<Labels, Gauge<f64, AtomicU64>>;

/// Quota, limit and allocation in GPUs.
#[derive(Debug, Default)]
pub(super) struct ProductMeters {
    quota: Series,
    limit: Series,
    held: Series,
}

impl ProductMeters {
    pub(super) fn register(&self, registry: &mut Registry) {
        for (name, help, series) in [
            (
                "queue_product_quota_gpus",
                "Quota of the queue of that GPU product; -1: unlimited; absent where the queue says none",
                &self.quota,
            ),
            (
                "queue_product_limit_gpus",
                "Limit of the queue of that GPU product; -1: unlimited",
                &self.limit,
            ),
            (
                "queue_product_allocated_gpus",
                "GPUs of that product that are allocated to the queue's pods",
                &self.held,
            ),
        ] {
            registry.register(name, help, series.clone());
        }
    }

    /// Sets all of them again: they are few.
    pub(super) fn set(&self, views: &[QueueView]) {
        for series in [&self.quota, &self.limit, &self.held] {
            series.clear();
        }
        for view in views {
            for one in &view.products {
                let of = Labels {
                    queue_name: view.queue.to_string(),
                    product: one.row.product.to_string(),
                };
                if let Some(quota) = one.row.quota {
                    self.quota.get_or_create(&of).set(bound(quota));
                }
                self.limit.get_or_create(&of).set(bound(one.row.limit));
                self.held.get_or_create(&of).set(gpus(one.held));
            }
        }
    }
}

/// A bound without end is -1, as in KAI's specs.
fn bound(bound: Bound) -> f64 {
    match bound {
        Bound::Unlimited => -1.0,
        Bound::Exactly(nano) => gpus(u128::from(nano)),
    }
}

#[allow(clippy::cast_precision_loss)] // A gauge is a float.
fn gpus(nano: u128) -> f64 {
    nano as f64 / 1e9
}
