//! The past use of queues, as parts of the cluster.

use super::settings::Settings;
use scheduler_core::ids::QueueName;
use scheduler_core::units::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The parts of the cluster's GPUs, CPU and memory, in billionths.
pub type Parts = [u64; 3];

/// The parts by queue. A queue without an entry used nothing.
pub type Uses = BTreeMap<QueueName, Parts>;

/// An answer, or why there is none.
#[derive(Clone, Debug)]
pub struct UsageResult {
    /// The settings with which the source was queried.
    pub settings: Arc<Settings>,
    /// The time of the query.
    pub at: Time,
    /// The parts by queue, or the reason why there are none, in one sentence.
    pub result: Result<Arc<Uses>, Arc<str>>,
}

/// Returns a part of the cluster in billionths. Use above the capacity is possible, after nodes have
/// left; more than a thousand times the capacity counts as a thousand times.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped, and NaN is 0"
)]
pub(crate) fn part(used: f64, capacity: f64) -> u64 {
    if capacity > 0.0 {
        ((used / capacity).clamp(0.0, 1e3) * 1e9).round() as u64
    } else {
        0
    }
}
