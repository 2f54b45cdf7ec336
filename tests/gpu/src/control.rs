//! Programs that are waited for, and one command of the language of MPS's control program.

use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Time between two checks of a program.
const AGAIN: Duration = Duration::from_millis(2);

/// Starts the control program, sends it a line, and returns its exit status and output. One that
/// does not end within the limit is killed.
pub(crate) fn tell(
    program: &mut Command,
    line: &str,
    limit: Duration,
) -> anyhow::Result<(Option<i32>, String)> {
    let mut child = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // One that finds no daemon does not listen: it ends, and says why.
        let _ = writeln!(input, "{line}");
    }
    let output = ended(child, limit)?;
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code(), said.trim().to_owned()))
}

/// Waits for the end of a program that says less than a pipe holds.
pub(crate) fn ended(mut child: Child, limit: Duration) -> std::io::Result<Output> {
    let begin = Instant::now();
    while child.try_wait()?.is_none() {
        if begin.elapsed() > limit {
            child.kill()?;
            break;
        }
        std::thread::sleep(AGAIN);
    }
    child.wait_with_output()
}
