//! A claim in the API server: how it is read, written and recognised.

use crate::act::answer::{self, Answer, refused};
use kube::api::PostParams;
use kube::core::DynamicObject;
use kube::{Api, ResourceExt as _};
use scheduler_core::ids::ClaimUid;
use scheduler_core::{DeviceBinding, OutcomeResult};

/// Kubernetes' `resourceapi.Finalizer`: a claim that has devices is not gone before it has lost
/// them.
pub(super) const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// The end of an attempt to read and write a claim.
pub(super) enum Stop {
    /// The attempt begins again: the claim has changed, or it is unknown whether it has.
    Again(String),
    Refused(OutcomeResult),
}

pub(super) type Claim = Box<DynamicObject>;

/// Returns the claim's name in the pod's namespace.
pub(super) fn name(claim: &DeviceBinding) -> &str {
    claim.name.rsplit('/').next().unwrap_or_default()
}

pub(super) async fn get(api: &Api<DynamicObject>, name: &str) -> Result<Option<Claim>, Stop> {
    match answer::of(api.get_opt(name)).await {
        Answer::Done(found) => Ok(found.map(Box::new)),
        Answer::Refused(_, why) => Err(Stop::Refused(refused(why))),
        Answer::Busy(why) | Answer::Unknown(why) => Err(Stop::Again(why)),
    }
}

pub(super) async fn put(
    api: &Api<DynamicObject>,
    claim: &DynamicObject,
    status: bool,
) -> Result<Claim, Stop> {
    let (name, params) = (claim.name_any(), PostParams::default());
    let answer = if status {
        answer::of(api.replace_status(&name, &params, claim)).await
    } else {
        answer::of(api.replace(&name, &params, claim)).await
    };
    match answer {
        Answer::Done(claim) => Ok(Box::new(claim)),
        // Another version than was read.
        Answer::Refused(409, why) | Answer::Busy(why) | Answer::Unknown(why) => {
            Err(Stop::Again(why))
        }
        Answer::Refused(_, why) => Err(Stop::Refused(refused(why))),
    }
}

/// Returns true if the object is the claim that the core knows.
pub(super) fn is_it(found: &DynamicObject, uid: &ClaimUid) -> bool {
    crate::convert::stand_in::uid_of(&found.metadata) == *uid
}
