//! The history of something, as series of numbers with `null` where nothing is known.

use super::{Answer, NO_CARDS, NO_QUEUES, Pods, Rights, Rows};
use crate::history::{Mark, MarkKind, PERIOD, Span};
use scheduler_core::units::{Duration, Time};
use serde_json::{Value, json};

/// Queues whose waiting pods are shown one by one.
const QUEUES: usize = 8;

/// Of what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::page) enum Series {
    /// All cards together.
    Fleet,
    /// One card, by UUID.
    Card(String),
    /// One queue, by name.
    Queue(String),
    /// Pods that wait, by queue: those in which most wait.
    Waiting,
}

/// Of what, and how far back.
#[derive(Clone, Debug)]
pub(in crate::page) struct Line {
    pub(in crate::page) of: Series,
    pub(in crate::page) span: Span,
}

pub(super) fn line(line: &Line, rights: &Rights, rows: &Rows) -> Answer {
    let (history, now, span) = (&rows.history, rows.now, line.span);
    let (step, from, series) = match &line.of {
        Series::Fleet | Series::Card(_) if !rights.cards => return Answer::Denied(NO_CARDS),
        Series::Queue(_) | Series::Waiting if !rights.queues => return Answer::Denied(NO_QUEUES),
        Series::Fleet => {
            let points = history.cards.fleet(span, now);
            let of = |field: fn(&crate::history::FleetPoint) -> u64| {
                let values = points.iter().map(|(_, point)| point.as_ref().map(field));
                values.collect::<Vec<_>>()
            };
            let series = json!({
                "grantable": of(|point| point.grantable), "granted": of(|point| point.granted),
                "used": of(|point| point.used), "idle": of(|point| point.idle),
                "cards": of(|point| point.cards),
            });
            (span.of_cards(), first(&points), series)
        }
        Series::Card(uuid) => {
            let points = history.cards.points(uuid, span, now);
            let granted = points
                .iter()
                .map(|(_, point)| point.map(|point| point.granted));
            let used = points
                .iter()
                .map(|(_, point)| point.map(|point| point.used));
            let series = json!({
                "granted": granted.collect::<Vec<_>>(), "used": used.collect::<Vec<_>>(),
            });
            (span.of_cards(), first(&points), series)
        }
        Series::Queue(name) => {
            let points = history.queues.points(name, span, now);
            let held = points
                .iter()
                .map(|(_, point)| point.map(|point| point.held));
            let waiting = points
                .iter()
                .map(|(_, point)| point.map(|point| point.waiting));
            let series = json!({
                "held": held.collect::<Vec<_>>(), "waiting": waiting.collect::<Vec<_>>(),
            });
            (span.of_queues(), first(&points), series)
        }
        Series::Waiting => waiting(span, rows),
    };
    let back = match span {
        Span::Hour => Duration::seconds(3600),
        Span::Day => Duration::seconds(24 * 3600),
        Span::Fortnight => Duration::seconds(14 * 24 * 3600),
    };
    let begin = Time(now.0.saturating_sub(back.0));
    let marks = history.marks.since(begin);
    let marks = marks.filter_map(|one| mark(one, &line.of, rights));
    Answer::Json(json!({
        "since": history.since().0, "now": now.0 / PERIOD.0 * PERIOD.0, "step": step.0, "from": from.map(|at| at.0),
        "series": series, "marks": marks.collect::<Vec<_>>(), "source": "scheduler",
    }))
}

fn first<P>(points: &[(Time, P)]) -> Option<Time> {
    points.first().map(|(at, _)| *at)
}

/// Of the queues in which most pods waited at any time.
fn waiting(span: Span, rows: &Rows) -> (Duration, Option<Time>, Value) {
    let queues = &rows.history.queues;
    // A parent includes its children's pods: only leaves are listed.
    let parents: Vec<_> = rows
        .queues
        .iter()
        .filter_map(|view| view.parent.as_ref())
        .collect();
    let leaves = rows.queues.iter().map(|view| &view.queue);
    let leaves = leaves.filter(|name| !parents.contains(name));
    let mut all: Vec<_> = leaves
        .map(|name| {
            let points = queues.points(name.as_str(), span, rows.now);
            let most = points
                .iter()
                .filter_map(|(_, point)| point.map(|point| point.waiting));
            (most.max().unwrap_or(0), name, points)
        })
        .filter(|(most, _, _)| *most > 0)
        .collect();
    all.sort_by(|(a, one, _), (b, other, _)| b.cmp(a).then_with(|| one.cmp(other)));
    all.truncate(QUEUES);
    let from = all.first().and_then(|(_, _, points)| first(points));
    let series = all.iter().map(|(_, name, points)| {
        let values = points
            .iter()
            .map(|(_, point)| point.map(|point| point.waiting));
        (name.to_string(), json!(values.collect::<Vec<_>>()))
    });
    (span.of_queues(), from, Value::Object(series.collect()))
}

/// A mark as this reader may see it; `None`: it is of something else, or not for this reader.
pub(super) fn mark(mark: &Mark, of: &Series, rights: &Rights) -> Option<Value> {
    let is_of_card = matches!(
        mark.kind,
        MarkKind::Fault | MarkKind::Recovered | MarkKind::Cordoned | MarkKind::Uncordoned
    );
    let about = match of {
        Series::Fleet => true,
        Series::Card(uuid) => *mark.card == **uuid,
        Series::Queue(name) => *mark.queue == **name,
        Series::Waiting => mark.kind == MarkKind::Evicted,
    };
    if !about || is_of_card && !rights.cards {
        return None;
    }
    // The text about a pod may name others.
    let sees = is_of_card || rights.pods == Pods::All || rights.sees(&mark.namespace);
    Some(json!({
        "at": mark.at.0, "kind": mark.kind.as_str(), "card": &*mark.card,
        "queue": if rights.queues && sees { &*mark.queue } else { "" },
        "namespace": if sees { &*mark.namespace } else { "" },
        "words": if sees { &*mark.words } else { "a pod of a namespace that you may not list" },
    }))
}
