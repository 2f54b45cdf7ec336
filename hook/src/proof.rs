//! The file that proves to the agent that the hook ran, and for which container.
//!
//! Written under a temporary name and renamed, so that the agent never reads half of it.
//! Not synced: after a power cut there is no container either.

use crate::refusal::HookError;
use crate::state::State;
use cdi::Digest;
use cdi::hook::{Arguments, Limited, PROOF_VERSION, Proof};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// Leaves it. A container that is started again overwrites its earlier one.
///
/// # Errors
/// [`HookError::Proof`]: without proof the agent would take the container for one that got
/// around the guard.
pub fn leave(
    expected: &Arguments,
    state: &State,
    limited: Option<Limited>,
    now: SystemTime,
) -> Result<(), HookError> {
    let (pod_uid, container) = (state.pod_uid()?, state.container()?);
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let proof = Proof {
        version: PROOF_VERSION,
        alloc_id: expected.alloc.clone(),
        pod_uid: pod_uid.to_owned(),
        container: container.to_owned(),
        container_id: state.id.clone(),
        pid: state.pid,
        digest: expected
            .digest
            .as_ref()
            .map(Digest::to_string)
            .unwrap_or_default(),
        unix_millis: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        limited,
    };
    let text = proof.to_json();
    let path = &expected.proof_of(pod_uid, container);
    let refuse = |error| HookError::Proof(format!("{}: {error}", path.display()));
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(HookError::Proof(format!("{} is no file", path.display())));
    };
    // The pid keeps two runs for one share apart.
    let temporary = dir.join(format!(
        ".{}.{}.tmp",
        name.to_string_lossy(),
        std::process::id()
    ));
    fs::write(&temporary, text + "\n")
        .and_then(|()| fs::rename(&temporary, path))
        .map_err(|error| {
            let _ = fs::remove_file(&temporary);
            refuse(error)
        })
}
