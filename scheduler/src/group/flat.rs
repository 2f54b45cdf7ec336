//! Groups of `JobSet`s that were made by the rule before: they have no sub-groups. Taken from the
//! watch, so that no pod costs a request.

use super::groups::Key;
use crate::lock::locked;
use api::PodGroup;
use kube::ResourceExt as _;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

#[derive(Debug, Default)]
struct Known {
    /// UIDs of the owners, by group.
    owners: BTreeMap<Key, String>,
    are_listed: bool,
}

/// All clones share the same state.
#[derive(Clone, Debug, Default)]
pub(super) struct FlatGroups(Arc<Mutex<Known>>);

impl FlatGroups {
    /// Whether one of them is this owner's; `None` before the groups were listed.
    pub(super) fn has(&self, owner: &str) -> Option<bool> {
        let known = locked(&self.0);
        let mut owners = known.owners.values();
        known.are_listed.then(|| owners.any(|uid| uid == owner))
    }

    pub(super) fn there(&self, key: &Key, group: &PodGroup) {
        let mut owners = group.owner_references().iter();
        let owner = owners
            .find(|owner| owner.kind == "JobSet" && owner.api_version.starts_with("jobset."))
            .filter(|_| group.spec.sub_groups.is_empty());
        let mut known = locked(&self.0);
        match owner {
            Some(owner) => {
                known.owners.insert(key.clone(), owner.uid.clone());
            }
            None => {
                known.owners.remove(key);
            }
        }
    }

    pub(super) fn gone(&self, key: &Key) {
        locked(&self.0).owners.remove(key);
    }

    /// Those that a listing did not contain are gone.
    pub(super) fn listed(&self, is_there: impl Fn(&Key) -> bool) {
        let mut known = locked(&self.0);
        known.owners.retain(|key, _| is_there(key));
        known.are_listed = true;
    }
}
