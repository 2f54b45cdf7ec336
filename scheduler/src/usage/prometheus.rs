//! Past use from a server of Prometheus' HTTP API.
//!
//! One question is six instant queries, `POST /api/v1/query`: what the cluster had and what each
//! queue held, of each resource, as sums over the window at `queryResolution`. As KAI's, but for
//! two things:
//! - `max by (queue_name)`: several replicas are scraped, and a restart begins another series.
//!   KAI takes any one of them.
//! - `tumbling` and `cron` are windows that end now, as `sliding` is; KAI asks a range query for
//!   `sum_over_time` of an instant vector, which Prometheus refuses.

use super::settings::{Address, Server, Settings, Source};
use super::uses::{Uses, part};
use crate::prometheus::{Sample, client, words};
use scheduler_core::ids::QueueName;
use scheduler_core::units::Time;
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::BTreeMap;

const RESOURCES: [&str; 3] = ["GPU", "CPU", "memory"];

/// Asks for past use as of `now`.
///
/// # Errors
/// One sentence on why there is no answer, without a full stop.
pub(super) async fn ask(settings: &Settings, now: Time) -> Result<Uses, String> {
    let Source::Prometheus(server) = &settings.source else {
        return Err("no server is named".to_owned());
    };
    let Some(range) = range(settings, now) else {
        // The window has just begun.
        return Ok(Uses::new());
    };
    let url = match &server.address {
        Address::Url(url) => Cow::from(&**url),
        Address::Variable(name) => match std::env::var(&**name) {
            Ok(url) if !url.is_empty() => Cow::from(url),
            _ => return Err(format!("the environment variable {name} is not set")),
        },
    };
    let prometheus = client(&url)?;
    let timeout = std::time::Duration::from_millis(server.timeout.0);
    let asked = tokio::time::timeout(timeout, async {
        let mut capacity = [0.0; 3];
        for (index, query) in server.capacity.iter().enumerate() {
            let query = sum(query, server, settings, range, now);
            let series: Vec<Series> = prometheus.instant(&query, now).await?;
            capacity[index] = one(&series, RESOURCES[index])?;
        }
        let mut used: BTreeMap<QueueName, [f64; 3]> = BTreeMap::new();
        for (index, query) in server.allocation.iter().enumerate() {
            let query = format!("max by (queue_name) ({query})");
            let query = sum(&query, server, settings, range, now);
            for series in prometheus.instant::<Labels>(&query, now).await? {
                let value = amount(&series, RESOURCES[index])?;
                if let Some(queue) = series.metric.queue_name {
                    used.entry(QueueName::from(queue)).or_default()[index] = value;
                }
            }
        }
        let parts = |used: [f64; 3]| [0, 1, 2].map(|index| part(used[index], capacity[index]));
        let uses = used.into_iter().map(|(queue, used)| (queue, parts(used)));
        Ok(uses.filter(|(_, parts)| *parts != [0; 3]).collect())
    });
    match asked.await {
        Ok(answered) => answered,
        Err(_) => Err(format!(
            "{} did not answer within usageQueryTimeout, {} s",
            prometheus.shown(),
            server.timeout.0.div_ceil(1000)
        )),
    }
}

/// Seconds of the window so far. `None`: less than one.
fn range(settings: &Settings, now: Time) -> Option<u64> {
    let seconds = now.since(settings.window.begin(now)).0 / 1000;
    (seconds > 0).then_some(seconds)
}

/// A query summed over the window.
fn sum(query: &str, server: &Server, settings: &Settings, range: u64, now: Time) -> String {
    let resolution = server.resolution.0.div_ceil(1000);
    let query = match settings.half_life {
        Some(half) => Cow::from(format!(
            "({query}) * (0.5 ^ (({} - time()) / {}))",
            now.0 / 1000,
            half.0.div_ceil(1000)
        )),
        None => Cow::from(query),
    };
    format!("sum_over_time(({query})[{range}s:{resolution}s])")
}

/// One sample of a vector.
type Series = Sample<Labels>;

#[derive(Debug, Deserialize)]
struct Labels {
    queue_name: Option<String>,
}

/// A number that can be an amount.
fn amount(series: &Series, resource: &str) -> Result<f64, String> {
    let text = &series.value.1;
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => {
            let of = match &series.metric.queue_name {
                Some(queue) => format!("{resource} use of queue {}", words(queue)),
                None => format!("{resource} of the cluster"),
            };
            Err(format!(
                "its {of} is {}, which is not an amount",
                words(text)
            ))
        }
    }
}

fn one(series: &[Series], resource: &str) -> Result<f64, String> {
    let first = series.first().ok_or_else(|| {
        format!("it knows no {resource} capacity of the cluster: let it scrape this scheduler or kube-state-metrics, whose values count from the next step of queryResolution on")
    })?;
    amount(first, resource)
}
