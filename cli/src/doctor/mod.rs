//! `aliquot doctor`: problems of a cluster, or of the node it runs on, each with its fix.
//!
//! - `cluster`: pure: listed objects → findings; `node`: files below a root → findings.
//! - `finding`: what one check saw.
//!
//! Reads only. What may not be read is reported as unknown, never as healthy.

mod cluster;
mod finding;
mod node;

use crate::connect::{ClusterArgs, block_on};
use crate::failure::{NO, Outcome};
use crate::progress::Progress;
use crate::report::{Cell, Column, Output, Report, Table, Tone};
use finding::{Finding, State};
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
