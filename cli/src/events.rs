//! `aliquot events`: the scheduler's events about pods, newest last.

use crate::connect::{Cluster, ClusterArgs, block_on};
use crate::failure::{Failure, Outcome};
use crate::report::{Cell, Column, Follow, Output, Report, Table, Tone};
use crate::shadow::clock;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use std::process::ExitCode;

/// Flags of `aliquot events`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Only events about this pod.
    #[arg(value_name = "[NAMESPACE/]POD")]
    pod: Option<String>,
    /// Only events of this namespace; by default of all.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Only events of the scheduler with this name.
    #[arg(long, value_name = "NAME", default_value = proto::names::kai::SCHEDULER_NAME)]
    scheduler_name: String,
    #[command(flatten)]
    place: ClusterArgs,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    follow: Follow,
}

const COLUMNS: &[Column] = &[
    Column::text("at", "AGE"),
    Column::text("namespace", "NAMESPACE"),
    Column::text("pod", "POD"),
    Column::text("type", "TYPE"),
    Column::text("reason", "REASON"),
    Column::number("count", "COUNT"),
    Column::text("note", "NOTE"),
];

/// Runs it.
pub(crate) fn run(args: &Args) -> Outcome {
    block_on(async {
        let cluster = args.place.connect().await?;
        let look = async || Ok(Report::from(table(args, list(args, &cluster).await?)));
        args.follow.print(args.output, look).await
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn list(args: &Args, cluster: &Cluster) -> Result<Vec<Event>, Failure> {
    let (namespace, pod) = match args.pod.as_deref().map(|pod| pod.split_once('/')) {
        Some(Some((namespace, pod))) => (Some(namespace), Some(pod)),
        _ => (args.namespace.as_deref(), args.pod.as_deref()),
    };
    let mut events: Vec<Event> = match namespace {
        None => cluster.list().await?,
        Some(namespace) => cluster.list_in(namespace).await?,
    };
    events.retain(|event| {
        event.reporting_controller.as_deref() == Some(&args.scheduler_name)
            && pod.is_none_or(|pod| regarding(event) == pod)
    });
    events.sort_by_key(|event| (moment(event), event.name_any()));
    Ok(events)
}

fn regarding(event: &Event) -> &str {
    let object = event.regarding.as_ref();
    object
        .and_then(|object| object.name.as_deref())
        .unwrap_or_default()
}

/// When it was last seen, milliseconds since 1970.
fn moment(event: &Event) -> i64 {
    let series = event
        .series
        .as_ref()
        .map(|series| &series.last_observed_time);
    let time = series.or(event.event_time.as_ref());
    time.map_or(0, |time| time.0.as_millisecond())
}

fn table(args: &Args, events: Vec<Event>) -> Table {
    let now = i64::try_from(clock().0).unwrap_or(i64::MAX);
    let mut table = Table::new(COLUMNS, "the scheduler has sent no events");
    for event in events {
        let at = moment(&event);
        let kind = event.type_.clone().unwrap_or_default();
        let tone = if kind == "Warning" {
            Tone::Warn
        } else {
            Tone::Plain
        };
        // A value that changes with every reading would be printed again by --watch.
        let shown = if args.follow.watch {
            time_of_day(at)
        } else {
            age(now.saturating_sub(at))
        };
        let count = event.series.as_ref().map_or(1, |series| series.count);
        table.row(vec![
            Cell::shown(at, shown),
            event.namespace().unwrap_or_default().into(),
            regarding(&event).into(),
            Cell::from(kind).tone(tone),
            Cell::from(event.reason.clone()),
            Cell::shown(count, count.to_string()),
            Cell::from(event.note.clone()),
        ]);
    }
    table
}

/// As kubectl shows ages: one unit, the largest that is not zero.
pub(crate) fn age(milliseconds: i64) -> String {
    let seconds = milliseconds.max(0) / 1000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// UTC.
fn time_of_day(milliseconds: i64) -> String {
    let seconds = milliseconds.div_euclid(1000).rem_euclid(86_400);
    format!(
        "{:02}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_kubectls() {
        for (seconds, expected) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7200, "2h"),
            (172_800, "2d"),
        ] {
            assert_eq!(age(seconds * 1000), expected);
        }
        assert_eq!(age(-5), "0s");
        assert_eq!(time_of_day(3_661_000), "01:01:01");
    }
}
