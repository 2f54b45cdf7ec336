//! How a vector ended, and a line for people.

/// How a case ended.
pub(crate) enum End {
    Passed,
    /// What was expected and what came.
    Failed(String),
}

/// A line for people.
#[allow(clippy::print_stdout)]
pub(crate) fn say(line: &str) {
    println!("{line}");
}
