//! One command of the language of MPS's control program.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// Starts the control program, tells it a line, and answers how it ended and what it said.
pub(crate) fn tell(program: &mut Command, line: &str) -> anyhow::Result<(Option<i32>, String)> {
    let mut child = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // One that finds no daemon does not listen: it ends, and says why.
        let _ = writeln!(input, "{line}");
    }
    let output = child.wait_with_output()?;
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code(), said.trim().to_owned()))
}
