//! Volumes that may be given to claims, and the claims of pods that have a place.
//!
//! A claim is in use as long as a pod that has a place lists it as not bound yet. From the
//! first such pod on it belongs to that pod's node, and the volume that a decision picked
//! belongs to the claim. What is in use moves with the pods ([`State::transition`](super::State::transition)) and is
//! undone with them.

use crate::ids::{ClaimUid, VolumeName};
use crate::model::{Claim, Volume, Want};
use crate::reason::NodeReason;
use crate::state::keys::NodeKey;
use rustc_hash::FxHashMap;
use slotmap::SecondaryMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A claim of pods that have a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimUse {
    /// Where it is bound.
    pub node: NodeKey,
    /// What it is given. `None`: a volume is provisioned, or none was picked here.
    pub volume: Option<VolumeName>,
    /// Pods with a place, those on their way out and those that are promised one too, by node.
    /// Only another scheduler puts them on a node other than the claim's.
    pub users: BTreeMap<NodeKey, u32>,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Volumes {
    pub(super) rows: BTreeMap<VolumeName, Volume>,
    /// Volumes that every node can use.
    pub(super) everywhere: BTreeSet<VolumeName>,
    /// The others, by the nodes that can use them.
    pub(super) local: SecondaryMap<NodeKey, BTreeSet<VolumeName>>,
    /// Volumes that are kept for a claim, by its name.
    pub(super) kept: BTreeMap<Arc<str>, BTreeSet<VolumeName>>,
    /// Looked up, never walked for a decision.
    pub(super) claims: FxHashMap<ClaimUid, ClaimUse>,
    /// Which claim a volume was given to.
    pub(super) given: FxHashMap<VolumeName, ClaimUid>,
}

impl Volumes {
    pub(crate) fn rows(&self) -> impl Iterator<Item = &Volume> {
        self.rows.values()
    }

    /// Claims in use that were given a volume, in order.
    pub(crate) fn given(&self) -> BTreeMap<&ClaimUid, &VolumeName> {
        let claims = self.claims.iter();
        claims
            .filter_map(|(uid, used)| Some((uid, used.volume.as_ref()?)))
            .collect()
    }

    pub(crate) fn in_use(&self) -> &FxHashMap<ClaimUid, ClaimUse> {
        &self.claims
    }

    /// No volume was given to two claims.
    pub(crate) fn are_assigned_once(&self) -> bool {
        let given = self.given();
        given.len() == self.given.len()
            && given
                .iter()
                .all(|(claim, volume)| self.given.get(*volume) == Some(claim))
    }

    /// The volume that a claim in use was given.
    pub(crate) fn of(&self, claim: &ClaimUid) -> Option<&VolumeName> {
        self.claims.get(claim)?.volume.as_ref()
    }

    /// The one setter of what is in use; returns what was there.
    pub(super) fn swap(&mut self, claim: &ClaimUid, value: Option<ClaimUse>) -> Option<ClaimUse> {
        let volume = value.as_ref().and_then(|used| used.volume.clone());
        let old = match value {
            Some(used) => self.claims.insert(claim.clone(), used),
            None => self.claims.remove(claim),
        };
        if let Some(left) = old.as_ref().and_then(|used| used.volume.as_ref())
            && self.given.get(left) == Some(claim)
        {
            self.given.remove(left);
        }
        if let Some(volume) = volume {
            self.given.insert(volume, claim.clone());
        }
        old
    }

    /// Volumes that a node can use.
    fn here(&self, node: NodeKey) -> impl Iterator<Item = &Volume> {
        let local = self.local.get(node).into_iter().flatten();
        let names = local.chain(&self.everywhere);
        names.filter_map(|name| self.rows.get(name))
    }

    /// Volumes that a claim may get on a node, the smallest first.
    fn options(&self, claim: &Claim, want: &Want, node: NodeKey) -> Vec<&VolumeName> {
        let is_kept = |volume: &Volume| {
            let kept = volume.kept_for.as_ref();
            kept.is_some_and(|kept| kept.is(claim)) && volume.suits(want)
        };
        let kept = self.kept.get(&claim.name).into_iter().flatten();
        let mut kept = kept.filter_map(|name| self.rows.get(name));
        // A volume that is kept for the claim is the only one that it may get.
        let waits_for_its_own = kept.any(is_kept);
        let may_have = |volume: &&Volume| {
            // Not while another claim is being bound to it, whichever claim it is kept for since.
            !self.given.contains_key(&volume.name)
                && if waits_for_its_own {
                    is_kept(volume)
                } else {
                    volume.kept_for.is_none() && volume.suits(want)
                }
        };
        let mut free: Vec<&Volume> = self.here(node).filter(may_have).collect();
        free.sort_unstable_by_key(|volume| (volume.shape.size, &volume.name));
        free.into_iter().map(|volume| &volume.name).collect()
    }

    /// A volume for each of the claims on that node; none for those that are provisioned or
    /// have one. The error says why they cannot all be bound there.
    pub(crate) fn pick(
        &self,
        claims: &[Claim],
        node: NodeKey,
    ) -> Result<Vec<Option<VolumeName>>, NodeReason> {
        let mut picked = vec![None; claims.len()];
        let mut wants = Vec::new();
        for (at, claim) in claims.iter().enumerate() {
            match (self.claims.get(&claim.uid), &claim.wants) {
                (Some(_), _) if claim.exclusive => return Err(NodeReason::ClaimInUse),
                (Some(used), _) if used.node != node => return Err(NodeReason::ClaimElsewhere),
                (None, Some(want)) => wants.push((at, self.options(claim, want, node))),
                _ => {}
            }
        }
        let options: Vec<&[&VolumeName]> = wants
            .iter()
            .map(|(_, options)| options.as_slice())
            .collect();
        let Some(matched) = matched(&options) else {
            let lacking = wants.iter().any(|(_, options)| options.is_empty());
            let names = wants
                .iter()
                .filter(|(_, options)| !lacking || options.is_empty())
                .filter_map(|(at, _)| Some(Arc::clone(&claims.get(*at)?.name)));
            return Err(NodeReason::NoVolume(names.collect()));
        };
        for ((at, _), volume) in wants.iter().zip(matched) {
            if let Some(slot) = picked.get_mut(*at) {
                *slot = Some(volume.clone());
            }
        }
        Ok(picked)
    }

    /// Whether the node can use a suitable volume for each of the claims, also one that another
    /// claim has now.
    pub(crate) fn could_serve(&self, claims: &[Claim], node: NodeKey) -> bool {
        claims.iter().all(|claim| {
            let used = self.claims.get(&claim.uid);
            let suits = |want: &Want| self.here(node).any(|volume| volume.suits(want));
            used.is_some_and(|used| used.node == node) || claim.wants.as_ref().is_none_or(suits)
        })
    }
}

/// One option for each, none twice, the first ones where that can be: a matching in a
/// bipartite graph by augmenting paths.
fn matched<'a>(options: &[&[&'a VolumeName]]) -> Option<Vec<&'a VolumeName>> {
    let mut taken = BTreeMap::new();
    for want in 0..options.len() {
        if !augment(options, want, &mut taken, &mut BTreeSet::new()) {
            return None;
        }
    }
    let mut picked: Vec<(usize, &VolumeName)> = taken
        .into_iter()
        .map(|(option, want)| (want, option))
        .collect();
    picked.sort_unstable();
    Some(picked.into_iter().map(|(_, option)| option).collect())
}

/// Finds one for `want`, and another one for the claim that had it.
fn augment<'a>(
    options: &[&[&'a VolumeName]],
    want: usize,
    taken: &mut BTreeMap<&'a VolumeName, usize>,
    tried: &mut BTreeSet<&'a VolumeName>,
) -> bool {
    for option in options.get(want).into_iter().copied().flatten() {
        if !tried.insert(option) {
            continue;
        }
        let holder = taken.get(option).copied();
        if holder.is_none_or(|holder| augment(options, holder, taken, tried)) {
            taken.insert(option, want);
            return true;
        }
    }
    false
}

#[cfg(test)]
impl Volumes {
    pub(crate) fn forget_use(&mut self, claim: &str) {
        self.swap(&ClaimUid::new(claim), None);
    }

    pub(crate) fn use_twice(&mut self, claim: &str, other: &str) {
        let used = self.claims.get(claim).cloned();
        self.swap(&ClaimUid::new(other), used);
    }
}
