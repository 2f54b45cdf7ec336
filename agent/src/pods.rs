//! This node's pods, as far as their cards are concerned.
//!
//! Pure: a pod as Kubernetes has it → [`PodView`]; [`Pods`] is all of them. [`crate::cluster`]
//! does the watching.

mod isolation;

use crate::resource::Resource;
use api::grant::PodIdentity;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proto::names;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Number of UIDs of deleted pods that are remembered, to distinguish "deleted" from "not seen
/// yet".
const REMEMBERED: usize = 1024;
/// The longest grace period that counts, in seconds: a year. Longer ones are cut to it, so that sums
/// with points in time stay within their range.
const LONGEST_GRACE: u64 = 366 * 24 * 3600;

/// One pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// UID, namespace, name. The UID is the one by which the kubelet knows the pod: see
    /// [`kubelet_uid`].
    pub identity: PodIdentity,
    /// `metadata.uid` of the mirror of a static pod, which is not the kubelet's UID.
    pub mirror_uid: Option<String>,
    /// The grant's text, unchecked.
    pub grant: Option<String>,
    /// The kubelet has admitted it: it has what its containers get of the node.
    pub admitted: bool,
    /// Succeeded or Failed: no container will run again.
    pub finished: bool,
    /// It has a deletion timestamp.
    pub deleting: bool,
    /// The time between the moment at which the deletion was read and the kubelet's kill.
    pub grace: Duration,
    /// `spec.runtimeClassName`.
    pub runtime_class: Option<String>,
    /// Why it must not have a share by a claim, where it takes one: a way around its isolation.
    pub way_around: Option<String>,
    /// Those that ask for one of our resources or take a claim, in the pod's order, init
    /// containers first.
    pub containers: Vec<ContainerView>,
}

/// One container that asks for one of our resources, or takes a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerView {
    /// Its name.
    pub name: String,
    /// What it is started as.
    pub kind: ContainerKind,
    /// Tokens that it asks for.
    pub tokens: u64,
    /// Whole cards and slices of cards that it asks for.
    pub whole: u64,
    /// What it takes of claims, of any driver.
    pub claims: Vec<ClaimUse>,
    /// Its container, without the runtime's prefix, while it runs.
    pub running: Option<String>,
}

/// What a container takes of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimUse {
    /// Name of the `ResourceClaim`.
    pub claim: String,
    /// One of its requests; `None`: all.
    pub request: Option<String>,
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
            uid: kubelet_uid(metadata)?.to_owned(),
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
        let containers: Vec<ContainerView> = init
            .iter()
            .map(|container| (container, init_kind(container)))
            .chain(app.iter().map(|container| (container, ContainerKind::App)))
            .filter_map(|(container, kind)| {
                let claims = takes(pod, container);
                ContainerView::of(container, kind, claims, &statuses)
            })
            .collect();
        let claims = containers
            .iter()
            .any(|container| !container.claims.is_empty());
        let mirror_uid = metadata.uid.clone().filter(|uid| *uid != identity.uid);
        Some(Self {
            identity,
            mirror_uid,
            grant: metadata
                .annotations
                .as_ref()
                .and_then(|all| all.get(names::grant::GRANT))
                .cloned(),
            admitted: status.is_some_and(|status| status.start_time.is_some()),
            finished: matches!(phase, "Succeeded" | "Failed"),
            deleting: metadata.deletion_timestamp.is_some(),
            grace: grace(pod),
            runtime_class: spec.and_then(|s| s.runtime_class_name.clone()),
            way_around: spec.filter(|_| claims).and_then(isolation::way_around),
            containers,
        })
    }

    /// Reads a pod that was listed and not seen to change: part of its grace period may have passed
    /// by `now`, the time of this machine. For a pod that was seen to change, the period begins when
    /// the change is read, so that a clock that differs from the API server's costs no program its
    /// time.
    pub fn listed(pod: &Pod, now: Timestamp) -> Option<Self> {
        let mut view = Self::of(pod)?;
        if let Some(killed) = &pod.metadata.deletion_timestamp {
            let left = Duration::try_from(killed.0.duration_since(now)).unwrap_or_default();
            view.grace = view.grace.min(left);
        }
        Some(view)
    }

    /// Whether one of its containers takes a claim of that name.
    pub fn takes(&self, claim: &str) -> bool {
        let mut takes = self
            .containers
            .iter()
            .flat_map(|container| &container.claims);
        takes.any(|take| take.claim == claim)
    }

    /// The container of that name, if it asks for one of our resources or takes a claim.
    pub fn container(&self, name: &str) -> Option<&ContainerView> {
        self.containers.iter().find(|c| c.name == name)
    }
}

/// Kubernetes' grace period for a pod that names none, in seconds.
const DEFAULT_GRACE: i64 = 30;

/// Returns the grace period that the kubelet gives a pod.
fn grace(pod: &Pod) -> Duration {
    let own = pod.spec.as_ref();
    let own = own.and_then(|spec| spec.termination_grace_period_seconds);
    let given = pod.metadata.deletion_grace_period_seconds.or(own);
    let seconds = u64::try_from(given.unwrap_or(DEFAULT_GRACE)).unwrap_or_default();
    Duration::from_secs(seconds.min(LONGEST_GRACE))
}

/// Returns the UID by which the kubelet knows a pod, in its checkpoints, its cgroups and its events.
///
/// A static pod comes from a file on the node, and the kubelet makes its UID from that file. The object
/// at the API server is a mirror with a UID of its own, which names the kubelet's in the annotation
/// `kubernetes.io/config.hash`.
pub fn kubelet_uid(metadata: &ObjectMeta) -> Option<&str> {
    let annotations = metadata.annotations.as_ref();
    let annotation = |key: &str| annotations.and_then(|all| all.get(key));
    let is_mirror = annotation(names::kubelet::CONFIG_MIRROR).is_some();
    let hash = annotation(names::kubelet::CONFIG_HASH).filter(|_| is_mirror);
    hash.or(metadata.uid.as_ref()).map(String::as_str)
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
        claims: Vec<ClaimUse>,
        statuses: &[&ContainerStatus],
    ) -> Option<Self> {
        let asks = |resource: &str| {
            let limits = container.resources.as_ref()?.limits.as_ref()?;
            limits.get(resource)?.0.parse::<u64>().ok()
        };
        let tokens = asks(names::resource::SHARE).unwrap_or(0);
        let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref());
        let is_slice = |name: &str| matches!(Resource::parse(name), Some(Resource::Slice(_)));
        let slices = limits.into_iter().flatten();
        let slices = slices
            .filter(|(name, _)| is_slice(name))
            .filter_map(|(_, count)| count.0.parse::<u64>().ok());
        let whole = slices.fold(asks(names::resource::GPU).unwrap_or(0), u64::saturating_add);
        if tokens == 0 && whole == 0 && claims.is_empty() {
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
            claims,
            running,
        })
    }
}

/// What a container takes of its pod's claims: of those that it names, and of the one that
/// Kubernetes' scheduler made for its extended resources (KEP-5004).
fn takes(pod: &Pod, container: &Container) -> Vec<ClaimUse> {
    let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
    let resources = container.resources.as_ref();
    let named = resources.and_then(|resources| resources.claims.as_deref());
    let of_pod = spec.and_then(|spec| spec.resource_claims.as_deref());
    let made = status.and_then(|status| status.resource_claim_statuses.as_deref());
    let named = named.unwrap_or_default().iter().filter_map(|named| {
        let mut of_pod = of_pod.unwrap_or_default().iter();
        let of_pod = of_pod.find(|of| of.name == named.name)?;
        let mut made = made.unwrap_or_default().iter();
        let made = made.find(|made| made.name == named.name);
        // Given by its name, or made by a template.
        let object = of_pod.resource_claim_name.clone();
        Some(ClaimUse {
            claim: object.or_else(|| made?.resource_claim_name.clone())?,
            request: named.request.clone(),
        })
    });
    let asked = resources.and_then(|resources| resources.requests.as_ref());
    let extended = status.and_then(|status| status.extended_resource_claim_status.as_ref());
    let extended = extended.into_iter().flat_map(|extended| {
        let mappings = extended.request_mappings.iter();
        let of_this = mappings.filter(|mapping| {
            let asks = asked.is_some_and(|asked| asked.contains_key(&mapping.resource_name));
            mapping.container_name == container.name && asks
        });
        of_this.map(|mapping| ClaimUse {
            claim: extended.resource_claim_name.clone(),
            request: Some(mapping.request_name.clone()),
        })
    });
    named.chain(extended).collect()
}

/// All pods of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    synced: bool,
    by_uid: BTreeMap<String, PodView>,
    gone: BTreeSet<String>,
    gone_order: VecDeque<String>,
}

/// The state of a pod in the watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing<'a> {
    /// Here.
    Present(&'a PodView),
    /// It was deleted, or the whole list was read and it was not in it.
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

    /// The state of a pod.
    pub fn standing(&self, uid: &str) -> Standing<'_> {
        match self.by_uid.get(uid) {
            Some(pod) => Standing::Present(pod),
            None if self.gone.contains(uid) => Standing::Gone,
            None => Standing::Unknown,
        }
    }

    /// The whole list, read again. Pods that are no longer in it are deleted.
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
    fn a_grace_period_is_the_deletions_and_of_a_listed_pod_what_is_left_of_it() {
        let left = |deletion: Option<i64>, own: Option<i64>| -> [u64; 3] {
            let pod: Pod = serde_json::from_value(serde_json::json!({
                "metadata": {"uid": "u", "namespace": "ns", "name": "p",
                    "deletionTimestamp": "2026-01-01T00:01:00Z",
                    "deletionGracePeriodSeconds": deletion},
                "spec": {"containers": [], "terminationGracePeriodSeconds": own},
            }))
            .unwrap();
            let listed = |at: &str| PodView::listed(&pod, at.parse().unwrap()).unwrap();
            [
                PodView::of(&pod).unwrap().grace.as_secs(),
                listed("2026-01-01T00:00:40Z").grace.as_secs(),
                listed("2026-01-01T00:02:00Z").grace.as_secs(),
            ]
        };
        assert_eq!(left(Some(60), None), [60, 20, 0]);
        assert_eq!(left(Some(5), Some(60)), [5, 5, 0]);
        assert_eq!(left(None, Some(50)), [50, 20, 0]);
        assert_eq!(left(None, None), [30, 20, 0]);
        assert_eq!(left(Some(-1), None), [0, 0, 0]);
        assert_eq!(left(Some(i64::MAX), None), [LONGEST_GRACE, 20, 0]);
    }

    #[test]
    fn a_static_pod_has_the_uid_that_the_kubelet_made_of_its_file() {
        let hash = "0123456789abcdef0123456789abcdef";
        let annotations = |mirror: bool| {
            let mut all = serde_json::json!({"kubernetes.io/config.hash": hash});
            if mirror {
                all["kubernetes.io/config.mirror"] = hash.into();
            }
            all
        };
        for (mirror, uid, mirror_uid) in [(true, hash, Some("u")), (false, "u", None)] {
            let view = pod(serde_json::json!({"metadata": {
                "uid": "u", "namespace": "ns", "name": "p-node", "annotations": annotations(mirror),
            }}));
            assert_eq!(view.identity.uid, uid);
            assert_eq!(view.mirror_uid.as_deref(), mirror_uid);
        }
    }

    #[test]
    fn what_a_container_takes_of_claims_is_read_in_all_ways_that_there_are() {
        let view = pod(serde_json::json!({
            "metadata": {"uid": "u", "namespace": "ns", "name": "p"},
            "spec": {
                "hostPID": true,
                "resourceClaims": [
                    {"name": "given", "resourceClaimName": "c"},
                    {"name": "made", "resourceClaimTemplateName": "t"},
                    {"name": "late", "resourceClaimTemplateName": "t"}],
                "containers": [
                    {"name": "all", "resources": {"claims": [{"name": "given"}]}},
                    {"name": "one", "resources": {"claims":
                        [{"name": "made", "request": "r"}, {"name": "late"}, {"name": "none"}]}},
                    {"name": "whole", "resources": {"requests": {"nvidia.com/gpu": "1"}}},
                    {"name": "other", "resources": {"requests": {"cpu": "1"}}}]},
            "status": {
                "resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-made"}],
                "extendedResourceClaimStatus": {"resourceClaimName": "p-x", "requestMappings": [
                    {"containerName": "whole", "resourceName": "nvidia.com/gpu", "requestName": "container-2-request-0"},
                    {"containerName": "other", "resourceName": "nvidia.com/gpu", "requestName": "container-3-request-0"}]}}
        }));
        let takes: Vec<_> = view
            .containers
            .iter()
            .flat_map(|c| {
                c.claims
                    .iter()
                    .map(|t| (c.name.as_str(), t.claim.as_str(), t.request.as_deref()))
            })
            .collect();
        assert_eq!(
            takes,
            [
                ("all", "c", None),
                ("one", "p-made", Some("r")),
                ("whole", "p-x", Some("container-2-request-0")),
            ]
        );
        assert!(view.takes("p-x") && !view.takes("other"));
        assert!(view.way_around.unwrap().contains("hostPID"));
    }

    #[test]
    fn gone_is_told_from_not_seen_yet() {
        let one = |uid: &str| PodView {
            identity: PodIdentity {
                uid: uid.into(),
                namespace: "n".into(),
                name: "p".into(),
            },
            mirror_uid: None,
            grant: None,
            admitted: true,
            finished: false,
            deleting: false,
            grace: Duration::ZERO,
            runtime_class: None,
            way_around: None,
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
