//! Existing groups by the watch, so that no request is needed: their UIDs, and which of them follow
//! the rule that KAI used before: groups of `JobSet`s without sub-groups (KAI before 0.16), and
//! groups of single pods of Deployments (KAI before 0.18).

use super::groups::Key;
use crate::lock::locked;
use api::PodGroup;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource as _, ResourceExt as _};
use proto::names::kai;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// An existing group.
#[derive(Debug)]
struct KnownGroup {
    uid: Box<str>,
    /// The UID of the workload, if the group follows the former rule.
    former: Option<Box<str>>,
}

#[derive(Debug, Default)]
struct GroupUids {
    groups: BTreeMap<Key, KnownGroup>,
    /// The same by workload.
    former: BTreeSet<(Box<str>, Key)>,
    are_listed: bool,
}

impl GroupUids {
    fn remove(&mut self, key: &Key) {
        let known = self.groups.remove(key);
        if let Some(owner) = known.and_then(|known| known.former) {
            self.former.remove(&(owner, key.clone()));
        }
    }
}

/// All clones share the same state.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownGroups(Arc<Mutex<GroupUids>>);

impl KnownGroups {
    /// The object, for an event about it.
    pub(crate) fn reference(&self, namespace: &str, name: &str) -> Option<ObjectReference> {
        let key = (namespace.to_owned(), name.to_owned());
        let uid = locked(&self.0).groups.get(&key)?.uid.to_string();
        Some(ObjectReference {
            api_version: Some(PodGroup::api_version(&()).into_owned()),
            kind: Some(PodGroup::kind(&()).into_owned()),
            namespace: Some(key.0),
            name: Some(key.1),
            uid: Some(uid),
            ..ObjectReference::default()
        })
    }

    /// Whether this workload has a group by the former rule; `None` before groups were listed.
    pub(super) fn is_former(&self, owner: &str) -> Option<bool> {
        let known = locked(&self.0);
        let from = (Box::from(owner), Key::default());
        let first = known.former.range(from..).next();
        let is_its = first.is_some_and(|(of, _)| **of == *owner);
        known.are_listed.then_some(is_its)
    }

    pub(crate) fn there(&self, key: &Key, group: &PodGroup) {
        let known = KnownGroup {
            uid: group.uid().unwrap_or_default().into_boxed_str(),
            former: former(group),
        };
        let mut all = locked(&self.0);
        all.remove(key);
        if let Some(owner) = known.former.clone() {
            all.former.insert((owner, key.clone()));
        }
        all.groups.insert(key.clone(), known);
    }

    pub(super) fn gone(&self, key: &Key) {
        locked(&self.0).remove(key);
    }

    /// Notes that a listing of groups has ended.
    pub(super) fn listed(&self) {
        locked(&self.0).are_listed = true;
    }
}

/// The UID of the workload whose pods are grouped by the former rule, if this group is one of them.
fn former(group: &PodGroup) -> Option<Box<str>> {
    for owner in group.owner_references() {
        if owner.kind == "JobSet" && owner.api_version.starts_with("jobset.") {
            let flat = group.spec.sub_groups.is_empty();
            return flat.then(|| Box::from(owner.uid.as_str()));
        }
        if owner.kind == "Pod" {
            let top = group.annotations().get(kai::TOP_OWNER)?;
            return deployment(top);
        }
    }
    None
}

/// The UID in the annotation with the top owner of a pod, if that is a Deployment.
fn deployment(top: &str) -> Option<Box<str>> {
    let field = |name: &str| {
        let value = top.lines().find_map(|line| line.strip_prefix(name))?;
        Some(value.trim().trim_matches(['"', '\'']))
    };
    let is_one = field("kind:") == Some("Deployment") && field("group:") == Some("apps");
    is_one.then(|| field("uid:").map(Box::from)).flatten()
}
