//! Ranges of time that this process does not remember, from Prometheus.
//!
//! The queries are written here: a user chooses the object, never the query.

use super::answer::Series;
use crate::prometheus::{Run, client};
use scheduler_core::units::{Duration, Time};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// Points of one answer.
const POINTS: u64 = 300;
/// Between two points at least: as often as Prometheus scrapes by default.
const LEAST: u64 = 15_000;
/// A range at most.
const LONGEST: u64 = 366 * 24 * 3_600_000;
/// Timeout for an answer.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);
/// Queues of which the waiting pods are shown.
const QUEUES: u32 = 8;

/// Name of a series, the query, and what its values are divided by.
type Asked = (&'static str, String, f64);

const MIB: f64 = 1_048_576.0;

/// What the reader wants to see.
#[derive(Clone, Debug)]
pub(super) enum Of {
    /// As the history has it.
    Series(Series),
    /// One pod's shares, by namespace and name.
    Pod(String, String),
}

/// The queries of a thing.
fn queries(of: &Of) -> Vec<Asked> {
    let gpu = |what: &str| format!("max by (UUID) (aliquot_gpu_memory_{what}_bytes)");
    match of {
        Of::Series(Series::Fleet) => vec![
            ("grantable", format!("sum({})", gpu("grantable")), MIB),
            ("granted", format!("sum({})", gpu("granted")), MIB),
            ("used", format!("sum({})", gpu("used")), MIB),
            (
                "idle",
                format!("sum(clamp_min({} - {}, 0))", gpu("granted"), gpu("used")),
                MIB,
            ),
        ],
        Of::Series(Series::Card(uuid)) => ["granted", "used"]
            .map(|what| {
                let uuid = quoted(uuid);
                (
                    what,
                    format!("max(aliquot_gpu_memory_{what}_bytes{{UUID={uuid}}})"),
                    MIB,
                )
            })
            .into(),
        Of::Series(Series::Queue(name)) => {
            let name = quoted(name);
            vec![
                // Thousandths, as the history has them.
                (
                    "held",
                    format!("max(kai_queue_allocated_gpus{{queue_name={name}}})"),
                    1e-3,
                ),
                (
                    "waiting",
                    format!("max(aliquot_scheduler_queue_waiting_pods{{queue_name={name}}})"),
                    1.0,
                ),
            ]
        }
        Of::Series(Series::Waiting) => vec![(
            "",
            format!(
                "topk({QUEUES}, max by (queue_name) (aliquot_scheduler_queue_waiting_pods)) > 0"
            ),
            1.0,
        )],
        Of::Pod(namespace, name) => {
            let of = format!("namespace={},pod={}", quoted(namespace), quoted(name));
            // The memory in use of a share is reported once for each of its cards.
            vec![
                (
                    "granted",
                    format!("sum(aliquot_share_memory_limit_bytes{{{of}}})"),
                    MIB,
                ),
                (
                    "used",
                    format!("sum(max by (container) (aliquot_share_memory_used_bytes{{{of}}}))"),
                    MIB,
                ),
            ]
        }
    }
}

/// A string of Prometheus' language.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(character);
            }
            '\n' => quoted.push_str("\\n"),
            other => {
                let _ = quoted.write_char(other);
            }
        }
    }
    quoted.push('"');
    quoted
}

#[derive(Debug, Deserialize)]
struct Labels {
    queue_name: Option<String>,
}

/// Asks the server at this URL. In the form of the history's answers, without marks.
///
/// # Errors
/// One sentence on why there is no answer.
pub(super) async fn ask(url: &str, of: &Of, from: Time, until: Time) -> Result<Value, String> {
    if from >= until || until.0 - from.0 > LONGEST {
        return Err("from must be before until, and at most 366 days before it".to_owned());
    }
    let step = Duration(((until.0 - from.0) / POINTS).max(LEAST) / 1000 * 1000);
    let from = Time(from.0 / step.0 * step.0);
    let count = usize::try_from((until.0 - from.0) / step.0).unwrap_or(0) + 1;
    let client = client(url)?;
    let asked = async {
        let mut series = Map::new();
        for (name, query, unit) in queries(of) {
            for run in client.range::<Labels>(&query, from, until, step).await? {
                let name = match &run.metric.queue_name {
                    Some(queue) if name.is_empty() => queue.clone(),
                    _ => name.to_owned(),
                };
                series.insert(name, json!(points(&run, unit, from, step, count)));
            }
        }
        Ok::<_, String>(series)
    };
    let series = tokio::time::timeout(PATIENCE, asked).await;
    let series = series.map_err(|_| {
        format!(
            "{} did not answer within {} s",
            client.shown(),
            PATIENCE.as_secs()
        )
    })??;
    Ok(json!({
        "since": from.0, "now": until.0, "step": step.0, "from": from.0, "series": series,
        "marks": [], "source": "prometheus",
    }))
}

/// Values at their places; `None` where Prometheus has none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "seconds since 1970, and amounts that are clamped"
)]
fn points(
    run: &Run<Labels>,
    unit: f64,
    from: Time,
    step: Duration,
    count: usize,
) -> Vec<Option<u64>> {
    let mut points = vec![None; count];
    for (at, text) in &run.values {
        let at = Time((at * 1000.0) as u64);
        let place = usize::try_from(at.since(from).0 / step.0).unwrap_or(usize::MAX);
        let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
        if let (Some(point), Some(value)) = (points.get_mut(place), value) {
            *point = Some((value / unit).round().clamp(0.0, 1e15) as u64);
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_a_value_whatever_is_in_it() {
        let name = "a\"} or vector(1) # \\\n".to_owned();
        let read = |of: &Of| {
            let read = |query: &str| promql_parser::parser::parse(query);
            let queries = queries(of).into_iter();
            let read = queries.map(|(_, query, _)| format!("{:?}", read(&query).unwrap()));
            read.collect::<Vec<_>>()
        };
        for of in [
            Of::Series(Series::Queue(name.clone())),
            Of::Series(Series::Card(name.clone())),
            Of::Pod(name.clone(), name.clone()),
        ] {
            for read in read(&of) {
                assert!(read.contains(&format!("value: {name:?}")), "{read}");
                assert!(
                    !read.contains("VectorSelector(VectorSelector { name: Some(\"vector"),
                    "{read}"
                );
            }
        }
        for of in [Series::Fleet, Series::Waiting] {
            assert!(!read(&Of::Series(of)).is_empty());
        }
    }

    #[test]
    fn values_come_to_their_places() {
        let run: Run<Labels> = serde_json::from_value(json!({
            "metric": {}, "values": [[100, "1048576"], [130, "NaN"], [160, "3145728"], [900, "1"]],
        }))
        .unwrap();
        let points = points(&run, MIB, Time(70_000), Duration(30_000), 4);
        assert_eq!(points, [None, Some(1), None, Some(3)]);
    }
}
