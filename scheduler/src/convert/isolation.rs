//! What agents read back from the fences → the pod condition `IsolationVerified`.

use super::World;
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
    /// Every container's limit is read back from its fence as it was granted.
    pub verified: bool,
    /// One line per container.
    pub message: String,
}

impl World {
    /// Conditions that changed.
    pub(super) fn isolation(&mut self, state: &NodeState) -> Vec<Isolation> {
        let mut by_pod: BTreeMap<&str, Vec<&HeldShare>> = BTreeMap::new();
        for share in &state.shares {
            if share.phase == "Running" && share.mode != Mode::Exclusive.as_str() {
                by_pod.entry(&share.pod_uid).or_default().push(share);
            }
        }
        let mut changed = Vec::new();
        for shares in by_pod.into_values() {
            let now = isolation_of(&shares);
            if self.isolation.get(&now.pod_uid) != Some(&now) {
                self.isolation.insert(now.pod_uid.clone(), now.clone());
                changed.push(now);
            }
        }
        changed
    }
}

/// Never claims more than was read back.
fn isolation_of(shares: &[&HeldShare]) -> Isolation {
    let first = shares.first();
    let text =
        |of: fn(&HeldShare) -> &String| first.map(|share| of(share).clone()).unwrap_or_default();
    let holds =
        |share: &HeldShare| share.observed_limit_mib == share.memory_mib && !share.fence.is_empty();
    let lines: Vec<String> = shares
        .iter()
        .map(|share| {
            let fence = if share.fence.is_empty() {
                "no fence"
            } else {
                &share.fence
            };
            if share.mode == Mode::TimeSlicing.as_str() {
                format!(
                    "container {}: {fence}, {} MiB granted, nothing to read back in mode {}",
                    share.container, share.memory_mib, share.mode
                )
            } else if share.observed_limit_mib == 0 {
                format!(
                    "container {}: {fence}, {} MiB granted, no limit read back yet",
                    share.container, share.memory_mib
                )
            } else {
                format!(
                    "container {}: {fence}, {} MiB granted, {} MiB read back",
                    share.container, share.memory_mib, share.observed_limit_mib
                )
            }
        })
        .collect();
    Isolation {
        pod_uid: text(|share| &share.pod_uid),
        namespace: text(|share| &share.pod_namespace),
        name: text(|share| &share.pod_name),
        verified: shares.iter().all(|share| holds(share)),
        message: lines.join("\n"),
    }
}
