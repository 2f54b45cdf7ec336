//! The scheduler and admission are processes on one node, so that each port is one program's alone.

use crate::machine::ADDRESS;

/// Where the API server calls admission's webhook.
pub(crate) const WEBHOOK_PORT: u16 = 8443;
/// Where admission's health is.
pub(crate) const ADMISSION_METRICS_PORT: u16 = 9403;
/// Where the scheduler answers about resizes.
pub(crate) const ANSWERS_PORT: u16 = 8445;
/// Of the status page.
pub const PAGE_PORT: u16 = 8444;
/// Where the scheduler shows its metrics and its health.
pub const SCHEDULER_METRICS: &str = "127.0.0.1:9401";

/// Where agents reach the scheduler.
pub fn telemetry_endpoint() -> String {
    format!("{ADDRESS}:{}", proto::names::telemetry::PORT)
}
