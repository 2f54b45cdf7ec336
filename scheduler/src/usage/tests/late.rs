//! Answers that are late, old or none; and a scheduler that is started again.

use super::*;
use crate::clock::Wall;
use crate::report::Views;
use crate::usage::run::UsageClient;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use scheduler_core::ids::QueueName;
use scheduler_core::model::Queue;
use sim_cluster::prometheus::{Answer, Prometheus};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

fn told(latest: &LatestUsage, at: u64, gpu: Result<u64, &str>) -> UsageResult {
    UsageResult {
        settings: latest.settings().unwrap().clone(),
        at: second(at),
        result: gpu
            .map(|gpu| Arc::new(Uses::from([(QueueName::new("a"), [gpu, 0, 0])])))
            .map_err(Arc::from),
    }
}

fn gpus(changed: &[Queue]) -> Vec<u64> {
    changed.iter().map(|queue| queue.gpu.usage).collect()
}

#[test]
fn an_old_answer_counts_as_none_and_the_shard_says_so() {
    let settings = asked("http://p", json!({"waitTimeout": "30s"}));
    let mut latest = LatestUsage::default();
    latest.queue(Queue::unlimited("a"));
    assert_eq!(latest.state().reason, "not_configured");
    assert_eq!(latest.due(), None);
    assert!(latest.set(Some(&settings)).is_empty());
    latest.elapse(second(0));
    assert_eq!(latest.state().reason, "waits");
    assert_eq!(latest.due(), Some(second(30)));
    latest.take(told(&latest, 0, Err("p: refused")));
    assert!(!latest.state().stale);
    latest.elapse(second(30));
    let state = latest.state();
    assert_eq!((state.stale, state.reason), (true, "no_answer"));
    assert!(state.message.contains("p: refused"), "{}", state.message);

    let changed = latest.take(told(&latest, 60, Ok(500)));
    assert_eq!(gpus(&changed), [500]);
    assert_eq!(latest.state().reason, "current");
    assert!(
        latest.take(told(&latest, 120, Ok(500))).is_empty(),
        "nothing has changed"
    );
    // A failure does not end what was answered, before it is old.
    assert!(latest.take(told(&latest, 180, Err("p: gone"))).is_empty());
    assert!(latest.elapse(second(120 + 300)).is_empty());
    assert!(!latest.state().stale);
    assert_eq!(latest.due(), Some(Time((120 + 300) * 1000 + 1)));
    let changed = latest.elapse(Time((120 + 300) * 1000 + 1));
    assert_eq!(gpus(&changed), [0], "as without past use");
    let state = latest.state();
    assert_eq!((state.stale, state.reason), (true, "stale"));
    assert!(state.message.contains("p: gone"), "{}", state.message);
    // Its object changes: that gives it no past use.
    assert_eq!(latest.queue(Queue::unlimited("a")).gpu.usage, 0);
    let changed = latest.take(told(&latest, 500, Ok(700)));
    assert_eq!(gpus(&changed), [700]);
    assert_eq!(latest.queue(Queue::unlimited("a")).gpu.usage, 700);

    // An answer to other settings is none.
    let late = told(&latest, 520, Ok(900));
    let other = asked("http://p", json!({"windowSize": "1d"}));
    assert_eq!(gpus(&latest.set(Some(&other))), [0]);
    assert!(latest.take(late).is_empty());
    assert_eq!(gpus(&latest.take(told(&latest, 530, Ok(800)))), [800]);
    assert_eq!(gpus(&latest.set(None)), [0]);
    assert_eq!(
        (latest.state().reason, latest.due()),
        ("not_configured", None)
    );
}

struct Site {
    line: UsageClient,
    registry: Registry,
    _stop: tokio_util::sync::DropGuard,
}

fn site(at: u64) -> Site {
    let mut registry = Registry::default();
    let meters = Arc::new(UsageMeters::registered(&mut registry));
    let wall =
        Wall::reads(move || jiff::Timestamp::from_second(i64::try_from(at).unwrap()).unwrap());
    let (line, links) = UsageClient::new(
        watch::Sender::new(Views::default()).subscribe(),
        wall,
        meters,
        "default".into(),
    );
    let stop = CancellationToken::new();
    tokio::spawn(crate::usage::run(links, stop.clone()));
    Site {
        line,
        registry,
        _stop: stop.drop_guard(),
    }
}

impl Site {
    async fn next(&mut self) -> Result<Arc<Uses>, Arc<str>> {
        let wait = std::time::Duration::from_secs(10);
        let changed = tokio::time::timeout(wait, self.line.told.changed()).await;
        changed.unwrap().unwrap();
        self.line.told.borrow_and_update().clone().unwrap().result
    }
}

#[tokio::test]
async fn who_does_not_answer_is_asked_again_ever_less_often_and_then_believed() {
    let server = Prometheus::start().await.unwrap();
    server.answer(Answer::Raw(503, "<html>busy</html>".into()));
    let mut site = site(MONDAY + HOUR);
    let settings = asked(&server.url(), json!({"fetchInterval": "60s"}));
    site.line.settings.send_replace(Some(Arc::new(settings)));
    let begin = std::time::Instant::now();
    for _ in 0..3 {
        assert!(site.next().await.is_err());
    }
    let took = begin.elapsed();
    assert!(
        (2.5..6.0).contains(&took.as_secs_f64()),
        "after 0, 1 and 3 s: {took:?}"
    );
    for minute in 0..60 {
        for resource in ["nvidia_com_gpu", "cpu", "memory"] {
            let labels = [("resource", resource)];
            server.put(
                "aliquot_scheduler_capacity",
                &labels,
                MONDAY + minute * 60,
                8.0,
            );
        }
        let at = MONDAY + minute * 60;
        server.put("kai_queue_allocated_gpus", &[("queue_name", "a")], at, 4.0);
    }
    server.answer(Answer::Samples);
    let uses = site.next().await.unwrap();
    let half = uses[&QueueName::new("a")][0];
    assert!(near(half, 0.5, 0.001), "{half}");

    // A scheduler that is started again asks, and knows the same.
    let mut again = self::site(MONDAY + HOUR);
    let settings = site.line.settings.borrow().clone();
    again.line.settings.send_replace(settings);
    assert_eq!(again.next().await.unwrap(), uses);
    assert!(
        again.line.told.has_changed().is_ok_and(|changed| !changed),
        "the next question comes after fetchInterval"
    );
    let mut page = String::new();
    encode(&mut page, &site.registry).unwrap();
    for line in [
        "aliquot_scheduler_usage_age_seconds{nodepool=\"default\"} ",
        "aliquot_scheduler_usage_questions_total{nodepool=\"default\",result=\"failed\"} 3",
        "aliquot_scheduler_usage_questions_total{nodepool=\"default\",result=\"answered\"} 1",
        "kai_usage_query_latency_milliseconds_count 1",
    ] {
        assert!(page.contains(line), "{line} in {page}");
    }
    site.line.settings.send_replace(None);
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    let mut page = String::new();
    encode(&mut page, &site.registry).unwrap();
    assert!(!page.contains("usage_age_seconds{"), "{page}");
}

#[tokio::test]
async fn a_server_that_is_silent_fails_after_its_timeout() {
    let server = Prometheus::start().await.unwrap();
    server.answer(Answer::Silence);
    let mut site = site(MONDAY);
    let extra = json!({"extraParams": {"usageQueryTimeout": "1s"}});
    let settings = asked(&server.url(), extra);
    let begin = std::time::Instant::now();
    site.line.settings.send_replace(Some(Arc::new(settings)));
    let why = site.next().await.unwrap_err();
    assert!(
        why.contains("did not answer within usageQueryTimeout, 1 s"),
        "{why}"
    );
    assert!(begin.elapsed().as_secs_f64() < 3.0);
    assert_eq!(
        server.queries().len(),
        1,
        "one query of a question at a time"
    );
}
