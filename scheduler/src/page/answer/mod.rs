//! Rows, a query and the reader's rights → what the page shows, as JSON.
//!
//! - `cards`, `queues`, `pods`: lists and single things; `fleet`: every card in the smallest form;
//!   `time`: the history; `report`: what was granted and not used.
//! - `overview`: sums, changes and a tenant's home; `now`: what is wrong; `health`: of this scheduler.
//! - `query`: what is asked; `rights`: what the reader may see; `reply`: what an answer is.
//!
//! Pure. What a user may not see is reported as left out, never shown as empty.

mod cards;
mod fleet;
mod health;
mod now;
mod overview;
mod pods;
mod query;
mod queues;
mod reply;
mod report;
mod rights;
mod time;

pub(super) use query::{
    CARD_COLUMNS, CARD_STATES, LONGEST, POD_COLUMNS, POD_STATES, Query, Span, Which,
};
pub(super) use reply::Answer;
use reply::{NO_AGENT, NO_CARDS, NO_QUEUES};
pub(super) use report::Report;
pub use report::ReportBy;
pub(super) use rights::{Pods, Rights};
pub(super) use time::{Line, Series};

use super::rows::Rows;

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
        Query::Health => Answer::Json(health::health(rights, rows)),
    }
}
