//! Past use from the question to the core's division.

mod asked;
mod kept;
mod late;
mod week;

use super::*;
use crate::shard::{Live, Shard};
use api::kai::SchedulingShard;
use scheduler_core::units::{Duration, Time};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Monday.
const MONDAY: u64 = 1_767_571_200;
const HOUR: u64 = 3600;

fn second(at: u64) -> Time {
    Time(at * 1000)
}

/// A shard whose object says this, and what is in force then.
fn live(config: Value) -> (Live, Option<Settings>) {
    let flags = crate::Config::default();
    let shard = Shard::of_all(&flags, flags.core(0));
    let mut live = Live::new(&shard, None);
    let object: SchedulingShard = serde_json::from_value(json!({
        "apiVersion": "kai.scheduler/v1", "kind": "SchedulingShard",
        "metadata": {"name": shard.name, "generation": 1},
        "spec": {"usageDBConfig": config}}))
    .unwrap();
    live.shard(object);
    let settings = live.usage().cloned();
    (live, settings)
}

/// The settings that a shard with this field has.
fn settings(config: Value) -> Settings {
    let (mut live, settings) = live(config);
    settings.unwrap_or_else(|| panic!("{:?}", live.reports(Time(1))))
}

/// Of a server, with these parameters over KAI's defaults.
fn asked(url: &str, params: Value) -> Settings {
    settings(json!({"clientType": "prometheus", "connectionString": url, "usageParams": params}))
}

fn near(one: u64, other: f64, by: f64) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "billionths")]
    let one = one as f64 / 1e9;
    (one - other).abs() <= by
}
