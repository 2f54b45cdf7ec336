//! The entry points, and what an admin sets.

use crate::action::Decision;
use crate::apply;
use crate::decide::{self, Memory};
use crate::event::Event;
use crate::explain::{self, Explanation};
use crate::ids::PodUid;
use crate::problem::Problem;
use crate::snapshot;
use crate::state::State;
use crate::units::{Duration, Time};
use std::collections::BTreeMap;

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
    pub bases: BTreeMap<String, u64>,
    /// Most search steps of one decide.
    pub budget: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            epoch: 0,
            backoff_first: Duration::seconds(1),
            backoff_longest: Duration::seconds(60),
            bases: BTreeMap::new(),
            budget: 10_000_000,
        }
    }
}

/// One scheduler: the whole state of one shard, and every decision about it.
#[derive(Debug)]
pub struct Core {
    config: Config,
    state: State,
    memory: Memory,
}

impl Core {
    /// An empty cluster.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            state: State::default(),
            memory: Memory::default(),
        }
    }

    /// Takes one event in. What cannot be used is said, the rest goes on.
    pub fn apply(&mut self, event: Event) -> Vec<Problem> {
        let problems = apply::event(&mut self.state, &self.config, event);
        self.check();
        problems
    }

    /// Decides on everything that may have changed since the last time; cheap when
    /// nothing did. What the actions take counts as taken from now on. A `now` before
    /// an earlier one counts as that one.
    pub fn decide(&mut self, now: Time) -> Decision {
        self.state.now = self.state.now.max(now);
        let decision = decide::decide(&mut self.state, &self.config, &mut self.memory);
        self.check();
        debug_assert_eq!(
            crate::invariant::check_decided(&self.state, &decision),
            Vec::<String>::new()
        );
        decision
    }

    /// Why a pod waits, node by node and card by card. `None`: no such pod.
    pub fn explain(&self, pod: &PodUid) -> Option<Explanation> {
        explain::explain(&self.state, &self.config, pod)
    }

    /// The events from which an equal core can be built: objects, open decisions,
    /// pauses, time. In a defined order. Open evictions are not in it: a rebuilt core
    /// decides them again.
    pub fn snapshot(&self) -> Vec<Event> {
        snapshot::events(&self.state)
    }

    /// Everything that contradicts itself in the state; empty unless there is a defect
    /// in the core. Checked after every event in debug builds.
    pub fn violations(&self) -> Vec<String> {
        crate::invariant::check(&self.state)
    }

    #[cfg(test)]
    pub(crate) fn state_for_tests(&mut self) -> &mut State {
        &mut self.state
    }

    #[cfg(debug_assertions)]
    fn check(&self) {
        let violations = self.violations();
        debug_assert!(violations.is_empty(), "{violations:#?}");
    }

    #[cfg(not(debug_assertions))]
    #[allow(clippy::unused_self)]
    fn check(&self) {}
}
