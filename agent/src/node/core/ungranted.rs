//! Pods that hold devices of ours and have no grant for them.

use super::Core;
use crate::ledger::HolderKey;
use crate::node::Effect;
use crate::node::state::{Note, Ungranted};
use crate::pods::Standing;
use crate::resource::Resource;
use std::collections::BTreeMap;
use std::time::Instant;

impl Core {
    /// Pods that hold devices without a grant, and those that are reported to schedulers. A pod is
    /// bound and granted in one write, so a pod without a grant for this long will not get one.
    pub(super) fn find_ungranted(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let mut found = BTreeMap::new();
        // Until pods and keys are read, every pod seems to have no grant.
        if self.pods.synced() && self.verifier.is_some() && !self.node.uid.is_empty() {
            let entries = self.local.checkpoint.iter().flat_map(|c| &c.entries);
            // Another plugin's answer names no allocation of ours.
            for entry in entries.filter(|entry| entry.alloc.is_some()) {
                let key = HolderKey {
                    pod_uid: entry.pod_uid.clone(),
                    container: entry.container.clone(),
                };
                let Standing::Present(pod) = self.pods.standing(&entry.pod_uid) else {
                    continue;
                };
                let granted = self.claims.contains_key(&key) || self.ledger.get(&key).is_some();
                // A slice needs none.
                let slice = matches!(Resource::parse(&entry.resource), Some(Resource::Slice(_)));
                let may = slice || self.terms.allow_ungranted_whole && pod.grant.is_none();
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
        }
        self.ungranted_since
            .retain(|key, _| found.contains_key(key));
        let grace = self.terms.ungranted_grace;
        found.retain(|key, _| {
            let since = *self.ungranted_since.entry(key.clone()).or_insert(now);
            now.saturating_duration_since(since) >= grace
        });
        for (key, ungranted) in &found {
            if !self.ungranted.contains_key(key) {
                effects.push(Effect::Tell(Note::Ungranted(ungranted.clone())));
            }
        }
        self.ungranted = found;
    }
}
