//! Which pods may have the share of a claim that is prepared already: the kubelet prepares a
//! claim once, and asks nothing for the pods that come to it later. Pure.
//!
//! The authority is the claim's `reservedFor`, as the API server has it: a pod of this node that
//! names a prepared claim waits until it was read there.

use super::parts::{goes_with, takes};
use super::rules::{alone_only, apart, has_nothing_else, may_have};
use crate::ledger::{AllocId, HolderKey, Ledger, ProofName, Share};
use crate::node::event::Effect;
use crate::node::unproven::Unproven;
use crate::pods::{PodView, Pods};
use api::units::Fence;
use std::collections::{BTreeMap, BTreeSet};

/// The known pods of a claim that this node has prepared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claimants {
    /// The claim's namespace.
    pub namespace: String,
    /// The claim's name.
    pub name: String,
    /// Pods that must not have it, by UID, each with one sentence.
    pub refused: BTreeMap<String, String>,
    /// Pods of which it is not known that it is reserved for them.
    pub awaited: BTreeSet<String>,
}

/// The containers that may have a share, as they were last listed, and those that must not.
type Listed = (BTreeSet<HolderKey>, BTreeMap<String, String>);

/// The pods of prepared claims.
#[derive(Debug, Default)]
pub(in crate::node) struct ClaimPods {
    /// The pods for which each prepared claim was reserved when it was read, by the UID of the claim.
    reserved: BTreeMap<String, BTreeSet<String>>,
    /// The pods of each prepared claim on this node, by the UID of the claim.
    pub(in crate::node) claimants: BTreeMap<String, Claimants>,
    /// The containers that may have each share of a claim, as last listed.
    listed: BTreeMap<AllocId, Listed>,
}

impl ClaimPods {
    /// Records the pods that a claim is reserved for.
    pub(in crate::node) fn reserve(&mut self, claim: String, pods: BTreeSet<String>) {
        self.reserved.insert(claim, pods);
    }

    /// Forgets a claim that is no longer prepared.
    pub(in crate::node) fn unreserve(&mut self, claim: &str) {
        self.reserved.remove(claim);
    }

    /// Lets pods that came later have the claims that they are reserved for. `minimum` is the node's
    /// minimum fence.
    pub(in crate::node) fn admit(
        &mut self,
        ledger: &mut Ledger,
        pods: &Pods,
        minimum: Option<Fence>,
        unproven: &mut Unproven,
        effects: &mut Vec<Effect>,
    ) {
        let mut claims: BTreeMap<String, Vec<Share>> = BTreeMap::new();
        for share in ledger.all() {
            if let Some(claimed) = &share.claimed {
                claims
                    .entry(claimed.uid.clone())
                    .or_default()
                    .push(share.clone());
            }
        }
        let mut claimants = BTreeMap::new();
        for (uid, rows) in &claims {
            if let Some(mut found) = Claimants::of(rows) {
                let reserved = self.reserved.get(uid);
                for pod in found.takers(pods) {
                    let joined = found.admit(ledger, rows, reserved, pod, minimum);
                    unproven.let_start(joined);
                }
                claimants.insert(uid.clone(), found);
            }
        }
        self.reserved.retain(|uid, _| claims.contains_key(uid));
        self.claimants = claimants;
        self.list(ledger, effects);
    }

    /// Has the lists written that changed.
    fn list(&mut self, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let mut lists: BTreeMap<AllocId, Listed> = BTreeMap::new();
        for share in ledger.all() {
            if let (Some(claimed), Some(alloc)) = (&share.claimed, share.alloc_id) {
                let refused = || {
                    let claimants = self.claimants.get(&claimed.uid);
                    claimants.map(|of| of.refused.clone()).unwrap_or_default()
                };
                let list = lists
                    .entry(alloc)
                    .or_insert_with(|| (BTreeSet::new(), refused()));
                list.0.insert(share.key());
            }
        }
        for (alloc, list) in &lists {
            if self.listed.get(alloc) != Some(list) {
                effects.push(Effect::List(*alloc));
            }
        }
        self.listed = lists;
    }
}

impl Claimants {
    /// Starts with no pod, for the claim with these rows of the ledger.
    fn of(rows: &[Share]) -> Option<Self> {
        let first = rows.first()?;
        Some(Self {
            namespace: first.pod.namespace.clone(),
            name: first.claimed.as_ref()?.name.clone(),
            ..Self::default()
        })
    }

    /// Returns the pods that name the claim.
    fn takers<'a>(&self, pods: &'a Pods) -> Vec<&'a PodView> {
        pods.iter()
            .filter(|pod| pod.identity.namespace == self.namespace && !pod.finished)
            .filter(|pod| pod.takes(&self.name))
            .collect()
    }

    /// Lets a pod have the claim with these rows, if it is reserved for it. Returns the names of the
    /// proofs that its containers will leave.
    fn admit(
        &mut self,
        ledger: &mut Ledger,
        rows: &[Share],
        reserved: Option<&BTreeSet<String>>,
        pod: &PodView,
        minimum: Option<Fence>,
    ) -> Vec<ProofName> {
        let uid = &pod.identity.uid;
        if let Some(known) = rows.iter().find(|share| share.pod.uid == *uid) {
            if known.pod != pod.identity {
                // It is known only from the hook's proof.
                for row in rows.iter().filter(|row| row.pod.uid == *uid) {
                    ledger.update(&row.key(), |share| share.pod = pod.identity.clone());
                }
            }
            return Vec::new();
        }
        if !reserved.is_some_and(|pods| pods.contains(uid)) {
            self.awaited.insert(uid.clone());
            return Vec::new();
        }
        match joins(ledger, rows, pod, &self.name, minimum) {
            Ok(joins) => {
                let join =
                    |(share, container)| ledger.join(&share, pod.identity.clone(), container);
                let joined = joins.into_iter().map(join);
                joined.filter_map(|share| share.proof_name()).collect()
            }
            Err(why) => {
                self.refused.insert(uid.clone(), why);
                Vec::new()
            }
        }
    }
}

/// Returns the containers of a pod that get each of a claim's rows.
fn joins(
    ledger: &Ledger,
    rows: &[Share],
    pod: &PodView,
    claim: &str,
    minimum: Option<Fence>,
) -> Result<Vec<(Share, String)>, String> {
    let parts: BTreeMap<&BTreeSet<String>, &Share> = rows
        .iter()
        .filter_map(|row| Some((&row.claimed.as_ref()?.requests, row)))
        .collect();
    let requests = parts.keys().copied().flatten().cloned().collect();
    let takes = takes(pod, claim, &requests)?;
    let mut joins = Vec::new();
    for (part, containers) in &takes {
        let share = parts.get(part).filter(|_| goes_with(part, takes.keys()));
        let Some(share) = share else {
            return Err(apart(pod, claim, &takes));
        };
        may_have(pod, &share.wishes, share.mode)?;
        for container in containers {
            has_nothing_else(ledger, pod, container, share.alloc_id)?;
            joins.push(((*share).clone(), container.clone()));
        }
        if let Some(why) = alone_only(share, minimum) {
            return Err(why);
        }
    }
    Ok(joins)
}
