//! The only owner of the rows: takes notes in, answers queries.
//!
//! A query over all cards of a large cluster takes milliseconds; that is why this is a
//! task of its own, and not the cycle's.

use super::answer::{self, Answer, Query, Rights};
use super::relay::RowEvent;
use super::rows::Rows;
use crate::clock::Wall;
use crate::report::Views;
use crate::status::Status;
use scheduler_core::units::Time;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::MissedTickBehavior;

/// Notes that are processed before the next query.
const BATCH: usize = 1024;
/// Time between two checks whether the next sample of the history is due.
const TICK: Duration = Duration::from_millis(100);

/// A question and where its answer goes.
#[derive(Debug)]
pub(super) enum PendingQuery {
    /// Of a person.
    Query(Query, Rights, oneshot::Sender<Answer>),
    /// Namespaces of everything that is shown.
    Namespaces(oneshot::Sender<BTreeSet<String>>),
}

/// What the rows' owner needs beside notes.
#[derive(Debug)]
pub(super) struct RowSources {
    pub(super) notes: channel::Receiver<RowEvent>,
    pub(super) asked: mpsc::Receiver<PendingQuery>,
    pub(super) views: watch::Receiver<Views>,
    pub(super) status: watch::Receiver<Status>,
    pub(super) wall: Wall,
}

/// Until no client is left, or the relay has ended.
pub(super) async fn run(mut sources: RowSources) {
    let now = |wall: &Wall| Time(u64::try_from(wall.now().as_millisecond()).unwrap_or_default());
    let mut rows = Rows::new(now(&sources.wall));
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            // The branches that are seldom ready come first: notes may come without a pause.
            _ = tick.tick() => {
                rows.now = now(&sources.wall);
                if rows.history.is_due(rows.now) {
                    if sources.views.has_changed().unwrap_or(false) {
                        rows.queues.clone_from(&sources.views.borrow_and_update().queues);
                    }
                    rows.sample();
                }
            }
            question = sources.asked.recv() => {
                rows.now = now(&sources.wall);
                match question {
                    Some(PendingQuery::Query(query, rights, to)) => {
                        rows.settle();
                        if sources.views.has_changed().unwrap_or(false) {
                            rows.queues.clone_from(&sources.views.borrow_and_update().queues);
                        }
                        rows.status = sources.status.borrow_and_update().clone();
                        let _ = to.send(answer::to(&query, &rights, &rows));
                    }
                    Some(PendingQuery::Namespaces(to)) => {
                        let _ = to.send(rows.namespaces());
                    }
                    None => return,
                }
            }
            note = sources.notes.recv() => match note {
                Some(note) => {
                    rows.now = now(&sources.wall);
                    rows.take(note);
                    for _ in 0..BATCH {
                        let Ok(note) = sources.notes.try_recv() else { break };
                        rows.take(note);
                    }
                }
                None => return,
            },
        }
    }
}
