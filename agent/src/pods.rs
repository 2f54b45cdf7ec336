//! This node's pods, as far as their cards are concerned.
//!
//! Pure: a pod as Kubernetes has it → [`PodView`]; [`Pods`] is all of them. [`crate::cluster`]
//! does the watching.

use api::grant::PodIdentity;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use proto::names;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// So many UIDs of pods that left are remembered, to tell "gone" from "not seen yet".
const REMEMBERED: usize = 1024;

/// One pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// UID, namespace, name.
    pub identity: PodIdentity,
    /// The grant's text, unchecked.
    pub grant: Option<String>,
    /// Succeeded or Failed: no container will run again.
    pub finished: bool,
    /// It has a deletion timestamp.
    pub deleting: bool,
    /// `spec.runtimeClassName`.
    pub runtime_class: Option<String>,
    /// Those that ask for one of our resources, in the pod's order, init containers first.
    pub containers: Vec<ContainerView>,
}

/// One container that asks for one of our resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerView {
    /// Its name.
    pub name: String,
    /// What it is started as.
    pub kind: ContainerKind,
    /// Tokens that it asks for.
    pub tokens: u64,
    /// Whole cards that it asks for.
    pub whole: u64,
    /// Its container, without the runtime's prefix, while it runs.
    pub running: Option<String>,
}

/// What a container is started as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerKind {
    /// Runs to its end before the others start; its device IDs are given again.
    Init,
    /// An init container that stays.
    Sidecar,
    /// The rest.
    App,
}

impl PodView {
    /// Reads a pod; `None` without a UID, which no API server sends.
    pub fn of(pod: &Pod) -> Option<Self> {
        let metadata = &pod.metadata;
        let identity = PodIdentity {
            uid: metadata.uid.clone()?,
            namespace: metadata.namespace.clone()?,
            name: metadata.name.clone()?,
        };
        let status = pod.status.as_ref();
        let phase = status.and_then(|s| s.phase.as_deref()).unwrap_or_default();
        let spec = pod.spec.as_ref();
        let init = spec
            .and_then(|s| s.init_containers.as_deref())
            .unwrap_or_default();
        let app = spec.map(|s| s.containers.as_slice()).unwrap_or_default();
        let statuses: Vec<&ContainerStatus> = status
            .into_iter()
            .flat_map(|s| {
                s.init_container_statuses
                    .iter()
                    .chain(&s.container_statuses)
                    .flatten()
            })
            .collect();
        let containers = init
            .iter()
            .map(|container| (container, init_kind(container)))
            .chain(app.iter().map(|container| (container, ContainerKind::App)))
            .filter_map(|(container, kind)| ContainerView::of(container, kind, &statuses))
            .collect();
        Some(Self {
            identity,
            grant: metadata
                .annotations
                .as_ref()
                .and_then(|all| all.get(names::grant::GRANT))
                .cloned(),
            finished: matches!(phase, "Succeeded" | "Failed"),
            deleting: metadata.deletion_timestamp.is_some(),
            runtime_class: spec.and_then(|s| s.runtime_class_name.clone()),
            containers,
        })
    }

    /// The container of that name, if it asks for one of our resources.
    pub fn container(&self, name: &str) -> Option<&ContainerView> {
        self.containers.iter().find(|c| c.name == name)
    }
}

fn init_kind(container: &Container) -> ContainerKind {
    if container.restart_policy.as_deref() == Some("Always") {
        ContainerKind::Sidecar
    } else {
        ContainerKind::Init
    }
}

impl ContainerView {
    /// The container that runs, as the runtime names it.
    pub fn runs(&self) -> Option<&str> {
        self.running.as_deref()
    }

    fn of(
        container: &Container,
        kind: ContainerKind,
        statuses: &[&ContainerStatus],
    ) -> Option<Self> {
        let asks = |resource: &str| {
            let limits = container.resources.as_ref()?.limits.as_ref()?;
            limits.get(resource)?.0.parse::<u64>().ok()
        };
        let tokens = asks(names::resource::SHARE).unwrap_or(0);
        let whole = asks(names::resource::GPU).unwrap_or(0);
        if tokens == 0 && whole == 0 {
            return None;
        }
        let running = statuses
            .iter()
            .find(|status| status.name == container.name)
            .filter(|status| status.state.as_ref().is_some_and(|s| s.running.is_some()))
            .and_then(|status| status.container_id.as_deref())
            .map(|id| id.split_once("://").map_or(id, |(_, id)| id).to_owned());
        Some(Self {
            name: container.name.clone(),
            kind,
            tokens,
            whole,
            running,
        })
    }
}

/// All pods of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    synced: bool,
    by_uid: BTreeMap<String, PodView>,
    gone: BTreeSet<String>,
    gone_order: VecDeque<String>,
}

/// Where a pod stands in the watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing<'a> {
    /// Here.
    Present(&'a PodView),
    /// It left, or the whole list was read and it was not in it.
    Gone,
    /// Not seen: the watch is late, or the list was never read.
    Unknown,
}

impl Pods {
    /// Whether the whole list was read at least once.
    pub fn synced(&self) -> bool {
        self.synced
    }

    /// All of them, by UID.
    pub fn iter(&self) -> impl Iterator<Item = &PodView> {
        self.by_uid.values()
    }

    /// Where a pod stands.
    pub fn standing(&self, uid: &str) -> Standing<'_> {
        match self.by_uid.get(uid) {
            Some(pod) => Standing::Present(pod),
            None if self.gone.contains(uid) => Standing::Gone,
            None => Standing::Unknown,
        }
    }

    /// The whole list, read anew. Who is not in it any more is gone.
    pub fn replace(&mut self, pods: impl IntoIterator<Item = PodView>) {
        let new: BTreeMap<String, PodView> = pods
            .into_iter()
            .map(|pod| (pod.identity.uid.clone(), pod))
            .collect();
        let old = std::mem::replace(&mut self.by_uid, new);
        for uid in old.into_keys() {
            if !self.by_uid.contains_key(&uid) {
                self.remember(uid);
            }
        }
        self.synced = true;
    }

    /// A pod came or changed.
    pub fn upsert(&mut self, pod: PodView) {
        self.by_uid.insert(pod.identity.uid.clone(), pod);
    }

    /// A pod left.
    pub fn remove(&mut self, uid: &str) {
        self.by_uid.remove(uid);
        self.remember(uid.to_owned());
    }

    fn remember(&mut self, uid: String) {
        if self.gone.insert(uid.clone()) {
            self.gone_order.push_back(uid);
        }
        while self.gone_order.len() > REMEMBERED {
            let oldest = self.gone_order.pop_front();
            self.gone.remove(&oldest.unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(json: serde_json::Value) -> PodView {
        PodView::of(&serde_json::from_value(json).unwrap()).unwrap()
    }

    #[test]
    fn a_pod_is_read_as_far_as_its_cards_go() {
        let view = pod(serde_json::json!({
            "metadata": {"uid": "u", "namespace": "ns", "name": "p",
                "annotations": {"aliquot.dev/grant": "sig.{}"},
                "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {
                "initContainers": [
                    {"name": "i", "resources": {"limits": {"aliquot.dev/gpu-share": "1"}}},
                    {"name": "s", "restartPolicy": "Always",
                     "resources": {"limits": {"nvidia.com/gpu": "2"}}}],
                "containers": [
                    {"name": "plain"},
                    {"name": "m", "resources": {"limits": {"aliquot.dev/gpu-share": "1"}}}]},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "m", "containerID": "containerd://abc", "image": "", "imageID": "",
                 "ready": true, "restartCount": 0,
                 "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]}
        }));
        assert!(view.deleting && !view.finished);
        assert_eq!(view.grant.as_deref(), Some("sig.{}"));
        let kinds: Vec<_> = view
            .containers
            .iter()
            .map(|c| (c.name.as_str(), c.kind))
            .collect();
        assert_eq!(
            kinds,
            [
                ("i", ContainerKind::Init),
                ("s", ContainerKind::Sidecar),
                ("m", ContainerKind::App)
            ]
        );
        assert_eq!(view.container("s").unwrap().whole, 2);
        assert_eq!(view.container("m").unwrap().running.as_deref(), Some("abc"));
        assert!(view.container("plain").is_none());
    }

    #[test]
    fn gone_is_told_from_not_seen_yet() {
        let one = |uid: &str| PodView {
            identity: PodIdentity {
                uid: uid.into(),
                namespace: "n".into(),
                name: "p".into(),
            },
            grant: None,
            finished: false,
            deleting: false,
            runtime_class: None,
            containers: Vec::new(),
        };
        let mut pods = Pods::default();
        assert_eq!(pods.standing("a"), Standing::Unknown);
        pods.replace([one("a"), one("b")]);
        pods.remove("a");
        pods.replace([]);
        assert_eq!(pods.standing("a"), Standing::Gone);
        assert_eq!(pods.standing("b"), Standing::Gone);
        assert_eq!(pods.standing("c"), Standing::Unknown);
    }
}
