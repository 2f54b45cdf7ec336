//! The admin's objects that say how to schedule.

use super::world::World;
use crate::shard::Report;
use crate::usage;
use crate::watch::Seen;
use api::kai::SchedulingShard;
use scheduler_core::model::Queue;
use scheduler_core::units::Time;
use scheduler_core::{Config, Event};
use std::sync::Arc;

impl World {
    pub(super) fn shard(&mut self, seen: Seen<SchedulingShard>) -> Vec<Event> {
        let live = self.live.as_mut();
        let changed: Option<Config> = match seen {
            Seen::There(object) => live.and_then(|live| live.shard(*object)),
            Seen::Gone(name) => live.and_then(|live| live.shard_gone(&name)),
            Seen::Listing | Seen::Listed => None,
        };
        let event = |settings| Event::Config(Box::new(settings));
        let mut events: Vec<Event> = changed.into_iter().map(event).collect();
        if let Some(live) = &self.live {
            let queues = self.usage.set(live.usage());
            events.extend(self.used(queues));
        }
        events
    }

    /// A question for past use has ended.
    pub(crate) fn told_usage(&mut self, told: usage::UsageResult) -> Vec<Event> {
        let queues = self.usage.take(told);
        self.used(queues)
    }

    /// Time went on: an answer may be too old by now.
    pub(super) fn usage_elapses(&mut self) -> Vec<Event> {
        let queues = self.usage.elapse(self.now);
        self.used(queues)
    }

    /// Where past use comes from.
    pub(crate) fn usage(&self) -> Option<&Arc<usage::Settings>> {
        self.usage.settings()
    }

    fn used(&mut self, queues: Vec<Queue>) -> Vec<Event> {
        if let Some(live) = &mut self.live {
            live.say(&self.usage.state());
        }
        queues.into_iter().map(Event::Queue).collect()
    }

    /// When a status of an admin's object is to be written; `None`: not before another fact.
    pub fn report_due(&self) -> Option<Time> {
        self.live.as_ref()?.due()
    }

    /// Statuses of an admin's objects that are to be written now.
    pub fn reports(&mut self) -> Vec<Report> {
        let now = self.now;
        let live = self.live.as_mut();
        live.map(|live| live.reports(now)).unwrap_or_default()
    }
}
