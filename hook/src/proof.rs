//! The file that tells the agent that the hook ran, and for which container.
//!
//! Written under a temporary name and renamed, so that the agent never reads half of it.
//! Not synced: after a power cut there is no container either.

use crate::expect::Expected;
use crate::judge::Refusal;
use crate::limit::Limited;
use crate::state::State;
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proof {
    /// 1.
    pub version: u32,
    /// The allocation.
    pub alloc_id: String,
    /// Of the pod.
    pub pod_uid: String,
    /// The container's name.
    pub container: String,
    /// As the runtime names it.
    pub container_id: String,
    /// The container's first process, in the runtime's pid namespace.
    pub pid: u32,
    /// Of the CDI file that was injected.
    pub digest: String,
    /// When.
    pub unix_millis: u64,
    /// What came of the driver's own limit, where there was one to set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited: Option<Limited>,
}

/// Leaves it. A container that is started again overwrites its earlier one.
///
/// # Errors
/// [`Refusal::Proof`]: without proof the agent would take the container for one that got
/// around the guard.
pub fn leave(
    expected: &Expected,
    state: &State,
    limited: Option<Limited>,
    now: SystemTime,
) -> Result<(), Refusal> {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let proof = Proof {
        version: 1,
        alloc_id: expected.alloc.clone(),
        pod_uid: expected.pod_uid.clone(),
        container: expected.container.clone(),
        container_id: state.id.clone(),
        pid: state.pid,
        digest: expected.digest.to_string(),
        unix_millis: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        limited,
    };
    let text = serde_json::to_string(&proof).expect("strings and integers always print");
    let path = &expected.proof;
    let refuse = |error| Refusal::Proof(format!("{}: {error}", path.display()));
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Refusal::Proof(format!("{} is no file", path.display())));
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
