//! Small clusters in which one thing is in a pod's way.

use super::*;
use scheduler_core::units::Duration as Span;
use scheduler_core::{Config, text};

mod judge;

/// A node with two GPUs, both in use, and a queue without limits.
const FULL: &str = "\
tick 100000000
node n1 cpu=64000 memory=274877906944 pods=110 gpus=2
queue default-queue gpu=-1/-1/1
pod daemon ns=kube created=1 cpu=100 phase=running on=n1
pod short ns=team created=1 gpus.main=1 phase=running on=n1
pod long ns=team created=2 gpus.main=1 phase=running on=n1
";
const NOW: Time = Time(100_000_000);

fn minutes(minutes: u64) -> Span {
    Span::seconds(minutes * 60)
}

/// A pod that is expected to run for some minutes, and has run for some.
fn run(pod: &str, length: u64, since: Option<u64>) -> (PodUid, RunTime) {
    let started = since.map(|since| Time(NOW.0 - since * 60_000));
    let run = RunTime {
        length: minutes(length),
        basis: Basis::Said,
        started,
    };
    (PodUid::new(pod), run)
}

fn budget() -> Budget {
    Budget {
        decisions: 20_000,
        until: Instant::now() + Duration::from_mins(5),
    }
}

fn core(events: &str) -> Core {
    let mut core = Core::new(Config::verified());
    for event in text::read(events).unwrap() {
        assert_eq!(core.apply(event.clone()), [], "{event:?}");
    }
    core
}

fn played(events: &str, runs: &[(PodUid, RunTime)], budget: Budget) -> Forecast {
    let runs = runs.iter().cloned().collect();
    forecast(core(&format!("{FULL}{events}")), &runs, NOW, budget)
}

fn of(forecast: &Forecast, pod: &str) -> Estimate {
    forecast.pods[&PodUid::new(pod)].clone()
}

fn about(after: u64, ended: &str, length: u64, known: usize, of: usize) -> Estimate {
    Estimate::About {
        time: NOW.after(minutes(after)),
        after: Some(EndedPod {
            name: ended.into(),
            runs: Some((minutes(length), Basis::Said)),
        }),
        known,
        of,
    }
}

const LATE: &str = "pod late ns=team created=9 gpus.main=1\n";

#[test]
fn a_pod_starts_when_the_first_known_end_makes_room() {
    let forecast = played(LATE, &[run("short", 30, Some(10))], budget());
    assert_eq!(of(&forecast, "late"), about(20, "team/short", 30, 1, 2));
    assert_eq!(forecast.pods.len(), 1);
    // The second of two waits for the end of the first, which holds the GPU for five minutes.
    let second = "pod next ns=team created=10 gpus.main=1\n";
    let runs = [run("short", 30, Some(10)), run("late", 5, None)];
    let forecast = played(&format!("{LATE}{second}"), &runs, budget());
    assert_eq!(of(&forecast, "next"), about(25, "team/late", 5, 1, 2));
}

#[test]
fn what_is_in_the_way_and_says_nothing_is_counted() {
    // Not the pod of the daemon set, which has no GPU.
    let forecast = played(LATE, &[], budget());
    assert_eq!(of(&forecast, "late"), Estimate::Unknown { unknown: 2 });
    // One that gets the GPU first and does not say how long it runs is in the way of the next.
    let second = "pod next ns=team created=10 gpus.main=1\n";
    let runs = [run("short", 30, Some(10))];
    let forecast = played(&format!("{LATE}{second}"), &runs, budget());
    assert_eq!(of(&forecast, "next"), Estimate::Unknown { unknown: 2 });
    // Pods of other nodes are not.
    let other = "node n2 cpu=64000 memory=274877906944 pods=110 gpus=1\n\
        pod far ns=team created=3 gpus.main=1 phase=running on=n2\n";
    let there = "pod late ns=team created=9 gpus.main=2\n";
    let forecast = played(&format!("{other}{there}"), &[run("far", 1, None)], budget());
    assert_eq!(of(&forecast, "late"), Estimate::Unknown { unknown: 2 });
}

#[test]
fn a_pod_that_runs_longer_than_expected_has_no_known_end_and_one_with_a_limit_ends_soon() {
    let (uid, mut over) = run("short", 30, Some(31));
    let forecast = played(LATE, &[(uid.clone(), over)], budget());
    assert_eq!(of(&forecast, "late"), Estimate::Unknown { unknown: 2 });
    over.basis = Basis::Limit;
    let forecast = played(LATE, &[(uid, over)], budget());
    assert!(
        matches!(of(&forecast, "late"), Estimate::About { time: NOW, .. }),
        "{forecast:?}"
    );
}

#[test]
fn a_pod_that_is_being_deleted_is_soon_gone() {
    let leaves = "pod short ns=team created=1 gpus.main=1 phase=releasing on=n1\n";
    // However long it was to run.
    let runs = [run("short", 30, None)];
    let forecast = played(&format!("{leaves}{LATE}"), &runs, budget());
    let after = EndedPod {
        name: "team/short".into(),
        runs: None,
    };
    let expected = Estimate::About {
        time: NOW,
        after: Some(after),
        known: 1,
        of: 2,
    };
    assert_eq!(of(&forecast, "late"), expected);
}

#[test]
fn what_no_end_helps_is_told_so() {
    for pod in ["gpus.main=3", "gpus.main=1 gated"] {
        let late = format!("pod late ns=team created=9 {pod}\n");
        let runs = [run("short", 30, None), run("long", 40, None)];
        let forecast = played(&late, &runs, budget());
        assert_eq!(of(&forecast, "late"), Estimate::Unknown { unknown: 0 });
        assert!(!forecast.cut_short);
    }
}

#[test]
fn a_pod_over_its_queues_limit_waits_for_the_pods_of_its_queue() {
    let more = "node n2 cpu=64000 memory=274877906944 pods=110 gpus=2\n\
        queue small gpu=1000000000/1000000000/1\n\
        pod mine ns=team queue=small created=3 gpus.main=1 phase=running on=n2\n\
        pod late ns=team queue=small created=9 gpus.main=1\n";
    let forecast = played(more, &[], budget());
    assert_eq!(of(&forecast, "late"), Estimate::Unknown { unknown: 1 });
    let forecast = played(more, &[run("mine", 7, None)], budget());
    assert_eq!(of(&forecast, "late"), about(7, "team/mine", 7, 1, 1));
}

/// The first pod of a gang that ends does not make the rest of the gang stale.
#[test]
fn a_gang_of_which_one_pod_has_ended_goes_on() {
    let more = "node n2 cpu=64000 memory=274877906944 pods=110 gpus=2\n\
        group team/g\n  set default min=2\n\
        pod g1 ns=team group=team/g created=3 gpus.main=1 phase=running on=n2\n\
        pod g2 ns=team group=team/g created=3 gpus.main=1 phase=running on=n2\n\
        pod late ns=team created=9 gpus.main=2\n";
    let runs = [run("g1", 10, None), run("g2", 60, None)];
    let forecast = played(more, &runs, budget());
    assert_eq!(of(&forecast, "late"), about(60, "team/g2", 60, 2, 4));
}

#[test]
fn a_budget_that_ends_says_what_is_known_by_then() {
    let runs = [run("short", 30, None), run("long", 40, None)];
    let pair = "pod short ns=team created=1 gpus.main=1 non-preemptible phase=running on=n1\n\
        pod long ns=team created=2 gpus.main=1 non-preemptible phase=running on=n1\n\
        pod late ns=team created=9 gpus.main=2\n";
    let all = played(pair, &runs, budget());
    assert_eq!(of(&all, "late"), about(40, "team/long", 40, 2, 2));
    let few = Budget {
        decisions: all.decisions - 1,
        ..budget()
    };
    let cut = played(pair, &runs, few);
    // The end of the first is the earliest that can make room.
    let time = NOW.after(minutes(30));
    assert!(cut.cut_short);
    assert_eq!(of(&cut, "late"), Estimate::NotBefore { time });
    let none = Budget {
        until: Instant::now(),
        ..budget()
    };
    let cut = played(pair, &runs, none);
    assert_eq!(
        (cut.decisions, of(&cut, "late")),
        (0, Estimate::NotBefore { time: NOW })
    );
    // A pod in the way could end at any time.
    let cut = played(pair, &runs[..1], none);
    assert_eq!(of(&cut, "late"), Estimate::Unknown { unknown: 1 });
}
