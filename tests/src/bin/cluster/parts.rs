//! All claims, on several clusters side by side: most of a claim's time is waiting.
//!
//! In: the command line of a run without a filter. It is run once for each part, in namespaces of
//! its own. Each part takes the next module of claims when it is done with one, the largest modules
//! first. Out: the parts' lines, each claim's together, and one last line with the sums.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};

use aliquot_tests::progress::Progress;
use aliquot_tests::suite::Claim;
use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::NamedTempFile;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::signal::unix::{SignalKind, signal};

/// How many clusters. On two cores a third makes claims about times fail.
const PARTS: u8 = 2;

/// The number of the next module of claims, in a file that all parts share.
#[derive(Clone, Debug)]
pub(crate) struct Tickets(pub(crate) PathBuf);

impl Tickets {
    fn next(&self) -> Result<usize> {
        let file = File::options().read(true).write(true).open(&self.0)?;
        let mut file = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, why)| why)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let ticket = text.trim().parse().unwrap_or(0);
        file.rewind()?;
        write!(file, "{}", ticket + 1)?;
        Ok(ticket)
    }
}

/// Asks the admission policies alone, before a scheduler's webhook changes what it writes.
const FIRST: &str = "guard";

/// The claims by module, the largest first. All parts have the same order.
fn modules(claims: &[Claim]) -> Vec<Vec<Claim>> {
    let mut modules: BTreeMap<&str, Vec<Claim>> = BTreeMap::new();
    for claim in claims {
        let module = claim.name.split("::").next().unwrap_or_default();
        modules.entry(module).or_default().push(*claim);
    }
    let mut modules: Vec<Vec<Claim>> = modules.into_values().collect();
    let is_first = |claims: &[Claim]| claims[0].name.starts_with(FIRST);
    modules.sort_by_key(|claims| (!is_first(claims), Reverse(claims.len())));
    modules
}

/// The claims that this part runs, as it takes them.
pub(crate) fn share(claims: &[Claim], tickets: Tickets) -> impl Iterator<Item = Claim> {
    let modules = modules(claims);
    let next = move || modules.get(tickets.next().ok()?).cloned();
    std::iter::from_fn(next).flatten()
}

/// Runs this program once for each part.
pub(crate) async fn run() -> Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut running = Vec::new();
    let tickets = NamedTempFile::new().context("the tickets")?;
    for part in 0..PARTS {
        let mut child = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .arg("--part")
            .arg(part.to_string())
            .arg("--tickets")
            .arg(tickets.path())
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
    fn every_claim_is_run_by_exactly_one_part() {
        let claim = |name| Claim {
            name,
            run: |_| Box::pin(async { Ok(()) }),
        };
        let all = ["a::x", "b::x", "b::y", "c::x", "a::y", "b::z"].map(claim);
        let file = NamedTempFile::new().unwrap();
        let tickets = Tickets(file.path().to_owned());
        let mut parts = [share(&all, tickets.clone()), share(&all, tickets)];
        let mut run = Vec::new();
        for turn in [0, 1, 1, 0, 1, 0, 0, 1, 0, 1] {
            run.extend(parts[turn].next().map(|claim| (turn, claim.name)));
        }
        // The first takes the largest module, the second the next one.
        assert_eq!(run[..3], [(0, "b::x"), (1, "a::x"), (1, "a::y")]);
        let mut names: Vec<&str> = run.iter().map(|(_, name)| *name).collect();
        names.sort_unstable();
        assert_eq!(names, ["a::x", "a::y", "b::x", "b::y", "b::z", "c::x"]);
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
