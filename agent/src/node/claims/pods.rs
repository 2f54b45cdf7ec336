//! Which pods may have the share of a claim that is prepared already: the kubelet prepares a
//! claim once, and asks nothing for the pods that come to it later. Pure.
//!
//! The authority is the claim's `reservedFor`, as the API server has it: a pod of this node that
//! names a prepared claim waits until it was read there.

use super::apart;
use super::parts::{goes_with, takes};
use crate::ledger::{AllocId, HolderKey, Share};
use crate::node::core::Core;
use crate::node::event::Effect;
use crate::pods::PodView;
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
pub(in crate::node) type Listed = (BTreeSet<HolderKey>, BTreeMap<String, String>);

impl Core {
    /// Lets pods that came later have the claims that they are reserved for.
    pub(in crate::node) fn admit_pods(&mut self, effects: &mut Vec<Effect>) {
        let mut claims: BTreeMap<String, Vec<Share>> = BTreeMap::new();
        for share in self.ledger.all() {
            if let Some(claimed) = &share.claimed {
                claims
                    .entry(claimed.uid.clone())
                    .or_default()
                    .push(share.clone());
            }
        }
        let mut claimants = BTreeMap::new();
        for (uid, rows) in &claims {
            claimants.extend(
                self.claimants_of(uid, rows)
                    .map(|found| (uid.clone(), found)),
            );
        }
        self.reserved.retain(|uid, _| claims.contains_key(uid));
        self.claimants = claimants;
        self.list(effects);
    }

    fn claimants_of(&mut self, uid: &str, rows: &[Share]) -> Option<Claimants> {
        let first = rows.first()?;
        let mut found = Claimants {
            namespace: first.pod.namespace.clone(),
            name: first.claimed.as_ref()?.name.clone(),
            ..Claimants::default()
        };
        let takers: Vec<PodView> = self
            .pods
            .iter()
            .filter(|pod| pod.identity.namespace == found.namespace && !pod.finished)
            .filter(|pod| pod.takes(&found.name))
            .cloned()
            .collect();
        for pod in takers {
            let of_pod = |share: &&Share| share.pod.uid == pod.identity.uid;
            if let Some(known) = rows.iter().find(of_pod) {
                if known.pod != pod.identity {
                    // It is known only from the hook's proof.
                    self.rename(rows, &pod);
                }
                continue;
            }
            let reserved = self.reserved.get(uid);
            if !reserved.is_some_and(|pods| pods.contains(&pod.identity.uid)) {
                found.awaited.insert(pod.identity.uid);
                continue;
            }
            match self.joins(rows, &pod, &found.name) {
                Ok(joins) => {
                    for (share, container) in joins {
                        let joined = self.ledger.join(&share, pod.identity.clone(), container);
                        self.let_start.extend(joined.proof_name());
                    }
                }
                Err(why) => drop(found.refused.insert(pod.identity.uid, why)),
            }
        }
        Some(found)
    }

    fn rename(&mut self, rows: &[Share], pod: &PodView) {
        let of_pod = rows.iter().filter(|row| row.pod.uid == pod.identity.uid);
        for row in of_pod {
            self.ledger
                .update(&row.key(), |share| share.pod = pod.identity.clone());
        }
    }

    /// What a pod's containers get of a claim with these rows.
    fn joins(
        &self,
        rows: &[Share],
        pod: &PodView,
        claim: &str,
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
            Self::may_have(pod, &share.wishes, share.mode)?;
            for container in containers {
                self.has_nothing_else(pod, container, share.alloc_id)?;
                joins.push(((*share).clone(), container.clone()));
            }
            if let Some(why) = self.alone_only(share) {
                return Err(why);
            }
        }
        Ok(joins)
    }

    /// Has the lists written that changed.
    fn list(&mut self, effects: &mut Vec<Effect>) {
        let mut lists: BTreeMap<AllocId, Listed> = BTreeMap::new();
        for share in self.ledger.all() {
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
