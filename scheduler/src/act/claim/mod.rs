//! Claims on devices: their allocation and the reservation for the pod, before its `Binding`;
//! and the way back where that is refused.
//!
//! Each is one write of the claim's status, at the version that was read a moment before, so
//! that no other scheduler's is overwritten. Written twice, it is taken once. A process that
//! ends in between leaves a claim with devices and a pod that waits: the next one goes on from
//! there, or takes the devices back ([`free`]).
//! - [`stand_in`]: a claim that is made for the binding.

mod allocation;
mod locks;
mod object;
mod stand_in;

pub(super) use locks::Locks;

use super::answer::refused;
use super::context::WriteContext;
use super::event::{self, KubeEvent};
use super::permit::Permit;
use crate::convert::{ClaimTerms, Stray};
use allocation::is_same;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use kube::core::DynamicObject;
use object::{FINALIZER, Stop, get, is_it, name, put};
use scheduler_core::ids::ClaimUid;
use scheduler_core::{Bind, DeviceBinding, OutcomeResult};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// After a write that the server was too busy for, or whose object has changed meanwhile.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Tries that may find the server too busy, or the claim changed.
const TRIES: u32 = 40;
/// For drivers to make devices ready: kube-scheduler's `bindingTimeout`.
const READY_WITHIN: Duration = Duration::from_mins(10);
/// Between two looks at what they say.
const LOOK: Duration = Duration::from_secs(1);

fn claims(context: &WriteContext, namespace: &str) -> Api<DynamicObject> {
    let kind = kube::core::ApiResource::erase::<ResourceClaim>(&());
    Api::namespaced_with(context.client.clone(), namespace, &kind)
}

/// Allocates and reserves all claims of the pod.
pub(super) async fn reserve(
    context: &WriteContext,
    bind: &Bind,
    terms: &[ClaimTerms],
) -> Result<(), OutcomeResult> {
    let api = claims(context, &bind.namespace);
    for (at, claim) in bind.devices.iter().enumerate() {
        let terms = terms.get(at).cloned().unwrap_or_default();
        // A task that waits for another task's write must not hold a permit meanwhile.
        let _only = context.claims.write(&claim.uid).await;
        let mut permit = Permit::acquire(&context.permits).await;
        let reserve = || reserve_one(context, &api, bind, claim, &terms);
        repeat(&mut permit, reserve).await?;
        if let Some(made) = &terms.stand_in {
            let name = || stand_in::name_in_pod(context, bind, claim, made);
            repeat(&mut permit, name).await?;
        }
    }
    Ok(())
}

/// Reads and writes until there is a word, or too often. The permit is given back between two
/// tries.
async fn repeat<S>(permit: &mut Permit, mut step: impl FnMut() -> S) -> Result<(), OutcomeResult>
where
    S: Future<Output = Result<(), Stop>>,
{
    let (mut pause, mut left) = (PAUSE, TRIES);
    loop {
        match step().await {
            Ok(()) => return Ok(()),
            Err(Stop::Refused(result)) => return Err(result),
            Err(Stop::Again(why)) => {
                left -= 1;
                if left == 0 {
                    return Err(refused(why));
                }
            }
        }
        permit.pause(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn reserved_for(claim: &DynamicObject) -> Vec<Value> {
    let reserved = claim.data.pointer("/status/reservedFor");
    reserved
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default()
}

fn is_of(consumer: &Value, pod: &str) -> bool {
    consumer["uid"] == pod
}

async fn reserve_one(
    context: &WriteContext,
    api: &Api<DynamicObject>,
    bind: &Bind,
    claim: &DeviceBinding,
    terms: &ClaimTerms,
) -> Result<(), Stop> {
    let no = |what: &str| {
        let why = format!("resource claim {} {what}", claim.name);
        Err(Stop::Refused(refused(why)))
    };
    let found = match &terms.stand_in {
        Some(made) => Some(stand_in::made(context, api, bind, claim, made).await?),
        None => get(api, name(claim)).await?,
    };
    let Some(mut found) = found else {
        return no("is gone");
    };
    if !is_it(&found, &claim.uid) {
        return no("was created again");
    }
    if found.metadata.deletion_timestamp.is_some() {
        return no("is being deleted");
    }
    let mut reserved = reserved_for(&found);
    let is_reserved = reserved.iter().any(|one| is_of(one, bind.pod.as_str()));
    let allocation = found.data.pointer("/status/allocation");
    let allocation = allocation.filter(|one| !one.is_null());
    match allocation {
        Some(has) if !is_same(has, &claim.devices) => {
            return no("was allocated other devices meanwhile");
        }
        Some(_) if is_reserved => return Ok(()),
        Some(_) => {}
        None => {
            let finalizers = found.metadata.finalizers.get_or_insert_default();
            if !finalizers.iter().any(|one| one == FINALIZER) {
                finalizers.push(FINALIZER.to_owned());
                found = put(api, &found, false).await?;
            }
            let now = context.wall.second().to_string();
            let spec = found.data.get("spec").cloned().unwrap_or_default();
            let has = allocation::of(&spec, bind.decision, claim, terms, &now);
            set(&mut found, "allocation", has);
        }
    }
    if !is_reserved {
        reserved.push(json!({
            "resource": "pods",
            "name": &*bind.name,
            "uid": bind.pod.as_str(),
        }));
        set(&mut found, "reservedFor", reserved.into());
    }
    put(api, &found, true).await.map(drop)
}

fn set(claim: &mut DynamicObject, field: &str, value: Value) {
    let status = &mut claim.data["status"];
    if !status.is_object() {
        *status = json!({});
    }
    status[field] = value;
}

/// Waits until the devices that their drivers have to make ready are.
pub(super) async fn ready(
    context: &WriteContext,
    bind: &Bind,
    terms: &[ClaimTerms],
) -> Result<(), OutcomeResult> {
    let waits = |terms: &&ClaimTerms| terms.devices.iter().any(|one| !one.binding.is_empty());
    if !terms.iter().any(|terms| waits(&terms)) {
        return Ok(());
    }
    let note = format!(
        "waiting for binding conditions for device on node {}",
        bind.node
    );
    context.events.record(KubeEvent {
        about: event::pod(&bind.namespace, &bind.name, bind.pod.as_str()),
        warning: false,
        reason: "BindingConditionsPending",
        action: "Scheduling",
        note,
    });
    let api = claims(context, &bind.namespace);
    let deadline = Instant::now() + READY_WITHIN;
    for claim in &bind.devices {
        loop {
            let found = match get(&api, name(claim)).await {
                Ok(Some(found)) => found,
                Ok(None) => {
                    return Err(refused(format!("resource claim {} is gone", claim.name)));
                }
                Err(Stop::Refused(why)) => return Err(why),
                Err(Stop::Again(_)) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            match allocation::readiness(&found.data) {
                allocation::Readiness::Ready => break,
                allocation::Readiness::Failed(what) => {
                    return Err(refused(format!("resource claim {}: {what}", claim.name)));
                }
                allocation::Readiness::Waits(what) if Instant::now() > deadline => {
                    return Err(refused(format!(
                        "resource claim {}: {what} is not true after {} s",
                        claim.name,
                        READY_WITHIN.as_secs()
                    )));
                }
                allocation::Readiness::Waits(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }
    Ok(())
}

/// Takes back what [`reserve`] wrote: the pod's reservation and, where no other pod has one, the
/// devices. Gives up when the server has no answer for long: who leads finds them ([`free`]).
pub(super) async fn undo(context: &WriteContext, bind: &Bind) {
    let api = claims(context, &bind.namespace);
    let pods = [bind.pod.to_string()];
    for claim in &bind.devices {
        let _only = context.claims.write(&claim.uid).await;
        let mut permit = Permit::acquire(&context.permits).await;
        let take = || take_back(context, &api, name(claim), &claim.uid, &pods, false);
        if let Err(why) = repeat(&mut permit, take).await {
            tracing::warn!(claim = %claim.name, ?why, "its devices are not taken back");
        }
    }
}

/// Takes the devices from a claim that only pods have that wait, and for which nothing is under
/// way.
pub(super) async fn free(context: &WriteContext, stray: &Stray) {
    let Some(_alone) = context.claims.alone(&stray.uid) else {
        return;
    };
    let api = claims(context, &stray.namespace);
    let claim = format!("{}/{}", stray.namespace, stray.name);
    let take = || take_back(context, &api, &stray.name, &stray.uid, &stray.pods, true);
    let mut permit = Permit::acquire(&context.permits).await;
    match repeat(&mut permit, take).await {
        Ok(()) => tracing::info!(
            claim,
            "its devices are taken back: the pods that it is reserved for are not bound"
        ),
        Err(why) => tracing::warn!(claim, ?why, "its devices are not taken back"),
    }
}

/// `all`: not if another pod has a reservation.
async fn take_back(
    context: &WriteContext,
    api: &Api<DynamicObject>,
    name: &str,
    uid: &ClaimUid,
    pods: &[String],
    all: bool,
) -> Result<(), Stop> {
    let found = get(api, name).await?;
    let Some(mut found) = found.filter(|found| is_it(found, uid)) else {
        return Ok(());
    };
    let mut reserved = reserved_for(&found);
    let before = reserved.len();
    reserved.retain(|one| !pods.iter().any(|pod| is_of(one, pod)));
    if all && !reserved.is_empty() {
        return Ok(());
    }
    if reserved.is_empty()
        && let Some(withdrawn) = stand_in::withdraw(context, api, &found).await
    {
        return withdrawn;
    }
    let allocation = found.data.pointer("/status/allocation");
    let has_devices = allocation.is_some_and(|one| !one.is_null());
    if reserved.len() == before && !(has_devices && before == 0) {
        return Ok(());
    }
    if reserved.is_empty() {
        if let Some(status) = found.data["status"].as_object_mut() {
            status.remove("allocation");
            status.remove("reservedFor");
            status.remove("devices");
        }
    } else {
        set(&mut found, "reservedFor", reserved.into());
    }
    put(api, &found, true).await.map(drop)
}
