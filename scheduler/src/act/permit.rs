//! A place among the requests that are under way at once.
//!
//! An action holds a permit while one of its requests is under way, and none while it pauses between
//! two tries: writes that fail in one namespace for hours must not keep the others' from being sent.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A permit of one action.
#[derive(Debug)]
pub(super) struct Permit {
    all: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
}

impl Permit {
    /// Waits for a permit.
    pub(super) async fn acquire(all: &Arc<Semaphore>) -> Self {
        let mut permit = Self {
            all: Arc::clone(all),
            held: None,
        };
        permit.take().await;
        permit
    }

    /// Sleeps without the permit, and waits for it again.
    pub(super) async fn pause(&mut self, duration: Duration) {
        self.held = None;
        tokio::time::sleep(duration).await;
        self.take().await;
    }

    async fn take(&mut self) {
        // The semaphore is never closed.
        self.held = Arc::clone(&self.all).acquire_owned().await.ok();
    }
}
