//! How the process ends. A supervisor (the kubelet) restarts it whatever the code; the code
//! says to a person where to look.

use std::process::ExitCode;

/// Told to stop, and stopped.
pub const STOPPED: u8 = 0;
/// It could not start: folders, sockets, kubeconfig.
pub const NOT_STARTED: u8 = 1;
/// Wrong flags (clap's own code).
pub const USAGE: u8 = 2;
/// A part ended that never ends by itself; everything else was stopped with it.
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
