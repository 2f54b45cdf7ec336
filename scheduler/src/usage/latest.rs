//! The last result, its age, and the part of it that goes to the core. Pure.
//!
//! An answer replaces the one before as a whole. One that is older than `stalenessPeriod`, or
//! none, counts as no past use: shares are then divided by weight alone.

use super::settings::Settings;
use super::uses::{Parts, UsageResult, Uses};
use scheduler_core::ids::QueueName;
use scheduler_core::model::Queue;
use scheduler_core::units::Time;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

/// What the shard says of past use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// True where it should count and does not.
    pub stale: bool,
    /// In one word.
    pub reason: &'static str,
    /// In one sentence.
    pub message: String,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct LatestUsage {
    settings: Option<Arc<Settings>>,
    /// When they came into force, by the time that was passed in since.
    since: Option<Time>,
    answer: Option<(Time, Arc<Uses>)>,
    /// Why the last question has no answer.
    failure: Option<Arc<str>>,
    /// The answer counts, or the first one is waited for.
    counts: bool,
    /// As the core has them.
    queues: BTreeMap<QueueName, Queue>,
    now: Time,
}

impl LatestUsage {
    /// The settings in force.
    pub fn settings(&self) -> Option<&Arc<Settings>> {
        self.settings.as_ref()
    }

    /// From now on these settings: an answer to others counts no more. The queues that change.
    pub fn set(&mut self, settings: Option<&Settings>) -> Vec<Queue> {
        if self.settings.as_deref() == settings {
            return Vec::new();
        }
        self.settings = settings.cloned().map(Arc::new);
        (self.since, self.answer, self.failure) = (None, None, None);
        self.judge()
    }

    /// A question has ended. The queues that change.
    pub fn take(&mut self, told: UsageResult) -> Vec<Queue> {
        if self.settings.as_ref() != Some(&told.settings) {
            return Vec::new();
        }
        match told.result {
            Ok(uses) => {
                self.answer = Some((told.at, uses));
                self.failure = None;
            }
            Err(why) => self.failure = Some(why),
        }
        self.judge()
    }

    /// Time has come this far. The queues that change.
    pub fn elapse(&mut self, now: Time) -> Vec<Queue> {
        self.now = self.now.max(now);
        if self.settings.is_some() {
            self.since.get_or_insert(self.now);
        }
        self.judge()
    }

    /// When [`Self::elapse`] changes something; `None`: not before another answer.
    pub fn due(&self) -> Option<Time> {
        self.until().filter(|_| self.counts)
    }

    /// A queue as its object says, with its past use.
    pub fn queue(&mut self, mut queue: Queue) -> Queue {
        let parts = self.parts(&queue.name);
        set(&mut queue, parts);
        self.queues.insert(queue.name.clone(), queue.clone());
        queue
    }

    /// A queue was deleted.
    pub fn gone(&mut self, name: &QueueName) {
        self.queues.remove(name);
    }

    /// What the shard is to say.
    pub fn state(&self) -> State {
        let state = |stale, reason, message: &str| State {
            stale,
            reason,
            message: message.to_owned(),
        };
        let Some(settings) = &self.settings else {
            let says = "No usageDBConfig: past use does not count.";
            return state(false, "not_configured", says);
        };
        if self.counts && self.answer.is_some() {
            let mut message = format!("Past use counts: window {}", settings.window);
            if let Some(half) = settings.half_life {
                let _ = write!(message, ", half-life {} s", half.0.div_ceil(1000));
            }
            message.push('.');
            return state(false, "current", &message);
        }
        if self.counts {
            return state(false, "waits", "The first answer is waited for.");
        }
        let why = self.failure.as_deref().unwrap_or("no answer came");
        let (reason, old) = match self.answer {
            Some(_) => ("stale", "the last answer is older than stalenessPeriod"),
            None => ("no_answer", "there was no answer yet"),
        };
        let message = format!("Past use does not count: {old}. Last question: {why}.");
        state(true, reason, &message)
    }

    /// Until when things are as they are, without another answer.
    fn until(&self) -> Option<Time> {
        let settings = self.settings.as_ref()?;
        match &self.answer {
            Some((at, _)) => Some(at.after(settings.staleness).after(ONE)),
            None => self.since.map(|since| since.after(settings.wait)),
        }
    }

    fn judge(&mut self) -> Vec<Queue> {
        let now = self.now;
        self.counts = self.settings.is_some() && self.until().is_none_or(|until| now < until);
        let changed: Vec<(QueueName, Parts)> = self
            .queues
            .iter()
            .map(|(name, queue)| (name, parts(queue), self.parts(name)))
            .filter(|(_, has, gets)| has != gets)
            .map(|(name, _, gets)| (name.clone(), gets))
            .collect();
        let mut told = Vec::with_capacity(changed.len());
        for (name, parts) in changed {
            if let Some(queue) = self.queues.get_mut(&name) {
                set(queue, parts);
                told.push(queue.clone());
            }
        }
        told
    }

    /// What counts of a queue.
    fn parts(&self, name: &QueueName) -> Parts {
        let answer = self.answer.as_ref().filter(|_| self.counts);
        answer
            .and_then(|(_, uses)| uses.get(name).copied())
            .unwrap_or_default()
    }
}

/// An answer of exactly the age still counts.
const ONE: scheduler_core::units::Duration = scheduler_core::units::Duration(1);

fn parts(queue: &Queue) -> Parts {
    [queue.gpu.usage, queue.cpu.usage, queue.memory.usage]
}

fn set(queue: &mut Queue, [gpu, cpu, memory]: Parts) {
    queue.gpu.usage = gpu;
    queue.cpu.usage = cpu;
    queue.memory.usage = memory;
}
