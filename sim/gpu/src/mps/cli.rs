//! `nvidia-cuda-mps-control` without options: commands on standard input,
//! answers on standard output.
//!
//! Owns the user's side of the control socket. In: lines. Out: the daemon's
//! lines, unchanged. Exit 0 means that the daemon was reached, not that it
//! liked the command.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::client::process::DEFAULT_PIPE_DIRECTORY;
use crate::client::read_message;
use crate::paths;
use crate::wire::Message;

/// The pipe directory of this environment.
pub fn pipe_directory() -> PathBuf {
    match std::env::var_os("CUDA_MPS_PIPE_DIRECTORY") {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => PathBuf::from(DEFAULT_PIPE_DIRECTORY),
    }
}

/// Runs the program.
pub fn run() -> ExitCode {
    let pipe = pipe_directory();
    let Ok(stream) = paths::connect(&pipe.join("control")) else {
        let _ = writeln!(io::stderr(), "Cannot find MPS control daemon process");
        return ExitCode::from(1);
    };
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let command = line.trim();
        if command.is_empty() {
            continue;
        }
        match converse(&stream, command) {
            Ok(answer) => {
                for line in &answer {
                    emit(line);
                }
            }
            Err(error) => {
                emit(&format!(
                    "Failed to communicate with MPS control daemon: {error}"
                ));
                return ExitCode::from(1);
            }
        }
        if command.split_whitespace().next() == Some("quit") {
            break;
        }
    }
    ExitCode::SUCCESS
}

/// Sends one command over a control connection and waits for its answer.
pub fn converse(stream: &UnixStream, command: &str) -> io::Result<Vec<String>> {
    let mut writer = stream.try_clone()?;
    writer.write_all(format!("{}\n", Message::new("UI").with("command", command)).as_bytes())?;
    let answer = read_message(&mut BufReader::new(stream.try_clone()?))?;
    if !answer.is_ok() {
        return Err(io::Error::other(answer.get("message").unwrap_or_default()));
    }
    Ok(answer
        .rows("lines")
        .into_iter()
        .filter_map(|row| row.into_iter().next())
        .collect())
}

fn emit(line: &str) {
    // The reader may be gone; the daemon has done its part.
    let _ = writeln!(io::stdout().lock(), "{line}");
}
