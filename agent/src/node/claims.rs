//! The decision of the DRA front: whether the cards can give a claim what it was allocated,
//! and whether what it had is free. Pure.

use super::core::{Core, Effect};
use super::prepare::Unready;
use crate::identity::IdentityError;
use crate::ledger::{AllocId, Claim, Front, Share};
use crate::pods::Standing;
use std::time::Instant;

impl Core {
    /// Enters what a claim was allocated. For one that is there already nothing changes.
    pub fn prepare_claim(
        &mut self,
        claim: &Claim,
        alloc: AllocId,
        now: Instant,
    ) -> (Result<Share, Unready>, Vec<Effect>) {
        let result = self.may_enter(claim, alloc);
        let result = result.and_then(|()| self.enter(claim, alloc, None, now));
        let mut effects = Vec::new();
        self.settle(now, &mut effects);
        (result, effects)
    }

    fn may_enter(&self, claim: &Claim, alloc: AllocId) -> Result<(), Unready> {
        let late = |reason: String| Unready {
            reason,
            may_pass: true,
            is_final: false,
            decision: String::new(),
        };
        if !self.restored {
            return Err(late("what this node holds is not known yet".to_owned()));
        }
        match self.pods.standing(&claim.pod.uid) {
            Standing::Present(pod) if !pod.finished => {}
            Standing::Present(_) | Standing::Gone => {
                return Err(Unready {
                    may_pass: false,
                    ..late(format!("pod {} is gone or finished", claim.pod))
                });
            }
            Standing::Unknown => {
                let error = IdentityError::PodUnknown(claim.pod.uid.clone());
                return Err(late(error.to_string()));
            }
        }
        match self.ledger.by_alloc(alloc) {
            Some(share) if share.key() == claim.key() => Ok(()),
            Some(share) => Err(late(format!(
                "container {} of pod {} still holds it",
                share.container, share.pod
            ))),
            // What is held goes on; nothing comes beside it.
            None => self.not_offering().map_or(Ok(()), |why| Err(late(why))),
        }
    }

    /// Frees what a claim had. One that has nothing is free.
    ///
    /// # Errors
    /// One sentence: something of it still runs, or it is not known whether.
    pub fn unprepare(&mut self, alloc: AllocId, now: Instant) -> (Result<(), String>, Vec<Effect>) {
        let mut effects = Vec::new();
        let result = self.free(alloc, &mut effects);
        self.settle(now, &mut effects);
        (result, effects)
    }

    fn free(&mut self, alloc: AllocId, effects: &mut Vec<Effect>) -> Result<(), String> {
        if !self.restored {
            return Err("what this node holds is not known yet".to_owned());
        }
        let share = self.ledger.by_alloc(alloc);
        let Some(share) = share.filter(|share| share.front == Front::Dra) else {
            return Ok(());
        };
        if self.lives(share) {
            return Err(format!(
                "container {} of pod {} still runs",
                share.container, share.pod
            ));
        }
        let key = share.key();
        self.release(&key, effects);
        Ok(())
    }
}
