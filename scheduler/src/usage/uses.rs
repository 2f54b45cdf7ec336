//! What queues used, as parts of the cluster.

use super::settings::Settings;
use scheduler_core::ids::QueueName;
use scheduler_core::units::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// GPU, CPU, memory: parts of the cluster in billionths.
pub type Parts = [u64; 3];

/// By queue; those without an entry used nothing.
pub type Uses = BTreeMap<QueueName, Parts>;

/// An answer, or why there is none.
#[derive(Clone, Debug)]
pub struct UsageResult {
    /// The query.
    pub settings: Arc<Settings>,
    /// When it was asked.
    pub at: Time,
    /// Parts by queue, or one sentence.
    pub result: Result<Arc<Uses>, Arc<str>>,
}

/// A part of the cluster in billionths. Use above the capacity is possible, as where nodes left;
/// a thousand times as much counts as that.
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
