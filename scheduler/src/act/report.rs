//! Conditions of an admin's objects: what of them is in force.

use super::answer::{self, Answer};
use super::context::WriteContext;
use crate::shard::{Kind, Report};
use api::kai::{Config, SchedulingShard};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Api, Patch, PatchParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Writes it over the object as it was read. One that has changed meanwhile is refused (409): the
/// watch brings the new one, which gets a status of its own.
pub(super) async fn write(context: &WriteContext, report: Report) {
    let name = report.meta.name.clone().unwrap_or_default();
    let conditions = conditions(&report, &Time(context.wall.second()));
    let patch = json!({
        "metadata": {"uid": report.meta.uid, "resourceVersion": report.meta.resource_version},
        "status": {"conditions": conditions},
    });
    let client = context.client.clone();
    let answer = match report.kind {
        Kind::Shard => send::<SchedulingShard>(Api::all(client), &name, &patch).await,
        Kind::Config => send::<Config>(Api::all(client), &name, &patch).await,
    };
    if let Some(why) = answer {
        tracing::debug!(kind = ?report.kind, name, why, "a status is not written");
    }
}

/// Conditions of other types stay as they are; one that stays true, or false, keeps its time.
fn conditions(report: &Report, now: &Time) -> Vec<Condition> {
    let is_ours = |one: &&Condition| report.wants.iter().any(|want| want.kind == one.type_);
    let others = report.has.iter().filter(|one| !is_ours(one)).cloned();
    let ours = report.wants.iter().map(|want| {
        let status = if want.holds { "True" } else { "False" };
        let before = report
            .has
            .iter()
            .find(|one| one.type_ == want.kind && one.status == status);
        Condition {
            type_: want.kind.to_owned(),
            status: status.to_owned(),
            reason: want.reason.to_owned(),
            message: want.message.clone(),
            observed_generation: report.meta.generation,
            last_transition_time: before
                .map_or_else(|| now.clone(), |one| one.last_transition_time.clone()),
        }
    });
    others.chain(ours).collect()
}

/// Why it was not taken.
async fn send<K>(api: Api<K>, name: &str, patch: &Value) -> Option<String>
where
    K: Clone + DeserializeOwned,
{
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    let request = api.patch_status(name, &params, &patch);
    match answer::of(request).await {
        Answer::Done(_) => None,
        Answer::Refused(_, why) | Answer::Busy(why) | Answer::Unknown(why) => Some(why),
    }
}
