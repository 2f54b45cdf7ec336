//! What a text says of the releases of other projects, and the table of the releases that it was
//! written for.
//!
//! "No KAI release implements it" becomes untrue without a change here. Each such sentence must name
//! something that the table in `docs/migration.md` lists, so that who reads a newer release of KAI
//! finds in one place what to look for.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The page with the table, and the heading above it.
const PAGE: &str = "docs/migration.md";
const HEADING: &str = "### Versions";
/// What the sentences say, in lower case.
const PHRASES: [&str; 4] = [
    "no kai release",
    "no release of kai",
    "no release implements",
    "in no release",
];
/// Sources and pages that say something to users.
const READ: [&str; 4] = [".md", ".rs", ".yaml", ".txt"];
/// The project's own, pages that are made of sources, and what names the phrases themselves.
const NOT_READ: [&str; 4] = [
    "CHANGELOG.md",
    "docs/reference/",
    "tests/tests/versions.rs",
    "tests/conformance/",
];
/// How many lines before and after a phrase may name what it is about.
const AROUND: usize = 16;

fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap().to_owned()
}

/// Names are compared without their case and what joins their words: a Rust constant, a field and a
/// label are one name.
fn letters(text: &str) -> String {
    let letters = text.chars().filter(char::is_ascii_alphanumeric);
    letters.map(|letter| letter.to_ascii_lowercase()).collect()
}

/// The rows of the table, cell by cell.
fn table(page: &str) -> Vec<Vec<String>> {
    let (_, below) = page.split_once(HEADING).unwrap();
    let below = below.split("\n#").next().unwrap();
    let rows = below.lines().filter(|line| line.starts_with('|'));
    let cells = |row: &str| -> Vec<String> {
        let cells = row.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    rows.skip(2).map(cells).collect()
}

/// What the table's row of KAI lists as being in no release.
fn absent(page: &str) -> Vec<String> {
    let rows = table(page);
    let kai = rows.iter().find(|row| row[0] == "KAI Scheduler");
    let names = kai.map_or("", |row| row[2].as_str()).split('`');
    let names = names.skip(1).step_by(2);
    names.map(letters).collect()
}

/// The lines that say such a sentence of something that is not listed.
fn unlisted(text: &str, absent: &[String]) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let says = |line: &str| {
        let line = line.to_lowercase();
        PHRASES.iter().any(|phrase| line.contains(phrase))
    };
    let at = (0..lines.len()).filter(|at| says(lines[*at]));
    let is_listed = |at: &usize| {
        let around = at.saturating_sub(AROUND)..lines.len().min(at + AROUND);
        let around = letters(&lines[around].concat());
        absent.iter().any(|name| around.contains(name.as_str()))
    };
    at.filter(|at| !is_listed(at)).map(|at| at + 1).collect()
}

#[test]
fn who_says_that_no_release_has_something_names_what_the_table_of_versions_lists() {
    let page = std::fs::read_to_string(root().join(PAGE)).unwrap();
    let absent = absent(&page);
    let files = Command::new("git")
        .args(["ls-files"])
        .current_dir(root())
        .output()
        .unwrap();
    let (mut wrong, mut read) = (Vec::new(), 0);
    for file in String::from_utf8(files.stdout).unwrap().lines() {
        let is_read = READ.iter().any(|end| file.ends_with(end));
        if !is_read || NOT_READ.iter().any(|start| file.starts_with(start)) {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(root().join(file)) else {
            continue;
        };
        read += 1;
        let lines = unlisted(&text, &absent);
        wrong.extend(lines.iter().map(|line| format!("{file}:{line}")));
    }
    assert!(read > 500, "{read} files");
    assert!(
        wrong.is_empty(),
        "something is said to be in no release that the table in {PAGE} does not list: {wrong:?}"
    );
}

#[test]
fn the_table_names_a_release_of_each_project() {
    let page = std::fs::read_to_string(root().join(PAGE)).unwrap();
    let rows = table(&page);
    for project in [
        "KAI Scheduler",
        "Kubernetes",
        "GPU Operator",
        "container toolkit",
        "CDI",
        "DRA API",
    ] {
        let row = rows.iter().find(|row| row[0].contains(project));
        let row = row.unwrap_or_else(|| panic!("no row of {project}"));
        assert!(row[1].contains(|c: char| c.is_ascii_digit()), "{row:?}");
    }
    assert!(!absent(&page).is_empty());
}

#[test]
fn a_sentence_about_something_that_a_release_has_is_found() {
    let absent = vec![letters("lendingLimit")];
    let text = "a\n.then_some(\"no KAI release implements semi-preemptible\")\n";
    assert_eq!(unlisted(text, &absent), [2]);
    let text = "LENDING_LIMIT\n\"no KAI release implements it\"\n";
    assert_eq!(unlisted(text, &absent), [0; 0]);
}
