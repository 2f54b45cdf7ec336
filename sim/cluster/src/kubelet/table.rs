//! The pods that a kubelet knows, and which of them are active. A pod is active until it has ended
//! or was rejected; its devices are free after that.

use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt as _;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Written by the sync loop and the pod workers, read by admission and `PodResources`.
#[derive(Debug, Default)]
pub(super) struct PodTable {
    pods: Mutex<BTreeMap<String, Entry>>,
}

#[derive(Debug)]
struct Entry {
    pod: Arc<Pod>,
    over: bool,
}

impl PodTable {
    fn pods(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod is known as it now is; true when it was not known before.
    pub(super) fn put(&self, pod: &Arc<Pod>) -> bool {
        let uid = pod.uid().unwrap_or_default();
        let mut pods = self.pods();
        let over = pods.get(&uid).is_some_and(|entry| entry.over) || is_over(pod);
        let entry = Entry {
            pod: pod.clone(),
            over,
        };
        pods.insert(uid, entry).is_none()
    }

    /// Its containers will not run again.
    pub(super) fn over(&self, uid: &str) {
        if let Some(entry) = self.pods().get_mut(uid) {
            entry.over = true;
        }
    }

    /// It was deleted.
    pub(super) fn remove(&self, uid: &str) {
        self.pods().remove(uid);
    }

    /// Everything that is known.
    pub(super) fn uids(&self) -> BTreeSet<String> {
        self.pods().keys().cloned().collect()
    }

    /// In UID order.
    pub(super) fn active(&self) -> Vec<Arc<Pod>> {
        self.pods()
            .values()
            .filter(|entry| !entry.over)
            .map(|entry| entry.pod.clone())
            .collect()
    }

    /// UIDs of the same.
    pub(super) fn active_uids(&self) -> BTreeSet<String> {
        self.pods()
            .iter()
            .filter(|(_, entry)| !entry.over)
            .map(|(uid, _)| uid.clone())
            .collect()
    }
}

/// Whether a pod's own status says that it ended.
pub(super) fn is_over(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// A restartable init container.
pub(super) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}
