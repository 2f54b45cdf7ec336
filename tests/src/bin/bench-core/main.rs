//! How fast and how small the core is, against its targets.
//!
//! `bench-core [--rounds N] [--only TEXT]`: a table, each row with its figure, its target
//! and KAI's figure for the same shape. Rows are measured in turns, so that what disturbs
//! the machine for a while disturbs them all; the middle of all rounds counts, with the
//! least and the most beside it. Each run has a core of its own, built outside the clock.
//! Always on a release build, which has no debug assertions, and without `Config::verify`,
//! which recomputes every sum after each event and makes every search that is skipped.

mod full;
mod large;
mod meter;
mod row;

use aliquot_tests::workloads::by_claim::Asks;
use aliquot_tests::workloads::{self, NOW};
use clap::Parser;
use meter::{Counting, exponent, spread, total};
use row::{line, say};
use scheduler_core::{Config, Core, Event, Step};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Measures the core.
#[derive(Parser)]
struct Args {
    /// How often each row is measured.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only rows whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

/// One decision on a fresh core.
struct Row {
    name: String,
    target: Option<Duration>,
    kai: &'static str,
    actions: Vec<Step>,
    world: Box<dyn Fn() -> Vec<Event>>,
    times: Vec<Duration>,
    /// Bytes allocated by the decision, and actions in it.
    allocated: usize,
    acted: usize,
}

impl Row {
    fn new(
        name: impl Into<String>,
        target: Option<Duration>,
        kai: &'static str,
        world: impl Fn() -> Vec<Event> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            target,
            kai,
            actions: Step::ALL.to_vec(),
            world: Box::new(world),
            times: Vec::new(),
            allocated: 0,
            acted: 0,
        }
    }

    fn only(mut self, action: Step) -> Self {
        self.actions = vec![action];
        self
    }

    fn measure(&mut self) {
        let mut core = built((self.world)(), self.actions.clone());
        let before = total();
        let start = Instant::now();
        let decision = core.decide(NOW);
        self.times.push(start.elapsed());
        self.allocated = total() - before;
        self.acted = decision.actions.len();
    }
}

fn built(events: Vec<Event>, actions: Vec<Step>) -> Core {
    let mut core = Core::new(Config {
        actions,
        ..Config::default()
    });
    for event in events {
        let problems = core.apply(event);
        assert!(problems.is_empty(), "{problems:?}");
    }
    core
}

/// A cluster with this many nodes and pods.
type World = fn(usize, usize) -> Vec<Event>;

fn rows() -> Vec<Row> {
    let ms = |count| Some(Duration::from_millis(count));
    let mut rows = vec![
        Row::new(
            "full cycle, 500 nodes, 4,000 + 4,000 one-GPU jobs",
            ms(10),
            "130.8 s",
            || workloads::full_cycle(500),
        ),
        Row::new(
            "proof that 10 x 8 GPUs cannot run, 100 nodes",
            ms(1),
            "14.6 s",
            || workloads::proof(100, 0),
        ),
        Row::new(
            "5,000 nodes, 40,000 pods of 120 shapes placed",
            ms(50),
            "-",
            || workloads::shapes(5000, 40_000),
        ),
        Row::new("gang of 250 x 2 reclaimed, 500 nodes", None, "-", || {
            workloads::reclaim_gang(500, 250, 2)
        }),
        Row::new(
            "gang of 25 reclaimed among shares, 50 nodes",
            None,
            "-",
            || workloads::among::reclaim_among_shares(50),
        ),
        Row::new(
            "gang of 250 reclaimed among shares, 500 nodes",
            None,
            "-",
            || workloads::among::reclaim_among_shares(500),
        ),
        Row::new("20,000 shares placed, 500 nodes", None, "-", || {
            workloads::fractions(500, 20_000)
        }),
    ];
    for groups in [400, 2000] {
        rows.push(Row::new(
            format!("a gang of {groups} sub-groups of 8"),
            ms(50),
            "-",
            move || workloads::of_sub_groups(groups),
        ));
    }
    rows.push(Row::new("an elastic group of 8,000", ms(50), "-", || {
        workloads::elastic(8000)
    }));
    rows.push(Row::new(
        "an elastic group of 1,000 sub-groups, 8,000 pods",
        ms(100),
        "-",
        || workloads::absurd::elastic_parts(1000),
    ));
    for levels in [2, 16, 64] {
        rows.push(Row::new(
            format!("1,000 pods below {levels} levels of queues"),
            ms(50),
            "-",
            move || workloads::absurd::deep(levels, 1000),
        ));
    }
    rows.push(Row::new("16,000 leave, 16,000 wait", ms(20), "-", || {
        workloads::all_leave(16_000)
    }));
    let of_pod_rules: [(&str, World); 5] = [
        ("spread over zones", workloads::pod_rules::spread),
        ("that avoid each other", workloads::pod_rules::one_a_node),
        (
            "of 1,000 workloads that avoid their own",
            workloads::pod_rules::many_terms,
        ),
        (
            "that wait for one that is not there",
            workloads::pod_rules::orphans,
        ),
        (
            "that each avoid all others",
            workloads::pod_rules::each_avoids_all,
        ),
    ];
    for (what, world) in of_pod_rules {
        rows.push(Row::new(
            format!("10,000 pods {what}, 4,000 nodes"),
            ms(100),
            "-",
            move || world(4000, 10_000),
        ));
    }
    for (how, asks) in [
        ("by claim", Asks::Claim),
        (
            "by nvidia.com/gpu, for which a claim stands in",
            Asks::Resource,
        ),
    ] {
        for requests in [1, 100] {
            rows.push(Row::new(
                format!("4,000 GPUs given {how}, {requests} requests, 500 nodes"),
                ms(200),
                "-",
                move || workloads::by_claim::waiting(500, asks, requests),
            ));
            rows.push(Row::new(
                format!("400 GPUs reclaimed {how}, {requests} requests, 100 nodes"),
                ms(200),
                "-",
                move || workloads::by_claim::full(100, asks, requests),
            ));
        }
    }
    for variant in 1..=20 {
        rows.push(Row::new(
            format!("proof, variant {variant}"),
            ms(1),
            "-",
            move || workloads::proof(100, variant),
        ));
    }
    for (nodes, pods) in [(100, 64), (100, 512), (1000, 5000)] {
        rows.push(Row::new(
            format!("gang of {pods} placed, {nodes} nodes"),
            None,
            "-",
            move || workloads::one_gang(nodes, pods),
        ));
    }
    // KAI's own shapes; its figures less the 100 ms that its harness waits.
    let kai = |figures: [&'static str; 3]| [100, 500, 1000].into_iter().zip(figures);
    for (nodes, figure) in kai(["107 ms", "-", "-"]) {
        rows.push(
            Row::new(
                format!("KAI's Allocate, {nodes} nodes"),
                None,
                figure,
                move || workloads::waiting(nodes, nodes * 5),
            )
            .only(Step::Allocate),
        );
    }
    for (nodes, figure) in kai(["1.15 s", "5.15 s", "-"]) {
        rows.push(
            Row::new(
                format!("KAI's ReclaimLargeJobs, {nodes} nodes"),
                None,
                figure,
                move || workloads::reclaim_gang(nodes, nodes / 2, 8),
            )
            .only(Step::Reclaim),
        );
    }
    for (name, action, figures) in [
        ("Consolidation", Step::Consolidation, ["-", "-", "-"]),
        ("Preempt", Step::Preempt, ["-", "-", "-"]),
    ] {
        for (nodes, figure) in kai(figures) {
            rows.push(
                Row::new(
                    format!("KAI's {name}, {nodes} nodes"),
                    None,
                    figure,
                    move || workloads::mixed(nodes, nodes * 5),
                )
                .only(action),
            );
        }
    }
    for nodes in [100, 500, 1000] {
        rows.push(Row::new(
            format!("gangs of 16 x 8 in blocks and racks, {nodes} nodes"),
            None,
            "-",
            move || workloads::in_topology(nodes),
        ));
    }
    // Growth: the same shape at 1x, 2x, 4x, 8x.
    for nodes in [62, 125, 250, 500] {
        rows.push(Row::new(
            format!("growth of the full cycle, {nodes} nodes"),
            None,
            "-",
            move || workloads::full_cycle(nodes),
        ));
    }
    for nodes in [625, 1250, 2500, 5000] {
        rows.push(Row::new(
            format!("growth of placing, {nodes} nodes"),
            None,
            "-",
            move || workloads::shapes(nodes, nodes * 8),
        ));
    }
    rows
}

fn main() -> ExitCode {
    let args = Args::parse();
    let wanted = |name: &str| args.only.as_deref().is_none_or(|only| name.contains(only));
    let mut missed = 0;
    say("| what | figure (least to most) | target | | KAI | allocated | actions |");
    say("|---|---|---|---|---|---|---|");
    missed += large::rows(args.rounds, wanted);
    missed += full::rows(args.rounds, wanted);
    let mut rows = rows();
    rows.retain(|row| wanted(&row.name));
    for _ in 0..args.rounds {
        for row in &mut rows {
            row.measure();
        }
    }
    for row in &rows {
        missed += line(
            &row.name,
            &row.times,
            row.target,
            row.kai,
            Some((row.allocated, row.acted)),
        );
    }
    for name in ["growth of the full cycle", "growth of placing"] {
        let points: Vec<(f64, f64)> = rows
            .iter()
            .filter_map(|row| {
                let rest = row.name.strip_prefix(name)?;
                let nodes = rest
                    .trim_matches(|c: char| !c.is_ascii_digit())
                    .parse()
                    .ok()?;
                Some((nodes, spread(&row.times).0.as_secs_f64()))
            })
            .collect();
        if points.len() > 1 {
            say(&format!(
                "{name}: exponent {:.2} of nodes and pods",
                exponent(&points)
            ));
        }
    }
    if missed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
