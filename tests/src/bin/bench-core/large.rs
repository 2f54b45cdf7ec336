//! The large cluster in the shapes of production: each pod in a group or alone, one request or
//! many among those that wait. What a decision costs after all kinds of changes, how many
//! reasons it gives, and the memory.

use crate::meter::{live, resident};
use crate::row::{carried_out, line, say};
use aliquot_tests::workloads::{Large, NOW};
use scheduler_core::model::Phase;
use scheduler_core::{Config, Core, Event};
use std::time::{Duration, Instant};

/// A shape, and its targets in milliseconds and MiB.
struct Shape {
    size: &'static str,
    large: Large,
    /// The target of the first decision.
    first: f64,
    /// The target of a decision after 100 changes.
    changes: f64,
    /// The target of a decision after a pod was created that fits nowhere.
    pod: Option<f64>,
    /// The target of the core's memory.
    mib: Option<usize>,
}

/// Its rows; how many of them missed their target.
pub(crate) fn rows(rounds: usize, wanted: impl Fn(&str) -> bool) -> u32 {
    let shape = |grouped, requests, changes| Shape {
        size: "large",
        large: Large {
            nodes: 4000,
            running: 130_000,
            waiting: 10_000,
            grouped,
            requests,
        },
        first: 60.0,
        changes,
        pod: Some(1.0),
        mib: Some(120),
    };
    let huge = Shape {
        size: "huge",
        large: Large {
            nodes: 20_000,
            running: 400_000,
            waiting: 100_000,
            grouped: true,
            requests: 1000,
        },
        first: 250.0,
        changes: 250.0,
        pod: None,
        mib: None,
    };
    let mut missed = 0;
    for shape in [
        shape(false, 1, 6.0),
        shape(true, 1, 6.0),
        shape(true, 100, 6.0),
        shape(true, 1000, 10.0),
        huge,
    ] {
        let grouped = if shape.large.grouped {
            "grouped"
        } else {
            "alone"
        };
        let name = format!(
            "{} cluster, {grouped}, {} requests",
            shape.size, shape.large.requests
        );
        if wanted(&name) {
            missed += of(rounds, &name, &shape);
        }
    }
    missed
}

/// Events by the turn.
type Changes<'a> = &'a dyn Fn(usize) -> Vec<Event>;

fn of(rounds: usize, name: &str, shape: &Shape) -> u32 {
    let ms = |count: f64| Some(Duration::from_secs_f64(count / 1000.0));
    let before = live();
    let mut build = Duration::ZERO;
    let mut core = Core::new(Config::default());
    shape.large.events(|event| {
        let start = Instant::now();
        let problems = core.apply(event);
        build += start.elapsed();
        assert!(problems.is_empty(), "{problems:?}");
    });
    let held = live() - before;
    let start = Instant::now();
    let mut decision = core.decide(NOW);
    let cold = start.elapsed();
    // Reasons of many different requests are reported over several decisions.
    let mut decisions = 1;
    while decision.cut_short {
        carried_out(&mut core, &decision);
        decision = core.decide(NOW);
        decisions += 1;
    }
    let all = start.elapsed();
    let after = live() - before;
    let mut missed = 0;
    let row = |what: &str| format!("{name}: {what}");
    missed += line(&row("built from events"), &[build], None, "-", None);
    missed += line(
        &row("cold decision"),
        &[cold],
        ms(shape.first),
        "-",
        Some((0, decision.actions.len())),
    );
    say(&format!(
        "{}: all are told after {all:.3?}, {decisions} decisions",
        row("cold decision")
    ));
    let large = shape.large;
    let kinds: [(&str, Option<f64>, Changes); 4] = [
        ("100 changes", Some(shape.changes), &|turn| {
            large.changes(turn)
        }),
        ("a pod that fits nowhere", shape.pod, &|turn| {
            large.one_more(turn)
        }),
        ("a queue is made", None, &|turn| large.one_queue(turn)),
        ("a node flaps", None, &|turn| large.flap(turn)),
    ];
    let start = Instant::now();
    let groups = core.take_changed_groups(usize::MAX).len();
    missed += line(
        &row(&format!("the views of all {groups} groups")),
        &[start.elapsed()],
        None,
        "-",
        None,
    );
    for (what, target, events) in kinds {
        let (mut decided, mut viewed) = (Vec::new(), Vec::new());
        let (mut acted, mut reasons, mut groups) = (0, 0, 0);
        for turn in 0..rounds {
            carried_out(&mut core, &decision);
            let events = events(turn);
            let start = Instant::now();
            for event in events {
                core.apply(event);
            }
            let applied = start.elapsed();
            // What a queue costs is paid when it comes or when it is next asked for.
            let start = Instant::now();
            decision = core.decide(NOW);
            decided.push(start.elapsed() + applied);
            acted = decision.actions.len();
            reasons = reasons.max(decision.reasons.len());
            let start = Instant::now();
            let changed = core.take_changed_groups(usize::MAX).len();
            viewed.push(start.elapsed());
            groups = groups.max(changed);
        }
        missed += line(
            &row(&format!("{what}, applied and decided")),
            &decided,
            target.and_then(ms),
            "-",
            Some((0, acted)),
        );
        say(&format!("{}: {reasons} reasons at most", row(what)));
        missed += line(
            &row(&format!("{what}, the views of {groups} groups at most")),
            &viewed,
            None,
            "-",
            None,
        );
    }
    let start = Instant::now();
    let snapshot = core.snapshot();
    let taken = start.elapsed();
    let what = format!("a snapshot, {} events", snapshot.len());
    missed += line(&row(&what), &[taken], None, "-", None);
    let waiting = snapshot.iter().rev().find_map(|event| match event {
        Event::Pod(pod) if pod.ours && pod.phase == Phase::Pending => Some(pod.uid.clone()),
        _ => None,
    });
    drop(snapshot);
    if let Some(uid) = waiting {
        let start = Instant::now();
        let explained = core.explain(&uid);
        let taken = start.elapsed();
        let nodes = explained.map_or(0, |explained| explained.nodes.len());
        let what = format!("a pod explained, {nodes} nodes");
        missed += line(&row(&what), &[taken], None, "-", None);
    }
    let start = Instant::now();
    let fork = core.fork();
    let taken = start.elapsed();
    missed += line(&row("a fork"), &[taken], None, "-", None);
    drop(fork);
    let mib = |bytes: usize| bytes / (1 << 20);
    let judge = |figure: usize, most: usize| if figure <= most { "ok" } else { "MISS" };
    let most = mib(held.max(after));
    let (target, judged) = match shape.mib {
        Some(target) => (format!("{target} MiB"), judge(most, target)),
        None => ("-".to_owned(), ""),
    };
    say(&format!(
        "| {} | {} MiB before, {} MiB after the first decision | {target} | {judged} | - | | |",
        row("memory in the core"),
        mib(held),
        mib(after),
    ));
    let (now, peak) = resident();
    say(&format!(
        "| {} | {} MiB, at most {} MiB | - | | - | | |",
        row("resident memory of this process"),
        now / 1024,
        peak / 1024,
    ));
    missed + u32::from(judged == "MISS")
}
