//! Rows, a query and the reader's rights → what the page shows, as JSON.
//!
//! - `cards`, `queues`, `pods`: lists and single things; `fleet`: every card in the smallest form;
//!   `time`: the history; `report`: what was granted and not used.
//! - `overview`: sums, changes and a tenant's home; `now`: what is wrong.
//!
//! Pure. What a user may not see is reported as left out, never shown as empty.

mod cards;
mod fleet;
mod now;
mod overview;
mod pods;
mod queues;
mod report;
mod time;

pub(super) use report::Report;
pub use report::ReportBy;
pub(super) use time::{Line, Series};

use super::rows::Rows;
use api::GpuNode;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher as _};

/// Rows of one answer at most.
pub(super) const LONGEST: usize = 500;

/// What a reader may see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rights {
    /// Cards and nodes: `list` of `gpunodes.aliquot.dev`.
    pub(super) cards: bool,
    /// Queues: `list` of `queues.scheduling.run.ai`.
    pub(super) queues: bool,
    /// Pods: `list` of pods.
    pub(super) pods: Pods,
}

/// Pods of which namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pods {
    /// Of all.
    All,
    /// Of these.
    In(BTreeSet<String>),
}

impl Rights {
    /// Everything.
    pub(super) fn all() -> Self {
        Self {
            cards: true,
            queues: true,
            pods: Pods::All,
        }
    }

    /// A number that is another for other rights.
    fn number(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    pub(super) fn sees(&self, namespace: &str) -> bool {
        match &self.pods {
            Pods::All => true,
            Pods::In(namespaces) => namespaces.contains(namespace),
        }
    }
}

/// Which rows of a long list.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Span {
    /// Rows with this text somewhere, in any case.
    #[serde(default)]
    filter: String,
    /// Column; its name with `-` in front: the other way round.
    #[serde(default)]
    sort: String,
    /// `free`, `shared`, `trouble`; of pods `waiting`, `starting`, `running`, `trouble`; empty: all.
    #[serde(default)]
    state: String,
    /// Pods of this queue alone.
    #[serde(default)]
    queue: String,
    /// Pods of this namespace alone.
    #[serde(default)]
    namespace: String,
    /// The first row, from 0.
    #[serde(default)]
    from: usize,
    /// How many, 1 to [`LONGEST`]; 100 when unset.
    count: Option<usize>,
}

impl Span {
    /// # Errors
    /// One sentence on what is wrong with it.
    pub(super) fn check(&self, columns: &[&str], states: &[&str]) -> Result<(), String> {
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

    fn cut<T>(&self, rows: Vec<T>, show: impl Fn(&T) -> Value) -> Value {
        let total = rows.len();
        let shown = rows.iter().skip(self.from).take(self.count.unwrap_or(100));
        let shown: Vec<Value> = shown.map(show).collect();
        json!({"total": total, "from": self.from, "rows": shown})
    }

    /// Ascending unless the column says otherwise.
    fn sort<T>(&self, rows: &mut [T], compare: impl Fn(&T, &T) -> std::cmp::Ordering) {
        if self.sort.starts_with('-') {
            rows.sort_by(|a, b| compare(b, a));
        } else {
            rows.sort_by(compare);
        }
    }

    fn column(&self) -> &str {
        self.sort.trim_start_matches('-')
    }
}

/// The query.
#[derive(Clone, Debug)]
pub(super) enum Query {
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
pub(super) enum Which {
    /// By its UUID.
    Uuid(String),
    /// By its node and its index there.
    At(String, u32),
}

/// Columns by which cards can be sorted.
pub(super) const CARD_COLUMNS: [&str; 6] = ["node", "product", "mode", "granted", "used", "shares"];
/// States of cards.
pub(super) const CARD_STATES: [&str; 3] = ["free", "shared", "trouble"];
/// Columns by which pods can be sorted.
pub(super) const POD_COLUMNS: [&str; 7] =
    ["name", "queue", "place", "age", "node", "granted", "used"];
/// States of pods.
pub(super) const POD_STATES: [&str; 4] = ["waiting", "starting", "running", "trouble"];

/// The response.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// This.
    Json(Value),
    /// There is no such thing, as far as the reader may know.
    Absent,
    /// The reader may not see it; which right is missing.
    Denied(&'static str),
}

const NO_CARDS: &str = "you may not list gpunodes.aliquot.dev";
const NO_AGENT: &str = "its agent is disconnected";
const NO_QUEUES: &str = "you may not list queues.scheduling.run.ai";

/// Answers a query.
pub(super) fn to(query: &Query, rights: &Rights, rows: &Rows) -> Answer {
    match query {
        Query::Overview => Answer::Json(overview::overview(rights, rows)),
        Query::Cards(_) | Query::Card(_) | Query::Fleet(_) if !rights.cards => {
            Answer::Denied(NO_CARDS)
        }
        Query::Cards(span) => Answer::Json(cards::many(span, rights, rows)),
        Query::Card(which) => cards::one(which, rights, rows),
        Query::Fleet(token) => Answer::Json(fleet::all(token, rights, rows)),
        Query::Queues if !rights.queues => Answer::Denied(NO_QUEUES),
        Query::Queues => Answer::Json(queues::all(rows)),
        Query::Pods(span) => Answer::Json(pods::many(span, rights, rows)),
        Query::Pod(uid) => match rows.pods.get(uid).filter(|pod| rights.sees(&pod.namespace)) {
            Some(pod) => Answer::Json(pods::one(pod, rows, true)),
            None => Answer::Absent,
        },
        Query::Whereabouts(uid) => pods::whereabouts(uid, rights, rows),
        Query::Time(line) => time::line(line, rights, rows),
        Query::Report(report) => report::rows(report, rights, rows),
        Query::Health => Answer::Json(health(rights, rows)),
    }
}

fn health(rights: &Rights, rows: &Rows) -> Value {
    let mut answer = json!({
        "leading": rows.status.leading, "missing": rows.status.missing,
        "agents": rows.status.agents, "version": env!("CARGO_PKG_VERSION"), "nodes": null,
        "remembers": {"since": rows.history.since().0, "bytes": rows.history.bytes()},
    });
    if rights.cards {
        let odd = rows.nodes.iter().filter_map(|(name, node)| {
            let why = not_offering(node)
                .or_else(|| (!rows.live.contains_key(name)).then(|| NO_AGENT.to_owned()))?;
            Some(json!({"node": name, "why": why}))
        });
        let odd: Vec<Value> = odd.take(LONGEST).collect();
        answer["nodes"] = json!(rows.nodes.len());
        answer["odd"] = json!(odd);
    }
    answer
}

/// Why a node offers no shares, where it does not.
fn not_offering(node: &GpuNode) -> Option<String> {
    let Some(status) = &node.status else {
        return Some("its agent has not reported yet".to_owned());
    };
    let offering = |condition: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
        condition.type_ == "Offering" && condition.status != "True"
    };
    let condition = status.conditions.iter().find(offering)?;
    Some(condition.message.clone())
}
