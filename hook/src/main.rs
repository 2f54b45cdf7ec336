//! The binary: arguments and standard input in, exit status and one line out.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::SystemTime;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    match aliquot_hook::create_runtime(&arguments, std::io::stdin().lock(), SystemTime::now()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            // Standard error may be closed, and there is no other way to report it.
            let _ = writeln!(
                std::io::stderr(),
                "aliquot: {}",
                one_line(&refusal.to_string())
            );
            ExitCode::FAILURE
        }
    }
}

/// Tenants' text can be in it: no line breaks, no control characters, not longer than an
/// event shows.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(400)
        .collect()
}
