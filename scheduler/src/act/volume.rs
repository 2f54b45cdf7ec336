//! Claims that are bound only where their first consumer goes, and the pod when all are.
//!
//! Where a volume is provisioned, the node is written on the claim; it stays there when that
//! takes too long: it is the provisioner's to take away. Where one is there, the claim is
//! written on the volume, if no other claim is there, and Kubernetes' controller does the rest.

use super::answer::{self, Answer, LANDING, PATIENCE, refused};
use super::condition;
use super::context::WriteContext;
use super::permit::Permit;
use crate::convert::volume::name::{BIND_COMPLETED, BOUND_BY_CONTROLLER, SELECTED_NODE};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use scheduler_core::ids::VolumeName;
use scheduler_core::{Bind, ClaimBinding, OutcomeResult};
use serde_json::json;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// After a write that the server was too busy for.
const PAUSE: Duration = Duration::from_millis(500);

/// Waits until the pod's claims are bound where it goes. Each request has a permit; the time between
/// them has none.
pub(super) async fn bound(context: &WriteContext, bind: &Bind) -> Result<(), OutcomeResult> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &bind.namespace);
    let deadline = Instant::now() + context.volume_timeout;
    let mut permit = Permit::acquire(&context.permits).await;
    for claim in &bind.claims {
        match &claim.volume {
            Some(volume) => {
                let client = context.client.clone();
                give(client, bind, claim, volume, deadline, &mut permit).await?;
            }
            None => select(&api, bind, name(claim), deadline, &mut permit).await?,
        }
    }
    let names: Vec<&str> = bind.claims.iter().map(name).collect();
    condition::waiting_for_volume(context, bind, &names).await;
    drop(permit);
    let node = bind.node.as_str();
    for claim in &bind.claims {
        let name = name(claim);
        let Some(volume) = &claim.volume else {
            let found = wait(context, &api, bind, claim, settled(node), deadline).await?;
            if volume_of(&found).is_none() {
                return Err(refused(format!(
                    "persistentvolumeclaim \"{name}\" was not bound on node {node}: its provisioner gave the node up"
                )));
            }
            continue;
        };
        let has_volume = |claim: &PersistentVolumeClaim| volume_of(claim).is_some();
        let found = wait(context, &api, bind, claim, has_volume, deadline).await?;
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

/// Reads the claim, and again after each of its changes, until it is as it should be.
async fn wait(
    context: &WriteContext,
    api: &Api<PersistentVolumeClaim>,
    bind: &Bind,
    claim: &ClaimBinding,
    done: impl Fn(&PersistentVolumeClaim) -> bool,
    deadline: Instant,
) -> Result<PersistentVolumeClaim, OutcomeResult> {
    let mut awaited = context.awaited.await_changes(&claim.name);
    let name = name(claim);
    loop {
        let mut permit = Permit::acquire(&context.permits).await;
        match answer::of(api.get_opt(name)).await {
            Answer::Done(Some(found)) if done(&found) => return Ok(found),
            Answer::Done(Some(_)) => {}
            Answer::Done(None) => {
                return Err(refused(format!("persistentvolumeclaim \"{name}\" is gone")));
            }
            Answer::Refused(_, why) => return Err(refused(why)),
            Answer::Busy(why) | Answer::Unknown(why) => {
                again(why, deadline, &mut permit).await?;
                continue;
            }
        }
        drop(permit);
        if timeout_at(deadline, awaited.changed()).await.is_err() {
            return Err(refused(format!(
                "persistentvolumeclaim \"{name}\" was not bound on node {} within {} s",
                bind.node,
                context.volume_timeout.as_secs()
            )));
        }
    }
}

/// Writes the node on the claim.
async fn select(
    api: &Api<PersistentVolumeClaim>,
    bind: &Bind,
    claim: &str,
    mut deadline: Instant,
    permit: &mut Permit,
) -> Result<(), OutcomeResult> {
    let patch =
        Patch::Merge(json!({"metadata": {"annotations": {SELECTED_NODE: bind.node.as_str()}}}));
    let params = PatchParams::default();
    loop {
        // The same write again does no harm.
        match answer::of(api.patch(claim, &params, &patch)).await {
            Answer::Done(_) => return Ok(()),
            Answer::Refused(_, why) => return Err(refused(why)),
            Answer::Busy(why) => again(why, deadline, permit).await?,
            Answer::Unknown(why) => {
                // No refusal while it may still be carried out.
                deadline = deadline.max(Instant::now() + LANDING);
                again(why, deadline, permit).await?;
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
    permit: &mut Permit,
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
                again(why, deadline, permit).await?;
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
            Answer::Refused(409, why) | Answer::Busy(why) => again(why, deadline, permit).await?,
            Answer::Unknown(why) => {
                deadline = deadline.max(Instant::now() + LANDING);
                again(why, deadline, permit).await?;
            }
            Answer::Refused(_, why) => return Err(refused(why)),
        }
    }
}

/// Pauses without the permit before the next try, if there is time for one.
async fn again(why: String, deadline: Instant, permit: &mut Permit) -> Result<(), OutcomeResult> {
    if Instant::now() + PATIENCE > deadline {
        return Err(refused(why));
    }
    permit.pause(PAUSE).await;
    Ok(())
}

/// The volume to which the claim is bound, once both agree.
fn volume_of(claim: &PersistentVolumeClaim) -> Option<String> {
    let spec = claim.spec.as_ref();
    spec.and_then(|spec| spec.volume_name.clone())
        .filter(|volume| !volume.is_empty())
        .filter(|_| claim.annotations().contains_key(BIND_COMPLETED))
}

/// The claim is bound, or its provisioner has given the node up.
fn settled(node: &str) -> impl Fn(&PersistentVolumeClaim) -> bool {
    let node = node.to_owned();
    move |claim| volume_of(claim).is_some() || claim.annotations().get(SELECTED_NODE) != Some(&node)
}
