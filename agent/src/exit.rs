//! How the process ends. A supervisor (the kubelet) restarts it whatever the code; the code
//! says to a person where to look.

use std::process::ExitCode;

/// Stopped on request.
pub const STOPPED: u8 = 0;
/// It could not start: directories, sockets, kubeconfig.
pub const NOT_STARTED: u8 = 1;
/// Wrong flags (clap's own code).
pub const USAGE: u8 = 2;
/// A task ended unexpectedly; the others were stopped.
pub const PART_ENDED: u8 = 3;

/// The code for the end of [`crate::run()`].
pub fn code(result: &Result<(), crate::RunError>) -> ExitCode {
    ExitCode::from(match result {
        Ok(()) => STOPPED,
        Err(
            crate::RunError::Folders(_) | crate::RunError::Thread(_) | crate::RunError::NotAlone(_),
        ) => NOT_STARTED,
        Err(_) => PART_ENDED,
    })
}
