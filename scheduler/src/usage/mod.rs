//! What each queue used in the past, as a part of the cluster, for fair share over time.
//!
//! Rule (KAI, `docs/time-based-fairshare`), per resource: the queue's allocation, summed over a
//! window, divided by the cluster's capacity, summed over the same window; use at time `t` ago
//! counts `0.5^(t / half-life)`. It does not change quotas: only the division of the surplus uses
//! it (`scheduler_core::fair_share`).
//!
//! - [`Settings`]: `usageDBConfig` of a shard, as it was read (`shard::usage`).
//! - [`Window`]: since when use counts. Pure.
//! - `prometheus`: the queries, and what of an answer is taken. Pure, but for `ask`.
//! - `ring`: values by key and time, bounded; `observed`: the same answers from such rings, without
//!   a database. Pure.
//! - `run`: asks, apart from decisions. Out: [`UsageResult`].
//! - [`LatestUsage`]: the last result, its age, and the part of it that goes to the core. Pure.

mod latest;
mod meters;
mod observed;
mod prometheus;
mod ring;
mod run;
mod window;

pub(crate) use crate::prometheus::url;
pub use latest::{LatestUsage, State};
pub use meters::UsageMeters;
pub use observed::ObservedUsage;
pub(crate) use observed::REACH;
pub use ring::Ring;
pub(crate) use run::{UsageClient, run};
pub use window::{Cron, Window};

use scheduler_core::ids::QueueName;
use scheduler_core::units::{Duration, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

/// GPU, CPU, memory: parts of the cluster in billionths.
pub type Parts = [u64; 3];
/// By queue; those without an entry used nothing.
pub type Uses = BTreeMap<QueueName, Parts>;

/// Where past use comes from, and what of it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The server that is queried.
    pub source: Source,
    /// Since when use counts.
    pub window: Window,
    /// Use this long ago counts half. `None`: no decay.
    pub half_life: Option<Duration>,
    /// Between two questions.
    pub fetch_interval: Duration,
    /// An answer older than this counts as none; at least `fetch_interval`.
    pub staleness: Duration,
    /// How long to wait for the first result before the shard reports that there is none. Decisions
    /// do not wait.
    pub wait: Duration,
}

/// `clientType`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `prometheus`: a server of its HTTP API.
    Prometheus(Server),
    /// `in-memory`: what this process saw itself, of the last 14 days at most.
    InMemory,
}

/// A server with Prometheus' HTTP API, and the queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its address.
    pub address: Address,
    /// `usageQueryTimeout`: for all queries of one question together.
    pub timeout: Duration,
    /// `queryResolution`: the step of the queries.
    pub resolution: Duration,
    /// What queues held: queries with a series for each `queue_name`. GPU, CPU, memory.
    pub allocation: [Arc<str>; 3],
    /// What the cluster had: queries with one series.
    pub capacity: [Arc<str>; 3],
}

/// Of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `connectionString`.
    Url(Arc<str>),
    /// `connectionStringEnvVar`: the variable of this process that has it.
    Variable(Arc<str>),
}

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

#[cfg(test)]
mod tests;
