//! `aliquot snapshot` and `aliquot replay`: a cluster as the event list that rebuilds it,
//! and what the scheduler decides on one.
//!
//! The text is `scheduler_core::text`'s: what the scheduler itself serves at `/snapshot`,
//! golden scenarios and bug reports are written in. A line `decide [MILLISECONDS]` in a
//! replayed file decides at that place; without any, decisions follow at the end until
//! nothing more happens.

use crate::actions;
use crate::connect::block_on;
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::report::{Output, Report, say};
use crate::shadow::{Shadow, Source, read};
use scheduler_core::units::Time;
use scheduler_core::{Decision, text};
use std::path::PathBuf;
use std::process::ExitCode;

/// Flags of `aliquot snapshot`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SnapshotArgs {
    #[command(flatten)]
    source: Source,
    /// Write to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

/// `aliquot snapshot`.
pub(crate) fn snapshot(args: &SnapshotArgs) -> Outcome {
    block_on(async {
        let shadow = args.source.load().await?;
        let text = text::write(&shadow.events());
        match &args.to {
            None => say(&text),
            Some(path) => std::fs::write(path, text).map_err(|error| {
                Failure::input(format!("{} cannot be written: {error}", path.display()))
            }),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Flags of `aliquot replay`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// Events as text; `-` is standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print the core's own text instead of a table.
    #[arg(long, conflicts_with = "format")]
    text: bool,
    #[command(flatten)]
    output: Output,
}

/// `aliquot replay`.
pub(crate) fn replay(args: &ReplayArgs) -> Outcome {
    let source = read(&args.file)?;
    let (rounds, problems) =
        run(&source).map_err(|why| Failure::input(format!("{}: {why}", args.file.display())))?;
    if args.text {
        let lines: Vec<String> = rounds.iter().map(text::decision).collect();
        say(&lines.join("----\n"))?;
    } else {
        let mut report = Report::from(actions::table(&rounds, |_| true));
        report.below = problems.into_iter().map(Into::into).collect();
        args.output.print(&report)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn run(source: &str) -> Result<(Vec<Decision>, Vec<String>), String> {
    let config = scheduler::Config::default().core(0);
    let mut shadow = Shadow::of_text("", config, "")?;
    let mut rounds = Vec::new();
    // Text before a `decide` keeps its line number.
    let mut pending = String::new();
    let mut progress = Progress::of("lines", source.lines().count());
    for (at, line) in source.lines().enumerate() {
        progress.step();
        let mut words = line.split_whitespace();
        if words.next() != Some("decide") {
            pending.push_str(line);
            pending.push('\n');
            continue;
        }
        shadow.feed(&pending)?;
        pending = "\n".repeat(at + 1);
        if let Some(time) = words.next() {
            let time: u64 = time.parse().map_err(|_| {
                format!("line {}: `{time}` is not a number of milliseconds", at + 1)
            })?;
            shadow.now = Time(time).max(shadow.now);
        }
        rounds.push(shadow.decide());
    }
    shadow.feed(&pending)?;
    drop(progress);
    if rounds.is_empty() {
        let mut progress = Progress::of("decisions", 0);
        let settled = shadow.settle_in_time(|_| progress.step());
        shadow.problems.extend(settled.of_time());
        rounds = settled.rounds;
    }
    Ok((rounds, shadow.problems))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: &str = "\
node n1 cpu=64000 memory=274877906944 pods=110 gpus=1 managed extended.aliquot.dev/gpu-share=48
cards n1 default=mps
  card GPU-1 product=L4 total=23034 reserved=34
queue default-queue
pod a created=1 gpu-memory.main=2000 extended.aliquot.dev/gpu-share=1
pod b created=2 gpu-memory.main=22000 extended.aliquot.dev/gpu-share=1
";

    #[test]
    fn without_a_word_decisions_follow_until_nothing_happens() {
        let (rounds, problems) = run(CLUSTER).unwrap();
        assert_eq!(problems, Vec::<String>::new());
        let text: String = rounds.iter().map(text::decision).collect();
        assert!(text.contains("bind 0-1 pod=a node=n1"), "{text}");
        assert!(text.contains("waits b Unschedulable"), "{text}");
        assert_eq!(rounds.len(), 2);
    }

    #[test]
    fn decide_stands_where_it_is_written() {
        let (rounds, _) = run(&format!("{CLUSTER}decide 1000\npod-gone a\ndecide\n")).unwrap();
        assert_eq!(rounds.len(), 2);
        assert!(text::decision(&rounds[1]).contains("bind 0-2 pod=b"));
    }

    #[test]
    fn what_cannot_be_read_is_named_by_its_line() {
        for (more, expected) in [
            (
                "decide soon\n",
                "line 7: `soon` is not a number of milliseconds",
            ),
            ("decide\nnonsense x\n", "line 8: "),
        ] {
            let error = run(&format!("{CLUSTER}{more}")).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
