//! A cluster full of shares, with as many again that fit nowhere: what it costs to know that
//! no search finds room for them, when it is new and when a little has changed.

use crate::row::{carried_out, line, say};
use aliquot_tests::workloads::{NOW, full};
use scheduler_core::{Config, Core};
use std::time::{Duration, Instant};

/// Its rows; how many of them missed their target.
pub(crate) fn rows(rounds: usize, wanted: impl Fn(&str) -> bool) -> u32 {
    let mut missed = 0;
    // Queues without quota may take back what others hold only by moving it: that is
    // searched at length, so that it is small here and only its first decision is taken.
    for (nodes, wait, quota) in [(500, 10_000, true), (10, 50, false)] {
        let with = if quota { "" } else { ", queues without quota" };
        let name = format!("full of shares, {nodes} nodes, {wait} wait{with}");
        if wanted(&name) {
            missed += of(rounds, &name, nodes, wait, quota);
        }
    }
    missed
}

fn of(rounds: usize, name: &str, nodes: usize, wait: usize, quota: bool) -> u32 {
    let ms = |count| quota.then_some(Duration::from_millis(count));
    let mut core = Core::new(Config::default());
    for event in full::of_shares(nodes, wait, quota) {
        let problems = core.apply(event);
        assert!(problems.is_empty(), "{problems:?}");
    }
    let start = Instant::now();
    let mut decision = core.decide(NOW);
    let cold = start.elapsed();
    let said = |what: &str| format!("{name}: {what}");
    let mut missed = line(
        &said("cold decision"),
        &[cold],
        ms(250),
        "-",
        Some((0, decision.actions.len())),
    );
    say(&format!(
        "{}: {} steps",
        said("cold decision"),
        decision.steps
    ));
    let mut turn = 0;
    let turns: &[(usize, u64)] = if quota { &[(10, 5), (100, 50)] } else { &[] };
    for (changes, target) in turns.iter().copied() {
        let (mut times, mut steps, mut acted) = (Vec::new(), 0, 0);
        for _ in 0..rounds {
            carried_out(&mut core, &decision);
            for event in full::changes(nodes, turn, changes) {
                core.apply(event);
            }
            turn += 1;
            let start = Instant::now();
            decision = core.decide(NOW);
            times.push(start.elapsed());
            (steps, acted) = (steps + decision.steps, acted + decision.actions.len());
        }
        let what = said(&format!("decision after {changes} changes"));
        let rounds_made = rounds.max(1);
        missed += line(
            &what,
            &times,
            ms(target),
            "-",
            Some((0, acted / rounds_made)),
        );
        say(&format!("{what}: {} steps", steps / rounds_made as u64));
    }
    missed
}
