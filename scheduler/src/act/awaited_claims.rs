//! Persistent volume claims that bindings wait for. The cycle, which has the one watch of all claims,
//! says here which claim has changed, and the binding that waits for it reads the claim again. So a
//! thousand bindings that wait cost no watch of their own.

use crate::lock::locked;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// The number of changes of each claim that is awaited, by namespace and name.
type Changes = Arc<Mutex<HashMap<String, watch::Sender<u64>>>>;

/// The claims that are awaited. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct AwaitedClaims(Changes);

/// A claim that one binding waits for, until this is dropped.
#[derive(Debug)]
pub(super) struct AwaitedClaim {
    name: String,
    changed: watch::Receiver<u64>,
    all: Changes,
}

impl AwaitedClaims {
    /// Tells the bindings that wait for the claim, by namespace and name, that it came, changed or went.
    pub fn tell(&self, name: &str) {
        if let Some(changes) = locked(&self.0).get(name) {
            changes.send_modify(|count| *count += 1);
        }
    }

    /// Begins to wait. Changes from now on are seen; the caller reads the claim as it is now.
    pub(super) fn await_changes(&self, name: &str) -> AwaitedClaim {
        let mut awaited = locked(&self.0);
        let changes = awaited.entry(name.to_owned()).or_default();
        AwaitedClaim {
            name: name.to_owned(),
            changed: changes.subscribe(),
            all: Arc::clone(&self.0),
        }
    }
}

impl AwaitedClaim {
    /// Waits for a change since this began, or since the last call.
    pub(super) async fn changed(&mut self) {
        // The sender is there as long as this is.
        let _ = self.changed.changed().await;
    }
}

impl Drop for AwaitedClaim {
    fn drop(&mut self) {
        let mut awaited = locked(&self.all);
        // This receiver is still counted.
        if awaited
            .get(&self.name)
            .is_some_and(|changes| changes.receiver_count() <= 1)
        {
            awaited.remove(&self.name);
        }
    }
}
