//! Every target with many inputs, one on each core: what it says of them, what they cost.
//!
//! `cargo test -p aliquot-fuzz --test inputs -- [TARGET...]`, with
//! - `ALIQUOT_FUZZ_INPUTS`: how many for each target; 500 when unset, and then no long ones.
//! - `ALIQUOT_FUZZ_SEED`: any number; the same one each time when unset, so that a failure points
//!   to a change.
//! - `ALIQUOT_FUZZ_FROM`: the first of them, to see one alone; 0 when unset.
//! - `ALIQUOT_FUZZ_SECONDS`: when to end a target all the same.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A test from its first line to its last.

mod meter;

use aliquot_fuzz::{Corpus, TARGETS, Target, Xoshiro256, large};
use meter::{Cost, Counting, measured};
use std::cell::RefCell;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Of computing, for an input of a few KiB, without optimisation.
const SHORT: Duration = Duration::from_millis(500);
/// Of computing, for an input of [`LONG_BYTES`], without optimisation: what is quadratic in
/// its length takes minutes.
const LONG: Duration = Duration::from_secs(5);
/// Size limit of all annotations of an object
const LONG_BYTES: usize = 256 << 10;
/// Beside what grows with the input.
const HEAP: usize = 1 << 20;
/// The default.
const SEED: u64 = 1;
/// The default number of inputs.
const FEW: u64 = 500;

thread_local! {
    /// The last panic's message.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

fn main() -> ExitCode {
    let number = |name: &str| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    let asked = number("ALIQUOT_FUZZ_INPUTS");
    let inputs = asked.unwrap_or(FEW);
    let from = number("ALIQUOT_FUZZ_FROM").unwrap_or(0);
    let most = number("ALIQUOT_FUZZ_SECONDS").map_or(Duration::MAX, Duration::from_secs);
    let seed = number("ALIQUOT_FUZZ_SEED").unwrap_or(SEED);
    let names: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&String> = names.iter().filter(|name| !name.starts_with('-')).collect();
    std::panic::set_hook(Box::new(|info| SAID.set(info.to_string())));
    println!("{inputs} inputs for each target, ALIQUOT_FUZZ_SEED={seed}");
    let asked_for =
        |target: &&Target| names.is_empty() || names.iter().any(|name| *name == target.name);
    let targets: Vec<&Target> = TARGETS.iter().filter(asked_for).collect();
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        let _whole = Outside;
        while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
            let corpus = Corpus::new(target.shape, target.words, (target.seeds)());
            let start = Instant::now();
            let computed = meter::computed();
            let long = asked.is_some() && from == 0;
            match all(target, &corpus, seed, from..from + inputs, most, long) {
                Ok(told) => println!(
                    "{:<12} {:>9} inputs  {:>8.1} s computed  {:>8.1} s  {told}",
                    target.name,
                    told.inputs,
                    meter::computed().saturating_sub(computed).as_secs_f64(),
                    start.elapsed().as_secs_f64(),
                ),
                Err(find) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                    println!("{:<12} FAILED {find}", target.name);
                }
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            std::thread::Builder::new()
                .stack_size(scheduler::selector::stack::BYTES)
                .spawn_scoped(scope, work)
                .unwrap();
        }
    });
    let failed = failed.into_inner();
    if failed > 0 {
        println!("{failed} targets failed; ALIQUOT_FUZZ_SEED={seed} makes the same inputs");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Reports a panic outside of a target, which the hook does not print.
struct Outside;

impl Drop for Outside {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", SAID.take());
        }
    }
}

/// The dearest of a target's inputs.
#[derive(Default)]
struct WorstCosts {
    inputs: u64,
    short: Cost,
    long: Cost,
}

impl std::fmt::Display for WorstCosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "at most {} KiB, {:.1} ms; of 256 KiB: {} KiB, {:.1} ms",
            self.short.bytes >> 10,
            self.short.time.as_secs_f64() * 1e3,
            self.long.bytes >> 10,
            self.long.time.as_secs_f64() * 1e3,
        )
    }
}

fn all(
    target: &Target,
    corpus: &Corpus,
    seed: u64,
    which: std::ops::Range<u64>,
    most: Duration,
    long: bool,
) -> Result<WorstCosts, String> {
    let mut told = WorstCosts::default();
    // The first run makes what a target keeps; its cost is not counted for any input.
    for (at, input) in corpus.seeds().iter().enumerate() {
        run(target, input).map_err(|why| find(target, &format!("seed {at}"), input, &why))?;
    }
    if long {
        let generic = large::inputs(target.shape, corpus.seeds(), LONG_BYTES);
        let own = (target.large)(LONG_BYTES);
        for (at, input) in own.iter().chain(&generic).enumerate() {
            let cost = limited(target, input, LONG)
                .map_err(|why| find(target, &format!("long input {at}"), input, &why))?;
            told.long = dearer(told.long, cost);
        }
    }
    let start = Instant::now();
    for index in which {
        let mut random = Xoshiro256::new(seed, target.name, index);
        let input = corpus.input(&mut random);
        let cost = limited(target, &input, SHORT)
            .map_err(|why| find(target, &format!("input {index}"), &input, &why))?;
        told.short = dearer(told.short, cost);
        told.inputs += 1;
        if index % 1024 == 0 && start.elapsed() > most {
            break;
        }
    }
    Ok(told)
}

fn dearer(one: Cost, other: Cost) -> Cost {
    Cost {
        bytes: one.bytes.max(other.bytes),
        time: one.time.max(other.time),
    }
}

/// One run; what the target says against it.
fn run(target: &Target, input: &[u8]) -> Result<Cost, String> {
    let run = AssertUnwindSafe(|| measured(|| (target.run)(input)));
    catch_unwind(run).map_err(|_| SAID.take())
}

/// One run within its bounds. Slow by the wall, it is run again by the thread's own clock.
fn limited(target: &Target, input: &[u8], limit: Duration) -> Result<Cost, String> {
    let mut cost = run(target, input)?;
    let most = HEAP + target.heap * input.len();
    if cost.bytes > most {
        return Err(format!(
            "{} bytes were allocated at once for {} bytes of input: no more than {most} may",
            cost.bytes,
            input.len()
        ));
    }
    if cost.time > limit {
        let times = (0..3).map(|_| {
            let before = meter::computed();
            run(target, input).map(|_| meter::computed().saturating_sub(before))
        });
        cost.time = times.min().unwrap_or(Ok(cost.time))?;
        if cost.time > limit {
            return Err(format!(
                "{} ms were computed for {} bytes of input: no more than {} may",
                cost.time.as_millis(),
                input.len(),
                limit.as_millis()
            ));
        }
    }
    Ok(cost)
}

/// The find as a person can use it: the smallest input that shows it, as text and as a file.
fn find(target: &Target, which: &str, input: &[u8], why: &str) -> String {
    let small = smaller(target, input);
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(format!("{}.input", target.name));
    let _ = std::fs::write(&file, &small);
    let mut text: String = String::from_utf8_lossy(&small).escape_debug().collect();
    if text.len() > 2000 {
        text = format!("{} bytes, see the file", small.len());
    }
    format!("{which}: {why}\n  {text}\n  in {}", file.display())
}

/// Without whatever can be left out.
fn smaller(target: &Target, input: &[u8]) -> Vec<u8> {
    let mut small = input.to_vec();
    if run(target, &small).is_ok() || small.len() > 64 << 10 {
        return small;
    }
    let mut piece = small.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < small.len() {
            let mut shorter = small.clone();
            shorter.drain(at..(at + piece).min(small.len()));
            if run(target, &shorter).is_err() {
                small = shorter;
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    small
}
