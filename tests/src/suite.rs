//! Runs claims one after the other on a shared cluster, and reports.
//!
//! In: a table of named claims and a filter. Out: `N claims`, one line per claim, the ends of the
//! logs where one failed, and `N passed, N failed` alone on the last line. Must never let one
//! claim's failure hide another's result: each is caught, timed, and cleaned up after.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use futures::FutureExt;
use futures::future::LocalBoxFuture;

use crate::cluster::Cluster;
use crate::daemon;
use crate::progress::Progress;

/// No claim takes longer; one that does has failed. `ALIQUOT_CLAIM_SECONDS` says another limit,
/// for claims that are made larger by a variable of their own.
const LIMIT: Duration = Duration::from_mins(4);
/// The same for those that are run with `--extended` because they take minutes.
const EXTENDED: Duration = Duration::from_mins(15);
/// Lines of each log that are shown when a claim failed.
const LOG_LINES: usize = 15;

fn limit(claim: &Claim) -> Duration {
    let asked = std::env::var("ALIQUOT_CLAIM_SECONDS").ok();
    let asked = asked.and_then(|text| text.parse().ok());
    let usual = if claim.name.starts_with("extended::") {
        EXTENDED
    } else {
        LIMIT
    };
    asked.map_or(usual, Duration::from_secs)
}

/// A claim: its name is the sentence.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    pub name: &'static str,
    pub run: for<'a> fn(&'a mut Cluster) -> LocalBoxFuture<'a, Result<()>>,
}

/// Makes [`Claim`]s from `async fn(&mut Cluster) -> Result<()>`s.
#[macro_export]
macro_rules! claims {
    ($($module:ident $(:: $name:ident)+),* $(,)?) => {
        vec![$($crate::suite::Claim {
            name: concat!(stringify!($module) $(, "::", stringify!($name))+),
            run: |cluster| ::std::boxed::Box::pin($module $(:: $name)+(cluster)),
        }),*]
    };
}

/// Those whose name contains the filter; of several, separated by commas, each filter's in turn.
pub fn select(claims: Vec<Claim>, filter: Option<&str>) -> Vec<Claim> {
    let Some(filter) = filter else {
        return claims;
    };
    let of = |word| claims.iter().filter(move |claim| claim.name.contains(word));
    filter.split(',').flat_map(of).copied().collect()
}

/// How many claims of a run may fail at first and hold at the second attempt. More are
/// a defect or a machine that nothing can be judged on.
const FLAKY: usize = 2;

/// What a claim that failed is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It ends the run: useful while working on that claim.
    Final,
    /// It is run again at the end of the run, alone, and counts as flaky if it holds then.
    /// Among hundreds of claims on a machine that does other things too, one that a pause
    /// ended must not hide what the others say. The first failure is shown all the same.
    Retried,
}

/// Runs them. Answers whether all held. `count`: how many there are, if that is to be said.
pub async fn run(
    cluster: &mut Cluster,
    count: Option<usize>,
    claims: impl Iterator<Item = Claim>,
    failure: Failure,
) -> bool {
    if let Some(count) = count {
        println!("{count} claims");
    }
    let progress = Progress::of("claims", count.unwrap_or(0));
    let (mut passed, mut failed) = (0_usize, Vec::new());
    for claim in claims {
        if one(cluster, &claim, &progress).await {
            passed += 1;
        } else {
            failed.push(claim);
        }
        progress.step();
    }
    let mut flaky = Vec::new();
    if failure == Failure::Retried && failed.len() <= FLAKY {
        progress.more(failed.len());
        for claim in std::mem::take(&mut failed) {
            if one(cluster, &claim, &progress).await {
                flaky.push(claim.name);
            } else {
                failed.push(claim);
            }
            progress.step();
        }
    }
    drop(progress);
    if !failed.is_empty() || !flaky.is_empty() {
        println!("logs are kept in {}", cluster.work.logs().display());
    }
    for name in &flaky {
        println!("flaky: {name} held at the second attempt only");
    }
    let passed = passed + flaky.len();
    println!("{passed} passed, {} failed", failed.len());
    failed.is_empty()
}

/// Runs one and reports it. Answers whether it held.
async fn one(cluster: &mut Cluster, claim: &Claim, progress: &Progress) -> bool {
    let begin = Instant::now();
    let marks = marks(cluster);
    let mut outcome = attempt(cluster, claim).await;
    if outcome.is_ok() {
        outcome = cluster.alive();
    }
    if let Err(error) = cluster.clean().await {
        outcome = outcome.and(Err(error.context("cleaning up")));
    }
    let mut repaired = Vec::new();
    if outcome.is_err() {
        match cluster.repair().await {
            Ok(names) => repaired = names,
            Err(error) => {
                outcome =
                    outcome.map_err(|first| first.context(format!("and no repair: {error:#}")));
            }
        }
    }
    let seconds = begin.elapsed().as_secs_f32();
    progress.beside(|| match &outcome {
        Ok(()) => println!("ok {} {seconds:.1}s", claim.name),
        Err(error) => {
            println!("FAIL {}: {error:#} ({seconds:.1}s)", claim.name);
            show_logs(&marks, cluster);
            println!("  The next claim gets a new scheduler and agent.");
            for name in repaired {
                println!("  {name} had ended and was started again.");
            }
        }
    });
    outcome.is_ok()
}

async fn attempt(cluster: &mut Cluster, claim: &Claim) -> Result<()> {
    let run = AssertUnwindSafe((claim.run)(cluster)).catch_unwind();
    let limit = limit(claim);
    match tokio::time::timeout(limit, run).await {
        Err(_) => Err(anyhow!("not done within {limit:?}")),
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => {
            let message = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("panicked");
            Err(anyhow!("{message}"))
        }
    }
}

/// How long each log is now: what comes after belongs to the next claim.
fn marks(cluster: &Cluster) -> BTreeMap<PathBuf, u64> {
    let entries = std::fs::read_dir(cluster.work.logs())
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.len())))
        .collect()
}

fn show_logs(marks: &BTreeMap<PathBuf, u64>, cluster: &Cluster) {
    for log in self::marks(cluster).into_keys() {
        let end = daemon::tail(
            &log,
            marks.get(&log).copied().unwrap_or_default(),
            LOG_LINES,
        );
        if !end.is_empty() {
            println!(
                "  {}:\n{end}",
                log.file_name().unwrap_or_default().to_string_lossy()
            );
        }
    }
}
