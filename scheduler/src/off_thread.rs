//! Work that takes long runs on a thread of its own, so that it delays no other task.
//!
//! A simulated world has a runtime with one thread. There the work runs in place: when another thread
//! ends depends on the machine, and a run must be the same each time.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{JoinError, spawn_blocking};

/// Returns true if work runs in place, because the runtime has one thread.
pub(crate) fn runs_in_place() -> bool {
    Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread
}

/// Runs the work, and returns its result.
///
/// # Errors
/// The work panicked.
pub(crate) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    if runs_in_place() {
        return Ok(work());
    }
    spawn_blocking(work).await
}
