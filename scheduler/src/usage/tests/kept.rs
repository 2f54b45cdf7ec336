//! What the scheduler saw itself, without a database.

use super::*;
use crate::usage::prometheus::ask;
use scheduler_core::ids::QueueName;
use sim_cluster::prometheus::Prometheus;

const GPU: u128 = 1_000_000_000;

/// What queues `a` and `b` hold of 16 GPUs in the n-th minute of Monday.
fn held(minute: u64) -> (u64, u64) {
    ((minute / 90) % 16, if minute % 400 < 250 { 6 } else { 0 })
}

fn sample(observed: &mut ObservedUsage, minute: u64) {
    let (a, b) = held(minute);
    let queues = [("a", a), ("b", b)];
    let queues = queues.map(|(name, held)| (QueueName::new(name), [u128::from(held) * GPU, 0, 0]));
    let queues = queues.iter().map(|(name, held)| (name, *held));
    observed.sample(
        second(MONDAY + minute * 60 + 30),
        queues,
        [16 * GPU, 64_000, 1 << 40],
    );
}

#[tokio::test]
async fn it_answers_as_prometheus_does() {
    let server = Prometheus::start().await.unwrap();
    let mut observed = ObservedUsage::default();
    let last = 3 * 24 * 60;
    for minute in 0..last {
        sample(&mut observed, minute);
        let at = MONDAY + minute * 60;
        let (a, b) = held(minute);
        for (queue, held) in [("a", a), ("b", b)] {
            let held = f64::from(u32::try_from(held).unwrap());
            server.put(
                "kai_queue_allocated_gpus",
                &[("queue_name", queue)],
                at,
                held,
            );
        }
        for (resource, amount) in [("nvidia_com_gpu", 16.0), ("cpu", 64.0), ("memory", 1e12)] {
            server.put(
                "aliquot_scheduler_capacity",
                &[("resource", resource)],
                at,
                amount,
            );
        }
    }
    let now = second(MONDAY + last * 60 - 1);
    for params in [
        json!({"windowSize": "30m"}),
        json!({"windowSize": "1h"}),
        json!({"windowSize": "90m"}),
        json!({"windowSize": "1d"}),
        json!({"windowSize": "1w"}),
        json!({"windowSize": "1w", "halfLifePeriod": "10m"}),
        json!({"windowSize": "1w", "halfLifePeriod": "12h"}),
        json!({"windowType": "tumbling", "windowSize": "7h", "tumblingWindowStartTime": "2026-01-01T00:00:00Z"}),
        json!({"windowType": "cron", "cronString": "0 6 * * *"}),
    ] {
        let asked = asked(&server.url(), params.clone());
        let told = ask(&asked, now).await.unwrap();
        let kept = settings(json!({"clientType": "in-memory", "usageParams": params}));
        let kept = observed.uses(&kept, now);
        // Of an hour that the window's begin cuts it knows the mean alone.
        let cuts = params["windowSize"] == "90m";
        let most = if cuts { 25_000_000 } else { 5_000_000 };
        for queue in ["a", "b"] {
            let of = |uses: &Uses| uses.get(&QueueName::new(queue)).map_or(0, |parts| parts[0]);
            let (kept, told) = (of(&kept), of(&told));
            assert!(
                kept.abs_diff(told) <= most,
                "{params} {queue}: {kept}, not {told}"
            );
        }
    }
}

/// Two weeks and a day of a thousand queues.
#[test]
fn a_thousand_queues_take_as_much_as_the_docs_say() {
    let names: Vec<QueueName> = (0..1000)
        .map(|at| QueueName::new(format!("q{at}")))
        .collect();
    let mut observed = ObservedUsage::default();
    for quarter in 0..15 * 24 * 4 {
        let queues = names.iter().map(|name| (name, [GPU, 8_000, 1 << 33]));
        observed.sample(
            second(MONDAY + quarter * 900),
            queues,
            [2000 * GPU, 1 << 24, 1 << 50],
        );
    }
    let bytes = observed.bytes();
    assert!((2_000_000..=2_400_000).contains(&bytes), "{bytes}");
    // Those that are gone are forgotten once the ring has gone round.
    let mut at = MONDAY + 15 * 24 * HOUR;
    for _ in 0..15 * 24 {
        at += HOUR;
        observed.sample(second(at), [].into_iter(), [2000 * GPU, 1, 1]);
    }
    assert!(observed.bytes() < 20_000, "{}", observed.bytes());
}

#[test]
fn what_it_did_not_see_counts_neither_way_and_time_goes_on() {
    let kept = settings(json!({"clientType": "in-memory", "usageParams": {"windowSize": "1d"}}));
    let mut observed = ObservedUsage::default();
    assert_eq!(observed.uses(&kept, second(MONDAY)), Uses::new());
    let a = QueueName::new("a");
    let look = |observed: &mut ObservedUsage, minute: u64, held: u128| {
        let queues = [(&a, [held * GPU, 0, 0])].into_iter();
        observed.sample(second(MONDAY + minute * 60), queues, [8 * GPU, 0, 0]);
    };
    for minute in 0..60 {
        look(&mut observed, minute, 8);
    }
    // It was stopped for ten hours; then the queue has nothing for an hour.
    for minute in 660..720 {
        look(&mut observed, minute, 0);
    }
    let now = second(MONDAY + 12 * HOUR);
    let part = observed.uses(&kept, now)[&a];
    assert!(near(part[0], 0.5, 0.01), "{part:?}");
    assert_eq!(part[1..], [0, 0], "a cluster without it: no part of it");
    // The clock was set back: that is passed over.
    look(&mut observed, 100, 8);
    assert_eq!(observed.uses(&kept, now)[&a], part);
}
