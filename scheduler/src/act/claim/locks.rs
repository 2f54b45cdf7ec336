//! The locks on claims that the tasks of this process share.

use scheduler_core::Bind;
use scheduler_core::ids::ClaimUid;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// The locks of the claims that tasks use at present; each claim has one.
#[derive(Debug, Default)]
struct ByClaim<L>(Mutex<BTreeMap<ClaimUid, Weak<L>>>);

impl<L: Default> ByClaim<L> {
    fn of(&self, claim: &ClaimUid) -> Arc<L> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = locks.get(claim).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(L::default());
        locks.insert(claim.clone(), Arc::downgrade(&lock));
        lock
    }
}

/// The locks on claims that the tasks of this process share.
#[derive(Clone, Debug, Default)]
pub(in crate::act) struct Locks {
    /// Bindings read-lock the claims that they use, and a task that takes devices from a claim
    /// write-locks it, so that both never happen at once.
    uses: Arc<ByClaim<RwLock<()>>>,
    /// A task locks a claim while it reads and writes it. If several bindings wrote one claim at
    /// the same time, one would succeed and all others would begin again.
    writes: Arc<ByClaim<tokio::sync::Mutex<()>>>,
}

impl Locks {
    /// As long as this is kept, none of the claims loses its devices but by its own binding.
    pub(in crate::act) async fn hold(&self, bind: &Bind) -> Vec<OwnedRwLockReadGuard<()>> {
        let mut held = Vec::with_capacity(bind.devices.len());
        for claim in &bind.devices {
            held.push(self.uses.of(&claim.uid).read_owned().await);
        }
        held
    }

    /// Returns the lock of the claim. `None`: a binding uses the claim.
    pub(super) fn alone(&self, claim: &ClaimUid) -> Option<OwnedRwLockWriteGuard<()>> {
        self.uses.of(claim).try_write_owned().ok()
    }

    /// Waits until this is the only task that writes the claim.
    pub(super) async fn write(&self, claim: &ClaimUid) -> OwnedMutexGuard<()> {
        self.writes.of(claim).lock_owned().await
    }
}
