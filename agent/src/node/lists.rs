//! The files that say which containers may have the share of a claim. The hook reads them.
//!
//! In: the state. Out: `share/<alloc_id>/holders.json`. They are written while a claim is
//! prepared and whenever its pods change, by two tasks: in turn, each from the state of then, so
//! that no older list replaces a newer one.

use super::state::State;
use crate::edit;
use crate::ledger::AllocId;
use cdi::hook::{HOLDERS_VERSION, Holder, Holders, Refused};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Writes them. Blocking.
#[derive(Clone, Debug)]
pub struct Lists {
    share_dir: PathBuf,
    state: watch::Receiver<Arc<State>>,
    turn: Arc<Mutex<()>>,
}

/// Nothing of an allocation is written or removed by others meanwhile.
#[derive(Debug)]
pub struct WriteLock<'a>(#[expect(dead_code, reason = "held")] MutexGuard<'a, ()>);

impl Lists {
    /// Below this folder, by this state.
    pub fn new(share_dir: PathBuf, state: watch::Receiver<Arc<State>>) -> Self {
        Self {
            share_dir,
            state,
            turn: Arc::default(),
        }
    }

    /// Waits for its turn.
    pub fn turn(&self) -> WriteLock<'_> {
        // It guards nothing that could be half done.
        WriteLock(self.turn.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lists the containers that may have this share now. Nothing if it is no claim's share, or no
    /// container is left.
    ///
    /// # Errors The file cannot be written: the old one stays, and containers that are not in it do
    /// not start.
    pub fn write(&self, _turn: &WriteLock<'_>, alloc: AllocId) -> io::Result<()> {
        let Some(holders) = holders(&self.state.borrow().clone(), alloc) else {
            return Ok(());
        };
        let file = edit::holders_file(&self.share_dir, alloc);
        let text = holders.to_json();
        if std::fs::read_to_string(&file).is_ok_and(|old| old == text) {
            return Ok(());
        }
        let folder = self.share_dir.join(alloc.to_string());
        std::fs::create_dir_all(&folder)?;
        let temporary = folder.join(".holders.json");
        std::fs::write(&temporary, text)?;
        std::fs::rename(temporary, file)
    }
}

fn holders(state: &State, alloc: AllocId) -> Option<Holders> {
    let mut rows = state.ledger.by_alloc(alloc).peekable();
    let uid = &rows.peek()?.claimed.as_ref()?.uid;
    let refused = state.claims.get(uid).map(|claim| &claim.refused);
    let refused = refused.into_iter().flatten().map(|(uid, why)| Refused {
        pod_uid: uid.clone(),
        why: why.clone(),
    });
    Some(Holders {
        version: HOLDERS_VERSION,
        alloc_id: alloc.to_string(),
        refused: refused.collect(),
        holders: rows
            .map(|share| Holder {
                pod_uid: share.pod.uid.clone(),
                pod_name: share.pod.name.clone(),
                container: share.container.clone(),
            })
            .collect(),
    })
}
