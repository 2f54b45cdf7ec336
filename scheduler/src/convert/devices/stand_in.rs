//! The claim that stands in for `nvidia.com/gpu` in a pod's resources on nodes whose device plugin
//! lists none (KEP-5004): what it asks for, and which object it is.
//!
//! What is asked is kube-scheduler's `createRequestsAndMappings`, name for name. The object's name is
//! made of the pod's UID instead of chance, so that a process which ended halfway is gone on with.

use super::wants::Classes;
use crate::watch::is_of_gpus;
use k8s_openapi::api::core::v1::{
    Container, ContainerExtendedResourceRequest as Mapping, Pod as KubePod,
};
use k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceClass, DeviceRequest, ExactDeviceRequest, ResourceClaimSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;
use proto::names::resource;
use ring::digest::{SHA256, digest};
use scheduler_core::ids::ClaimUid;
use std::fmt::Write as _;

/// Kubernetes' `resourceapi.ExtendedResourceClaimAnnotation`.
pub(crate) const ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";
/// What Kubernetes' `SimpleNameGenerator` leaves of a name, less what follows here.
const LONGEST_BASE: usize = 53;

/// What is written of the claim and of its pod.
#[derive(Clone, Debug, PartialEq)]
pub struct StandIn {
    /// `spec` of the claim.
    pub(crate) spec: ResourceClaimSpec,
    /// `status.extendedResourceClaimStatus.requestMappings` of the pod.
    pub(crate) mappings: Vec<Mapping>,
}

/// The name of a pod's claim.
pub(crate) fn name(pod: &str, uid: &str) -> String {
    let mut name = format!("{pod}-extended-resources-");
    name.truncate(LONGEST_BASE);
    let hash = digest(&SHA256, uid.as_bytes());
    for byte in hash.as_ref().iter().take(5) {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// By which the core knows the claim of that namespace and name, whether the object is there or
/// not.
pub(crate) fn uid(namespace: &str, name: &str) -> ClaimUid {
    ClaimUid::from(format!("{namespace}/{name}"))
}

/// By which the core knows a claim that is there.
pub(crate) fn uid_of(claim: &ObjectMeta) -> ClaimUid {
    let (namespace, name) = (claim.namespace.as_deref(), claim.name.as_deref());
    match (pod_of(claim), namespace, name) {
        (Some(_), Some(namespace), Some(name)) => uid(namespace, name),
        _ => ClaimUid::from(claim.uid.clone().unwrap_or_default()),
    }
}

/// Name and UID of the pod for whose resources the claim stands in. Not that of another
/// scheduler's.
pub(crate) fn pod_of(claim: &ObjectMeta) -> Option<(&str, &str)> {
    let annotations = claim.annotations.as_ref()?;
    let mut owners = claim.owner_references.iter().flatten();
    let owner = owners.find(|one| one.kind == "Pod" && one.controller == Some(true))?;
    let is_it = annotations.get(ANNOTATION).is_some_and(|is| is == "true")
        && claim.name.as_deref() == Some(&name(&owner.name, &owner.uid));
    is_it.then_some((&owner.name, &owner.uid))
}

/// The class whose devices `nvidia.com/gpu` is: of several the newest, as in Kubernetes.
pub(super) fn class(classes: &Classes) -> Option<&str> {
    let all = classes.values().map(AsRef::as_ref);
    let all = all.filter(|class: &&DeviceClass| is_of_gpus(class));
    let age = |class: &&DeviceClass| class.metadata.creation_timestamp.as_ref().map(|at| at.0);
    // By name: `rev` makes the first of equals the last, which is the one that is kept.
    let newest = all.rev().max_by_key(age)?;
    newest.metadata.name.as_deref()
}

/// The claim that a placed pod has, if it has one: its name.
pub(crate) fn of_placed(pod: &KubePod) -> Option<&str> {
    let status = pod
        .status
        .as_ref()?
        .extended_resource_claim_status
        .as_ref()?;
    let mut mappings = status.request_mappings.iter();
    let is_gpu = mappings.any(|one| one.resource_name == resource::GPU);
    is_gpu.then_some(&status.resource_claim_name)
}

fn asked(container: &Container) -> Option<i64> {
    let requests = container.resources.as_ref()?.requests.as_ref()?;
    let count = api::quantity::whole(requests.get(resource::GPU)?)?;
    i64::try_from(count).ok().filter(|count| *count > 0)
}

/// One request of its own for `count` devices. `at`: in the pod.
fn request(at: usize, container: &Container, class: &str, count: i64) -> DeviceRequest {
    let requests = container.resources.as_ref();
    let requests = requests.and_then(|one| one.requests.as_ref());
    let mut keys = requests.into_iter().flat_map(|all| all.keys());
    let place = keys.position(|key| key == resource::GPU).unwrap_or(0);
    DeviceRequest {
        name: format!("container-{at}-request-{place}"),
        exactly: Some(ExactDeviceRequest {
            device_class_name: class.to_owned(),
            allocation_mode: Some("ExactCount".to_owned()),
            count: Some(count),
            ..ExactDeviceRequest::default()
        }),
        ..DeviceRequest::default()
    }
}

fn count(request: &DeviceRequest) -> i64 {
    let exactly = request.exactly.as_ref();
    exactly.and_then(|one| one.count).unwrap_or(0)
}

/// What the pod's containers ask for. Init containers that end use the devices of those that come
/// after, and what they need beyond these is one request together, that of the largest.
pub(super) fn of(pod: &KubePod, class: &str) -> Option<StandIn> {
    let spec = pod.spec.as_ref()?;
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    let all: Vec<&Container> = inits.iter().chain(&spec.containers).collect();
    let ends = |at: usize| at < inits.len() && all[at].restart_policy.as_deref() != Some("Always");
    let mapping = |container: &Container, request: &str| Mapping {
        container_name: container.name.clone(),
        resource_name: resource::GPU.to_owned(),
        request_name: request.to_owned(),
    };
    let mut mappings = Vec::new();
    let mut stay: Vec<Option<DeviceRequest>> = vec![None; all.len()];
    for (at, container) in all.iter().enumerate().filter(|(at, _)| !ends(*at)) {
        if let Some(wanted) = asked(container) {
            let own = request(at, container, class, wanted);
            mappings.push(mapping(container, &own.name));
            stay[at] = Some(own);
        }
    }
    let mut largest: Option<DeviceRequest> = None;
    let mut beyond = Vec::new();
    for (at, container) in all.iter().enumerate().filter(|(at, _)| ends(*at)) {
        let Some(wanted) = asked(container) else {
            continue;
        };
        let mut left = wanted;
        for later in stay[at..].iter().flatten() {
            if left <= 0 {
                break;
            }
            left -= count(later);
            mappings.push(mapping(container, &later.name));
        }
        if left > 0 {
            let own = request(at, container, class, left);
            beyond.push(own.name.clone());
            mappings.push(mapping(container, &own.name));
            if largest.as_ref().is_none_or(|most| count(most) < left) {
                largest = Some(own);
            }
        }
    }
    if let Some(largest) = &largest {
        for one in &mut mappings {
            if beyond.contains(&one.request_name) {
                one.request_name.clone_from(&largest.name);
            }
        }
    }
    let mut requests: Vec<DeviceRequest> = stay.into_iter().flatten().chain(largest).collect();
    requests.sort_by(|one, other| one.name.cmp(&other.name));
    (!requests.is_empty()).then(|| StandIn {
        spec: ResourceClaimSpec {
            devices: Some(DeviceClaim {
                requests: Some(requests),
                ..DeviceClaim::default()
            }),
        },
        mappings,
    })
}

/// Name, in the pod's namespace, of the claim that a waiting pod of ours would get.
pub(super) fn name_for(pod: &KubePod) -> String {
    name(&pod.name_any(), &pod.uid().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn stand_in(inits: Value, containers: Value) -> Value {
        let pod = json!({"metadata": {"name": "p", "uid": "u"},
            "spec": {"initContainers": inits, "containers": containers}});
        let made = of(&serde_json::from_value(pod).unwrap(), "c");
        let Some(made) = made else {
            return Value::Null;
        };
        let requests = made.spec.devices.unwrap().requests.unwrap();
        let requests = requests.iter().map(|one| json!([one.name, count(one)]));
        let mappings = made.mappings.iter();
        let mappings = mappings.map(|one| json!([one.container_name, one.request_name]));
        json!([requests.collect::<Vec<_>>(), mappings.collect::<Vec<_>>()])
    }

    fn container(name: &str, gpus: &str) -> Value {
        json!({"name": name, "resources": {"requests": {"cpu": "1", resource::GPU: gpus}}})
    }

    /// The cases of kube-scheduler's `TestCreateRequestsAndMappings` that are about one resource.
    #[test]
    fn requests_and_mappings_are_those_of_kubernetes_scheduler() {
        assert_eq!(stand_in(json!([]), json!([{"name": "a"}])), Value::Null);
        assert_eq!(
            stand_in(json!([]), json!([container("a", "2"), container("b", "1")])),
            json!([
                [["container-0-request-1", 2], ["container-1-request-1", 1]],
                [
                    ["a", "container-0-request-1"],
                    ["b", "container-1-request-1"]
                ]
            ])
        );
        // Of those that come after it an init container uses as many as it needs.
        assert_eq!(
            stand_in(
                json!([container("i", "1")]),
                json!([container("a", "1"), container("b", "1")])
            ),
            json!([
                [["container-1-request-1", 1], ["container-2-request-1", 1]],
                [
                    ["a", "container-1-request-1"],
                    ["b", "container-2-request-1"],
                    ["i", "container-1-request-1"]
                ]
            ])
        );
        // What two of them need beyond is one request.
        assert_eq!(
            stand_in(
                json!([container("i", "2"), container("j", "4")]),
                json!([container("a", "1")])
            ),
            json!([
                [["container-1-request-1", 3], ["container-2-request-1", 1]],
                [
                    ["a", "container-2-request-1"],
                    ["i", "container-2-request-1"],
                    ["i", "container-1-request-1"],
                    ["j", "container-2-request-1"],
                    ["j", "container-1-request-1"]
                ]
            ])
        );
        // A sidecar keeps its own, and lends nothing to those after it.
        let mut sidecar = container("s", "1");
        sidecar["restartPolicy"] = json!("Always");
        assert_eq!(
            stand_in(
                json!([sidecar, container("i", "1")]),
                json!([{"name": "a"}])
            ),
            json!([
                [["container-0-request-1", 1], ["container-1-request-1", 1]],
                [
                    ["s", "container-0-request-1"],
                    ["i", "container-1-request-1"]
                ]
            ])
        );
    }

    #[test]
    fn the_newest_class_of_the_resource_serves_it() {
        let class_at = |name: &str, at: &str, of: Value| {
            let class = json!({"metadata": {"name": name, "creationTimestamp": at},
                "spec": {"extendedResourceName": of}});
            (name.to_owned(), serde_json::from_value(class).unwrap())
        };
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let mut classes = Classes::new();
        assert_eq!(class(&classes), None);
        classes.extend([class_at("z", old, json!("example.com/gpu"))]);
        assert_eq!(class(&classes), None);
        classes.extend([class_at("c", old, json!(resource::GPU))]);
        assert_eq!(class(&classes), Some("c"));
        let more = [class_at("b", new, json!(resource::GPU))];
        classes.extend(more);
        classes.extend([class_at("d", new, json!(resource::GPU))]);
        assert_eq!(class(&classes), Some("b"));
    }

    #[test]
    fn a_claim_is_a_pods_by_its_name_too() {
        let own = name("p", "u");
        assert!(own.starts_with("p-extended-resources-"), "{own}");
        let long = name(&"p".repeat(200), "u");
        assert_eq!(long.len(), 63);
        let claim = |name: &str, annotation: &str| -> ObjectMeta {
            serde_json::from_value(json!({"name": name, "namespace": "ns", "uid": "x",
                "annotations": {ANNOTATION: annotation}, "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]}))
            .unwrap()
        };
        assert_eq!(uid_of(&claim(&own, "true")), uid("ns", &own));
        assert_eq!(uid_of(&claim(&own, "no")), "x".into());
        assert_eq!(
            uid_of(&claim("p-extended-resources-abcde", "true")),
            "x".into()
        );
    }
}
