//! Scenarios in plain text: events, then what was decided.
//!
//! A file is a list of blocks: input lines, `----`, the expected output, an empty line.
//! Input lines are events (see `scheduler_core::text`) and the commands
//! `decide [<now>]`, `explain <pod>` and `snapshot`. A line `config keep-empty-nodes=N`
//! before all else sets that, a line `config placement=NAME` how nodes are chosen. With `UPDATE_GOLDEN=1` the expected
//! output is written anew: read the difference before you commit it.
#![allow(clippy::unwrap_used, clippy::match_bool)] // A test from its first line to its last.

use scheduler_core::units::Time;
use scheduler_core::{Config, Core, Placement, text};
use std::fmt::Write as _;
use std::path::Path;

fn run_block(core: &mut Core, now: &mut u64, input: &str) -> String {
    let mut out = String::new();
    let mut pending = String::new();
    let flush = |core: &mut Core, pending: &mut String, out: &mut String| {
        let events = text::read(pending).unwrap_or_else(|error| panic!("{error} of\n{pending}"));
        for event in events {
            for problem in core.apply(event) {
                let _ = writeln!(out, "problem: {problem}");
            }
        }
        pending.clear();
    };
    let is_command = |line: &&str| {
        ["decide", "explain", "snapshot"]
            .iter()
            .any(|command| line.split_whitespace().next() == Some(command))
    };
    let commands = input.lines().filter(is_command).count();
    for line in input.lines() {
        let mut words = line.split_whitespace();
        let command = words.next();
        if matches!(command, Some("decide" | "explain" | "snapshot")) {
            flush(core, &mut pending, &mut out);
            if commands > 1 {
                let _ = writeln!(out, "> {line}");
            }
        }
        match command {
            Some("decide") => {
                if let Some(time) = words.next() {
                    *now = time.parse().unwrap();
                }
                out.push_str(&text::decision(&core.decide(Time(*now))));
            }
            Some("explain") => {
                let explanation = core.explain(&words.next().unwrap().into()).unwrap();
                let _ = writeln!(out, "{:?}: {}", explanation.kind, explanation.line);
                for node in explanation.nodes {
                    let _ = writeln!(
                        out,
                        "{}: {}",
                        node.node,
                        if node.fits {
                            "fits".to_owned()
                        } else {
                            node.reasons.join(", ")
                        }
                    );
                    for card in node.cards {
                        let _ = writeln!(out, "  {card}");
                    }
                }
            }
            Some("snapshot") => {
                out.push_str(&text::write(&core.snapshot()));
            }
            Some("config") => {}
            _ => {
                pending.push_str(line);
                pending.push('\n');
            }
        }
    }
    flush(core, &mut pending, &mut out);
    out
}

/// An equal core, from what this one would hand on.
fn rebuilt(core: &Core, config: &Config) -> Core {
    let mut again = Core::new(config.clone());
    for event in text::read(&text::write(&core.snapshot())).unwrap() {
        let _ = again.apply(event);
    }
    again
}

/// What is done, without what is said: a core that was rebuilt says every reason anew, and one
/// that lived repeats its promises where nothing has changed.
fn done(output: &str) -> Vec<&str> {
    const SAID: [&str; 3] = ["waits ", "problem: ", "promise "];
    let said = |line: &&str| SAID.iter().any(|word| line.starts_with(word));
    output.lines().filter(|line| !said(line)).collect()
}

/// The file with its expectations as they really are. Each block is also run on a core that
/// was rebuilt from a snapshot before it, and must do the same there.
fn run(source: &str) -> String {
    let keep = source
        .lines()
        .find_map(|line| line.strip_prefix("config keep-empty-nodes="));
    let placement = match source
        .lines()
        .find_map(|line| line.strip_prefix("config placement="))
    {
        Some("fragmentation") => Placement::Fragmentation,
        Some("spread") => Placement::Spread,
        Some(other) => panic!("no placement is called {other}"),
        None => Placement::Binpack,
    };
    let config = Config {
        gpu_placement: placement,
        cpu_placement: placement,
        keep_empty_nodes: keep.map_or(0, |count| count.parse().unwrap()),
        ..Config::verified()
    };
    let mut core = Core::new(config.clone());
    let mut now = 0;
    let mut out = String::new();
    let mut rest = source;
    while let Some(at) = rest.find("----\n") {
        let (input, after) = rest.split_at(at);
        let after = &after["----\n".len()..];
        let end = match after.starts_with('\n') {
            true => 0,
            false => after.find("\n\n").map_or(after.len(), |end| end + 1),
        };
        out.push_str(input);
        out.push_str("----\n");
        let (mut again, mut then) = (rebuilt(&core, &config), now);
        let output = run_block(&mut core, &mut now, input);
        let other = run_block(&mut again, &mut then, input);
        assert_eq!(
            done(&output),
            done(&other),
            "a core rebuilt before this does otherwise:\n{input}"
        );
        out.push_str(if output.is_empty() {
            "nothing\n"
        } else {
            &output
        });
        rest = &after[end..];
    }
    out.push_str(rest);
    out
}

#[test]
fn scenarios_end_as_they_are_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let source = std::fs::read_to_string(&file).unwrap();
        let real = run(&source);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&file, &real).unwrap();
            continue;
        }
        assert!(
            real == source,
            "{} ends otherwise:\n{real}",
            file.file_name().unwrap().display()
        );
    }
}
