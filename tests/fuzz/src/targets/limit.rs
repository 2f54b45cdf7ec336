//! What `nvidia-smi` says of a limit.

use crate::{Shape, Target};
use aliquot_hook::limit::read;

pub(super) const TARGET: Target = Target {
    name: "limit",
    shape: Shape::Text,
    words: &[
        "namespace: ",
        "/sys/fs/cgroup/a",
        "soft limit",
        "hard limit",
        "current used",
        ": ",
        " MiB",
        "GiB",
        "max",
        "default",
        "N/A",
        "2000",
        "18446744073709551615",
        "0x7d0",
        "-1",
        "1e3",
        "\n",
    ],
    seeds,
    large: crate::target::none,
    heap: 16,
    run,
};

/// The cgroup that was asked about.
const NAMESPACE: &str = "/sys/fs/cgroup/a";

/// Limits are the numbers of whole lines, each of which is there once; otherwise there are none.
fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let Some(limits) = read(&text, NAMESPACE) else {
        return;
    };
    let once = |name: &str, number: u64| {
        let mut named = text.lines().filter(|line| line.starts_with(name));
        let line = named.next().expect("a limit of no line");
        assert!(named.next().is_none(), "one of several limits: {text:?}");
        let digits = line.trim_start_matches(name).trim_end_matches(" MiB");
        assert_eq!(digits.parse(), Ok(number), "{line:?}");
    };
    once("soft limit: ", limits.soft);
    once("hard limit: ", limits.hard);
    assert!(text.contains(NAMESPACE), "of another cgroup: {text:?}");
}

fn seeds() -> Vec<Vec<u8>> {
    let answer = |soft: &str, hard: &str| {
        format!(
            "namespace: {NAMESPACE}\nsoft limit: {soft}\nhard limit: {hard}\ncurrent used: 0 MiB\n"
        )
    };
    [
        answer("0 MiB", "2000 MiB"),
        answer("0 MiB", "max"),
        "hard limit: 2000 MiB".to_owned(),
    ]
    .map(String::into_bytes)
    .to_vec()
}
