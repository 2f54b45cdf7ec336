//! Some pods hold devices of ours and have no grant for them; they are reported. Pure.

use super::event::Effect;
use super::grants::Grants;
use super::note::{Note, Ungranted};
use crate::identity::Checkpoint;
use crate::ledger::{HolderKey, Ledger};
use crate::pods::{Pods, Standing};
use crate::resource::Resource;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The containers that hold devices without a grant.
#[derive(Debug, Default)]
pub(super) struct UngrantedContainers {
    since: BTreeMap<HolderKey, Instant>,
    /// The containers that had none for too long.
    reported: BTreeMap<HolderKey, Ungranted>,
}

/// Returns the containers that hold devices by the kubelet's checkpoint and have no grant for them.
/// `allows_whole` is true if pods of other schedulers get whole cards.
pub(super) fn without_grant(
    checkpoint: Option<&Checkpoint>,
    pods: &Pods,
    grants: &Grants,
    ledger: &Ledger,
    allows_whole: bool,
) -> BTreeMap<HolderKey, Ungranted> {
    let mut found = BTreeMap::new();
    // Until pods and keys are read, every pod seems to have no grant.
    if !pods.synced() || !grants.can_check() {
        return found;
    }
    let entries = checkpoint.into_iter().flat_map(|c| &c.entries);
    // Another plugin's answer names no allocation of ours.
    for entry in entries.filter(|entry| entry.alloc.is_some()) {
        let key = HolderKey {
            pod_uid: entry.pod_uid.clone(),
            container: entry.container.clone(),
        };
        let Standing::Present(pod) = pods.standing(&entry.pod_uid) else {
            continue;
        };
        let granted = grants.has(&key) || ledger.get(&key).is_some();
        // A slice needs none.
        let slice = matches!(Resource::parse(&entry.resource), Some(Resource::Slice(_)));
        let may = slice || allows_whole && pod.grant.is_none();
        if pod.finished || pod.deleting || granted || may {
            continue;
        }
        let ungranted = Ungranted {
            pod: pod.identity.clone(),
            container: entry.container.clone(),
            resource: entry.resource.clone(),
            devices: entry.ids.len(),
        };
        found.insert(key, ungranted);
    }
    found
}

impl UngrantedContainers {
    /// Reports the containers that have been without a grant for `grace`. A pod is bound and granted in one
    /// write, so a pod without a grant for this long will not get one.
    pub(super) fn report(
        &mut self,
        mut found: BTreeMap<HolderKey, Ungranted>,
        grace: Duration,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        self.since.retain(|key, _| found.contains_key(key));
        found.retain(|key, _| {
            let since = *self.since.entry(key.clone()).or_insert(now);
            now.saturating_duration_since(since) >= grace
        });
        for (key, ungranted) in &found {
            if !self.reported.contains_key(key) {
                effects.push(Effect::Tell(Note::Ungranted(ungranted.clone())));
            }
        }
        self.reported = found;
    }

    /// Returns the containers that were reported and still hold their devices.
    pub(super) fn reported(&self) -> Vec<Ungranted> {
        self.reported.values().cloned().collect()
    }
}
