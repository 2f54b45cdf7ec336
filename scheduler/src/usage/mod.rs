//! What each queue used in the past, as a part of the cluster, for fair share over time.
//!
//! Rule (KAI, `docs/time-based-fairshare`), per resource: the queue's allocation, summed over a
//! window, divided by the cluster's capacity, summed over the same window; use at time `t` ago
//! counts `0.5^(t / half-life)`. It does not change quotas: only the division of the surplus uses
//! it (`scheduler_core::fair_share`).
//!
//! - [`Settings`]: `usageDBConfig` of a shard, as it was read (`shard::usage`).
//! - [`Window`]: since when use counts. Pure.
//! - `uses`: what queues used.
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
mod settings;
mod uses;
mod window;

pub(crate) use crate::prometheus::url;
pub use latest::{LatestUsage, State};
pub use meters::UsageMeters;
pub use observed::ObservedUsage;
pub(crate) use observed::REACH;
pub use ring::Ring;
pub(crate) use run::{UsageClient, run};
pub use settings::{Address, Server, Settings, Source};
pub use uses::{Parts, UsageResult, Uses};
pub use window::{Cron, Window};

#[cfg(test)]
mod tests;
