//! Many seeds of the simulated world; each runs on one thread, several threads side by side.
//!
//! - `SEEDS=n`: so many, `tests/run` tries 60; `BASE=n`: from that one on, else from a new one each time.
//! - `SEED=n`: that one alone, with its trace; `STEPS=n`: its first steps alone.
#![allow(clippy::unwrap_used)] // A test from its first line to its last.
#![allow(clippy::print_stdout)] // A failing seed is printed.

use scheduler_sim::{Report, Shape, run, shortest};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

/// The default number.
const SEEDS: u64 = 25;
/// Of so many, each kind of fault happens in some.
const MANY: u64 = 1000;

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// Lines of a trace that are printed.
const TAIL: usize = 400;

fn tell(report: &Report) {
    if let Some(trace) = &report.trace {
        let lines: Vec<&str> = trace.lines().collect();
        let from = if number::<u8>("WHOLE").is_some() {
            0
        } else {
            lines.len().saturating_sub(TAIL)
        };
        for line in &lines[from..] {
            println!("{line}");
        }
    }
    println!(
        "seed {}, {} steps, {} bindings, {} s, digest {}",
        report.seed,
        report.steps,
        report.bound,
        report.lasted / 1000,
        report.digest
    );
    for line in &report.violations {
        println!("  {line}");
    }
    println!(
        "again: SEED={} STEPS={} cargo test -p scheduler-sim --test seeds -- --nocapture",
        report.seed, report.steps
    );
}

#[test]
fn what_must_hold_holds_in_every_world() {
    if let Some(seed) = number("SEED") {
        let shape = Shape {
            steps: number("STEPS"),
            keep: true,
            ..Shape::default()
        };
        let report = run(seed, shape);
        tell(&report);
        assert!(report.violations.is_empty(), "{:#?}", report.violations);
        return;
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let base = number("BASE").unwrap_or(since.unwrap().as_secs() * 100_000);
    let count = number("SEEDS").unwrap_or(SEEDS);
    println!("seeds {base} to {}", base + count - 1);
    let (next, total) = (AtomicU64::new(base), Mutex::new(Total::default()));
    let begin = Instant::now();
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= base + count || total.lock().unwrap().failed.len() >= 3 {
                        return;
                    }
                    let report = run(seed, Shape::default());
                    total.lock().unwrap().add(report);
                }
            });
        }
    });
    let total = total.into_inner().unwrap();
    println!(
        "{} seeds in {:.0} s: {} steps, {} bindings, {} evictions, {} virtual hours, at rest within {} s, digest {:032x}",
        total.seeds,
        begin.elapsed().as_secs_f64(),
        total.steps,
        total.bound,
        total.evicted,
        total.lasted / 3_600_000,
        total.rest / 1000,
        total.digest
    );
    for (fault, count) in &total.faults {
        println!("  {count:>8} {fault}");
    }
    for seed in &total.failed {
        tell(&shortest(*seed).expect("it fails again"));
    }
    assert!(total.failed.is_empty(), "seeds {:?}", total.failed);
    if count >= MANY {
        for fault in scheduler_sim::chaos::FAULTS {
            assert!(total.faults.contains_key(fault), "{fault} never happened");
        }
    }
}

#[derive(Default)]
struct Total {
    seeds: u64,
    steps: u64,
    bound: usize,
    evicted: usize,
    lasted: u64,
    rest: u64,
    faults: BTreeMap<&'static str, u64>,
    failed: Vec<u64>,
    /// The sum of all traces' digests: the same before and after a change of the scheduler that
    /// changes no decision.
    digest: u128,
}

impl Total {
    fn add(&mut self, report: Report) {
        self.seeds += 1;
        self.steps += u64::from(report.steps);
        self.bound += report.bound;
        self.evicted += report.evicted;
        self.lasted += report.lasted;
        self.rest = self.rest.max(report.rest);
        let digest = u128::from_str_radix(&report.digest, 16).unwrap();
        self.digest = self.digest.wrapping_add(digest);
        for (fault, count) in report.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        if !report.violations.is_empty() {
            self.failed.push(report.seed);
        }
    }
}
