//! The state that all requests of one API server share.

use super::store::Store;
use super::{fault, token};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The state that all requests share. Its lock is held for the length of one verb, never across I/O.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) state: Mutex<State>,
    pub(super) revision: tokio::sync::watch::Sender<u64>,
    pub(super) bookmark_every: Duration,
    pub(super) stop: CancellationToken,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) tokens: token::Tokens,
    pub(crate) faults: fault::Plan,
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the watches after a write.
    pub(crate) fn signal(&self) {
        let revision = self.state().store.revision();
        self.revision.send_if_modified(|seen| {
            let newer = *seen != revision;
            *seen = revision;
            newer
        });
    }
}
