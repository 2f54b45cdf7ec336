//! Everything that is known of the kubelet's allocations. The sources are the kubelet's files, ours,
//! and the answers to the kubelet that are too recent to be in any file. Pure.
//!
//! In: looks at the disk, answers to the kubelet. Out: who holds which ID, whose container has ended,
//! and which files are left over.

use super::event::Effect;
use crate::identity::Checkpoint;
use crate::ledger::{AllocId, HolderKey, Ledger, ProofName, Share};
use crate::pods::Pods;
use crate::reconcile::{self, Absences, Held, Local, LocalSource, Minted, MintedIds};
use crate::resource::Resource;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// The allocations of this node, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct Allocations {
    /// The last look at the disk, less what was removed since.
    pub(super) local: Local,
    /// True once the shares from before the agent's start are in the ledger.
    pub(super) restored: bool,
    /// The answers to the kubelet that are not in the checkpoint yet.
    pub(super) minted: Minted,
    /// The holder of each ID.
    pub(super) held: Held,
    absences: Absences,
    /// The sources that cannot be read, and the time since when.
    unreadable: BTreeMap<LocalSource, Instant>,
    /// The source that could not be read for too long, and the reason.
    pub(super) long_unreadable: Option<(LocalSource, String)>,
}

impl Allocations {
    /// Takes a look at the disk. The first one with the CDI files rebuilds the ledger.
    pub(super) fn take(&mut self, local: Local, ledger: &mut Ledger, now: Instant) {
        self.unreadable
            .retain(|part, _| local.unreadable.contains_key(part));
        for part in local.unreadable.keys() {
            self.unreadable.entry(*part).or_insert(now);
        }
        if !self.restored && !local.unreadable.contains_key(&LocalSource::CdiFiles) {
            for share in reconcile::restore(&local) {
                ledger.restore(share);
            }
            self.restored = true;
        }
        if let Some(checkpoint) = &local.checkpoint {
            self.minted.retain(|alloc, _| !checkpoint.holds(*alloc));
        }
        self.local = local;
    }

    /// A checkpoint that was read for one request is newer than the last look at the disk.
    pub(super) fn take_checkpoint(&mut self, checkpoint: Checkpoint) {
        self.minted.retain(|alloc, _| !checkpoint.holds(*alloc));
        self.local.checkpoint = Some(checkpoint);
    }

    /// Records an answer to the kubelet.
    pub(super) fn mint(
        &mut self,
        alloc: AllocId,
        resource: Resource,
        ids: BTreeSet<String>,
        now: Instant,
    ) {
        let fresh = MintedIds {
            resource,
            ids,
            at: now,
            bound: false,
        };
        self.minted.insert(alloc, fresh);
    }

    /// Without the checkpoint: the allocation that the kubelet has for a container. The
    /// latest answer for exactly these IDs by which no container was identified yet, else the
    /// one by which this container was before.
    pub(super) fn allocated(
        &self,
        ledger: &Ledger,
        key: &HolderKey,
        resource: Resource,
        ids: &BTreeSet<String>,
    ) -> Option<AllocId> {
        let fresh = self
            .minted
            .iter()
            .filter(|(_, fresh)| fresh.resource == resource && fresh.ids == *ids && !fresh.bound);
        let latest = fresh.max_by_key(|(_, fresh)| fresh.at);
        latest
            .map(|(alloc, _)| *alloc)
            .or_else(|| ledger.get(key)?.alloc_id)
    }

    /// A container was identified by an answer, or (`bound` is false) not after all.
    pub(super) fn identified(&mut self, alloc: AllocId, bound: bool) {
        if let Some(minted) = self.minted.get_mut(&alloc) {
            minted.bound = bound;
        }
    }

    /// Forgets old answers, and determines again who holds each ID. The core calls this at every step.
    pub(super) fn settle(&mut self, pods: &Pods, now: Instant) {
        let blind = self.unreadable.contains_key(&LocalSource::Checkpoint);
        let grace = if blind {
            reconcile::MINTED_GRACE_BLIND
        } else {
            reconcile::MINTED_GRACE
        };
        self.minted
            .retain(|_, fresh| now.saturating_duration_since(fresh.at) < grace);
        self.long_unreadable = self
            .unreadable
            .iter()
            // `PodResources` replaces the checkpoint.
            .filter(|(part, _)| **part != LocalSource::Checkpoint)
            .find(|(_, since)| {
                now.saturating_duration_since(**since) >= reconcile::UNREADABLE_GRACE
            })
            .and_then(|(part, _)| Some((*part, self.local.unreadable.get(part)?.clone())));
        self.held = reconcile::held(&self.local, &self.minted, pods);
    }

    /// Returns the shares whose holder has ended. `busy` are the UIDs of pods with a process on some card.
    pub(super) fn deaths(
        &mut self,
        ledger: &Ledger,
        pods: &Pods,
        busy: &BTreeSet<String>,
        now: Instant,
    ) -> Vec<HolderKey> {
        reconcile::deaths(ledger, &self.local, pods, busy, &mut self.absences, now)
    }

    /// Returns a source that cannot be read now, if there is one.
    pub(super) fn first_unreadable(&self) -> Option<LocalSource> {
        self.unreadable.keys().next().copied()
    }

    /// Returns true if a share's container has a process, or may have one, by the hook's proof.
    pub(super) fn may_live(&self, share: &Share) -> bool {
        let name = share.proof_name();
        name.is_some_and(|name| self.local.lives(&name) || self.local.hides_proof(&name))
    }

    /// Removes the files of an allocation that no container holds any more.
    pub(super) fn forget(&mut self, alloc: AllocId, effects: &mut Vec<Effect>) {
        self.local.files.remove(&alloc);
        self.local.proofs.retain(|name, _| name.alloc != alloc);
        self.local.folders.remove(&alloc);
        effects.push(Effect::Forget(alloc));
    }

    /// Removes the proof of a container that has ended while its claim continues.
    pub(super) fn forget_proof(&mut self, name: ProofName, effects: &mut Vec<Effect>) {
        self.local.proofs.remove(&name);
        effects.push(Effect::ForgetProof(name));
    }

    /// Removes every file whose allocation or container has no holder.
    pub(super) fn clean_up(&mut self, ledger: &Ledger, pods: &Pods, effects: &mut Vec<Effect>) {
        for alloc in reconcile::orphans(ledger, &self.local, pods) {
            self.forget(alloc, effects);
        }
        for name in reconcile::stale_proofs(ledger, &self.local) {
            self.forget_proof(name, effects);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn ids(all: &[&str]) -> BTreeSet<String> {
        all.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn without_the_checkpoint_the_latest_answer_that_nobody_was_identified_by_counts() {
        let (mut known, ledger) = (Allocations::default(), Ledger::default());
        let key = HolderKey {
            pod_uid: "u".into(),
            container: "main".into(),
        };
        let start = Instant::now();
        for (alloc, after) in [(1, 0), (2, 2), (3, 1)] {
            let at = start + Duration::from_secs(after);
            known.mint(AllocId::new(alloc), Resource::Share, ids(&["a"]), at);
        }
        let other = ids(&["b"]);
        known.mint(AllocId::new(4), Resource::Share, other, start);
        let latest =
            |known: &Allocations| known.allocated(&ledger, &key, Resource::Share, &ids(&["a"]));
        assert_eq!(latest(&known), Some(AllocId::new(2)));
        known.identified(AllocId::new(2), true);
        assert_eq!(latest(&known), Some(AllocId::new(3)));
        known.identified(AllocId::new(2), false);
        assert_eq!(latest(&known), Some(AllocId::new(2)));
        let whole = known.allocated(&ledger, &key, Resource::Whole, &ids(&["a"]));
        assert_eq!(whole, None);
    }

    #[test]
    fn an_answer_that_never_reached_the_checkpoint_is_forgotten_later_while_that_is_unreadable() {
        let reason = BTreeMap::from([(LocalSource::Checkpoint, "broken".to_owned())]);
        for (unreadable, kept) in [(BTreeMap::new(), false), (reason, true)] {
            let (mut known, pods) = (Allocations::default(), Pods::default());
            let (start, mut ledger) = (Instant::now(), Ledger::default());
            let local = Local {
                unreadable,
                ..Local::default()
            };
            known.take(local, &mut ledger, start);
            known.mint(AllocId::new(1), Resource::Share, ids(&["a"]), start);
            known.settle(&pods, start + Duration::from_secs(59));
            assert_eq!(known.minted.len(), 1);
            known.settle(&pods, start + Duration::from_mins(1));
            assert_eq!(known.minted.len(), usize::from(kept));
            // `PodResources` replaces the checkpoint.
            assert_eq!(known.long_unreadable, None);
        }
    }
}
