//! How a vector ended, and a line for people.

/// The end of a vector.
pub(crate) enum End {
    Passed,
    /// The vector ended otherwise: what was expected and what came.
    Failed(String),
}

/// A line for people.
#[allow(clippy::print_stdout)]
pub(crate) fn say(line: &str) {
    println!("{line}");
}
