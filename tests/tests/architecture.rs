//! The invariants of ARCHITECTURE.md that are about the shape of the source.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_path_buf()
}

/// Normal and build dependencies of each workspace member, by package name.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| {
            let needs = package["dependencies"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|dependency| dependency["kind"] != "dev")
                .map(|dependency| dependency["name"].as_str().unwrap().to_owned())
                .collect();
            (package["name"].as_str().unwrap().to_owned(), needs)
        })
        .collect()
}

fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    fn walk(path: &Path, out: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if path.file_name().is_some_and(|name| name != "target") {
                    walk(&path, out);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                out.push((path, text));
            }
        }
    }
    let mut out = Vec::new();
    walk(&root().join(folder), &mut out);
    assert!(!out.is_empty(), "no sources in {folder}");
    out
}

/// The part of a file before its unit tests.
fn shipped(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}

#[test]
fn in_tree_edges_point_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("proto", &[][..]),
        ("api", &["proto"][..]),
        ("cdi", &[]),
        ("driver-root", &[]),
        ("trace", &[]),
        ("channel", &[]),
        ("scheduler-core", &[]),
        ("aliquot-hook", &["cdi", "driver-root"]),
        (
            "scheduler",
            &["api", "channel", "proto", "scheduler-core", "trace"],
        ),
        (
            "scheduler-sim",
            &["api", "proto", "scheduler", "scheduler-core"],
        ),
        (
            "agent",
            &[
                "aliquot-hook",
                "api",
                "cdi",
                "channel",
                "driver-root",
                "proto",
                "trace",
            ],
        ),
        ("sim-gpu", &[]),
        ("sim-nvml", &[]),
        ("sim-cuda", &["sim-gpu"]),
        ("sim-clock", &[]),
        ("sim-cluster", &["api", "cdi", "proto", "sim-gpu"]),
        (
            "aliquot-cli",
            &[
                "agent",
                "aliquot-hook",
                "api",
                "channel",
                "proto",
                "scheduler",
                "scheduler-core",
                "sim-cluster",
                "sim-gpu",
            ],
        ),
        (
            "aliquot-fuzz",
            &[
                "agent",
                "aliquot-hook",
                "api",
                "cdi",
                "proto",
                "scheduler",
                "scheduler-core",
            ],
        ),
        (
            "aliquot-gpu",
            &[
                "agent",
                "aliquot-hook",
                "api",
                "channel",
                "proto",
                "sim-cluster",
                "sim-gpu",
            ],
        ),
        (
            "aliquot-tests",
            &[
                "agent",
                "api",
                "cdi",
                "driver-root",
                "proto",
                "scheduler",
                "scheduler-core",
                "sim-cluster",
                "sim-gpu",
            ],
        ),
    ]);
    let dependencies = dependencies();
    let members: BTreeSet<&str> = dependencies.keys().map(String::as_str).collect();
    assert_eq!(
        members,
        allowed.keys().copied().collect(),
        "a crate came or went: name its edges here"
    );
    for (package, needs) in &dependencies {
        for edge in needs.iter().filter(|need| members.contains(need.as_str())) {
            assert!(
                allowed[package.as_str()].contains(&edge.as_str()),
                "{package} must not depend on {edge}"
            );
        }
    }
}

#[test]
fn the_core_depends_on_nothing_that_could_fail_wait_or_know_kubernetes() {
    let allowed = BTreeSet::from(["hashbrown", "indexmap", "rustc-hash", "slotmap", "uuid"]);
    for need in &dependencies()["scheduler-core"] {
        assert!(
            allowed.contains(need.as_str()),
            "scheduler-core must not depend on {need}"
        );
    }
    let shipped_files = sources("scheduler-core/src").into_iter();
    for (path, text) in shipped_files.filter(|(path, _)| !path.ends_with("tests.rs")) {
        for forbidden in [
            "std::time",
            "std::thread",
            "std::fs",
            "std::net",
            "std::env",
            "std::process",
            "rand::",
        ] {
            assert!(
                !shipped(&text).contains(forbidden),
                "{} uses {forbidden}",
                path.display()
            );
        }
    }
}

#[test]
fn only_one_module_touches_nvml() {
    for (path, text) in sources("agent/src") {
        let inside = path.components().any(|part| part.as_os_str() == "nvml");
        assert!(
            inside || !text.contains("nvml_wrapper"),
            "{} touches NVML",
            path.display()
        );
    }
}

#[test]
fn names_that_two_processes_share_are_written_once() {
    for folder in ["agent/src", "scheduler/src", "hook/src", "cdi/src"] {
        for (path, text) in sources(folder) {
            // Tests write out what others say.
            let inside = path.strip_prefix(root().join(folder)).unwrap_or(&path);
            let of_tests = inside.components().any(|part| part.as_os_str() == "tests");
            if of_tests || path.ends_with("tests.rs") {
                continue;
            }
            for (number, line) in shipped(&text).lines().enumerate() {
                let code = line.trim_start();
                if code.starts_with("//") {
                    continue;
                }
                for literal in [
                    "\"aliquot.dev/gpu",
                    "\"aliquot.dev/grant",
                    "\"nvidia.com/gpu\"",
                    "\"kai.scheduler/",
                    "\"gpu-memory\"",
                    "\"gpu-fraction\"",
                ] {
                    assert!(
                        !code.contains(literal),
                        "{}:{} writes {literal} again; it is in proto/src/names.rs",
                        path.display(),
                        number + 1
                    );
                }
            }
        }
    }
}

#[test]
fn unsafe_code_stands_in_named_files_only() {
    let allowed = [
        "agent/src/nvml/raw.rs",
        "driver-root/src/lib.rs",
        "sim/nvml/src/",
        "sim/cuda/src/lib.rs",
        "sim/clock/src/lib.rs",
        // The driver API and OpenGL, as any program calls them.
        "tests/gpu/src/cuda.rs",
        "tests/gpu/src/gl.rs",
        "tests/gpu/src/library.rs",
        // An allocator that counts.
        "tests/src/bin/bench-core/meter.rs",
        "tests/fuzz/tests/inputs/meter.rs",
    ];
    for folder in [
        "proto",
        "api",
        "cdi",
        "driver-root",
        "scheduler-core",
        "scheduler",
        "agent",
        "hook",
        "cli",
        "sim",
        "tests",
    ] {
        for (path, text) in sources(folder) {
            let relative = path
                .strip_prefix(root())
                .unwrap()
                .to_string_lossy()
                .into_owned();
            let has = text.lines().any(|line| {
                let code = line.trim_start();
                !code.starts_with("//")
                    && (code.contains("unsafe {")
                        || code.contains("unsafe extern")
                        || code.contains("unsafe fn"))
            });
            assert!(
                !has || relative == "tests/tests/architecture.rs"
                    || allowed.iter().any(|file| relative.starts_with(file)),
                "{relative} has unsafe code"
            );
        }
    }
}

/// A simulated world must be the same run each time. Without an order, `select!` takes a branch at
/// random, and `join!` begins with another future at each poll.
#[test]
fn every_select_and_join_of_the_scheduler_says_its_order() {
    let mut found = 0;
    for (path, text) in sources("scheduler/src") {
        if path.iter().any(|part| part == "tests") || path.ends_with("tests.rs") {
            continue;
        }
        let mut lines = shipped(&text).lines().enumerate().peekable();
        while let Some((number, line)) = lines.next() {
            let Some((_, rest)) = line
                .split_once("select! {")
                .or(line.split_once("tokio::join!("))
            else {
                continue;
            };
            found += 1;
            let mut below = lines.by_ref().map(|(_, line)| line.trim());
            let first = match rest.trim() {
                "" => below.find(|line| !line.starts_with("//")),
                rest => Some(rest),
            };
            assert!(
                first.is_some_and(|first| first.starts_with("biased;")),
                "{}:{}: its first word must be `biased;`",
                path.display(),
                number + 1
            );
        }
    }
    assert!(found > 20, "{found}");
}

/// A channel that is full of items nobody takes must show in a metric.
#[test]
fn unbounded_channels_are_counted() {
    let uncounted = ["unbounded_channel", "channel::unbounded()"];
    for folder in ["scheduler/src", "agent/src"] {
        for (path, text) in sources(folder) {
            if path.iter().any(|part| part == "tests") || path.ends_with("tests.rs") {
                continue;
            }
            for word in uncounted {
                let found = shipped(&text).matches(word).count();
                // Taken as soon as it is sent, by the same task.
                let own =
                    usize::from(path.ends_with("scheduler/src/watch.rs") && word == uncounted[1]);
                assert_eq!(found, own, "{}: {word}", path.display());
            }
        }
    }
}

/// Written and read again as text is no reader.
#[test]
fn every_field_of_the_cores_model_and_settings_has_a_reader() {
    let core = root().join("scheduler-core/src");
    let (mut fields, mut readers) = (BTreeSet::new(), String::new());
    for (path, text) in sources("scheduler-core/src") {
        let (within, text) = (path.strip_prefix(&core).unwrap(), shipped(&text));
        if within.starts_with("model") || within == Path::new("config.rs") {
            let lines = text
                .lines()
                .filter_map(|line| line.strip_prefix("    pub "));
            let names = lines.filter_map(|line| line.split_once(": "));
            let is_name = |name: &&str| !name.contains(|c: char| !c.is_alphanumeric() && c != '_');
            let names = names.map(|(name, _)| name).filter(is_name);
            fields.extend(names.map(str::to_owned));
        }
        if !within.starts_with("text") {
            readers.push_str(text);
        }
    }
    let taken_apart: Vec<&str> = readers
        .lines()
        .filter_map(|line| line.trim().strip_prefix("let Self { "))
        .flat_map(|line| line.split([' ', ',']))
        .collect();
    let is_read = |name: &str| {
        if taken_apart.contains(&name) {
            return true;
        }
        let dotted = format!(".{name}");
        readers.match_indices(&dotted).any(|(at, _)| {
            let after = readers[at + dotted.len()..].chars().next();
            !after.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '(')
        })
    };
    assert!(fields.len() > 100, "{}", fields.len());
    let unread: Vec<_> = fields.iter().filter(|name| !is_read(name)).collect();
    assert_eq!(unread, Vec::<&String>::new(), "these have no reader");
}
