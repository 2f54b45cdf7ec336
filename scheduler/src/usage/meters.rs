//! Gauges about past use.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Pool {
    nodepool: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueryLabels {
    nodepool: String,
    result: &'static str,
}

/// Of all shards.
#[derive(Debug)]
pub struct UsageMeters {
    age: Family<Pool, Gauge<f64, AtomicU64>>,
    questions: Family<QueryLabels, Counter>,
    latency: Histogram,
}

impl UsageMeters {
    /// New ones, in this registry.
    pub fn registered(registry: &mut Registry) -> Self {
        let meters = Self {
            age: Family::default(),
            questions: Family::default(),
            // 1 ms to 33 s.
            latency: Histogram::new(exponential_buckets(1.0, 2.0, 16)),
        };
        registry.sub_registry_with_prefix("kai").register(
            "usage_query_latency_milliseconds",
            "Time of a successful query for past use",
            meters.latency.clone(),
        );
        let registry = registry.sub_registry_with_prefix("aliquot_scheduler");
        registry.register(
            "usage_age_seconds",
            "Age of the last result for past use, or time without one, by node pool",
            meters.age.clone(),
        );
        registry.register(
            "usage_questions",
            "Queries for past use, by node pool and result: `answered` or `failed`",
            meters.questions.clone(),
        );
        meters
    }

    /// The last answer is so old.
    pub(super) fn age(&self, nodepool: &str, age: Duration) {
        let of = Pool {
            nodepool: nodepool.to_owned(),
        };
        self.age.get_or_create(&of).set(age.as_secs_f64());
    }

    /// There are no more queries.
    pub(super) fn forget(&self, nodepool: &str) {
        self.age.remove(&Pool {
            nodepool: nodepool.to_owned(),
        });
    }

    /// A question ended after that time.
    pub(super) fn asked(&self, nodepool: &str, answered: bool, took: Duration) {
        let of = QueryLabels {
            nodepool: nodepool.to_owned(),
            result: if answered { "answered" } else { "failed" },
        };
        self.questions.get_or_create(&of).inc();
        if answered {
            self.latency.observe(took.as_secs_f64() * 1e3);
        }
    }
}
