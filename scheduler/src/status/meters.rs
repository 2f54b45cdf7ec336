//! Counters and times of this process.

use super::kai::{KaiMeters, Victim};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use scheduler_core::ids::GroupName;
use scheduler_core::{Action, Decision, OutcomeResult};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    method: String,
    code: String,
}

/// All of them.
#[derive(Debug)]
pub struct Meters {
    events: Counter,
    problems: Counter,
    steps: Counter,
    decide: Histogram,
    actions: Family<Kind, Counter>,
    outcomes: Family<Kind, Counter>,
    reasons: Family<Kind, Counter>,
    lost_conditions: Counter,
    lost_events: Counter,
    differences: Family<Kind, Counter>,
    requests: Family<Request, Counter>,
    lengths: channel::Lengths,
    contradictions: Counter,
    fork: Histogram,
    forecast: Histogram,
    estimate_error: Histogram,
    kai: KaiMeters,
}

impl Meters {
    /// New ones, in this registry.
    pub fn registered(registry: &mut Registry) -> Self {
        let meters = Self {
            events: Counter::default(),
            problems: Counter::default(),
            steps: Counter::default(),
            // 10 us to 10 s.
            decide: Histogram::new(exponential_buckets(1e-5, 4.0, 11)),
            actions: Family::default(),
            outcomes: Family::default(),
            reasons: Family::default(),
            lost_conditions: Counter::default(),
            lost_events: Counter::default(),
            differences: Family::default(),
            requests: Family::default(),
            lengths: channel::Lengths::default(),
            contradictions: Counter::default(),
            // 10 us to 10 s.
            fork: Histogram::new(exponential_buckets(1e-5, 4.0, 11)),
            forecast: Histogram::new(exponential_buckets(1e-4, 4.0, 8)),
            estimate_error: Histogram::new([0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0]),
            kai: KaiMeters::registered(registry),
        };
        let registry = registry.sub_registry_with_prefix("aliquot_scheduler");
        registry.register("events", "Changes that were applied", meters.events.clone());
        registry.register(
            "problems",
            "Changes that contradict what was known",
            meters.problems.clone(),
        );
        registry.register("steps", "Search steps", meters.steps.clone());
        registry.register_with_unit(
            "decide",
            "Time of one decision",
            Unit::Seconds,
            meters.decide.clone(),
        );
        registry.register(
            "actions",
            "Decided actions, by kind",
            meters.actions.clone(),
        );
        registry.register(
            "outcomes",
            "Completed actions, by result",
            meters.outcomes.clone(),
        );
        registry.register(
            "reasons",
            "Reasons for waiting that were reported, by kind",
            meters.reasons.clone(),
        );
        registry.register(
            "lost_conditions",
            "Pod conditions that could not be written",
            meters.lost_conditions.clone(),
        );
        registry.register(
            "lost_events",
            "Events that were dropped because too many waited, or that the API server did not take",
            meters.lost_events.clone(),
        );
        registry.register(
            "observed_differences",
            "Differences from the observed scheduler, by kind",
            meters.differences.clone(),
        );
        registry.register(
            "requests",
            "Requests to the API server, by method and response code; `none` without a response",
            meters.requests.clone(),
        );
        meters.lengths.register(
            registry,
            "queued",
            "Items queued inside the scheduler, by channel: facts on their way to the next decision, outcomes, actions for the API server",
        );
        registry.register(
            "contradictions",
            "Sums or indexes of the scheduler that contradict each other: a defect, please report it",
            meters.contradictions.clone(),
        );
        registry.register_with_unit(
            "forecast_fork",
            "Time in which nothing is decided because the state is copied for a forecast of start times",
            Unit::Seconds,
            meters.fork.clone(),
        );
        registry.register_with_unit(
            "forecast",
            "Time of one forecast of start times, which delays no decision",
            Unit::Seconds,
            meters.forecast.clone(),
        );
        registry.register(
            "estimate_error_ratio",
            "Difference between a pod's start and its first estimate, as a part of its wait since that estimate",
            meters.estimate_error.clone(),
        );
        meters
    }

    /// A change was applied.
    pub fn event(&self) {
        self.events.inc();
    }

    /// The core was copied for a forecast, which took that time.
    pub(crate) fn forked(&self, time: Duration) {
        self.fork.observe(time.as_secs_f64());
    }

    /// A forecast took that time.
    pub(crate) fn forecast(&self, time: Duration) {
        self.forecast.observe(time.as_secs_f64());
    }

    /// A pod starts, and its first estimate was off by that part of its wait.
    pub(crate) fn estimate_error(&self, part: f64) {
        self.estimate_error.observe(part);
    }

    /// A change contradicts what was known.
    pub fn problem(&self) {
        self.problems.inc();
    }

    /// A decision took that time; applying the changes before it took `open`.
    pub fn decided(&self, decision: &Decision, open: Duration, time: Duration) {
        self.kai.decided(decision, open, time);
        self.decide.observe(time.as_secs_f64());
        self.steps.inc_by(decision.steps);
        for action in &decision.actions {
            let kind = match action {
                Action::Bind(_) => "bind",
                Action::Evict(evict) => evict.cause.as_str(),
            };
            self.actions.get_or_create(&Kind { kind }).inc();
        }
        for reason in &decision.reasons {
            let kind = reason.kind.as_str();
            self.reasons.get_or_create(&Kind { kind }).inc();
        }
    }

    /// Passing on a decision took `close`; `all` is the time since the first change.
    pub fn handed_on(&self, close: Duration, all: Duration) {
        self.kai.handed_on(close, all);
    }

    /// A pod is bound, that long after it was made.
    pub fn scheduled(&self, after: Duration) {
        self.kai.scheduled(after);
    }

    /// A binding was answered, that long after it was decided.
    pub fn bound(&self, after: Duration) {
        self.kai.bound(after);
    }

    /// A pod is evicted.
    pub fn evicted(&self, victim: &Victim) {
        self.kai.evicted(victim);
    }

    /// Which pod groups a node pool has now.
    pub(crate) fn groups(&self, pool: &str, is_there: impl Fn(&GroupName) -> bool) {
        self.kai.groups(pool, is_there);
    }

    /// An action ended.
    pub fn outcome(&self, result: &OutcomeResult) {
        let kind = match result {
            OutcomeResult::Confirmed => "confirmed",
            OutcomeResult::Stays => "stays",
            OutcomeResult::Refused { .. } => "refused",
        };
        self.outcomes.get_or_create(&Kind { kind }).inc();
    }

    /// An observed scheduler did something else.
    pub fn difference(&self, kind: &'static str) {
        self.differences.get_or_create(&Kind { kind }).inc();
    }

    /// A request to the API server ended; without a code, none came.
    pub fn request(&self, method: &http::Method, code: Option<http::StatusCode>) {
        let request = Request {
            method: method.as_str().to_owned(),
            code: code.map_or_else(|| "none".to_owned(), |code| code.as_str().to_owned()),
        };
        self.requests.get_or_create(&request).inc();
    }

    /// Returns what makes the channels of this process, which counts what waits in them.
    pub fn lengths(&self) -> &channel::Lengths {
        &self.lengths
    }

    /// Sets the number of actions that are under way, or wait for another one to end.
    pub fn actions_begun(&self, length: usize) {
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        self.lengths.gauge("actions_begun").set(length);
    }

    /// The core contradicts itself.
    pub fn contradiction(&self) {
        self.contradictions.inc();
    }

    /// An event was dropped because too many waited, or the API server did not take it.
    pub fn lost_event(&self) {
        self.lost_events.inc();
    }

    /// A condition could not be written.
    pub fn lost_condition(&self) {
        self.lost_conditions.inc();
    }
}
