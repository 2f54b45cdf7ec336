//! What `nvidia-smi` says of a limit.

use crate::{Shape, Target};
use aliquot_hook::limit::hard_limit;

pub(super) const TARGET: Target = Target {
    name: "limit",
    shape: Shape::Text,
    words: &[
        "Hard Limit",
        "Soft Limit",
        "hard",
        "limit",
        ":",
        "=",
        "|",
        "MiB",
        "GiB",
        "KiB",
        "bytes",
        "max",
        "N/A",
        "2000",
        "2097152000",
        "18446744073709551615",
        "0x7d0",
        "-1",
        "1e3",
        "GPU 0",
    ],
    seeds,
    large: crate::target::none,
    heap: 16,
    run,
};

/// A result is a number behind the word, with a known unit; otherwise there is none.
fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let Some(mib) = hard_limit(&text) else {
        return;
    };
    let lower = text.to_ascii_lowercase();
    let line = lower
        .lines()
        .find(|line| line.contains("hard"))
        .expect("a limit of no line");
    let numbers: Vec<u64> = line
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect();
    let units = |number: u64| {
        [
            Some(number),
            number.checked_mul(1024),
            Some(number >> 10),
            Some(number >> 20),
        ]
    };
    assert!(
        numbers
            .iter()
            .any(|number| units(*number).contains(&Some(mib))),
        "{mib} MiB of {line:?}"
    );
    let hard = lower.lines().filter(|line| line.contains("hard"));
    assert_eq!(hard.count(), 1, "one of several limits was taken: {text:?}");
}

fn seeds() -> Vec<Vec<u8>> {
    [
        "GPU 0\n  Soft Limit : 0 MiB\n  Hard Limit : 2000 MiB\n",
        "hard_limit=2000 MiB",
        "Hard limit: 2097152000 bytes",
        "Hard limit: 2 GiB",
        "Hard limit: max",
        "| hard | 2000 MiB |",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
