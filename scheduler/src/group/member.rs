//! Which group a pod is a member of, from the decision until the pod's own annotations say so.
//!
//! The membership is added to what the watch shows of the pod, and to its Binding. A pod that stays
//! pending is annotated with it. It is forgotten once the watch shows it.

use super::draft::Draft;
use super::object::Object;
use crate::lock::locked;
use k8s_openapi::api::core::v1::{Pod, PodSchedulingGate};
use kube::ResourceExt as _;
use proto::names::kai;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

/// A pod's group, and the labels that follow from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    /// Name of the group, which is in the pod's namespace.
    pub(crate) group: String,
    /// The pod's sub-group, and the group's node pool if the pod names none.
    pub(crate) labels: BTreeMap<String, String>,
    /// The group was rejected: its members must not be placed.
    held: bool,
}

/// The scheduling gate that keeps a pod of a rejected group from being placed. It is added only
/// to what the cycle sees.
const GATE: &str = "aliquot.dev/pod-group";

impl Membership {
    pub(super) fn of(draft: &Draft, pod: &Object, held: bool) -> Self {
        let mut labels = BTreeMap::new();
        if let Some(part) = &draft.part {
            labels.insert(kai::SUB_GROUP_LABEL.to_owned(), part.clone());
        }
        if let Some(pool) = draft.labels.get(kai::NODE_POOL_LABEL)
            && pod.label(kai::NODE_POOL_LABEL).is_none()
        {
            labels.insert(kai::NODE_POOL_LABEL.to_owned(), pool.clone());
        }
        Self {
            group: draft.name.clone(),
            labels,
            held,
        }
    }

    /// Adds the membership to the pod as if it were in its annotations. A pod that names a group
    /// itself stays in that group.
    pub(super) fn lay_over(&self, pod: &mut Pod) {
        let group = pod.annotations().get(kai::POD_GROUP);
        if group.is_some_and(|group| !group.is_empty()) {
            return;
        }
        let group = self.group.clone();
        pod.annotations_mut().insert(kai::POD_GROUP.into(), group);
        pod.labels_mut().extend(self.labels.clone());
        if let Some(spec) = pod.spec.as_mut().filter(|_| self.held) {
            let name = GATE.to_owned();
            let gates = spec.scheduling_gates.get_or_insert_default();
            gates.push(PodSchedulingGate { name });
        }
    }

    /// The patch that annotates the pod. It contains the UID, so that it changes no other pod of
    /// the same name.
    pub(crate) fn patch(&self, uid: &str) -> Value {
        let mut meta = json!({
            "uid": uid,
            "annotations": {kai::POD_GROUP: self.group},
        });
        if !self.labels.is_empty() {
            meta["labels"] = json!(self.labels);
        }
        json!({"metadata": meta})
    }
}

/// Memberships that the watch does not show yet, by the pod's UID. The relay adds them to pods, and
/// the binder to Bindings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memberships(Arc<Mutex<HashMap<String, Arc<Membership>>>>);

impl Memberships {
    /// The membership of that pod, unless the watch shows it already.
    pub(crate) fn of(&self, uid: &str) -> Option<Arc<Membership>> {
        locked(&self.0).get(uid).cloned()
    }

    pub(super) fn put(&self, uid: &str, membership: Arc<Membership>) {
        locked(&self.0).insert(uid.to_owned(), membership);
    }

    pub(super) fn forget(&self, uid: &str) -> Option<Arc<Membership>> {
        locked(&self.0).remove(uid)
    }
}
