//! The decisions of the DRA front: whether the cards can serve a claim's allocation, which
//! containers may have it, and whether its memory is free. Pure.

mod ask;
pub mod mode;
pub mod parts;
mod pods;
mod rules;

use super::core::Core;
use super::event::Effect;
use super::policy::Policy;
use super::prepare::Unready;
use crate::identity::IdentityError;
use crate::ledger::{AllocId, Claim, Share};
use crate::pods::{PodView, Standing};
use ask::Ask;
use parts::Allocated;
pub(super) use pods::ClaimPods;
pub use pods::Claimants;
use rules::alone_only;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// One part of a claim that is in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Its allocation.
    pub alloc: AllocId,
    /// The share, as one of its containers has it.
    pub share: Share,
}

impl Core {
    /// Enters a claim's allocation, for each pod of this node that it is reserved for. Existing
    /// entries stay. Nothing is entered if one part cannot be.
    pub fn prepare_claim(
        &mut self,
        allocated: &Allocated,
        now: Instant,
    ) -> (Result<Vec<Prepared>, Unready>, Vec<Effect>) {
        let before = self.ledger.clone();
        let result = self
            .candidates(allocated)
            .and_then(|pods| self.enter_claim(allocated, &pods, now));
        match &result {
            Ok(_) => {
                let reserved = allocated.reserved.keys().cloned().collect();
                self.claims.reserve(allocated.uid.clone(), reserved);
            }
            Err(_) => self.ledger = before,
        }
        let mut effects = Vec::new();
        self.settle(now, &mut effects);
        (result, effects)
    }

    /// The pods that it is reserved for, as far as they are here and not finished.
    fn candidates(&self, allocated: &Allocated) -> Result<Vec<PodView>, Unready> {
        if !self.allocations.restored {
            return Err(late("what this node holds is not known yet".to_owned()));
        }
        let mut here = Vec::new();
        let mut unknown = None;
        for uid in allocated.reserved.keys() {
            match self.pods.standing(uid) {
                Standing::Present(pod) if !pod.finished => here.push(pod.clone()),
                Standing::Present(_) | Standing::Gone => {}
                Standing::Unknown => unknown = Some(uid),
            }
        }
        if here.is_empty() {
            let names: Vec<&str> = allocated.reserved.values().map(String::as_str).collect();
            return Err(match unknown {
                Some(uid) => late(IdentityError::PodUnknown(uid.clone()).to_string()),
                None => never(format!(
                    "pod {}/{} is gone or finished",
                    allocated.namespace,
                    names.join(", ")
                )),
            });
        }
        // Existing shares stay; nothing is placed beside them.
        let held = self.of_claim(&allocated.uid).next().is_some();
        match self.not_offering().filter(|_| !held) {
            Some(why) => Err(late(why)),
            None => Ok(here),
        }
    }

    /// The rows of a claim.
    fn of_claim<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a Share> {
        let of = move |share: &&Share| share.claimed.as_ref().is_some_and(|of| of.uid == uid);
        self.ledger.all().filter(of)
    }

    fn enter_claim(
        &mut self,
        allocated: &Allocated,
        pods: &[PodView],
        now: Instant,
    ) -> Result<Vec<Prepared>, Unready> {
        let ask = Ask {
            ledger: &self.ledger,
            inventory: &self.cards.inventory,
            policy: Policy::or_none(self.policy.as_ref()),
        };
        let mut parts: BTreeMap<BTreeSet<String>, Claim> = BTreeMap::new();
        let mut first_refusal = None;
        let mut entered: Vec<(AllocId, Claim)> = Vec::new();
        for pod in pods {
            match ask.part_claims(allocated, pod, &mut parts) {
                Ok(claims) => entered.extend(claims),
                Err(why) => drop(first_refusal.get_or_insert(why)),
            }
        }
        if let Some(why) = first_refusal.filter(|_| entered.is_empty()) {
            return Err(never(why));
        }
        let minimum = ask.policy.spec.minimum_fence;
        let mut prepared: BTreeMap<AllocId, Share> = BTreeMap::new();
        for (alloc, claim) in entered {
            self.make_way(&claim, alloc)?;
            let share = self.enter(&claim, alloc, None, now)?;
            let several = self.ledger.holders(&share.limit_scope()).nth(1).is_some();
            if let Some(why) = alone_only(&share, minimum).filter(|_| several) {
                return Err(never(why));
            }
            prepared.insert(alloc, share);
        }
        let prepared = prepared.into_iter();
        Ok(prepared
            .map(|(alloc, share)| Prepared { alloc, share })
            .collect())
    }

    /// A claim that was freed and allocated again has other cards than its rows: they go, once
    /// nothing of them lives.
    fn make_way(&mut self, claim: &Claim, alloc: AllocId) -> Result<(), Unready> {
        let old: Vec<Share> = (self.ledger.by_alloc(alloc))
            .filter(|share| share.gpus != claim.gpus)
            .cloned()
            .collect();
        if let Some(share) = old.iter().find(|share| self.lives(share)) {
            return Err(late(format!(
                "container {} of pod {} still holds it",
                share.container, share.pod
            )));
        }
        for share in &old {
            self.ledger.release(&share.key());
        }
        Ok(())
    }

    /// Frees what a claim had. One that has nothing is free.
    ///
    /// # Errors
    /// One sentence: something of it still runs, or it is not known whether.
    pub fn unprepare(&mut self, uid: &str, now: Instant) -> (Result<(), String>, Vec<Effect>) {
        let mut effects = Vec::new();
        let result = self.free(uid, &mut effects);
        self.settle(now, &mut effects);
        (result, effects)
    }

    fn free(&mut self, uid: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
        if !self.allocations.restored {
            return Err("what this node holds is not known yet".to_owned());
        }
        let rows: Vec<Share> = self.of_claim(uid).cloned().collect();
        if let Some(share) = rows.iter().find(|share| self.lives(share)) {
            return Err(format!(
                "container {} of pod {} still runs",
                share.container, share.pod
            ));
        }
        for share in rows {
            self.release(&share.key(), effects);
        }
        self.claims.unreserve(uid);
        Ok(())
    }
}

fn late(reason: String) -> Unready {
    Unready {
        reason,
        may_pass: true,
        is_final: false,
        decision: String::new(),
    }
}

fn never(reason: String) -> Unready {
    Unready {
        may_pass: false,
        ..late(reason)
    }
}
