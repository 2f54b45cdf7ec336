//! Claims that are bound only where their first consumer goes, and the pod when all are.
//!
//! Where a volume is provisioned, the node is written on the claim; it stays there when that
//! takes too long: it is the provisioner's to take away. Where one is there, the claim is
//! written on the volume, if no other claim is there, and Kubernetes' controller does the rest.

use super::answer::{self, Answer, LANDING, PATIENCE, refused};
use super::{WriteContext, condition};
use crate::convert::volume::name::{BIND_COMPLETED, BOUND_BY_CONTROLLER, SELECTED_NODE};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, Client, ResourceExt as _};
use scheduler_core::ids::VolumeName;
use scheduler_core::{Bind, ClaimBinding, OutcomeResult};
use serde_json::json;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// After a write that the server was too busy for.
const PAUSE: Duration = Duration::from_millis(500);

/// Waits until the pod's claims are bound where it goes.
pub(super) async fn bound(context: &WriteContext, bind: &Bind) -> Result<(), OutcomeResult> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &bind.namespace);
    let deadline = Instant::now() + context.volume_timeout;
    for claim in &bind.claims {
        match &claim.volume {
            Some(volume) => give(context.client.clone(), bind, claim, volume, deadline).await?,
            None => select(&api, bind, name(claim), deadline).await?,
        }
    }
    let names: Vec<&str> = bind.claims.iter().map(name).collect();
    condition::waiting_for_volume(context, bind, &names).await;
    let node = bind.node.as_str();
    for claim in &bind.claims {
        let name = name(claim);
        let Some(volume) = &claim.volume else {
            let found = wait(context, &api, bind, name, settled(node), deadline).await?;
            if volume_of(&found).is_none() {
                return Err(refused(format!(
                    "persistentvolumeclaim \"{name}\" was not bound on node {node}: its provisioner gave the node up"
                )));
            }
            continue;
        };
        let found = wait(context, &api, bind, name, has_volume(), deadline).await?;
        if volume_of(&found).as_deref() != Some(volume.as_str()) {
            return Err(refused(format!(
                "persistentvolumeclaim \"{name}\" was not bound to persistentvolume \"{volume}\" but to another"
            )));
        }
    }
    Ok(())
}

/// The claim's name in the pod's namespace.
fn name(claim: &ClaimBinding) -> &str {
    claim.name.rsplit('/').next().unwrap_or_default()
}

/// The claim, once the condition holds.
async fn wait(
    context: &WriteContext,
    api: &Api<PersistentVolumeClaim>,
    bind: &Bind,
    claim: &str,
    condition: impl Condition<PersistentVolumeClaim>,
    deadline: Instant,
) -> Result<PersistentVolumeClaim, OutcomeResult> {
    let awaited = await_condition(api.clone(), claim, condition);
    match timeout_at(deadline, awaited).await {
        Ok(Ok(Some(found))) => Ok(found),
        Ok(Ok(None)) => Err(refused(format!(
            "persistentvolumeclaim \"{claim}\" is gone"
        ))),
        Ok(Err(error)) => Err(refused(answer::line(&error.to_string()))),
        Err(_) => Err(refused(format!(
            "persistentvolumeclaim \"{claim}\" was not bound on node {} within {} s",
            bind.node,
            context.volume_timeout.as_secs()
        ))),
    }
}

/// Writes the node on the claim.
async fn select(
    api: &Api<PersistentVolumeClaim>,
    bind: &Bind,
    claim: &str,
    mut deadline: Instant,
) -> Result<(), OutcomeResult> {
    let patch =
        Patch::Merge(json!({"metadata": {"annotations": {SELECTED_NODE: bind.node.as_str()}}}));
    let params = PatchParams::default();
    loop {
        // The same write again does no harm.
        match answer::of(api.patch(claim, &params, &patch)).await {
            Answer::Done(_) => return Ok(()),
            Answer::Refused(_, why) => return Err(refused(why)),
            Answer::Busy(why) => again(why, deadline).await?,
            Answer::Unknown(why) => {
                // No refusal while it may still be carried out.
                deadline = deadline.max(Instant::now() + LANDING);
                again(why, deadline).await?;
            }
        }
    }
}

/// Writes the claim on the volume, as it was read a moment before: the second writer is
/// told by the server, and looks again.
async fn give(
    client: Client,
    bind: &Bind,
    claim: &ClaimBinding,
    volume: &VolumeName,
    mut deadline: Instant,
) -> Result<(), OutcomeResult> {
    let api: Api<PersistentVolume> = Api::all(client);
    let params = PatchParams::default();
    loop {
        let found = match answer::of(api.get_opt(volume.as_str())).await {
            Answer::Done(Some(found)) => found,
            Answer::Done(None) => {
                return Err(refused(format!("persistentvolume \"{volume}\" is gone")));
            }
            Answer::Refused(_, why) => return Err(refused(why)),
            Answer::Busy(why) | Answer::Unknown(why) => {
                again(why, deadline).await?;
                continue;
            }
        };
        let kept_for = found.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        if let Some(owner) = kept_for {
            let of = |field: &Option<String>| field.clone().unwrap_or_default();
            let (namespace, name, uid) = (of(&owner.namespace), of(&owner.name), of(&owner.uid));
            let ours = format!("{namespace}/{name}") == *claim.name;
            return if ours && (uid.is_empty() || uid == claim.uid.as_str()) {
                Ok(())
            } else {
                Err(refused(format!(
                    "persistentvolume \"{volume}\" went to persistentvolumeclaim {namespace}/{name}"
                )))
            };
        }
        let patch = Patch::Merge(json!({
            "metadata": {
                "resourceVersion": found.resource_version(),
                "annotations": {BOUND_BY_CONTROLLER: "yes"},
            },
            "spec": {"claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": &*bind.namespace, "name": name(claim), "uid": claim.uid.as_str(),
            }},
        }));
        match answer::of(api.patch(volume.as_str(), &params, &patch)).await {
            Answer::Done(_) => return Ok(()),
            Answer::Refused(409, why) | Answer::Busy(why) => again(why, deadline).await?,
            Answer::Unknown(why) => {
                deadline = deadline.max(Instant::now() + LANDING);
                again(why, deadline).await?;
            }
            Answer::Refused(_, why) => return Err(refused(why)),
        }
    }
}

/// A pause before the next try, if there is time for one.
async fn again(why: String, deadline: Instant) -> Result<(), OutcomeResult> {
    if Instant::now() + PATIENCE > deadline {
        return Err(refused(why));
    }
    tokio::time::sleep(PAUSE).await;
    Ok(())
}

/// The volume to which the claim is bound, once both agree.
fn volume_of(claim: &PersistentVolumeClaim) -> Option<String> {
    let spec = claim.spec.as_ref();
    spec.and_then(|spec| spec.volume_name.clone())
        .filter(|volume| !volume.is_empty())
        .filter(|_| claim.annotations().contains_key(BIND_COMPLETED))
}

/// Bound, gone, or no longer to be bound on that node.
fn settled(node: &str) -> impl Condition<PersistentVolumeClaim> {
    let node = node.to_owned();
    move |claim: Option<&PersistentVolumeClaim>| {
        claim.is_none_or(|claim| {
            volume_of(claim).is_some() || claim.annotations().get(SELECTED_NODE) != Some(&node)
        })
    }
}

/// Bound, or gone.
fn has_volume() -> impl Condition<PersistentVolumeClaim> {
    |claim: Option<&PersistentVolumeClaim>| claim.is_none_or(|claim| volume_of(claim).is_some())
}
