//! One pod deleted, by its UID; or only told, where no controller would create it again.

use super::answer::{self, Answer, WriteState};
use super::condition;
use super::context::WriteContext;
use super::event::{KubeEvent, pod as about};
use super::eviction::post;
use super::eviction_batch::EvictionBatch;
use super::group;
use super::permit::Permit;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, ResourceExt as _};
use scheduler_core::{Evict, EvictCause, OutcomeResult};

/// Evicts, and says how that ended.
pub(super) async fn evict(
    context: &WriteContext,
    evict: &Evict,
    together: &EvictionBatch,
    permit: &mut Permit,
) -> OutcomeResult {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &evict.namespace);
    if evict.cause == EvictCause::GrantRefused {
        match answer::read(permit, || api.get_opt(&evict.name)).await {
            Ok(Some(pod)) if pod.uid().as_deref() == Some(evict.pod.as_str()) => {
                if api::owner::controller(&pod).is_none() {
                    tell(context, evict);
                    return OutcomeResult::Stays;
                }
            }
            Ok(_) => return OutcomeResult::Confirmed,
            Err(why) => return answer::refused(why),
        }
    }
    if context.keeps_budgets(evict.cause) {
        let result = asked(&api, evict, permit).await;
        if result == OutcomeResult::Confirmed {
            record(context, evict, evict.message.to_string());
            group::evicted(context, evict, together);
        }
        return result;
    }
    record(context, evict, evict.message.to_string());
    group::evicted(context, evict, together);
    // Before it is deleted: Jobs' failure policies look for it.
    condition::disrupted(context, evict).await;
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(evict.pod.to_string()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let delete = || api.delete(&evict.name, &params);
    answer::written(permit, 1, delete, || leaving(&api, evict)).await
}

/// Whether the pod is on its way out, or gone; `None`: no answer.
async fn leaving(api: &Api<Pod>, evict: &Evict) -> Option<WriteState> {
    match answer::of(api.get_opt(&evict.name)).await {
        Answer::Done(Some(pod))
            if pod.uid().as_deref() == Some(evict.pod.as_str())
                && pod.metadata.deletion_timestamp.is_none() =>
        {
            Some(WriteState::NotYet)
        }
        // Another pod under its name is none of ours.
        Answer::Done(_) => Some(WriteState::Taken),
        _ => None,
    }
}

/// By the API server's eviction, which asks the disruption budgets.
async fn asked(api: &Api<Pod>, evict: &Evict, permit: &mut Permit) -> OutcomeResult {
    // Busy, 429: a budget says no, now.
    answer::written(
        permit,
        1,
        || post(api, evict, false),
        || leaving(api, evict),
    )
    .await
}

/// Tells the user of a bare pod why its grant is not honoured. The pod is not deleted, because nothing
/// would create it again. The condition `IsolationVerified` says the same; it is written from the
/// agent's refusal.
fn tell(context: &WriteContext, evict: &Evict) {
    let note = format!(
        "{}. No controller would create this pod again, so it is left as it is: delete it and create it again",
        evict.message.trim_end_matches('.')
    );
    record(context, evict, note);
}

fn record(context: &WriteContext, evict: &Evict, note: String) {
    let cause = evict.cause.as_str();
    tracing::info!(namespace = %evict.namespace, pod = %evict.name, cause, note, "evicts");
    context.events.record(KubeEvent {
        about: about(&evict.namespace, &evict.name, evict.pod.as_str()),
        warning: matches!(
            evict.cause,
            EvictCause::GrantRefused | EvictCause::AgentRequest
        ),
        reason: if evict.cause == EvictCause::GrantRefused {
            "GrantRefused"
        } else {
            "Evict"
        },
        action: "Evicting",
        note,
    });
}
