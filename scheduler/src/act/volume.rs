//! Claims that are bound only where their first consumer goes: the node is written on each,
//! and the pod is bound to it when all of them are.
//!
//! The node stays written when that takes too long: it is the provisioner's to take away.

use super::answer::{self, Answer, PATIENCE};
use super::{Hands, condition};
use crate::convert::volume::name::{BIND_COMPLETED, SELECTED_NODE};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Patch, PatchParams};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, ResourceExt as _};
use scheduler_core::{Bind, OutcomeResult};
use serde_json::json;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// After a write that the server was too busy for.
const PAUSE: Duration = Duration::from_millis(500);

/// Waits until these claims are bound where the pod goes.
pub(super) async fn bound(
    hands: &Hands,
    bind: &Bind,
    claims: &[String],
) -> Result<(), OutcomeResult> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(hands.client.clone(), &bind.namespace);
    let deadline = Instant::now() + hands.volume_timeout;
    for claim in claims {
        select(&api, bind, claim, deadline).await?;
    }
    condition::waiting_for_volume(hands, bind, claims).await;
    for claim in claims {
        let awaited = await_condition(api.clone(), claim, settled(bind.node.as_str()));
        match timeout_at(deadline, awaited).await {
            Ok(Ok(Some(found))) if is_bound(&found) => {}
            Ok(Ok(Some(_))) => {
                return Err(refused(format!(
                    "persistentvolumeclaim \"{claim}\" was not bound on node {}: its provisioner gave the node up",
                    bind.node
                )));
            }
            Ok(Ok(None)) => {
                return Err(refused(format!(
                    "persistentvolumeclaim \"{claim}\" is gone"
                )));
            }
            Ok(Err(error)) => return Err(refused(answer::line(&error.to_string()))),
            Err(_) => {
                return Err(refused(format!(
                    "persistentvolumeclaim \"{claim}\" was not bound on node {} within {} s",
                    bind.node,
                    hands.volume_timeout.as_secs()
                )));
            }
        }
    }
    Ok(())
}

/// Writes the node on the claim.
async fn select(
    api: &Api<PersistentVolumeClaim>,
    bind: &Bind,
    claim: &str,
    deadline: Instant,
) -> Result<(), OutcomeResult> {
    let patch =
        Patch::Merge(json!({"metadata": {"annotations": {SELECTED_NODE: bind.node.as_str()}}}));
    let params = PatchParams::default();
    loop {
        // The same write again does no harm.
        match answer::of(api.patch(claim, &params, &patch)).await {
            Answer::Done(_) => return Ok(()),
            Answer::Refused(_, why) => return Err(refused(why)),
            Answer::Busy(why) | Answer::Unknown(why) => {
                if Instant::now() + PATIENCE > deadline {
                    return Err(refused(why));
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn refused(reason: String) -> OutcomeResult {
    OutcomeResult::Refused {
        reason: reason.into(),
        retryable: true,
    }
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    let volume = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_name.as_deref());
    volume.is_some_and(|volume| !volume.is_empty())
        && claim.annotations().contains_key(BIND_COMPLETED)
}

/// Bound, gone, or no longer to be bound on that node.
fn settled(node: &str) -> impl Condition<PersistentVolumeClaim> {
    let node = node.to_owned();
    move |claim: Option<&PersistentVolumeClaim>| {
        claim.is_none_or(|claim| {
            is_bound(claim) || claim.annotations().get(SELECTED_NODE) != Some(&node)
        })
    }
}
