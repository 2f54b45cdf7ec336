//! The claim that stands in for GPUs in a pod's resources: made before it gets its devices, named in
//! the pod's status after, and deleted where the pod is not bound.
//!
//! The pod's status never names a claim that is not there: it is written after the claim and
//! cleared before that is deleted. A pod that is bound with such a name is served by that claim
//! alone, also on a node whose device plugin would serve it.

use super::object::{self, Claim, FINALIZER, Stop, get, is_it, put};
use crate::act::answer::{self, Answer, refused};
use crate::act::context::WriteContext;
use crate::convert::StandIn;
use crate::convert::stand_in::{ANNOTATION, pod_of};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt as _};
use scheduler_core::{Bind, DeviceBinding};
use serde_json::{Value, json};

/// The claim as it was made. An earlier try's that asks for something else goes first.
pub(super) async fn made(
    context: &WriteContext,
    api: &Api<DynamicObject>,
    bind: &Bind,
    claim: &DeviceBinding,
    stand_in: &StandIn,
) -> Result<Claim, Stop> {
    let name = object::name(claim);
    if let Some(found) = get(api, name).await? {
        let spec = found.data.get("spec").cloned().unwrap_or_default();
        let spec = serde_json::from_value(spec).ok();
        let is_old = is_it(&found, &claim.uid) && spec.as_ref() != Some(&stand_in.spec);
        if !is_old || found.metadata.deletion_timestamp.is_some() {
            return Ok(found);
        }
        if let Some(withdrawn) = withdraw(context, api, &found).await {
            withdrawn?;
        }
        return Err(Stop::Again(format!(
            "resource claim {} was old",
            claim.name
        )));
    }
    let object = json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": &*bind.namespace,
            "annotations": {ANNOTATION: "true"},
            "ownerReferences": [{
                "apiVersion": "v1",
                "kind": "Pod",
                "name": &*bind.name,
                "uid": bind.pod.as_str(),
                "controller": true,
            }],
            // As soon as it has devices it needs this, and there is no write between.
            "finalizers": [FINALIZER],
        },
        "spec": &stand_in.spec,
    });
    let object: DynamicObject = serde_json::from_value(object)
        .map_err(|error| Stop::Refused(refused(error.to_string())))?;
    match answer::of(api.create(&PostParams::default(), &object)).await {
        Answer::Done(made) => Ok(Box::new(made)),
        // Made by a try whose answer was lost.
        Answer::Refused(409, why) | Answer::Busy(why) | Answer::Unknown(why) => {
            Err(Stop::Again(why))
        }
        Answer::Refused(_, why) => Err(Stop::Refused(refused(why))),
    }
}

/// The pod's status names the claim, for the kubelet.
pub(super) async fn name_in_pod(
    context: &WriteContext,
    bind: &Bind,
    claim: &DeviceBinding,
    stand_in: &StandIn,
) -> Result<(), Stop> {
    let status = json!({
        "requestMappings": &stand_in.mappings,
        "resourceClaimName": object::name(claim),
    });
    let pods = Api::namespaced(context.client.clone(), &bind.namespace);
    match patch(&pods, &bind.name, bind.pod.as_str(), status).await {
        Answer::Done(_) => Ok(()),
        Answer::Busy(why) | Answer::Unknown(why) => Err(Stop::Again(why)),
        Answer::Refused(_, why) => Err(Stop::Refused(refused(why))),
    }
}

async fn patch(pods: &Api<Pod>, name: &str, uid: &str, status: Value) -> Answer<Pod> {
    let patch = Patch::Merge(json!({
        "metadata": {"uid": uid},
        "status": {"extendedResourceClaimStatus": status},
    }));
    answer::of(pods.patch_status(name, &PatchParams::default(), &patch)).await
}

/// Takes a claim away that stands in for GPUs of a pod that is not bound. `None`: it is another.
pub(super) async fn withdraw(
    context: &WriteContext,
    api: &Api<DynamicObject>,
    found: &Claim,
) -> Option<Result<(), Stop>> {
    let (pod, uid) = pod_of(&found.metadata)?;
    let namespace = found.metadata.namespace.as_deref().unwrap_or_default();
    let pods = Api::namespaced(context.client.clone(), namespace);
    match patch(&pods, pod, uid, Value::Null).await {
        // 404, 409: the pod is gone, and perhaps another has its name.
        Answer::Done(_) | Answer::Refused(404 | 409, _) => {}
        Answer::Busy(why) | Answer::Unknown(why) => return Some(Err(Stop::Again(why))),
        Answer::Refused(_, why) => return Some(Err(Stop::Refused(refused(why)))),
    }
    Some(delete(api, found).await)
}

async fn delete(api: &Api<DynamicObject>, found: &Claim) -> Result<(), Stop> {
    let mut found = found.clone();
    let finalizers = found.metadata.finalizers.get_or_insert_default();
    if finalizers.iter().any(|one| one == FINALIZER) {
        finalizers.retain(|one| one != FINALIZER);
        found = put(api, &found, false).await?;
    }
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: found.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match answer::of(api.delete(&found.name_any(), &params)).await {
        // 404, 409: it is gone, and perhaps another has its name.
        Answer::Done(_) | Answer::Refused(404 | 409, _) => Ok(()),
        Answer::Busy(why) | Answer::Unknown(why) => Err(Stop::Again(why)),
        Answer::Refused(_, why) => Err(Stop::Refused(refused(why))),
    }
}
