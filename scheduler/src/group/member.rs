//! Which group a pod is a member of: decided here, before the pod says so itself.
//!
//! A pod's membership is laid over what the watch shows of it, rides on its Binding, and is
//! written on a pod that waits. It is forgotten once the watch shows it.

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
    /// The pod's part of the group, and the group's node pool where the pod names none.
    pub(crate) labels: BTreeMap<String, String>,
    /// The group was refused: its members are not placed.
    held: bool,
}

/// Name of the scheduling gate of a pod that is held.
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

    /// As if the pod said it. One that names a group keeps it.
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

    /// The patch that writes it on the pod of that UID, and on no other of its name.
    pub(super) fn patch(&self, uid: &str) -> Value {
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

/// Memberships that the watch does not show yet, by the pod's UID. Shared by who lays them over
/// pods and who binds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memberships(Arc<Mutex<HashMap<String, Arc<Membership>>>>);

impl Memberships {
    /// Of that pod, unless the watch shows it.
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
