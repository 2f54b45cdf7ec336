//! `aliquot-hook`: the guard that an OCI runtime runs when it creates a container that
//! holds a share.
//!
//! It is named in the share's own CDI file, so no container gets the share's devices without it.
//! Its command line must match what it sees:
//!
//! - [`cdi::hook::Arguments`]: the command line, as the agent wrote it.
//! - [`state`]: the OCI state on standard input, and the bundle's `config.json`.
//! - [`mod@judge`]: expected and seen → let through, or one line that says why not. A file of the
//!   agent's lists the containers that may have the share of a claim; the hook waits a moment for
//!   it.
//! - [`backend`]: the kernel's own files about such limits.
//! - [`limit`]: limits that a driver keeps per cgroup (r615 and later): the container's
//!   process is in its leaf cgroup by then.
//! - [`proof`]: the file that proves to the agent that it ran.
//! - [`refusal`]: why a container must not start.
//!
//! Linked statically, runs on a host it knows nothing of, works while the agent is down,
//! and opens no socket.
#![forbid(unsafe_code)]
#![allow(
    clippy::missing_panics_doc,
    reason = "every expect says why it cannot happen"
)]

pub mod backend;
pub mod judge;
pub mod limit;
pub mod proof;
pub mod refusal;
pub mod state;

pub use judge::{admit, judge};
pub use limit::Host;
pub use refusal::HookError;
pub use state::{Bundle, State};

use cdi::hook::Arguments;
use std::io::Read;
use std::time::{Instant, SystemTime};

/// Everything from the command line to the proof.
///
/// # Errors
/// The sentence for the runtime's log, which the kubelet shows in the pod's events. The
/// container must not start.
pub fn create_runtime(
    arguments: &[String],
    standard_input: impl Read,
    now: SystemTime,
) -> Result<(), HookError> {
    let expected = Arguments::parse(arguments)?;
    let state = State::read(standard_input)?;
    admit(&expected, &state, Instant::now() + judge::LISTED_WITHIN)?;
    let injected = match &expected.spec {
        None => None,
        Some(path) => {
            let spec = cdi::dir::read_spec(path)
                .map_err(|error| HookError::Unreadable(error.to_string()))?;
            Some((spec, Bundle::read(&state.bundle)?))
        }
    };
    judge(
        &expected,
        injected.as_ref().map(|(spec, bundle)| (spec, bundle)),
    )?;
    let limited = match &expected.limit {
        None => None,
        Some(limit) => {
            let limited = limit::set(limit, state.pid, &Host::default());
            if limit.needed && limited.mib.is_none() {
                return Err(HookError::NoLimit(limited.error));
            }
            Some(limited)
        }
    };
    proof::leave(&expected, &state, limited, now)
}
