//! Scenarios in plain text: events, then what was decided.
//!
//! A file is a list of blocks: input lines, `----`, the expected output, an empty line. Input lines
//! are events (see `scheduler_core::text`) and the commands `decide [<now>]`, `explain <pod>` and
//! `snapshot`. With `UPDATE_GOLDEN=1` the expected output is rewritten: read the difference before
//! you commit it.
#![allow(clippy::unwrap_used, clippy::match_bool)] // A test from its first line to its last.

use scheduler_core::units::Time;
use scheduler_core::{Config, Core, text};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

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
            _ => {
                pending.push_str(line);
                pending.push('\n');
            }
        }
    }
    flush(core, &mut pending, &mut out);
    out
}

/// An equal core, from what this one would hand on, that asks the pods where this one counts.
fn rebuilt(core: &Core) -> Core {
    let mut again = Core::new(Config {
        most_counted: 0,
        ..Config::verified()
    });
    for event in text::read(&text::write(&core.snapshot())).unwrap() {
        let _ = again.apply(event);
    }
    again
}

/// The actions, without reasons: a rebuilt core reports every reason again, and a long-lived one
/// repeats its promises where nothing has changed.
fn done(output: &str) -> Vec<&str> {
    const SAID: [&str; 3] = ["waits ", "problem: ", "promise "];
    let said = |line: &&str| SAID.iter().any(|word| line.starts_with(word));
    output.lines().filter(|line| !said(line)).collect()
}

/// The file with its expectations as they really are. Each block is also run on a core that
/// was rebuilt from a snapshot before it, and must do the same there.
fn run(source: &str) -> String {
    let source = closed(source);
    let mut core = Core::new(Config::verified());
    let mut now = 0;
    let mut out = String::new();
    let mut rest = source.as_str();
    while let Some(at) = rest.find("----\n") {
        let (input, after) = rest.split_at(at);
        let after = &after["----\n".len()..];
        let end = match after.starts_with('\n') {
            true => 0,
            false => after.find("\n\n").map_or(after.len(), |end| end + 1),
        };
        out.push_str(input);
        out.push_str("----\n");
        let (mut again, mut then) = (rebuilt(&core), now);
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

/// With the line above the output, if the last block has none yet.
fn closed(source: &str) -> String {
    let last = source.trim_end().rsplit("\n\n").next().unwrap_or_default();
    let decides = last.lines().any(|line| line.starts_with("decide"));
    if decides && !last.contains("----\n") {
        format!("{}\n----\n", source.trim_end())
    } else {
        source.to_owned()
    }
}

/// The scenarios in order of their files' names, which come with them.
fn scenarios() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    let read = |file: PathBuf| {
        let source = std::fs::read_to_string(&file).unwrap();
        (file, source)
    };
    files.into_iter().map(read).collect()
}

#[test]
fn scenarios_end_as_they_are_written() {
    for (file, source) in scenarios() {
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

/// Names of nodes, cards, queues, groups and pods, and what each is called instead, so that
/// the last of its kind comes first.
fn reversed(source: &str) -> BTreeMap<&str, String> {
    const KINDS: [&str; 5] = ["node", "card", "queue", "group", "pod"];
    let mut names: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in source.lines() {
        let mut words = line.split_whitespace();
        if let (Some(kind), Some(name)) = (words.next(), words.next())
            && KINDS.contains(&kind)
            && name != "default-queue"
        {
            names.entry(kind).or_default().insert(name);
        }
    }
    let mut all = BTreeMap::new();
    for (kind, names) in names {
        let count = names.len();
        for (index, name) in names.into_iter().enumerate() {
            // A group's namespace is its pods'.
            let new = format!("{}{kind}-{:03}", namespace(name), count - index);
            all.insert(name, new);
        }
    }
    all
}

fn namespace(name: &str) -> &str {
    name.rfind('/').map_or("", |at| &name[..=at])
}

/// The scenario with other names at every place of a name: after the kind, and after the keys that
/// name something else.
fn renamed(source: &str, names: &BTreeMap<&str, String>) -> String {
    const NAMELESS: [&str; 6] = ["set", "sub-group", "grant", "config", "outcome", "topology"];
    const KEYS: [&str; 11] = [
        "queue", "parent", "group", "pod", "node", "on", "card", "cards", "peers", "by", "of",
    ];
    let new = |name: &str| names.get(name).cloned().unwrap_or_else(|| name.to_owned());
    let mut out = String::new();
    for line in source.lines() {
        let mut named = false;
        let mut words: Vec<String> = Vec::new();
        for word in line.split(' ') {
            let after_kind = words.iter().filter(|word| !word.is_empty()).count() == 1;
            let kind = words
                .last()
                .is_some_and(|kind| !NAMELESS.contains(&kind.as_str()));
            words.push(match word.split_once('=') {
                Some((key, values)) if KEYS.contains(&key) => {
                    let values: Vec<String> = values.split(',').map(new).collect();
                    format!("{key}={}", values.join(","))
                }
                None if after_kind && kind && !named => {
                    named = true;
                    new(word)
                }
                _ => word.to_owned(),
            });
        }
        // Nodes in terms of node names, which have blanks in them.
        let line = words.join(" ");
        match line.split_once("\"@name in ").and_then(|(head, tail)| {
            let (nodes, tail) = tail.split_once('"')?;
            Some((head, nodes.split(',').map(new), tail))
        }) {
            Some((head, nodes, tail)) => {
                let nodes: Vec<String> = nodes.collect();
                let _ = write!(out, "{head}\"@name in {}\"{tail}", nodes.join(","));
            }
            None => out.push_str(&line),
        }
        out.push('\n');
    }
    out
}

/// How much of what each decision did: by the first word of its lines.
fn counts(output: &str) -> Vec<BTreeMap<&str, usize>> {
    let mut all = Vec::new();
    for line in output.lines() {
        if line == "----" {
            all.push(BTreeMap::new());
        }
        let word = line.split(' ').next().unwrap_or_default();
        if let (Some(counts), "bind" | "evict" | "promise" | "waits") = (all.last_mut(), word) {
            *counts.entry(word).or_default() += 1;
        }
    }
    all
}

/// Names decide ties and nothing else: with their order reversed every decision binds, evicts,
/// promises and leaves waiting as many as before.
#[test]
fn names_decide_ties_and_nothing_else() {
    // Scenarios that are about what comes of ties: which of two alike goes first, or which of
    // two bindings an outcome is of, or that no plugin ranks.
    const OF_TIES: [&str; 6] = [
        "background",
        "between",
        "bound-once",
        "plugins-off",
        "refused",
        "withdrawn",
    ];
    for (file, source) in scenarios() {
        let other = run(&renamed(&source, &reversed(&source)));
        if file
            .file_stem()
            .is_some_and(|stem| OF_TIES.iter().any(|name| stem == *name))
        {
            continue;
        }
        assert!(
            counts(&other) == counts(&source),
            "{} ends otherwise with other names:\n{other}",
            file.file_name().unwrap().display()
        );
    }
}
