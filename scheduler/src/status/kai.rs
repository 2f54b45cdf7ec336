//! Counters and times of this process under the KAI Scheduler's names, so that its dashboards
//! show them.
//!
//! KAI calls some counters by names without `_total`: here they are gauges that only rise. It has
//! no plugins to time, and one process for snapshots, decisions and bindings: a session is opened
//! while changes are applied, and closed while actions are passed on.

use crate::lock::locked;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use scheduler_core::ids::GroupName;
use scheduler_core::{Decision, EvictCause, Step, Tally};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::time::Instant;

type Milliseconds = Gauge<f64, AtomicU64>;
type ByAction = Family<Action, Gauge>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Action {
    action: &'static str,
}

/// Of an evicted pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct Victim {
    /// Its group; empty for a pod without.
    pub podgroup: String,
    /// The pod's.
    pub namespace: String,
    /// Of the group; empty, since decisions know groups by name.
    pub uid: String,
    /// The shard's.
    pub nodepool: String,
    /// KAI's name of the action that decided it; our cause where KAI has no such action.
    pub action: &'static str,
}

impl Victim {
    /// The label for a cause.
    pub fn action(cause: EvictCause) -> &'static str {
        match cause {
            EvictCause::StaleGang => name(Step::StaleGangEviction),
            other => other.as_str(),
        }
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct KaiMeters {
    cycle: Milliseconds,
    open: Milliseconds,
    close: Milliseconds,
    actions: Family<Action, Milliseconds>,
    acted_on: ByAction,
    scheduled: ByAction,
    simulated: ByAction,
    filtered: ByAction,
    preemptions: Gauge,
    scheduling: Histogram,
    binding: Histogram,
    evicted: Family<Victim, Counter>,
    /// Its series, and when the group was there last.
    victims: Mutex<BTreeMap<Victim, Instant>>,
}

/// How long a group's series stay after its deletion, for the next scrape.
const KEPT: Duration = Duration::from_mins(5);

impl KaiMeters {
    /// New ones, in this registry.
    pub(super) fn registered(registry: &mut Registry) -> Self {
        // KAI's: 5 ms to 2.56 s.
        let buckets = || exponential_buckets(5.0, 2.0, 10);
        let meters = Self {
            cycle: Gauge::default(),
            open: Gauge::default(),
            close: Gauge::default(),
            actions: Family::default(),
            acted_on: Family::default(),
            scheduled: Family::default(),
            simulated: Family::default(),
            filtered: Family::default(),
            preemptions: Gauge::default(),
            scheduling: Histogram::new(buckets()),
            binding: Histogram::new(buckets()),
            evicted: Family::default(),
            victims: Mutex::default(),
        };
        let kai = registry.sub_registry_with_prefix("kai");
        let times = [
            (
                "e2e",
                "Time of the last decision, including the work before and after it",
                &meters.cycle,
            ),
            (
                "open_session",
                "Time to apply the changes before the last decision",
                &meters.open,
            ),
            (
                "close_session",
                "Time to pass on the actions of the last decision",
                &meters.close,
            ),
        ];
        for (name, help, gauge) in times {
            let session = name.strip_suffix("_session");
            let name = session.map_or_else(
                || format!("{name}_scheduling_latency_milliseconds"),
                |_| format!("{name}_latency_milliseconds"),
            );
            kai.register(name, help, gauge.clone());
        }
        kai.register(
            "action_scheduling_latency_milliseconds",
            "Time of the last decision by action, in proportion to its search steps",
            meters.actions.clone(),
        );
        let counts = [
            (
                "podgroups_acted_on_by_action",
                "Workloads that were tried",
                &meters.acted_on,
            ),
            (
                "podgroups_scheduled_by_action",
                "Workloads that were placed",
                &meters.scheduled,
            ),
            (
                "scenarios_simulation_by_action",
                "Sets of victims that were tried",
                &meters.simulated,
            ),
            (
                "scenarios_filtered_by_action",
                "Sets of victims that did not help",
                &meters.filtered,
            ),
        ];
        for (name, help, family) in counts {
            kai.register(name, help, family.clone());
        }
        kai.register(
            "total_preemption_attempts",
            "Workloads for which preemption was tried",
            meters.preemptions.clone(),
        );
        kai.register(
            "task_scheduling_latency_milliseconds",
            "Time from a pod's creation, with a resolution of a second, until its binding is sent",
            meters.scheduling.clone(),
        );
        kai.register(
            "task_bind_latency_milliseconds",
            "Time from a decision until the response to its binding",
            meters.binding.clone(),
        );
        kai.register(
            "pod_group_evicted_pods",
            "Evicted pods",
            meters.evicted.clone(),
        );
        // Shown from the start, as KAI does not: a panel is not empty while nothing happens.
        for step in Step::ALL {
            meters.count(step, Tally::default());
        }
        meters
    }

    /// A decision took `time`; applying the changes before it took `open`, and passing on its
    /// actions `close`.
    pub(super) fn decided(&self, decision: &Decision, open: Duration, time: Duration) {
        self.open.set(milliseconds(open));
        let steps: u64 = decision.tallies.values().map(|tally| tally.steps).sum();
        for step in Step::ALL {
            let tally = decision.tallies.get(&step).copied().unwrap_or_default();
            let part = part_of(tally.steps, steps);
            let of = Action { action: name(step) };
            self.actions
                .get_or_create(&of)
                .set(milliseconds(time) * part);
            self.count(step, tally);
        }
    }

    /// Its actions were passed on in `close`; `all` is the time since the first change.
    pub(super) fn handed_on(&self, close: Duration, all: Duration) {
        self.close.set(milliseconds(close));
        self.cycle.set(milliseconds(all));
    }

    fn count(&self, step: Step, tally: Tally) {
        let of = Action { action: name(step) };
        let add = |family: &ByAction, count: u64| {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            family.get_or_create(&of).inc_by(count);
        };
        add(&self.acted_on, tally.tried);
        add(&self.scheduled, tally.placed);
        add(&self.simulated, tally.simulated);
        add(&self.filtered, tally.rejected);
        if step == Step::Preempt {
            let tried = i64::try_from(tally.tried).unwrap_or(i64::MAX);
            self.preemptions.inc_by(tried);
        }
    }

    /// A pod is bound, that long after it was made.
    pub(super) fn scheduled(&self, after: Duration) {
        self.scheduling.observe(milliseconds(after));
    }

    /// A binding was answered, that long after it was decided.
    pub(super) fn bound(&self, after: Duration) {
        self.binding.observe(milliseconds(after));
    }

    /// A pod is evicted.
    pub(super) fn evicted(&self, victim: &Victim) {
        self.evicted.get_or_create(victim).inc();
        locked(&self.victims).insert(victim.clone(), Instant::now());
    }

    /// Which groups a node pool has now: series of deleted groups end some time later.
    pub(super) fn groups(&self, pool: &str, is_there: impl Fn(&GroupName) -> bool) {
        let mut victims = locked(&self.victims);
        let is_of_pool = |victim: &Victim| victim.nodepool == pool;
        let now = Instant::now();
        victims.retain(|victim, last| {
            let group = || GroupName::from(format!("{}/{}", victim.namespace, victim.podgroup));
            if is_of_pool(victim) && is_there(&group()) {
                *last = now;
            }
            let stays = now.saturating_duration_since(*last) < KEPT || !is_of_pool(victim);
            if !stays {
                self.evicted.remove(victim);
            }
            stays
        });
    }
}

/// KAI's names of its actions.
fn name(step: Step) -> &'static str {
    match step {
        Step::Allocate => "allocate",
        Step::Consolidation => "consolidation",
        Step::Reclaim => "reclaim",
        Step::Preempt => "preempt",
        Step::StaleGangEviction => "stalegangeviction",
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[allow(clippy::cast_precision_loss)] // A part of a time.
fn part_of(steps: u64, all: u64) -> f64 {
    if all == 0 {
        0.0
    } else {
        steps as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::super::Meters;
    use super::*;
    use crate::report::QueueMeters;

    /// Names of KAI's docs/metrics/METRICS.md and of its dashboard, but for those that are
    /// about plugins, about a database of past use, and about budgets of its searches.
    const KAIS: [&str; 29] = [
        "kai_queue_info{",
        "kai_queue_deserved_gpus{",
        "kai_queue_quota_cpu_cores{",
        "kai_queue_quota_memory_bytes{",
        "kai_queue_allocated_gpus{",
        "kai_queue_allocated_cpu_cores{",
        "kai_queue_allocated_memory_bytes{",
        "kai_queue_allocated_non_preemptible_gpus{",
        "kai_queue_requested_gpus{",
        "kai_queue_requested_cpu_cores{",
        "kai_queue_requested_memory_bytes{",
        "kai_queue_limit_gpus{",
        "kai_queue_limit_cpu_cores{",
        "kai_queue_limit_memory_bytes{",
        "kai_queue_fair_share_gpu{",
        "kai_queue_fair_share_cpu_cores{",
        "kai_queue_fair_share_memory_gb{",
        "kai_e2e_scheduling_latency_milliseconds ",
        "kai_open_session_latency_milliseconds ",
        "kai_close_session_latency_milliseconds ",
        "kai_action_scheduling_latency_milliseconds{",
        "kai_podgroups_acted_on_by_action{",
        "kai_podgroups_scheduled_by_action{",
        "kai_scenarios_simulation_by_action{",
        "kai_scenarios_filtered_by_action{",
        "kai_total_preemption_attempts ",
        "kai_task_scheduling_latency_milliseconds_bucket{",
        "kai_task_bind_latency_milliseconds_bucket{",
        "kai_pod_group_evicted_pods_total{",
    ];

    #[tokio::test(start_paused = true)]
    async fn series_of_groups_that_are_gone_go_and_the_others_stay() {
        let mut registry = Registry::default();
        let meters = Meters::registered(&mut registry);
        let victim = |podgroup: &str, nodepool: &str| Victim {
            podgroup: podgroup.to_owned(),
            namespace: "ns".to_owned(),
            uid: String::new(),
            nodepool: nodepool.to_owned(),
            action: "preempt",
        };
        for (group, pool) in [("stays", "a"), ("gone", "a"), ("", "a"), ("other", "b")] {
            meters.evicted(&victim(group, pool));
        }
        let stays = GroupName::new("ns/stays");
        let shown = || {
            let mut shown = String::new();
            prometheus_client::encoding::text::encode(&mut shown, &registry).unwrap();
            let is_one = |line: &&str| line.starts_with("kai_pod_group_evicted_pods_total{");
            shown.lines().filter(is_one).count()
        };
        meters.groups("a", |group| *group == stays);
        assert_eq!(shown(), 4, "who scrapes has not seen them yet");
        tokio::time::advance(KEPT).await;
        meters.groups("a", |group| *group == stays);
        assert_eq!(shown(), 2, "another pool's are not of this one");
        tokio::time::advance(KEPT).await;
        meters.groups("b", |_| false);
        assert_eq!(shown(), 1);
    }

    #[test]
    fn what_kais_dashboards_ask_for_is_there_and_counts() {
        let mut core = scheduler_core::Core::new(scheduler_core::Config::default());
        let world = "queue q\nnode n cpu=1000 pods=10\n\
                     pod low queue=q priority=10 cpu=1000 created=1 on=n\n\
                     pod high queue=q priority=90 cpu=1000 created=2\n";
        for event in scheduler_core::text::read(world).unwrap() {
            core.apply(event);
        }
        let mut registry = Registry::default();
        let meters = Meters::registered(&mut registry);
        let queues = QueueMeters::registered(&mut registry);
        queues.set(&core.queues());
        let decision = core.decide(scheduler_core::units::Time(5_000));
        meters.decided(
            &decision,
            Duration::from_millis(3),
            Duration::from_millis(8),
        );
        meters.handed_on(Duration::from_millis(1), Duration::from_millis(12));
        meters.scheduled(Duration::from_secs(1));
        meters.bound(Duration::from_millis(7));
        meters.evicted(&Victim {
            podgroup: "g".to_owned(),
            namespace: "ns".to_owned(),
            uid: String::new(),
            nodepool: "default".to_owned(),
            action: "preempt",
        });
        let mut shown = String::new();
        prometheus_client::encoding::text::encode(&mut shown, &registry).unwrap();
        for name in KAIS {
            assert!(
                shown.lines().any(|line| line.starts_with(name)),
                "{name}\n{shown}"
            );
        }
        for line in [
            "kai_podgroups_acted_on_by_action{action=\"preempt\"} 1",
            "kai_podgroups_scheduled_by_action{action=\"preempt\"} 1",
            "kai_podgroups_scheduled_by_action{action=\"allocate\"} 0",
            "kai_scenarios_simulation_by_action{action=\"preempt\"} 2",
            "kai_scenarios_filtered_by_action{action=\"consolidation\"} 1",
            "kai_total_preemption_attempts 1",
            "kai_open_session_latency_milliseconds 3.0",
            "kai_queue_info{queue_name=\"q\",queue_metadata_name=\"q\",queue_display_name=\"\"} 1.0",
            "kai_queue_requested_cpu_cores{queue_name=\"q\",queue_metadata_name=\"q\",queue_display_name=\"\"} 2.0",
            "kai_queue_limit_cpu_cores{queue_name=\"q\",queue_metadata_name=\"q\",queue_display_name=\"\"} -1.0",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line}\n{shown}");
        }
    }
}
