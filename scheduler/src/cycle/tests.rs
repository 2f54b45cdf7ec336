//! How problems are reported, and when.

use super::*;
use crate::watch::Seen;
use prometheus_client::registry::Registry;
use scheduler_core::ids::{DecisionId, PodUid};
use scheduler_core::scale_up::Groups;
use scheduler_core::units::Mib;
use scheduler_core::{Config, GroupChange, OutcomeResult, text};
use std::sync::Mutex;
use tokio_util::sync::DropGuard;

fn outputs() -> CycleOutputs {
    CycleOutputs {
        relist: watch::Sender::new(0),
        work: channel::unbounded().0,
        awaited: crate::act::AwaitedClaims::default(),
        status: watch::Sender::new(Status::default()),
        views: watch::Sender::new(Views::default()),
        groups: mpsc::channel(1).0,
        meters: Arc::new(Meters::registered(&mut Registry::default())),
        pool: String::new(),
    }
}

fn cycle() -> Cycle {
    let now = Instant::now();
    Cycle {
        core: Core::new(Config::default()),
        world: World::new("kai-scheduler"),
        observer: None,
        pace: CoalesceWindow {
            quiet: Duration::ZERO,
            patience: Duration::ZERO,
        },
        outputs: outputs(),
        change: None,
        wake_at: None,
        said: BTreeSet::new(),
        orphans: BTreeMap::new(),
        report_at: None,
        reported: now,
        group_feed: GroupFeed::default(),
        clock: Clock::start(Wall::machine()),
        scale_up: None,
        layouts: None,
        forecasts: None,
        forecast_at: None,
        forecasted: None,
        look_at: None,
        looked: now,
        look_took: Duration::ZERO,
        taking_in: Duration::ZERO,
        observed: now,
        swept: now,
        granted: Granted::default(),
        standstill: Standstill::default(),
        idle_at: None,
    }
}

impl Cycle {
    fn read(&mut self, events: &str) {
        for event in text::read(events).unwrap() {
            self.put(event);
        }
    }
}

/// A replica that does not lead never decides, and would give up pods at once when it begins to.
#[tokio::test(start_paused = true)]
async fn a_deletion_is_timed_by_who_does_not_decide() {
    let mut cycle = cycle();
    let mut pod = crate::convert::tests::pod("u1", Some("n1"), 1);
    let see = |cycle: &mut Cycle, pod: &serde_json::Value| {
        cycle.take(Fact::Pod(crate::convert::tests::there(pod.clone())));
    };
    see(&mut cycle, &pod);
    pod["metadata"]["deletionTimestamp"] = serde_json::json!("2026-01-01T00:01:00Z");
    see(&mut cycle, &pod);
    let until = cycle.world.wake_at().unwrap();
    assert!(until > cycle.clock.now(), "{until:?}");
}

#[tokio::test(start_paused = true)]
async fn a_parent_that_comes_a_moment_later_is_not_missed_and_one_that_does_not_come_is() {
    let mut cycle = cycle();
    cycle.read("queue early parent=late\nqueue lost parent=never\n");
    cycle.look_for_parents();
    assert!(cycle.said.is_empty(), "{:?}", cycle.said);
    cycle.read("queue late\n");
    tokio::time::advance(PARENT_WITHIN).await;
    cycle.look_for_parents();
    let said: Vec<&str> = cycle.said.iter().map(String::as_str).collect();
    assert_eq!(said, ["the parent of queue lost does not exist"]);
    assert!(cycle.orphans.is_empty());
}

#[tokio::test]
async fn the_answer_to_what_was_already_seen_to_be_done_is_no_warning() {
    let mut cycle = cycle();
    cycle.end(Outcome {
        decision: DecisionId {
            epoch: 1,
            sequence: 7,
        },
        result: OutcomeResult::Confirmed,
    });
    assert!(cycle.said.is_empty(), "{:?}", cycle.said);
}

#[tokio::test]
async fn evictions_in_favour_of_a_pod_alone_name_the_group_that_it_gets() {
    let mut cycle = cycle();
    let (work, mut handed) = channel::unbounded();
    cycle.outputs.work = work;
    cycle.read("queue q\nnode n cpu=4000 pods=10 gpus=1\n");
    cycle.read("pod low queue=q priority=50 gpus.main=1 on=n\n");
    cycle.read("pod high queue=q priority=75 gpus.main=1 created=1\n");
    let decision = cycle.core.decide(scheduler_core::units::Time(1));
    cycle.hand_on(decision);
    let Ok(Work::Evictions(evictions)) = handed.try_recv() else {
        panic!("one is evicted for the other");
    };
    let [evict] = evictions.as_slice() else {
        panic!("{evictions:?}");
    };
    let winner = evict.in_favour_of.as_ref().map(ToString::to_string);
    assert_eq!(winner.as_deref(), Some("default/pg-high-high"));
}

#[tokio::test(start_paused = true)]
async fn the_next_look_is_early_when_a_pod_that_a_node_was_asked_for_has_its_place() {
    let mut cycle = cycle();
    let asked = scale_up::Asked([(PodUid::new("p"), "a node would let it run".into())].into());
    let (_planner, asked) = watch::channel(asked);
    cycle.scale_up = Some(scale_up::Line {
        groups: Groups::default(),
        card: Mib(1),
        looks: watch::Sender::new(None),
        asked,
    });
    cycle.read("queue q\nnode n cpu=4000 pods=10 gpus=2\npod other queue=q gpus.main=1\n");
    cycle.decide();
    assert_eq!(cycle.look_at, Some(cycle.looked + scale_up::PACE));
    cycle.read("pod p queue=q gpus.main=1\n");
    cycle.decide();
    let early = cycle.looked + scale_up::PACE_AFTER_BIND;
    assert_eq!(cycle.look_at, Some(early));

    // A look of a large cluster does not hold up decisions for more than a tenth of the time.
    cycle.look_at = None;
    cycle.look_took = Duration::from_millis(50);
    cycle.read("pod-gone other\npod-gone p\npod p queue=q gpus.main=1\n");
    cycle.decide();
    let later = cycle.looked + Duration::from_millis(500);
    assert_eq!(cycle.look_at, Some(later));
}

/// Copying the core takes time in which nothing is decided.
#[tokio::test(start_paused = true)]
async fn starts_are_estimated_while_pods_wait_and_at_most_once_in_half_a_minute() {
    use crate::convert::tests::{pod, there};
    let mut cycle = cycle();
    let (line, links) = ForecastLine::new(cycle.outputs.meters.clone());
    cycle.forecasts = Some(line);
    let plan = |cycle: &mut Cycle, leading: bool| {
        let queues = cycle.core.queues();
        let views = &cycle.outputs.views;
        views.send_modify(|views| views.queues = queues);
        cycle.plan_forecast(leading);
        cycle.forecast_at
    };
    cycle.read("queue default-queue gpu=-1/-1/1\nnode n1 cpu=4000 memory=1000 pods=10 gpus=1\n");
    cycle.read("pod waits gpus.main=1 created=9\n");
    // No pod says how long it runs: nothing is copied.
    assert_eq!(plan(&mut cycle, true), Some(Instant::now()));
    cycle.forecast();
    assert_eq!(cycle.forecasts.as_ref().unwrap().forks.capacity(), 1);
    tokio::time::advance(crate::forecast::PACE).await;
    let mut runs = pod("runs", Some("n1"), 1);
    runs["metadata"]["annotations"] = serde_json::json!({proto::names::request::RUN_TIME: "1h"});
    cycle.take(Fact::Pod(there(runs)));
    assert_eq!(plan(&mut cycle, false), None);
    let now = Instant::now();
    assert_eq!(plan(&mut cycle, true), Some(now));
    cycle.forecast();
    assert_eq!(cycle.forecasts.as_ref().unwrap().forks.capacity(), 0);
    assert_eq!(cycle.forecast_at, Some(now + crate::forecast::AGAIN));
    assert_eq!(
        plan(&mut cycle, true),
        Some(now + crate::forecast::PACE),
        "something changed"
    );
    let stop = CancellationToken::new();
    let _guard = stop.clone().drop_guard();
    tokio::spawn(crate::forecast::run(links, stop));
    let line = cycle.forecasts.as_mut().unwrap();
    line.estimates.changed().await.unwrap();
    for leads in [true, false] {
        let (to, answer) = tokio::sync::oneshot::channel();
        cycle.answer(Question::Explain("waits".into(), to), leads);
        let text = answer.await.unwrap().unwrap();
        // Another replica's core does not decide, and its last forecast is old.
        assert_eq!(text.contains("\nestimated start: about "), leads, "{text}");
        assert_eq!(text.contains("when ns/p ends (expected after 1 h)"), leads);
    }
    cycle.read("pod-gone waits\n");
    assert_eq!(plan(&mut cycle, true), None);
}

/// What is logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The ends of the inputs that a test keeps: an input that ends, ends the cycle.
struct Ends {
    facts: channel::Sender<Fact>,
    questions: mpsc::Sender<Question>,
    leading: watch::Sender<bool>,
    _heard: crate::telemetry::AgentEventSender,
    _outcomes: channel::Sender<Outcome>,
}

fn inputs(leads: bool) -> (Ends, CycleInputs) {
    let (facts, facts_out) = channel::unbounded();
    let (heard, heard_out) = crate::telemetry::channel(None);
    let (outcomes, outcomes_out) = channel::unbounded();
    let (questions, questions_out) = mpsc::channel(8);
    let (leading, leading_out) = watch::channel(leads);
    let ends = Ends {
        facts,
        questions,
        leading,
        _heard: heard,
        _outcomes: outcomes,
    };
    let inputs = CycleInputs {
        facts: facts_out,
        heard: heard_out,
        outcomes: outcomes_out,
        questions: questions_out,
        leading: leading_out,
        usage: UsageClient::silent(),
        scale_up: None,
        layouts: None,
        forecasts: None,
        wall: Wall::machine(),
    };
    (ends, inputs)
}

/// Runs a cycle until the guard is dropped.
fn spawn(core: Core, inputs: CycleInputs, outputs: CycleOutputs) -> DropGuard {
    let world = World::new("kai-scheduler");
    let stop = CancellationToken::new();
    let end = stop.clone();
    tokio::spawn(run(core, world, None, AT_ONCE, inputs, outputs, end));
    stop.drop_guard()
}

const AT_ONCE: CoalesceWindow = CoalesceWindow {
    quiet: Duration::ZERO,
    patience: Duration::ZERO,
};

#[tokio::test(start_paused = true)]
async fn a_leader_that_decides_nothing_says_so_and_another_replica_does_not() {
    for (leads, lines) in [(true, 2), (false, 0)] {
        let log = Log::default();
        let writer = log.clone();
        let logged = tracing_subscriber::fmt().with_writer(move || writer.clone());
        let logged = tracing::subscriber::set_default(logged.finish());
        let (_ends, inputs) = inputs(leads);
        let world = World::new("kai-scheduler");
        let core = Core::new(Config::default());
        let stop = CancellationToken::new();
        let runs = Box::pin(run(core, world, None, AT_ONCE, inputs, outputs(), stop));
        // After 10 s, and again a minute later.
        let time = Duration::from_secs(75);
        assert!(tokio::time::timeout(time, runs).await.is_err(), "it ended");
        drop(logged);
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let said = log.matches("not listed yet: ").count();
        assert_eq!(said, lines, "{log}");
    }
}

/// Clients of `/explain` need no token, so their questions must not delay what was seen before.
#[tokio::test(start_paused = true)]
async fn questions_are_answered_after_what_was_seen_before_them() {
    let (ends, inputs) = inputs(false);
    let mut answers = Vec::new();
    for _ in 0..8 {
        let (to, answer) = tokio::sync::oneshot::channel();
        ends.questions.try_send(Question::Fork(to)).unwrap();
        answers.push(answer);
    }
    let queue = serde_json::json!({
        "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "q"}, "spec": {},
    });
    let queue = serde_json::from_value(queue).unwrap();
    ends.facts
        .send(Fact::Queue(Seen::There(Box::new(queue))))
        .unwrap();
    for fact in crate::convert::tests::listed() {
        ends.facts.send(fact).unwrap();
    }
    let _stop = spawn(Core::new(Config::default()), inputs, outputs());
    for answer in answers {
        let core = answer.await.unwrap();
        assert!(
            core.has_queue(&QueueName::new("q")),
            "asked before it was seen"
        );
    }
}

/// A write of the leader before may replace a status until it can no longer land.
#[tokio::test(start_paused = true)]
async fn who_begins_to_lead_reports_every_group_and_once_more_and_who_does_not_lead_none() {
    let mut core = Core::new(Config::default());
    for event in text::read("queue q\ngroup a/g queue=q\n").unwrap() {
        core.apply(event);
    }
    let (ends, inputs) = inputs(false);
    let (groups, mut reports) = mpsc::channel(8);
    let outputs = CycleOutputs {
        groups,
        ..outputs()
    };
    let _stop = spawn(core, inputs, outputs);
    let mut after = async |time: Duration| {
        tokio::time::sleep(time).await;
        let reports = std::iter::from_fn(|| reports.try_recv().ok());
        let names = reports.map(|report| match report {
            GroupReport::All(_) => "all".to_owned(),
            GroupReport::Change(_, change) => match change {
                GroupChange::Changed(view) => view.group.to_string(),
                GroupChange::Gone(name) => format!("no {name}"),
            },
        });
        names.collect::<Vec<String>>()
    };
    let (soon, landed) = (REPORT * 2, crate::act::answer::LANDING);
    ends.leading.send_replace(true);
    assert!(after(soon).await.is_empty(), "not everything is listed");
    for fact in crate::convert::tests::listed() {
        ends.facts.send(fact).unwrap();
    }
    assert_eq!(after(soon).await, ["all", "a/g"]);
    assert!(after(soon).await.is_empty(), "nothing has changed");
    // Without "all", which would end the wait for a write of its own that had no answer.
    assert_eq!(after(landed).await, ["a/g"]);
    ends.leading.send_replace(false);
    assert!(after(landed * 2).await.is_empty());
    ends.leading.send_replace(true);
    assert_eq!(after(soon).await, ["all", "a/g"]);
    ends.leading.send_replace(false);
    assert!(after(landed * 2).await.is_empty(), "no longer its own");
}
