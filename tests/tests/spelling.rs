//! Spelling, and words that this project no longer uses.
//!
//! The dictionary is that of `typos`: it lists common misspellings, so that names of programs and
//! of Kubernetes objects need no entry. `tests/spelling/` has the exceptions.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use typos::tokens::{Identifier, Tokenizer, Word};
use typos::{Dictionary, Status, Typo};
use unicase::UniCase;

/// Files that others wrote or that a program writes, and this one, which has examples.
const NOT_READ: [&str; 10] = [
    "Cargo.lock",
    "LICENSE",
    "proto/vendor/",
    "release/tools/",
    "scheduler-core/tests/golden/",
    "tests/chart/helm/",
    "tests/cluster/tools/",
    "tests/conformance/",
    "tests/tests/spelling.rs",
    "tests/traces/",
];
/// Where retired words are looked for: what people read.
const READ_BY_PEOPLE: [&str; 2] = [".md", ".rs"];
/// Where they are not looked for. Reference pages are made of sources, which are looked at.
const EXCEPTED: [&str; 2] = ["scheduler-core/", "docs/reference/"];

/// Known misspellings, less the words that this repository allows.
struct Misspellings {
    allowed: BTreeSet<String>,
}

impl Dictionary for Misspellings {
    fn correct_ident<'s>(&'s self, _: Identifier<'_>) -> Option<Status<'s>> {
        None
    }

    fn correct_word<'s>(&'s self, word: Word<'_>) -> Option<Status<'s>> {
        if self.allowed.contains(&word.token().to_lowercase()) {
            return Some(Status::Valid);
        }
        let corrections = typos_dict::WORD.find(&UniCase::new(word.token()))?;
        let corrections = corrections.iter().map(|word| (*word).into());
        Some(Status::Corrections(corrections.collect()))
    }
}

impl Misspellings {
    /// Each misspelling of a text: its line, and what was meant.
    fn find(&self, text: &str) -> Vec<String> {
        let tokenizer = Tokenizer::new();
        let describe = |typo: Typo<'_>| {
            let line = text[..typo.byte_offset].matches('\n').count() + 1;
            let meant = match &typo.corrections {
                Status::Corrections(words) => words.join(" or "),
                Status::Valid | Status::Invalid => "another word".to_owned(),
            };
            format!("{line}: {} (should be {meant})", typo.typo)
        };
        typos::check_str(text, &tokenizer, self)
            .map(describe)
            .collect()
    }
}

/// Each use of a retired word in a text, in any case, as a whole word.
fn retired(text: &str, words: &[(String, String)]) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.to_lowercase();
        for (word, instead) in words {
            let is_whole = |(at, _): (usize, &str)| {
                let before = line[..at].chars().next_back();
                let after = line[at + word.len()..].chars().next();
                ![before, after]
                    .into_iter()
                    .flatten()
                    .any(char::is_alphanumeric)
            };
            if line.match_indices(word.as_str()).any(is_whole) {
                found.push(format!("{}: {word} (should be {instead})", number + 1));
            }
        }
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_path_buf()
}

/// A list of `tests/spelling/`: a line for each entry, `#` before a comment.
fn list(name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join("tests/spelling").join(name)).unwrap();
    let entries = text
        .lines()
        .map(|line| line.split('#').next().unwrap().trim());
    let entries: Vec<String> = entries
        .filter(|entry| !entry.is_empty())
        .map(str::to_owned)
        .collect();
    assert!(!entries.is_empty(), "{name} has no entry");
    entries
}

fn misspellings() -> Misspellings {
    let allowed = list("allowed.txt").into_iter().collect();
    Misspellings { allowed }
}

fn retired_words() -> Vec<(String, String)> {
    let pair = |entry: String| {
        let (word, instead) = entry.split_once("->").unwrap();
        (word.trim().to_owned(), instead.trim().to_owned())
    };
    list("retired.txt").into_iter().map(pair).collect()
}

/// Text files of the repository, by path, with their content.
fn tracked() -> Vec<(String, String)> {
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "git ls-files: {output:?}");
    let paths = String::from_utf8(output.stdout).unwrap();
    let ours =
        |path: &&str| !path.is_empty() && !NOT_READ.iter().any(|other| path.starts_with(other));
    let files: Vec<_> = paths
        .split('\0')
        .filter(ours)
        // Without text: pictures and archives.
        .filter_map(|path| {
            Some((
                path.to_owned(),
                std::fs::read_to_string(root().join(path)).ok()?,
            ))
        })
        .collect();
    assert!(files.len() > 500, "{} files", files.len());
    files
}

#[test]
fn no_tracked_file_has_a_known_misspelling() {
    let dictionary = misspellings();
    let mut found = Vec::new();
    for (path, text) in tracked() {
        let of_file = dictionary.find(&text);
        found.extend(of_file.iter().map(|typo| format!("{path}:{typo}")));
    }
    assert!(
        found.is_empty(),
        "misspelled; a word that is right goes into tests/spelling/allowed.txt:\n{}",
        found.join("\n")
    );
}

#[test]
fn no_page_comment_or_message_has_a_retired_word() {
    let words = retired_words();
    let mut found = Vec::new();
    for (path, text) in tracked() {
        let is_read = READ_BY_PEOPLE.iter().any(|end| path.ends_with(end));
        let is_excepted = EXCEPTED.iter().any(|start| path.starts_with(start));
        if is_read && !is_excepted {
            let of_file = retired(&text, &words);
            found.extend(of_file.iter().map(|word| format!("{path}:{word}")));
        }
    }
    assert!(found.is_empty(), "retired words:\n{}", found.join("\n"));
}

#[test]
fn misspellings_are_found_in_prose_and_in_identifiers() {
    let dictionary = Misspellings {
        allowed: BTreeSet::new(),
    };
    let found = dictionary.find("A pod that recieves a share.\nfn seperate_shares() {}\n");
    assert_eq!(
        found,
        [
            "1: recieves (should be receives)",
            "2: seperate (should be separate)"
        ]
    );
    assert!(dictionary.find("A pod that receives a share.").is_empty());
}

#[test]
fn retired_words_are_found_as_whole_words_in_any_case() {
    let words = [("desk".to_owned(), "owner".to_owned())];
    assert_eq!(
        retired("The Desk\nis told", &words),
        ["1: desk (should be owner)"]
    );
    assert!(retired("a desktop, 3desk", &words).is_empty());
}

#[test]
fn each_allowed_word_is_used_and_is_known_as_a_misspelling() {
    let all: BTreeSet<String> = tracked()
        .iter()
        .filter(|(path, _)| path != "tests/spelling/allowed.txt")
        .flat_map(|(_, text)| {
            let nothing = Misspellings {
                allowed: BTreeSet::new(),
            };
            let tokenizer = Tokenizer::new();
            let typos = typos::check_str(text, &tokenizer, &nothing);
            typos
                .map(|typo| typo.typo.to_lowercase())
                .collect::<Vec<_>>()
        })
        .collect();
    let needless: Vec<String> = list("allowed.txt")
        .into_iter()
        .filter(|word| !all.contains(word))
        .collect();
    assert!(
        needless.is_empty(),
        "not needed in allowed.txt: {needless:?}"
    );
}
