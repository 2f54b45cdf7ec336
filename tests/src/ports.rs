//! The scheduler and admission are processes on one node, so that each port is one program's alone.

use crate::machine::ADDRESS;

/// Admission's webhook, which the API server calls.
pub(crate) const WEBHOOK_PORT: u16 = 8443;
/// Admission's health.
pub(crate) const ADMISSION_METRICS_PORT: u16 = 9403;
/// The scheduler's answers about resizes.
pub(crate) const ANSWERS_PORT: u16 = 8445;
/// The status page.
pub const PAGE_PORT: u16 = 8444;
/// The scheduler's metrics and health.
pub const SCHEDULER_METRICS: &str = "127.0.0.1:9401";

/// The scheduler's endpoint for agents.
pub fn telemetry_endpoint() -> String {
    format!("{ADDRESS}:{}", proto::names::telemetry::PORT)
}
