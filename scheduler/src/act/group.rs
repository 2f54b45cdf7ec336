//! KAI's annotations of pod groups.

use super::Hands;
use super::answer::{self, Answer};
use api::PodGroup;
use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use proto::names::kai;
use scheduler_core::ids::GroupName;
use scheduler_core::units::Time;
use serde_json::{Value, json};

/// When it went from nothing to something.
pub(super) async fn started(hands: &Hands, group: &GroupName, at: Time) {
    annotate(hands, group, kai::LAST_START, stamp(at)).await;
}

/// Since when it is below its minimum; `None`: it is whole again.
pub(super) async fn stale(hands: &Hands, group: &GroupName, since: Option<Time>) {
    annotate(
        hands,
        group,
        kai::STALE_SINCE,
        since.map_or(Value::Null, stamp),
    )
    .await;
}

fn stamp(at: Time) -> Value {
    let stamp = i64::try_from(at.0)
        .ok()
        .and_then(|millis| Timestamp::from_millisecond(millis).ok());
    stamp.map_or(Value::Null, |stamp| Value::String(stamp.to_string()))
}

/// A pod that is a group of its own has no object.
async fn annotate(hands: &Hands, group: &GroupName, key: &str, value: Value) {
    let Some((namespace, name)) = group.as_str().split_once('/') else {
        return;
    };
    let api: Api<PodGroup> = Api::namespaced(hands.client.clone(), namespace);
    let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
    let params = PatchParams::default();
    let request = api.patch_metadata(name, &params, &patch);
    match answer::of(request).await {
        Answer::Done(_) | Answer::Refused(404, _) => {}
        Answer::Refused(_, why) | Answer::Busy(why) | Answer::Unknown(why) => {
            tracing::warn!(%group, key, why, "an annotation is not written");
        }
    }
}
