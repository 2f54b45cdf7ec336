//! The grants of this node's pods are checked with the cluster's keys. Pure.
//!
//! In: pods, the node's identity, the cluster's trust. Out: what each container was granted, in the
//! order in which the grants were seen.

use crate::identity::{self, IdentityError};
use crate::ledger::{Claim, HolderKey};
use crate::pods::{PodView, Pods, Standing};
use crate::resource::Resource;
use api::grant::{NodeIdentity, Verifier};
use std::collections::{BTreeMap, BTreeSet};

/// The grants that passed every check, and the keys that they are checked with.
#[derive(Debug)]
pub(super) struct Grants {
    /// The node; its UID is empty until the API server returned it.
    pub(super) node: NodeIdentity,
    verifier: Option<Verifier>,
    /// PEM of the CA that the cluster's trust names; empty until it was read.
    pub(super) ca: String,
    /// The grant of each container, with its place in the order in which grants were seen.
    claims: BTreeMap<HolderKey, (u64, Claim)>,
    next: u64,
}

impl Grants {
    /// Starts without a grant, on the node of this name.
    pub(super) fn new(node: String) -> Self {
        Self {
            node: NodeIdentity {
                name: node,
                uid: String::new(),
            },
            verifier: None,
            ca: String::new(),
            claims: BTreeMap::new(),
            next: 0,
        }
    }

    /// Returns true if grants can be checked: the node's UID and the cluster's keys are known.
    pub(super) fn can_check(&self) -> bool {
        self.verifier.is_some() && !self.node.uid.is_empty()
    }

    /// Takes the UID of the Node object.
    pub(super) fn take_node(&mut self, uid: String, pods: &Pods) {
        if self.node.uid != uid {
            self.node.uid = uid;
            self.read(pods);
        }
    }

    /// Takes the cluster's keys and CA.
    pub(super) fn take_trust(&mut self, verifier: Verifier, ca: String, pods: &Pods) {
        self.ca = ca;
        if self.verifier.as_ref() != Some(&verifier) {
            self.verifier = Some(verifier);
            self.read(pods);
        }
    }

    /// Reads the grants of all pods.
    pub(super) fn read(&mut self, pods: &Pods) {
        let known: Vec<String> = self.claims.keys().map(|key| key.pod_uid.clone()).collect();
        let present: Vec<String> = pods.iter().map(|p| p.identity.uid.clone()).collect();
        for uid in known.into_iter().chain(present) {
            self.read_of(pods, &uid);
        }
    }

    /// Reads the grant of one pod.
    pub(super) fn read_of(&mut self, pods: &Pods, uid: &str) {
        let claims = match pods.standing(uid) {
            Standing::Present(pod) if !pod.finished => {
                // A grant's error is reported when its pod asks for its cards.
                identity::claims(pod, self.verifier.as_ref(), &self.node).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        let keys: BTreeSet<HolderKey> = claims.iter().map(Claim::key).collect();
        self.claims
            .retain(|key, _| key.pod_uid != uid || keys.contains(key));
        for claim in claims {
            let key = claim.key();
            let known = self.claims.get(&key);
            let order = known.map_or(self.next, |(order, _)| *order);
            self.next = self.next.max(order + 1);
            self.claims.insert(key, (order, claim));
        }
    }

    /// Returns the right of a container that holds `ids`: its part of its pod's grant, checked.
    ///
    /// # Errors
    /// Returns an error for every check that fails.
    pub(super) fn claim(
        &self,
        pod: &PodView,
        container: &str,
        resource: Resource,
        ids: &BTreeSet<String>,
    ) -> Result<Claim, IdentityError> {
        let verifier = self.verifier.as_ref();
        identity::claim(pod, container, resource, ids, verifier, &self.node)
    }

    /// Returns true if a container has a grant that passed every check.
    pub(super) fn has(&self, key: &HolderKey) -> bool {
        self.claims.contains_key(key)
    }

    /// Returns all grants, the oldest first.
    pub(super) fn oldest_first(&self) -> Vec<&Claim> {
        let mut claims: Vec<&(u64, Claim)> = self.claims.values().collect();
        claims.sort_by_key(|(order, _)| *order);
        claims.into_iter().map(|(_, claim)| claim).collect()
    }
}
