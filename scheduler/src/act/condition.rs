//! Pod conditions: why a pod waits, and what fences its share.
//!
//! Each write names the pod's UID, so that a pod created again under the same name is not
//! told what its predecessor did.

use super::answer::{self, Answer};
use super::context::WriteContext;
use super::event::{self, KubeEvent};
use super::report_schedule::DueReport;
use crate::convert::{OwedCondition, Shown};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use proto::names::condition::IDLE;
use scheduler_core::{Bind, Evict, PodReason};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Why a pod that has a node is not bound yet.
const WAITING_FOR_VOLUME: &str = "WaitingForVolume";
/// The longest message, in bytes.
const MAX_MESSAGE: usize = 8192;

/// A condition of one pod.
struct Condition<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    kind: &'static str,
    holds: bool,
    because: &'static str,
    message: String,
    since: String,
}

/// `PodScheduled=False`, and the same as an event. Answers whether the write is over: `false` asks
/// the caller to repeat it.
pub(super) async fn waiting(context: &WriteContext, due: &DueReport) -> bool {
    let reason = &due.reason;
    let told = KubeEvent {
        about: event::pod(&reason.namespace, &reason.name, reason.pod.as_str()),
        warning: true,
        reason: "Unschedulable",
        action: "Scheduling",
        note: reason.line.to_string(),
    };
    context.events.record(match reason.kind {
        // It has a place, which is not free yet.
        scheduler_core::ReasonKind::Promised => KubeEvent {
            warning: false,
            reason: "Pipelined",
            ..told
        },
        _ => told,
    });
    let condition = Condition {
        namespace: &reason.namespace,
        name: &reason.name,
        uid: reason.pod.as_str(),
        kind: "PodScheduled",
        holds: false,
        because: because(context, reason),
        message: message(headline(&reason.line, &due.cards), &due.cards),
        since: due.since.to_string(),
    };
    // A user who reads why a pod waits looks for its group next, so the patch names it too.
    let membership = context.grouping.memberships.of(reason.pod.as_str());
    let patch = match membership {
        Some(membership) => membership.patch(reason.pod.as_str()),
        None => json!({"metadata": {"uid": reason.pod.as_str()}}),
    };
    write_with(context, condition, patch).await
}

/// Returns the reason of the condition `PodScheduled` for a pod that waits.
fn because(context: &WriteContext, waits: &PodReason) -> &'static str {
    match waits.kind {
        scheduler_core::ReasonKind::Gated => "SchedulingGated",
        _ if context.asks_for_nodes => proto::names::scale_up::WAITING,
        _ => "Unschedulable",
    }
}

/// Returns true if the watch shows this very reason on the pod.
pub(super) fn is_shown(
    context: &WriteContext,
    reason: &PodReason,
    cards: &[String],
    shown: &Shown,
) -> bool {
    let message = message(headline(&reason.line, cards), cards);
    shown.says(false, because(context, reason), &message)
}

/// `PodScheduled=False` while its claims are bound where it goes. Another reason than
/// autoscalers look for: it has a node.
pub(super) async fn waiting_for_volume(context: &WriteContext, bind: &Bind, claims: &[&str]) {
    let note = format!(
        "waiting for {} to be bound on node {}",
        claims.join(", "),
        bind.node
    );
    context.events.record(KubeEvent {
        about: event::pod(&bind.namespace, &bind.name, bind.pod.as_str()),
        warning: false,
        reason: "WaitingForVolume",
        action: "Binding",
        note: note.clone(),
    });
    let condition = Condition {
        namespace: &bind.namespace,
        name: &bind.name,
        uid: bind.pod.as_str(),
        kind: "PodScheduled",
        holds: false,
        because: WAITING_FOR_VOLUME,
        message: message(&note, &[]),
        since: context.wall.second().to_string(),
    };
    write(context, condition).await;
}

/// Writes a condition that follows from an agent's report, and records its event.
pub(super) async fn owed(context: &WriteContext, owed: &OwedCondition) {
    let wanted = &owed.condition;
    if let Some(note) = &wanted.event {
        context.events.record(KubeEvent {
            about: event::pod(&wanted.namespace, &wanted.name, &wanted.uid),
            warning: true,
            reason: match owed.kind {
                IDLE => "GPUIdle",
                _ => "GPUShare",
            },
            action: "Watching",
            note: note.clone(),
        });
    }
    let condition = Condition {
        namespace: &wanted.namespace,
        name: &wanted.name,
        uid: &wanted.uid,
        kind: owed.kind,
        holds: wanted.holds,
        because: wanted.because,
        message: wanted.message.clone(),
        since: owed
            .since
            .unwrap_or_else(|| context.wall.second())
            .to_string(),
    };
    write(context, condition).await;
}

/// `DisruptionTarget=True`: who reads why a pod ended sees that it was not its own doing.
pub(super) async fn disrupted(context: &WriteContext, evict: &Evict) {
    write(context, of_evicted(context, evict)).await;
}

fn of_evicted<'a>(context: &WriteContext, evict: &'a Evict) -> Condition<'a> {
    Condition {
        namespace: &evict.namespace,
        name: &evict.name,
        uid: evict.pod.as_str(),
        kind: "DisruptionTarget",
        holds: true,
        because: "PreemptionByScheduler",
        message: message(&evict.message, &[]),
        since: context.wall.second().to_string(),
    }
}

/// The one line without its cards: here each has a line of its own.
fn headline<'a>(line: &'a str, cards: &[String]) -> &'a str {
    cards
        .first()
        .and_then(|card| line.split_once(card.as_str()))
        .map_or(line, |(head, _)| head.trim_end())
}

/// The reason, then a line per card, cut at a line where it is too long.
fn message(line: &str, cards: &[String]) -> String {
    let mut text = line.to_owned();
    for (at, card) in cards.iter().enumerate() {
        if text.len() + card.len() + 1 > MAX_MESSAGE {
            let _ = write!(text, "\n... and {} more", cards.len() - at);
            break;
        }
        text.push('\n');
        text.push_str(card);
    }
    if text.len() > MAX_MESSAGE + 64 {
        let mut end = MAX_MESSAGE;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

async fn write(context: &WriteContext, condition: Condition<'_>) -> bool {
    let of_pod = json!({"metadata": {"uid": condition.uid}});
    write_with(context, condition, of_pod).await
}

/// Adds the condition to a patch of the pod's metadata, which the API server takes with the status.
/// Returns whether the write is over, because it was taken or the pod is gone.
async fn write_with(context: &WriteContext, condition: Condition<'_>, mut patch: Value) -> bool {
    let (namespace, name) = (condition.namespace, condition.name);
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    patch["status"] = json!({"conditions": [{
        "type": condition.kind,
        "status": if condition.holds { "True" } else { "False" },
        "reason": condition.because,
        "message": condition.message,
        "lastTransitionTime": condition.since,
    }]});
    let params = PatchParams::default();
    let patch = Patch::Strategic(patch);
    let request = api.patch_status(name, &params, &patch);
    match answer::of(request).await {
        Answer::Done(_) | Answer::Refused(404, _) => true,
        // Another pod has its name now, or another writer was faster.
        Answer::Refused(409, _) => match answer::of(api.get_metadata_opt(name)).await {
            Answer::Done(found) => {
                let uid = found.and_then(|pod| pod.metadata.uid);
                uid.as_deref() != Some(condition.uid)
            }
            _ => false,
        },
        Answer::Refused(_, why) | Answer::Busy(why) | Answer::Unknown(why) => {
            context.meters.lost_condition();
            tracing::warn!(pod = %format!("{namespace}/{name}"), why, "a condition is not written");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_per_card_follows_the_reason_and_too_many_are_counted() {
        let cards = vec!["GPU-1: full".to_owned(), "GPU-2: full".to_owned()];
        assert_eq!(
            message("no room", &cards),
            "no room\nGPU-1: full\nGPU-2: full"
        );
        let many: Vec<String> = (0..1000)
            .map(|at| format!("GPU-{at}: 0 of 15360 MiB free"))
            .collect();
        let text = message("no room", &many);
        assert!(text.len() <= MAX_MESSAGE + 64);
        assert!(text.lines().last().unwrap().starts_with("... and "));
    }

    #[test]
    fn a_card_that_the_one_line_names_gets_its_line_once() {
        let cards = [
            "node n1: GPU-1: full".to_owned(),
            "node n1: GPU-2: full".to_owned(),
        ];
        let line = "no nodes: GPUs. node n1: GPU-1: full; node n1: GPU-2: full";
        assert_eq!(headline(line, &cards), "no nodes: GPUs.");
        assert_eq!(headline("over its limit", &cards), "over its limit");
        assert_eq!(headline(line, &[]), line);
    }

    #[test]
    fn a_text_is_never_cut_inside_a_character() {
        let text = message(&"é".repeat(MAX_MESSAGE), &[]);
        assert!(text.len() <= MAX_MESSAGE);
    }
}
