//! `docs/reference/`, written from the code, and the commands and links of every page.
//!
//! A test, not a program: `UPDATE_DOCS=1 cargo test -p aliquot-cli reference` rewrites the pages;
//! without the variable, a page that differs from the code is a failure.

mod metrics;

use clap::{Args as _, Command, CommandFactory as _, Parser as _};
use kube::CustomResourceExt as _;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const HEAD: &str =
    "<!-- Written from the code by `UPDATE_DOCS=1 cargo test -p aliquot-cli reference`. -->\n\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn source(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// For a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

fn flags(command: &Command) -> String {
    let mut text = String::from("| flag | value | meaning |\n|---|---|---|\n");
    for arg in command.get_arguments() {
        if ["help", "version"].contains(&arg.get_id().as_str()) {
            continue;
        }
        let names: Vec<&str> = arg
            .get_value_names()
            .unwrap_or_default()
            .iter()
            .map(AsRef::as_ref)
            .collect();
        let takes = arg.get_action().takes_values();
        let mut flag = match (arg.get_short(), arg.get_long()) {
            (Some(short), Some(long)) => format!("`-{short}`, `--{long}`"),
            (None, Some(long)) => format!("`--{long}`"),
            (Some(short), None) => format!("`-{short}`"),
            (None, None) => format!("`{}`", names.join(" ")),
        };
        if let Some(env) = arg.get_env() {
            let _ = write!(flag, ", `${}`", env.to_string_lossy());
        }
        let possible: Vec<String> = arg
            .get_possible_values()
            .iter()
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        let defaults: Vec<String> = arg
            .get_default_values()
            .iter()
            .map(|value| value.to_string_lossy().into_owned())
            .collect();
        let mut value = String::new();
        if takes {
            value = if possible.is_empty() {
                names.join(" ")
            } else {
                possible.join(", ")
            };
            if !defaults.is_empty() {
                let _ = write!(value, "; `{}`", defaults.join(","));
            }
        }
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, "| {flag} | {} | {} |", cell(&value), cell(&help));
    }
    text
}

fn command_line() -> String {
    let mut cli = crate::Cli::command();
    cli.build();
    let mut text = format!(
        "{HEAD}# `aliquot`\n\nInstalled as `kubectl-aliquot` on the `PATH`, the program runs as `kubectl aliquot`.\nVerbs that read need `get` and `list` permission for the objects they show, and no server of Aliquot.\n\n| verb | |\n|---|---|\n"
    );
    let verbs = || {
        cli.get_subcommands()
            .filter(|verb| verb.get_name() != "help")
    };
    let about = |verb: &Command| {
        cell(
            &verb
                .get_about()
                .map(ToString::to_string)
                .unwrap_or_default(),
        )
    };
    for verb in verbs() {
        let _ = writeln!(
            text,
            "| [`{0}`](#{0}) | {1} |",
            verb.get_name(),
            about(verb)
        );
    }
    for verb in verbs() {
        let _ = writeln!(
            text,
            "\n## {}\n\n{}\n\n{}",
            verb.get_name(),
            about(verb),
            flags(verb).trim_end()
        );
    }
    text
}

fn programs() -> String {
    let agent = agent::Config::augment_args(Command::new("agent"));
    let scheduler = scheduler::Config::augment_args(Command::new("scheduler"));
    format!(
        "{HEAD}# Flags of the programs\n\n## `aliquot-scheduler`\n\n{}\n## `aliquot-agent run`, `aliquot-agent mps`\n\n{}",
        flags(&scheduler),
        flags(&agent)
    )
}

/// Constants with their words: `/// ...` and then `pub const NAME: ... = VALUE;`.
fn constants(text: &str) -> Vec<(String, String, String)> {
    let (mut module, mut words, mut found) = (String::new(), String::new(), Vec::new());
    for line in text.lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("///") {
            words.push_str(doc);
        } else if let Some(name) = line.strip_prefix("pub mod ") {
            name.trim_end_matches(" {").clone_into(&mut module);
            words.clear();
        } else if let Some(rest) = line.strip_prefix("pub const ") {
            if let Some((_, value)) = rest.split_once(" = ") {
                let value = value.trim_end_matches(';').trim_matches('"').to_owned();
                found.push((module.clone(), value, std::mem::take(&mut words)));
            }
        } else if line == "}" {
            module.clear();
        } else if !line.starts_with("//") {
            words.clear();
        }
    }
    found
}

fn names() -> String {
    let constants = constants(&source("proto/src/names.rs"));
    let mut text = format!("{HEAD}# Annotations, labels, resources\n");
    for (module, title) in [
        ("request", "What a user writes on a pod"),
        ("kai", "Queues, groups and priorities, as KAI names them"),
        (
            "pod_group",
            "What the scheduler writes on a pod group, beside KAI's",
        ),
        ("queue", "Queues, beside KAI's fields"),
        ("node_label", "What an admin writes on a node"),
        ("scale_down", "Evictions for an autoscaler"),
        ("resource", "Resources"),
        ("grant", "What the scheduler writes on a pod"),
        ("condition", "Conditions of a pod"),
        ("env", "Environment in a container"),
        ("container", "Places in a container"),
        ("object", "Objects in `aliquot-system`"),
    ] {
        let rows: Vec<_> = constants.iter().filter(|(of, ..)| of == module).collect();
        assert!(!rows.is_empty(), "names.rs has no module {module}");
        let _ = writeln!(text, "\n## {title}\n\n| name | meaning |\n|---|---|");
        for (_, value, words) in rows.iter().filter(|(_, value, _)| !value.starts_with('[')) {
            let _ = writeln!(text, "| `{value}` | {} |", cell(words));
        }
    }
    text
}

fn fields(text: &mut String, prefix: &str, schema: &Value) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if prefix.is_empty() {
            name.clone()
        } else {
            format!("{prefix}.{name}")
        };
        let kind = field["type"].as_str().unwrap_or("any");
        let words = field["description"].as_str().unwrap_or_default();
        let choices: Vec<&str> = field["enum"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let kind = if choices.is_empty() {
            kind.to_owned()
        } else {
            choices.join(", ")
        };
        let _ = writeln!(text, "| `{path}` | {} | {} |", cell(&kind), cell(words));
        if path.ends_with("conditions") {
            continue;
        }
        if kind == "array" {
            fields(text, &format!("{path}[]"), &field["items"]);
        } else {
            fields(text, &path, field);
        }
    }
}

fn objects() -> String {
    let mut text = format!("{HEAD}# Objects\n");
    for (definition, what) in [
        (
            api::GpuNode::crd(),
            "The agent of the node with the same name creates it; the administrator writes `spec`.",
        ),
        (
            api::Queue::crd(),
            "Defined by KAI. GPUs are a number, CPU is in millicores, memory in MB of 10^6 bytes; -1 means unlimited.",
        ),
        (
            api::PodGroup::crd(),
            "Defined by KAI. A group of pods that are placed together.",
        ),
        (
            api::Topology::crd(),
            "Defined by KAI. The levels of a data centre.",
        ),
        (
            api::kai::ShardDefinition::crd(),
            "Defined by KAI. The settings of one node pool. A change takes effect at once, except for the keys that the conditions `Ready` and `KeysIgnored` name.",
        ),
        (
            api::kai::ConfigDefinition::crd(),
            "Defined by KAI; the object is named `kai-config`. The condition `KeysIgnored` names the keys without an effect, `Ready` those that differ in the running scheduler.",
        ),
    ] {
        let definition = serde_json::to_value(&definition).unwrap();
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        let group = definition["spec"]["group"].as_str().unwrap();
        let version = &definition["spec"]["versions"][0];
        let _ = writeln!(
            text,
            "\n## {kind}\n\n`{group}/{}`. {what}\n\n| field | type | meaning |\n|---|---|---|",
            version["name"].as_str().unwrap()
        );
        fields(&mut text, "", &version["schema"]["openAPIV3Schema"]);
    }
    text
}

fn exit_codes() -> String {
    let table = |path: &str| -> String {
        let text = source(path);
        let rows = text.lines().filter_map(|line| line.strip_prefix("//! |"));
        rows.fold(String::new(), |text, row| text + "|" + row + "\n")
    };
    let mut text = format!(
        "{HEAD}# Exit codes\n\n## `aliquot`\n\n{}\n`aliquot demo` exits with 0 when everything is as expected, or after Ctrl-C; with 1 when something is missing; with 2 when the command line or a manifest is invalid.\n\n## `aliquot-agent`\n\n| code | meaning |\n|---|---|\n",
        table("cli/src/failure.rs")
    );
    for (_, code, words) in constants(&source("agent/src/exit.rs")) {
        let _ = writeln!(text, "| {code} | {} |", cell(&words));
    }
    text.push_str("\n## `aliquot-scheduler`\n\n| code | meaning |\n|---|---|\n| 0 | Stopped on request. |\n| 1 | It could not start, or a part of it ended. |\n| 2 | Wrong flags. |\n");
    text
}

/// Variants of an enum with their words.
fn variants(text: &str, name: &str) -> Vec<(String, String)> {
    let start = format!("pub enum {name} {{");
    let body = text
        .split_once(&start)
        .map(|(_, rest)| rest)
        .unwrap_or_default();
    let (mut words, mut found) = (String::new(), Vec::new());
    for line in body.lines().map(str::trim).take_while(|line| *line != "}") {
        if let Some(doc) = line.strip_prefix("///") {
            words.push_str(doc);
        } else if let Some(variant) = line.strip_suffix(',') {
            found.push((variant.to_owned(), std::mem::take(&mut words)));
        }
    }
    assert!(!found.is_empty(), "no enum {name}");
    found
}

/// String literals of Rust code, without comments and the words of panics.
fn literals(code: &str) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), String::new());
    let is_read = |line: &&str| !line.trim().starts_with("//") && !line.contains("expect(\"");
    for line in code.lines().filter(is_read) {
        rest.push_str(line);
        rest.push('\n');
    }
    let mut chars = rest.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\'' && chars.peek() == Some(&'"') {
            chars.next();
        }
        if c != '"' {
            continue;
        }
        let mut literal = String::new();
        while let Some(c) = chars.next().filter(|c| *c != '"') {
            match (c, chars.peek().copied()) {
                ('\\', Some('n')) => drop(chars.next()),
                ('\\', Some(escaped)) => {
                    chars.next();
                    literal.push(escaped);
                }
                _ => literal.push(c),
            }
        }
        found.push(literal);
    }
    found
}

/// The sentences in a part of a file, from a line that begins so to the end of its block, or in
/// all of it; what changes in them is `…`.
fn sentences(path: &str, begin: &str) -> Vec<String> {
    let file = source(path);
    let shipped = file.split("#[cfg(test)]").next().unwrap_or_default();
    let (_, part) = shipped
        .split_once(begin)
        .unwrap_or_else(|| panic!("{path} has no {begin}"));
    let ends = ["\n}\n", "\n];\n"]
        .into_iter()
        .filter_map(|end| part.find(end));
    let part = match ends.min() {
        Some(end) if !begin.is_empty() => &part[..end],
        _ => part,
    };
    let mut found = Vec::new();
    for literal in literals(part).into_iter().filter(|one| one.contains(' ')) {
        let (mut sentence, mut inside) = (String::new(), false);
        let mut chars = literal.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                // Doubled, they are braces.
                '{' | '}' if !inside && chars.peek() == Some(&c) => {
                    chars.next();
                    sentence.push(c);
                }
                '{' => {
                    inside = true;
                    sentence.push('…');
                }
                '}' => inside = false,
                _ if !inside => sentence.push(c),
                _ => {}
            }
        }
        if !found.contains(&sentence) && sentence.chars().any(char::is_alphabetic) {
            found.push(sentence);
        }
    }
    assert!(!found.is_empty(), "{path}: {begin} says nothing");
    found
}

/// Every sentence of a rejection or a reason, by its source.
fn all_sentences(text: &mut String) {
    let parts: [(&str, &[(&str, &str)]); 7] = [
        (
            "Why a pod does not fit a node",
            &[
                (
                    "scheduler-core/src/reason.rs",
                    "impl fmt::Display for NodeReason {",
                ),
                ("scheduler/src/convert/node.rs", "const CONDITIONS"),
            ],
        ),
        (
            "Why a pod does not fit a card",
            &[(
                "scheduler-core/src/reason.rs",
                "impl fmt::Display for CardReason {",
            )],
        ),
        (
            "Why a pod fits no node",
            &[
                (
                    "scheduler-core/src/cycle/hindrance.rs",
                    "pub(crate) fn hindrance(",
                ),
                ("scheduler-core/src/capacity.rs", "fn over_limit("),
                ("scheduler-core/src/capacity.rs", "fn over_quota("),
                ("scheduler-core/src/apply/pod.rs", "fn spec_of("),
                (
                    "scheduler/src/convert/hindrance.rs",
                    "pub(super) enum Hindrance {",
                ),
                ("scheduler/src/unsupported.rs", "pub(crate) fn of<'a>("),
            ],
        ),
        (
            "Why a pod is rejected",
            &[
                ("api/src/request/error.rs", "pub enum RequestError {"),
                ("scheduler/src/admission/amend.rs", "pub enum AmendError {"),
            ],
        ),
        (
            "Why a resize is rejected",
            &[(
                "scheduler/src/admission/resize.rs",
                "pub(super) async fn against(",
            )],
        ),
        (
            "Why a queue, a pod group or a topology is rejected",
            &[
                ("scheduler/src/admission/invalid.rs", "enum Invalid {"),
                ("scheduler/src/admission/validate.rs", "fn minimums("),
                ("scheduler/src/admission/queues.rs", ""),
            ],
        ),
        (
            "Messages on a `SchedulingShard`",
            &[
                ("scheduler/src/shard/spec.rs", ""),
                ("scheduler/src/shard/value.rs", ""),
                ("scheduler/src/shard/usage.rs", ""),
                ("scheduler/src/shard/live.rs", ""),
            ],
        ),
    ];
    text.push_str("\n## Sentences\n\nRejections and reasons use these sentences; `…` stands for a variable part.\n");
    for (title, from) in parts {
        let _ = writeln!(text, "\n### {title}\n");
        for (path, begin) in from {
            for sentence in sentences(path, begin) {
                let _ = writeln!(text, "- {}", cell(&sentence));
            }
        }
    }
}

fn reasons() -> String {
    let core = source("scheduler-core/src/action.rs");
    let mut text = format!(
        "{HEAD}# Events and reasons\n\n## Events of a pod\n\nIn `events.k8s.io/v1`, by the scheduler's name; `aliquot events` lists them.\n\n| reason | in |\n|---|---|\n"
    );
    let folder = root().join("scheduler/src/act");
    let mut seen = std::collections::BTreeSet::new();
    let grouper = source("scheduler/src/group/failures.rs");
    let (_, reason) = grouper.split_once("const REASON: &str = ").unwrap();
    seen.insert((literals(reason).swap_remove(0), "grouping".to_owned()));
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let file = std::fs::read_to_string(&path).unwrap();
        let shipped = file.split("#[cfg(test)]").next().unwrap_or_default();
        let what = path.file_stem().unwrap().to_string_lossy().into_owned();
        for value in shipped.split("reason: ").skip(1) {
            // One of several by an `if`, too.
            let value = value.split_once(",\n").map_or(value, |(value, _)| value);
            let of_events = |one: &String| one.chars().all(char::is_alphabetic);
            for reason in literals(value).into_iter().filter(of_events) {
                seen.insert((reason, what.clone()));
            }
        }
    }
    let (of_groups, of_pods): (Vec<_>, Vec<_>) =
        seen.into_iter().partition(|(_, what)| what == "group");
    assert!(of_pods.len() > 7, "{of_pods:?}");
    for (reason, what) in of_pods {
        let _ = writeln!(text, "| `{reason}` | {what} |");
    }
    text.push_str("\n## Events of a pod group\n\nThese are of type Normal. A waiting group gets an event when its reason changes.\n\n| reason | when |\n|---|---|\n");
    let group_events = source("scheduler/src/report/group_events.rs");
    let said = group_events
        .lines()
        .filter_map(|line| line.split_once("=> Some(\""));
    for (kinds, reason) in said {
        let reason = reason.split('"').next().unwrap_or_default();
        let kinds = kinds
            .trim()
            .replace("ReasonKind::", "")
            .replace(" | ", ", ");
        let kinds = kinds.replace('_', "any other kind but Promised");
        let _ = writeln!(text, "| `{reason}` | {kinds} |");
    }
    for (reason, _) in of_groups {
        let when = match reason.as_str() {
            "StaleJob" => "the gang has fallen below its minimum",
            "Evict" => "pods of the group are evicted, once for those that are evicted together",
            other => panic!("{other} is an event of a pod group that no page explains"),
        };
        let _ = writeln!(text, "| `{reason}` | {when} |");
    }
    let watch = source("scheduler/src/watch.rs");
    let (_, reason) = watch.split_once("reason: ").unwrap();
    let reason = literals(reason).swap_remove(0);
    let _ = writeln!(
        text,
        "\n## Events of other objects\n\n| reason | when |\n|---|---|\n| `{reason}` | a queue, a pod group, a topology or a `GpuNode` that the API server accepted and the scheduler cannot read; it is ignored |"
    );
    text.push_str("\n## Why a pod waits\n\nThe kind of the leading reason, in metrics and in `aliquot explain -o json`.\n\n| kind | meaning |\n|---|---|\n");
    for (kind, words) in variants(&core, "ReasonKind") {
        let _ = writeln!(text, "| `{kind}` | {} |", cell(&words));
    }
    text.push_str("\n## Why a pod is evicted\n\n| cause | meaning |\n|---|---|\n");
    let causes = scheduler_core::EvictCause::ALL.map(scheduler_core::EvictCause::as_str);
    for (cause, (_, words)) in causes.iter().zip(variants(&core, "EvictCause")) {
        let _ = writeln!(text, "| `{cause}` | {} |", cell(&words));
    }
    all_sentences(&mut text);
    text
}

#[test]
fn the_reference_is_what_the_code_says() {
    let folder = root().join("docs/reference");
    let update = std::env::var_os("UPDATE_DOCS").is_some();
    let mut stale = Vec::new();
    for (name, text) in [
        ("cli.md", command_line()),
        ("flags.md", programs()),
        ("names.md", names()),
        ("objects.md", objects()),
        ("metrics.md", metrics::metrics()),
        ("exit-codes.md", exit_codes()),
        ("reasons.md", reasons()),
    ] {
        let path = folder.join(name);
        if update {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &text).unwrap();
        } else if std::fs::read_to_string(&path).unwrap_or_default() != text {
            stale.push(name);
        }
    }
    assert!(
        stale.is_empty(),
        "{stale:?} in docs/reference are not what the code says: UPDATE_DOCS=1 cargo test -p aliquot-cli reference"
    );
}

/// Every page, by its path.
fn pages() -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, pages: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, pages);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let text = std::fs::read_to_string(&path).unwrap();
                pages.push((path, text));
            }
        }
    }
    let mut pages = Vec::new();
    walk(&root().join("docs"), &mut pages);
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        pages.push((root().join(name), source(name)));
    }
    assert!(pages.len() > 10);
    pages
}

/// Lines of the shell blocks of a page.
fn commands(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == "```sh";
        } else if inside {
            found.push(line.split(" # ").next().unwrap_or(line).trim().to_owned());
        }
    }
    found
}

/// Words as a shell would take them, as far as pages need it.
fn words(line: &str) -> Vec<String> {
    line.split('|')
        .next()
        .unwrap_or(line)
        .split('>')
        .next()
        .unwrap_or(line)
        .split_whitespace()
        .map(|word| word.trim_matches(['\'', '"']).to_owned())
        .collect()
}

#[test]
fn every_command_of_the_pages_is_one_that_the_program_takes() {
    let mut count = 0;
    for (path, text) in pages() {
        for line in commands(&text) {
            let line = line.replace("kubectl aliquot ", "aliquot ");
            let line = line.replace("cargo run --release -- ", "aliquot ");
            let words = words(&line);
            if words.first().is_none_or(|first| first != "aliquot") {
                continue;
            }
            count += 1;
            if let Err(error) = crate::Cli::try_parse_from(&words) {
                panic!("{}: {line}: {error}", path.display());
            }
        }
    }
    assert!(
        count > 20,
        "only {count} commands: are they still in blocks of sh?"
    );
}

#[test]
fn every_link_of_the_pages_leads_somewhere() {
    for (path, text) in pages() {
        for (_, rest) in text
            .match_indices("](")
            .map(|(at, mark)| (at, &text[at + mark.len()..]))
        {
            let target = rest.split(')').next().unwrap_or_default();
            // The figures' page is written by the benchmarks themselves.
            let figures = target.ends_with("benchmarks.md");
            if target.contains("://") || target.is_empty() || figures {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let linked = if file.is_empty() {
                path.clone()
            } else {
                path.parent().unwrap().join(file)
            };
            assert!(linked.exists(), "{}: {target} is not there", path.display());
            if !anchor.is_empty() {
                let text = std::fs::read_to_string(&linked).unwrap();
                let slug = |title: &str| -> String {
                    let kept = title.to_lowercase().replace(' ', "-");
                    kept.chars()
                        .filter(|c| c.is_alphanumeric() || *c == '-')
                        .collect()
                };
                let titles = text.lines().filter_map(|line| line.strip_prefix('#'));
                let there = titles.map(|title| slug(title.trim_start_matches('#').trim()));
                assert!(
                    there.into_iter().any(|slug| slug == anchor),
                    "{}: no heading for {target}",
                    path.display()
                );
            }
        }
    }
}
