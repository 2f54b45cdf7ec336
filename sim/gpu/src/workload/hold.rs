//! Waiting: until a signal, for a time, or until the driver has ended. Owns the signals SIGTERM and
//! SIGINT of the workload.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};

/// Why the process should end, once there is a reason: its exit code.
static END: Mutex<Option<u8>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();
static LISTENER: OnceLock<()> = OnceLock::new();

fn termination() -> SigSet {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.add(Signal::SIGINT);
    set
}

fn end() -> MutexGuard<'static, Option<u8>> {
    END.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tell(code: u8) {
    end().get_or_insert(code);
    CHANGED.notify_all();
}

/// Keeps termination pending until [`hold`] asks for it. A blocked signal
/// reaches even the first process of a pid namespace, which ignores unhandled ones.
pub(super) fn block_termination() {
    // Can only fail for an invalid set.
    let _ = termination().thread_block();
    LISTENER.get_or_init(|| {
        std::thread::spawn(|| {
            if termination().wait().is_ok() {
                tell(0);
            }
        });
    });
}

/// Waits for a termination signal (exit 0), the end of the driver behind `watch` (exit 1), or the
/// time in seconds (the script continues: `None`).
pub(super) fn hold(watch: Option<UnixStream>, seconds: Option<u64>) -> Option<u8> {
    if let Some(mut watch) = watch {
        std::thread::spawn(move || {
            // There are no more requests, so only the end can come.
            let _ = watch.read(&mut [0_u8; 1]);
            tell(1);
        });
    }
    let deadline = seconds.map(|s| Instant::now() + Duration::from_secs(s));
    let mut ended = end();
    loop {
        if ended.is_some() {
            return *ended;
        }
        ended = match deadline.map(|d| d.saturating_duration_since(Instant::now())) {
            None => CHANGED.wait(ended).unwrap_or_else(PoisonError::into_inner),
            Some(Duration::ZERO) => return None,
            Some(left) => {
                CHANGED
                    .wait_timeout(ended, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        };
    }
}

/// Waits for a file, so that a test decides when the script continues. A termination signal ends
/// the wait, and the process.
pub(super) fn until_exists(file: &Path) -> Option<u8> {
    while !file.exists() {
        let ended = CHANGED
            .wait_timeout(end(), Duration::from_millis(5))
            .unwrap_or_else(PoisonError::into_inner)
            .0;
        if ended.is_some() {
            return *ended;
        }
    }
    None
}
