//! What agents read back from the fences → the pod condition `IsolationVerified`.

use super::World;
use api::isolation::{self, Held};
use proto::telemetry::{NodeState, Share as HeldShare};
use scheduler_core::model::Mode;
use std::collections::BTreeMap;

/// What an agent says about the fence around a pod's share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolation {
    /// `metadata.uid`.
    pub pod_uid: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `LimitReadBack` where every container's limit is held by a fence that its tenant cannot
    /// lift and was read back from it as it was granted; else the weakest one's reason.
    pub because: &'static str,
    /// One line per container.
    pub message: String,
    /// What was done about a container of it, or is held against one: the first of it, until
    /// all is well again.
    pub complaint: Option<String>,
}

impl Isolation {
    /// Whether every limit was read back.
    pub fn is_verified(&self) -> bool {
        self.because == isolation::READ_BACK
    }
}

impl World {
    /// Conditions of pods that were seen only after their agents had spoken of them.
    pub fn unread_isolation(&mut self) -> Vec<Isolation> {
        let mut changed = Vec::new();
        for node in std::mem::take(&mut self.unread) {
            if let Some(state) = self.states.remove(&*node) {
                changed.extend(self.isolation(&state));
                self.states.insert(node.to_string(), state);
            }
        }
        changed
    }

    /// Conditions that changed, of pods that stand on the agent's own node. Of a share whose
    /// fence is not known yet nothing is said that was not said before.
    pub(super) fn isolation(&mut self, state: &NodeState) -> Vec<Isolation> {
        let mut by_pod: BTreeMap<&str, Vec<&HeldShare>> = BTreeMap::new();
        for share in &state.shares {
            let own = self.is_on(&share.pod_uid, &state.node);
            if own && share.phase == "Running" && share.mode != Mode::Exclusive.as_str() {
                by_pod.entry(&share.pod_uid).or_default().push(share);
            }
        }
        let mut changed = Vec::new();
        for shares in by_pod.into_values() {
            let mut now = isolation_of(&shares);
            // Its figures change from look to look.
            let before = self.isolation.get(&now.pod_uid);
            if let Some(first) = before.and_then(|before| before.complaint.clone())
                && now.complaint.is_some()
            {
                now.complaint = Some(first);
            }
            let known = shares.iter().all(|share| !share.fence.is_empty());
            if !known && !self.isolation.contains_key(&now.pod_uid) {
                continue;
            }
            if self.isolation.get(&now.pod_uid) != Some(&now) {
                self.isolation.insert(now.pod_uid.clone(), now.clone());
                changed.push(now);
            }
        }
        changed
    }
}

fn isolation_of(shares: &[&HeldShare]) -> Isolation {
    let first = shares.first();
    let text =
        |of: fn(&HeldShare) -> &String| first.map(|share| of(share).clone()).unwrap_or_default();
    let lines: Vec<String> = shares.iter().map(|share| held(share).line()).collect();
    Isolation {
        pod_uid: text(|share| &share.pod_uid),
        namespace: text(|share| &share.pod_namespace),
        name: text(|share| &share.pod_name),
        because: isolation::reason(shares.iter().map(|share| held(share))),
        message: lines.join("\n"),
        complaint: shares
            .iter()
            .find(|share| !share.complaint.is_empty())
            .map(|share| format!("container {} {}", share.container, share.complaint)),
    }
}

fn held(share: &HeldShare) -> Held<'_> {
    Held {
        container: &share.container,
        fence: &share.fence,
        granted: share.memory_mib,
        read_back: share.observed_limit_mib,
        reach: share.reach_mib,
        holders: usize::try_from(share.holders).unwrap_or(usize::MAX),
    }
}
