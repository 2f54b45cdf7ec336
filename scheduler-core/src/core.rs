//! The state and its entry points.

use crate::action::Decision;
use crate::event::Event;
use crate::explain::Explanation;
use crate::ids::PodUid;
use crate::problem::Problem;
use crate::units::{Duration, Time};

/// What an admin sets for one core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Tells the decisions of two processes apart; rises with each start of the shell.
    pub epoch: u64,
    /// First pause after a refusal; doubles with each further one.
    pub backoff_first: Duration,
    /// Longest pause after a refusal.
    pub backoff_longest: Duration,
    /// Nano-GPU per product are counted over this many MiB, by product name; a product
    /// that is not here counts over its total.
    pub bases: std::collections::BTreeMap<String, u64>,
    /// Most search steps of one decide.
    pub budget: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            epoch: 0,
            backoff_first: Duration::seconds(1),
            backoff_longest: Duration::seconds(60),
            bases: std::collections::BTreeMap::new(),
            budget: 10_000_000,
        }
    }
}

/// One scheduler: the whole state of one shard, and every decision about it.
#[derive(Debug)]
pub struct Core {
    config: Config,
    now: Time,
}

impl Core {
    /// An empty cluster.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            now: Time(0),
        }
    }

    /// Takes one event in. What cannot be used is said, the rest goes on.
    pub fn apply(&mut self, event: Event) -> Vec<Problem> {
        if let Event::Tick(now) = event {
            self.now = self.now.max(now);
        }
        Vec::new()
    }

    /// Decides on everything that may have changed since the last time. Cheap when
    /// nothing did. What the actions take counts as taken from now on.
    pub fn decide(&mut self, now: Time) -> Decision {
        self.now = self.now.max(now);
        Decision {
            steps: self.config.budget.min(0),
            ..Decision::default()
        }
    }

    /// Why a pod waits, node by node and card by card. `None`: no such pod.
    pub fn explain(&self, _pod: &PodUid) -> Option<Explanation> {
        None
    }

    /// The events from which an equal core can be built: objects, open decisions,
    /// pauses, time. In a defined order.
    pub fn snapshot(&self) -> Vec<Event> {
        vec![Event::Tick(self.now)]
    }
}
