//! `aliquot doctor`: problems of a cluster, or of the node it runs on, each with its fix.
//!
//! - `cluster`: pure: listed objects → findings; `node`: files below a root → findings.
//!
//! Reads only. What may not be read is reported as unknown, never as healthy.

mod cluster;
mod node;

use crate::connect::{ClusterArgs, block_on};
use crate::failure::{NO, Outcome};
use crate::progress::Progress;
use crate::report::{Cell, Column, Output, Report, Table, Tone};
use std::path::PathBuf;
use std::process::ExitCode;

/// Flags of `aliquot doctor`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Check the node that this runs on, instead of the cluster.
    #[arg(long, conflicts_with_all = ["kubeconfig", "context"])]
    node: bool,
    /// With --node: where the node's file system is, for a container that has it mounted.
    #[arg(long, value_name = "DIR", default_value = "/", requires = "node")]
    root: PathBuf,
    /// With --node: where the NVIDIA driver is, below the root.
    #[arg(long, value_name = "DIR", default_value = "/", requires = "node")]
    driver_root: PathBuf,
    #[command(flatten)]
    place: ClusterArgs,
    #[command(flatten)]
    output: Output,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// As it must be.
    Fine,
    /// It could not be checked.
    Unknown,
    /// It works, and not as well as it could.
    Warning,
    /// It does not work.
    Broken,
}

/// One check's outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The checked item.
    check: &'static str,
    state: State,
    /// The finding.
    what: String,
    /// What to do; empty where nothing is to be done.
    fix: String,
}

impl Finding {
    fn fine(check: &'static str, what: impl Into<String>) -> Self {
        Self::of(check, State::Fine, what, "")
    }

    fn unknown(check: &'static str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::of(check, State::Unknown, what, fix)
    }

    fn warning(check: &'static str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::of(check, State::Warning, what, fix)
    }

    fn broken(check: &'static str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::of(check, State::Broken, what, fix)
    }

    fn of(
        check: &'static str,
        state: State,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            check,
            state,
            what: what.into(),
            fix: fix.into(),
        }
    }
}

const COLUMNS: &[Column] = &[
    Column::text("check", "CHECK"),
    Column::text("state", "STATE"),
    Column::text("found", "FOUND"),
    Column::text("fix", "FIX"),
];

/// Runs it.
pub(crate) fn run(args: &Args) -> Outcome {
    let findings = if args.node {
        node::findings(&node::Node {
            root: &args.root,
            driver_root: &args.driver_root,
        })
    } else {
        block_on(async {
            let cluster = args.place.connect().await?;
            let mut progress = Progress::of("querying the API server", 0);
            progress.spin();
            let seen = cluster::Seen::look(&cluster).await?;
            drop(progress);
            Ok(cluster::findings(&seen))
        })?
    };
    let broken = findings
        .iter()
        .any(|finding| finding.state == State::Broken);
    args.output.print(&report(&findings))?;
    Ok(if broken {
        ExitCode::from(NO)
    } else {
        ExitCode::SUCCESS
    })
}

fn report(findings: &[Finding]) -> Report {
    let mut table = Table::new(COLUMNS, "nothing was checked");
    for finding in findings {
        let (word, tone) = match finding.state {
            State::Fine => ("ok", Tone::Good),
            State::Unknown => ("unknown", Tone::Dim),
            State::Warning => ("warning", Tone::Warn),
            State::Broken => ("broken", Tone::Bad),
        };
        table.row(vec![
            finding.check.into(),
            Cell::from(word).tone(tone),
            finding.what.clone().into(),
            finding.fix.clone().into(),
        ]);
    }
    let of = |state| {
        findings
            .iter()
            .filter(|finding| finding.state == state)
            .count()
    };
    let (broken, warnings, unknown) = (of(State::Broken), of(State::Warning), of(State::Unknown));
    let verdict = format!("{broken} broken, {warnings} to check, {unknown} unknown");
    let mut report = Report::from(table);
    report
        .below
        .push(Cell::from(verdict).tone(if broken > 0 { Tone::Bad } else { Tone::Plain }));
    report
}
