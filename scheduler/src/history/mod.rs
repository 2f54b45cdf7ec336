//! What cards, queues and tenants had, for as long as this process remembers. Pure and bounded.
//!
//! - [`columns`]: values of many things by time, one column for each period.
//! - [`cards`]: memory granted and used, every 30 s for an hour and every 5 min for a day.
//! - [`queues`]: GPUs held and pods waiting, every minute for an hour and every hour for 14 days.
//! - [`ledger`]: what each tenant was granted and did not use, by the hour for 14 days.
//! - [`span`]: the spans of time that are shown.
//! - [`marks`]: evictions and faults. No pod is remembered.
//!
//! In: data from the agents and the API server, as a [`Sample`]; nothing comes from the core. All
//! amounts are integers, and the same samples give the same answers. A restart loses everything;
//! each replica has its own records, so a change of leader loses nothing.

mod cards;
mod columns;
mod ledger;
mod marks;
mod queues;
mod span;

pub(crate) use cards::{CardNow, FleetPoint};
pub(crate) use ledger::{Held, Tenant, Used};
pub(crate) use marks::{Mark, MarkKind};
pub(crate) use queues::QueueNow;
pub(crate) use span::{PERIOD, Span};

use cards::Cards;
use ledger::Ledger;
use marks::Marks;
use queues::Queues;
use scheduler_core::units::{Duration, Time};

/// The state at one moment.
#[derive(Debug)]
pub(crate) struct Sample<'a> {
    /// Every card whose agent is connected.
    pub(crate) cards: Vec<CardNow<'a>>,
    /// Every queue.
    pub(crate) queues: Vec<QueueNow<'a>>,
    /// Every share on those cards.
    pub(crate) shares: Vec<Held<'a>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct History {
    since: Time,
    last: Option<Time>,
    pub(crate) cards: Cards,
    pub(crate) queues: Queues,
    pub(crate) ledger: Ledger,
    pub(crate) marks: Marks,
}

impl History {
    /// Empty; it knows nothing of before `now`.
    pub(crate) fn new(now: Time) -> Self {
        Self {
            since: now,
            last: None,
            cards: Cards::default(),
            queues: Queues::default(),
            ledger: Ledger::default(),
            marks: Marks::default(),
        }
    }

    /// Since when it knows.
    pub(crate) fn since(&self) -> Time {
        self.since
    }

    /// Whether a sample at this moment is the first of its period.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.last
            .is_none_or(|last| now.0 / PERIOD.0 > last.0 / PERIOD.0)
    }

    /// Adds a sample. A sample that is not due, or older than the last, is ignored.
    pub(crate) fn sample(&mut self, now: Time, sample: &Sample<'_>) {
        if !self.is_due(now) {
            return;
        }
        // Time without samples counts neither as use nor as idle.
        let passed = self.last.map_or(0, |last| now.since(last).0);
        let passed = if passed > 2 * PERIOD.0 { 0 } else { passed };
        self.last = Some(now);
        self.cards.sample(now, &sample.cards);
        self.queues.sample(now, &sample.queues);
        self.ledger
            .sample(now, Duration(passed), &sample.cards, &sample.shares);
    }

    /// Its size in bytes, names included.
    pub(crate) fn bytes(&self) -> usize {
        self.cards.bytes() + self.queues.bytes() + self.ledger.bytes() + self.marks.bytes()
    }
}

#[cfg(test)]
mod tests;
