//! Existing groups by the watch, so that no request is needed: their UIDs, and which of the groups
//! of `JobSet`s follow the former rule, without sub-groups.

use super::groups::Key;
use crate::lock::locked;
use api::PodGroup;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource as _, ResourceExt as _};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

#[derive(Debug, Default)]
struct GroupUids {
    uids: BTreeMap<Key, Box<str>>,
    /// UIDs of the owners of groups by the rule before.
    flat: BTreeMap<Key, String>,
    are_listed: bool,
}

/// All clones share the same state.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownGroups(Arc<Mutex<GroupUids>>);

impl KnownGroups {
    /// The object, for an event about it.
    pub(crate) fn reference(&self, namespace: &str, name: &str) -> Option<ObjectReference> {
        let key = (namespace.to_owned(), name.to_owned());
        let uid = locked(&self.0).uids.get(&key)?.to_string();
        Some(ObjectReference {
            api_version: Some(PodGroup::api_version(&()).into_owned()),
            kind: Some(PodGroup::kind(&()).into_owned()),
            namespace: Some(key.0),
            name: Some(key.1),
            uid: Some(uid),
            ..ObjectReference::default()
        })
    }

    /// Whether this `JobSet` has a group by the rule before; `None` before groups were listed.
    pub(super) fn is_flat(&self, owner: &str) -> Option<bool> {
        let known = locked(&self.0);
        let mut owners = known.flat.values();
        known.are_listed.then(|| owners.any(|uid| uid == owner))
    }

    pub(crate) fn there(&self, key: &Key, group: &PodGroup) {
        let mut owners = group.owner_references().iter();
        let owner = owners
            .find(|owner| owner.kind == "JobSet" && owner.api_version.starts_with("jobset."))
            .filter(|_| group.spec.sub_groups.is_empty());
        let mut known = locked(&self.0);
        let uid = group.uid().unwrap_or_default().into_boxed_str();
        known.uids.insert(key.clone(), uid);
        match owner {
            Some(owner) => {
                known.flat.insert(key.clone(), owner.uid.clone());
            }
            None => {
                known.flat.remove(key);
            }
        }
    }

    pub(super) fn gone(&self, key: &Key) {
        let mut known = locked(&self.0);
        known.uids.remove(key);
        known.flat.remove(key);
    }

    /// Notes that a listing of groups has ended.
    pub(super) fn listed(&self) {
        locked(&self.0).are_listed = true;
    }
}
