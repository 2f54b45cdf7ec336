//! What is asked.

use super::report::Report;
use super::time::Line;
use serde::Deserialize;
use serde_json::{Value, json};

/// Rows of one answer at most.
pub(in crate::page) const LONGEST: usize = 500;

/// Which rows of a long list.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::page) struct Span {
    /// Rows with this text somewhere, in any case.
    #[serde(default)]
    pub(super) filter: String,
    /// Column; its name with `-` in front: the other way round.
    #[serde(default)]
    pub(super) sort: String,
    /// `free`, `shared`, `trouble`; of pods `waiting`, `starting`, `running`, `trouble`; empty: all.
    #[serde(default)]
    pub(super) state: String,
    /// Pods of this queue alone.
    #[serde(default)]
    pub(super) queue: String,
    /// Pods of this namespace alone.
    #[serde(default)]
    pub(super) namespace: String,
    /// The first row, from 0.
    #[serde(default)]
    pub(super) from: usize,
    /// How many, 1 to [`LONGEST`]; 100 when unset.
    pub(super) count: Option<usize>,
}

impl Span {
    /// # Errors
    /// One sentence on what is wrong with it.
    pub(in crate::page) fn check(&self, columns: &[&str], states: &[&str]) -> Result<(), String> {
        let column = self.sort.trim_start_matches('-');
        if !column.is_empty() && !columns.contains(&column) {
            return Err(format!(
                "there is no column {column}: sort by one of {}",
                columns.join(", ")
            ));
        }
        if !self.state.is_empty() && !states.contains(&self.state.as_str()) {
            return Err(format!(
                "there is no state {}: use one of {}",
                self.state,
                states.join(", ")
            ));
        }
        match self.count {
            Some(count) if !(1..=LONGEST).contains(&count) => {
                Err(format!("count must be from 1 to {LONGEST}"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn cut<T>(&self, rows: Vec<T>, show: impl Fn(&T) -> Value) -> Value {
        let total = rows.len();
        let shown = rows.iter().skip(self.from).take(self.count.unwrap_or(100));
        let shown: Vec<Value> = shown.map(show).collect();
        json!({"total": total, "from": self.from, "rows": shown})
    }

    /// Ascending unless the column says otherwise.
    pub(super) fn sort<T>(&self, rows: &mut [T], compare: impl Fn(&T, &T) -> std::cmp::Ordering) {
        if self.sort.starts_with('-') {
            rows.sort_by(|a, b| compare(b, a));
        } else {
            rows.sort_by(compare);
        }
    }

    pub(super) fn column(&self) -> &str {
        self.sort.trim_start_matches('-')
    }
}

/// The query.
#[derive(Clone, Debug)]
pub(in crate::page) enum Query {
    /// Sums over everything.
    Overview,
    /// Many cards.
    Cards(Span),
    /// One card.
    Card(Which),
    /// Every card, or what changed of them since this token; empty: every one.
    Fleet(String),
    /// The history of something.
    Time(Line),
    /// The report.
    Report(Report),
    /// A pod by UID: its namespace and name, for users who may see it.
    Whereabouts(String),
    /// The whole tree.
    Queues,
    /// Many pods.
    Pods(Span),
    /// One pod, by UID.
    Pod(String),
    /// Of this scheduler and its agents.
    Health,
}

/// A card.
#[derive(Clone, Debug)]
pub(in crate::page) enum Which {
    /// By its UUID.
    Uuid(String),
    /// By its node and its index there.
    At(String, u32),
}

/// Columns by which cards can be sorted.
pub(in crate::page) const CARD_COLUMNS: [&str; 6] =
    ["node", "product", "mode", "granted", "used", "shares"];
/// States of cards.
pub(in crate::page) const CARD_STATES: [&str; 3] = ["free", "shared", "trouble"];
/// Columns by which pods can be sorted.
pub(in crate::page) const POD_COLUMNS: [&str; 7] =
    ["name", "queue", "place", "age", "node", "granted", "used"];
/// States of pods.
pub(in crate::page) const POD_STATES: [&str; 4] = ["waiting", "starting", "running", "trouble"];
