//! All claims, on several clusters side by side: most of a claim's time is waiting.
//!
//! In: the command line of a run without a filter. It is run once for each part, in namespaces of
//! its own. Out: the parts' lines, each claim's together, and one last line with the sums.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::process::{ExitCode, Stdio};

use aliquot_tests::progress::Progress;
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::signal::unix::{SignalKind, signal};

/// What runs apart from the rest: claims that wait for operators, those that are about
/// workloads' controllers, and as many more as make both parts alike in time.
const APART: [&str; 5] = ["seed", "extended", "grouper", "strangers", "claims"];
/// How many clusters.
const PARTS: u8 = 2;

/// Whether a claim is run in that part; without parts every one is.
pub(crate) fn has(part: Option<u8>, claim: &str) -> bool {
    let apart = APART.iter().any(|prefix| claim.starts_with(prefix));
    part.is_none_or(|part| part == u8::from(apart))
}

/// Runs this program once for each part.
pub(crate) async fn run() -> Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut running = Vec::new();
    for part in 0..PARTS {
        let mut child = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .arg("--part")
            .arg(part.to_string())
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("a part of the claims")?;
        let output = child.stdout.take().context("its output")?;
        running.push((child, BufReader::new(output).lines()));
    }
    let pids: Vec<Pid> = running
        .iter()
        .filter_map(|(child, _)| Some(Pid::from_raw(i32::try_from(child.id()?).ok()?)))
        .collect();
    let progress = Progress::of("claims", 0);
    let mut parts = std::pin::pin!(futures::future::join_all(
        running
            .into_iter()
            .map(|(child, lines)| follow(child, lines, &progress))
    ));
    // An interrupt from a terminal reaches every part by itself.
    let ended = loop {
        tokio::select! {
            ended = &mut parts => break ended,
            _ = terminate.recv() => for pid in &pids {
                let _ = kill(*pid, Signal::SIGTERM);
            },
        }
    };
    let (mut sums, mut worst) = ([0, 0], 0);
    for part in ended {
        let (counts, code) = part?;
        sums = [sums[0] + counts[0], sums[1] + counts[1]];
        worst = worst.max(code);
    }
    println!("{} passed, {} failed", sums[0], sums[1]);
    Ok(ExitCode::from(worst))
}

/// Passes a part's lines on; answers how many passed and failed, and its exit code.
async fn follow(
    mut child: Child,
    mut lines: Lines<BufReader<ChildStdout>>,
    progress: &Progress,
) -> Result<([u32; 2], u8)> {
    let (mut failure, mut counts) = (Vec::new(), [0, 0]);
    let say = |line: String| progress.beside(|| println!("{line}"));
    while let Some(line) = lines.next_line().await? {
        let begins = line.starts_with("ok ") || line.starts_with("FAIL ");
        let sums = sums(&line);
        if begins || sums.is_some() {
            // What belongs together stays together.
            std::mem::take(&mut failure).into_iter().for_each(say);
        }
        if begins {
            progress.step();
        }
        match (claims(&line), sums) {
            (Some(count), _) => progress.more(count),
            (None, Some(sums)) => counts = sums,
            _ if line.starts_with("ok ") || failure.is_empty() && !begins => say(line),
            _ => failure.push(line),
        }
    }
    failure.into_iter().for_each(say);
    let code = child.wait().await?.code().unwrap_or(1);
    Ok((counts, u8::try_from(code).unwrap_or(1)))
}

/// `N claims`.
fn claims(line: &str) -> Option<usize> {
    line.strip_suffix(" claims")?.parse().ok()
}

/// `N passed, N failed`.
fn sums(line: &str) -> Option<[u32; 2]> {
    let (passed, failed) = line.split_once(" passed, ")?;
    let failed = failed.strip_suffix(" failed")?;
    Some([passed.parse().ok()?, failed.parse().ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_claim_is_in_exactly_one_part_and_in_a_run_without_parts() {
        for claim in ["seed_004::x", "grouper::x", "fence::x", "selftest::seed"] {
            let parts = (0..PARTS).filter(|part| has(Some(*part), claim));
            assert_eq!(parts.count(), 1, "{claim}");
            assert!(has(None, claim));
        }
    }

    #[test]
    fn the_last_line_of_a_part_is_added_and_no_other() {
        assert_eq!(sums("12 passed, 3 failed"), Some([12, 3]));
        assert_eq!(sums("ok a::b 3 passed, 4 failed s"), None);
        assert_eq!(
            (claims("93 claims"), claims("ok claims::a 2 claims s")),
            (Some(93), None)
        );
    }
}
