//! How well pods are packed onto GPUs: the openb trace, replayed under the rules of the
//! paper that it comes from, with the policies of that paper and through our own core.
//!
//! `packing [--seeds N] [--policies LIST] [--trace NAME --folder PATH]`: per policy the GPUs that
//! are unallocated once the pods that arrived ask for 100 % of all GPUs, and for 130 %, as mean,
//! least and most over the seeds. `--list` writes one seed's placements. `fragmentation-moving`
//! lets pods in by moving others, `--moves` for each that arrived; for it the lower bound
//! ([`floor`]) is printed too. `--steady`: the same policies with pods that come and leave
//! ([`mod@steady`]).

mod baseline;
mod consolidation;
mod core_replay;
mod floor;
mod replay;
mod steady;
mod steady_core;
mod trace;

use aliquot_tests::progress::Progress;
use anyhow::Result;
use baseline::{BaselinePolicy, Rule};
use clap::{Parser, ValueEnum};
use consolidation::{Budget, ConsolidatingCore};
use core_replay::CoreReplay;
use replay::Run;
use scheduler_core::Placement;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;
use steady::{Lifetimes, Plan, Queueing};
use steady_core::SteadyCore;
use trace::{Order, Trace};

/// FGD's mean on the default trace, as its authors publish it.
const FGD: f64 = 4.77;
/// On the default trace: above this a policy that neither rejects nor moves pods must reject one (a
/// linear program over all fillings of cards).
const BOUND: f64 = 3.71;

/// Replays the trace.
#[derive(Parser)]
struct Args {
    /// The directory of the trace.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Which pod list.
    #[arg(long, default_value = "default")]
    trace: String,
    /// Number of its orders.
    #[arg(long, default_value_t = 10)]
    seeds: usize,
    /// Which policies.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [
        Policy::BestFit, Policy::Fgd, Policy::Binpack, Policy::Fragmentation,
    ])]
    policies: Vec<Policy>,
    /// Moves for each pod that arrived, of `fragmentation-moving`.
    #[arg(long, default_value_t = 0.05)]
    moves: f64,
    /// Steps of each of its searches.
    #[arg(long, default_value_t = 400_000)]
    steps: u64,
    /// Write the placements of the first order in place of figures.
    #[arg(long)]
    list: bool,
    /// Pods arrive and leave, and a pod without room waits.
    #[arg(long, conflicts_with = "list")]
    steady: bool,
    /// How long they stay.
    #[arg(long, value_enum, default_value_t = Lifetimes::Exponential)]
    lifetimes: Lifetimes,
    /// Part of all GPUs that they ask for at once.
    #[arg(long, default_value_t = 0.95)]
    load: f64,
    /// A pod that does not start at once is rejected instead of waiting.
    #[arg(long)]
    refuse: bool,
    /// Hours that are counted, after one of warm-up.
    #[arg(long, default_value_t = 3)]
    hours: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// The paper's.
    BestFit,
    /// The paper's.
    Fgd,
    /// The core's.
    Binpack,
    /// The core's.
    Spread,
    /// The core's.
    Fragmentation,
    /// The core's, with its consolidation.
    FragmentationMoving,
}

impl Policy {
    fn name(self) -> &'static str {
        match self {
            Self::BestFit => "best-fit",
            Self::Fgd => "fgd",
            Self::Binpack => "binpack",
            Self::Spread => "spread",
            Self::Fragmentation => "fragmentation",
            Self::FragmentationMoving => "fragmentation-moving",
        }
    }

    fn run(self, trace: &Trace, order: &Order, budget: Budget) -> Run {
        let through = |placement| CoreReplay::new(trace, order, placement);
        match self {
            Self::BestFit => replay::run(
                trace,
                order,
                &mut BaselinePolicy::new(trace, order, Rule::BestFit),
            ),
            Self::Fgd => replay::run(
                trace,
                order,
                &mut BaselinePolicy::new(trace, order, Rule::Fgd),
            ),
            Self::Binpack => replay::run(trace, order, &mut through(Placement::Binpack)),
            Self::Spread => replay::run(trace, order, &mut through(Placement::Spread)),
            Self::Fragmentation => {
                replay::run(trace, order, &mut through(Placement::Fragmentation))
            }
            Self::FragmentationMoving => replay::run(
                trace,
                order,
                &mut ConsolidatingCore::new(trace, order, budget),
            ),
        }
    }
}

impl Policy {
    fn steady(
        self,
        trace: &Trace,
        order: &Order,
        budget: Budget,
        plan: &Plan,
        seed: u64,
    ) -> steady::Outcome {
        let living = |placement, budget| SteadyCore::new(trace, order, placement, budget);
        let run = |placer: &mut dyn steady::Placer| steady::run(trace, plan, seed, placer);
        match self {
            Self::BestFit => run(&mut Queueing::new(trace, order, Rule::BestFit)),
            Self::Fgd => run(&mut Queueing::new(trace, order, Rule::Fgd)),
            Self::Binpack => run(&mut living(Placement::Binpack, None)),
            Self::Spread => run(&mut living(Placement::Spread, None)),
            Self::Fragmentation => run(&mut living(Placement::Fragmentation, None)),
            Self::FragmentationMoving => run(&mut living(Placement::Fragmentation, Some(budget))),
        }
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/openb")
}

#[allow(clippy::print_stdout, clippy::cast_precision_loss)]
fn main() -> Result<()> {
    let args = Args::parse();
    let budget = Budget {
        moves: args.moves,
        steps: args.steps,
    };
    let at = args.folder.clone().unwrap_or_else(folder);
    let trace = Trace::read(&at, &args.trace)?;
    if args.steady {
        steady(&trace, &args, budget);
        return Ok(());
    }
    if args.list {
        for policy in args.policies {
            println!("# {}\n{}", policy.name(), list(&trace, policy, budget));
        }
        return Ok(());
    }
    println!("unallocated GPUs, per cent        100 % arrived            130 % arrived   seconds");
    for policy in args.policies {
        let start = Instant::now();
        let orders = trace.orders.iter().take(args.seeds);
        let progress = Progress::of("orders", orders.len());
        let runs: Vec<Run> = orders
            .map(|order| {
                let run = policy.run(&trace, order, budget);
                progress.step();
                run
            })
            .collect();
        drop(progress);
        let seconds = start.elapsed().as_secs_f64() / runs.len().max(1) as f64;
        let column = |arrived| {
            let of: Vec<f64> = runs
                .iter()
                .filter_map(|run| run.unallocated(arrived))
                .collect();
            let mean = of.iter().sum::<f64>() / of.len() as f64;
            let least = of.iter().copied().fold(f64::INFINITY, f64::min);
            let most = of.iter().copied().fold(0.0, f64::max);
            (mean, format!("{mean:5.2} ({least:5.2} to {most:5.2})"))
        };
        let (mean, at_100) = column(100);
        let (_, at_130) = column(130);
        println!(
            "{:<22} {at_100:>24} {at_130:>24} {seconds:9.1}",
            policy.name()
        );
        if policy == Policy::FragmentationMoving {
            tell_moves(&trace, &runs);
        }
        if policy == Policy::Fragmentation && args.trace == "default" {
            println!(
                "  of the way from FGD's {FGD} to {BOUND}, where refusing begins: {:.0} %",
                (FGD - mean) / (FGD - BOUND) * 100.0
            );
        }
    }
    Ok(())
}

/// The policies in a steady state, order by order: seeds are those of the trace's orders.
#[allow(clippy::print_stdout, clippy::cast_precision_loss)]
fn steady(trace: &Trace, args: &Args, budget: Budget) {
    let plan = Plan {
        lifetimes: args.lifetimes,
        load: args.load,
        lengths: args.hours,
        refuse: args.refuse,
    };
    println!(
        "{:?} lifetimes, {} % load; per cent of all GPUs, means over time\n{:<22} {:>4} {:>11} {:>12} {:>11} {:>12} {:>6} {:>6} {:>7} {:>8}",
        plan.lifetimes,
        plan.load * 100.0,
        "policy",
        "seed",
        "unallocated",
        "some waiting",
        "waiting for",
        "of that idle",
        "fluid",
        "floor",
        "moves",
        "seconds"
    );
    let orders = trace.orders.iter().enumerate().take(args.seeds);
    let progress = Progress::of("runs", orders.len() * args.policies.len());
    for (index, order) in orders {
        for policy in &args.policies {
            let start = Instant::now();
            let seed = 42 + index as u64;
            let came = policy.steady(trace, order, budget, &plan, seed);
            progress.step();
            let line = format!(
                "{:<22} {seed:>4} {:11.2} {:12.1} {:11.2} {:12.2} {:6.2} {:6.2} {:7.4} {:8.1}",
                policy.name(),
                came.unallocated * 100.0,
                came.some_pod_waits * 100.0,
                came.waiting * 100.0,
                came.wanted * 100.0,
                came.fluid * 100.0,
                came.floor * 100.0,
                came.moves,
                start.elapsed().as_secs_f64(),
            );
            progress.beside(|| println!("{line}"));
        }
    }
}

/// The moves, and the lower bound.
#[allow(clippy::print_stdout, clippy::cast_precision_loss)]
fn tell_moves(trace: &Trace, runs: &[Run]) {
    let mean = |of: Vec<f64>| of.iter().sum::<f64>() / of.len().max(1) as f64;
    for arrived in [100, 130] {
        let (mut moves, mut anybody, mut staying) = (Vec::new(), Vec::new(), Vec::new());
        for (run, order) in runs.iter().zip(&trace.orders) {
            let Some((count, moved)) = run.until.get(&arrived).copied() else {
                continue;
            };
            moves.push(moved as f64 / count as f64);
            let floor = floor::Floor::new(trace, order, &run.placed[..count]);
            anybody.push(floor.of_anybody());
            staying.push(floor.of_staying());
        }
        println!(
            "  at {arrived} %: {:.3} moves for each pod; lower bound {:.2} for any choice of arrived pods, {:.2} if placed pods stay",
            mean(moves),
            mean(anybody),
            mean(staying),
        );
    }
    let lost: u64 = runs.iter().map(|run| run.lost).sum();
    if lost > 0 {
        println!("  {lost} thousandths of GPUs moved and lost");
    }
}

/// `seq,pod,node,rank` of the first order.
fn list(trace: &Trace, policy: Policy, budget: Budget) -> String {
    let Some(order) = trace.orders.first() else {
        return String::new();
    };
    let run = policy.run(trace, order, budget);
    let mut text = String::from("seq,pod,node,rank\n");
    for (seq, node) in run.placed.iter().enumerate() {
        let at = node.and_then(|node| order.nodes.iter().position(|one| *one == node));
        let (node, rank) = match (node, at) {
            (Some(node), Some(at)) => (trace.nodes[*node].name.as_str(), at.to_string()),
            _ => ("", String::new()),
        };
        let pod = &trace.pods[order.arrivals[seq]].name;
        let _ = writeln!(text, "{seq},{pod},{node},{rank}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace {
        Trace::read(&folder(), "default").unwrap()
    }

    #[test]
    fn fgd_puts_every_pod_where_its_authors_program_puts_it() {
        let trace = trace();
        let order = &trace.orders[0];
        let budget = Budget {
            moves: 0.0,
            steps: 0,
        };
        let run = Policy::Fgd.run(&trace, order, budget);
        let golden =
            std::fs::read_to_string(folder().join("golden/default_fgd_seed42.csv")).unwrap();
        let mut count = 0;
        for (seq, line) in golden.lines().skip(1).enumerate() {
            let columns: Vec<&str> = line.split(',').collect();
            let pod = &trace.pods[order.arrivals[seq]];
            assert!(columns[1].starts_with(&pod.name), "{line}: {}", pod.name);
            let node = run.placed[seq].map_or("", |node| trace.nodes[node].name.as_str());
            assert_eq!(node, columns[2], "{line}");
            count += 1;
        }
        assert_eq!(count, 10_866);
        assert_eq!(run.placed.len(), count);
        assert_eq!(
            run.placed.iter().filter(|node| node.is_none()).count(),
            2_532
        );
    }
}
