//! A view → the status that an object is to have, in KAI's fields. Pure.

use super::amounts;
use proto::names::queue::{IDLE_CONDITION, QUOTA_CONDITION};
use scheduler_core::ids::QueueName;
use scheduler_core::model::Grace;
use scheduler_core::{GroupView, QueueView, ReasonKind};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The names of queues, by the queue above them.
pub(super) type Children<'a> = BTreeMap<&'a QueueName, Vec<&'a str>>;

/// Returns the children of every queue, in the order of the views.
pub(super) fn children(views: &[QueueView]) -> Children<'_> {
    let mut children = Children::new();
    for view in views {
        if let Some(parent) = &view.parent {
            children
                .entry(parent)
                .or_default()
                .push(view.queue.as_str());
        }
    }
    children
}

/// Returns `Queue.status`.
pub(super) fn queue(view: &QueueView, children: &Children<'_>) -> Value {
    let children = children.get(&view.queue).map_or(&[][..], Vec::as_slice);
    let mut requested = view.held;
    for (sum, wanted) in requested.iter_mut().zip(view.wanted) {
        *sum = sum.saturating_add(wanted);
    }
    json!({
        // Left out, not empty: kubectl prints an empty list.
        "childQueues": if children.is_empty() { Value::Null } else { json!(children) },
        "allocated": amounts::list(view.held),
        "allocatedNonPreemptible": amounts::list(view.held_non_preemptible),
        "requested": amounts::list(requested),
        "conditions": conditions(view),
    })
}

/// The conditions of the queue; null removes them in a merge patch.
fn conditions(view: &QueueView) -> Value {
    let all: Vec<Value> = by_product(view).into_iter().chain(idle(view)).collect();
    if all.is_empty() {
        Value::Null
    } else {
        json!(all)
    }
}

/// What became of the queue's annotations about idle pods. `None`: it has none.
fn idle(view: &QueueView) -> Option<Value> {
    let (status, reason, message) = match (&view.bad_idle, view.idle_after) {
        (Some(bad), _) => ("False", "Invalid", bad.to_string()),
        (None, Some(Grace::Never)) => (
            "True",
            "Never",
            "no pod gives way for being idle".to_owned(),
        ),
        (None, Some(Grace::For(after))) => {
            let message = format!(
                "pods give way to pods that wait after {} s without work",
                after.0 / 1000
            );
            ("True", "InForce", message)
        }
        (None, None) => return None,
    };
    Some(json!({"type": IDLE_CONDITION, "status": status, "reason": reason, "message": message}))
}

/// What became of the queue's annotation about GPU products. `None`: it has none.
fn by_product(view: &QueueView) -> Option<Value> {
    let missing: Vec<&str> = (view.products.iter().filter(|one| one.nodes == 0))
        .map(|one| &*one.row.product)
        .collect();
    let (status, reason, message) = match &view.bad_products {
        Some(bad) => ("False", "Invalid", bad.to_string()),
        None if view.products.is_empty() => return None,
        None if missing.is_empty() => ("True", "InForce", "all products are known".to_owned()),
        None => (
            "True",
            "UnknownProduct",
            format!(
                "no node has GPUs of {}: compare with the node label nvidia.com/gpu.product",
                missing.join(", ")
            ),
        ),
    };
    Some(json!({"type": QUOTA_CONDITION, "status": status, "reason": reason, "message": message}))
}

/// `PodGroup.status`, in the node pool of that name. With `with_phase`, it has the fields that KAI
/// removed in 0.16, because the definition in the cluster has them.
pub(super) fn group(view: &GroupView, pool: &str, queues: &[QueueView], with_phase: bool) -> Value {
    // A group that is incomplete, or has a place that is being freed, needs no room or nodes from
    // others, and was not tried without success.
    let ready = |kind: &ReasonKind| {
        !matches!(
            kind,
            ReasonKind::NotReady | ReasonKind::Gated | ReasonKind::Promised
        )
    };
    let conditions: Vec<Value> = view
        .reason
        .iter()
        .filter(|(kind, _)| ready(kind))
        .map(|(kind, line)| {
            json!({
                "type": "UnschedulableOnNodePool",
                "nodePool": pool,
                "status": "True",
                "reason": "Unschedulable",
                "message": line.as_ref(),
                "reasons": [{
                    "reason": code(*kind), "message": line.as_ref(), "details": details(view, queues),
                }],
            })
        })
        .collect();
    let core: Vec<&str> = view.core.iter().map(AsRef::as_ref).collect();
    let mut status = json!({
        "resourcesStatus": {
            "allocated": amounts::list(view.held),
            "allocatedNonPreemptible": amounts::list(view.held_non_preemptible),
            "requested": amounts::list(view.requested),
        },
        "schedulingConditions": conditions,
        // Null removes it in a merge patch.
        "schedulingState": if core.is_empty() { Value::Null } else { json!({"corePods": core}) },
    });
    if with_phase {
        let phase = if view.running == 0 {
            "Pending"
        } else {
            "Running"
        };
        status["phase"] = json!(phase);
        status["running"] = json!(view.running);
        status["pending"] = json!(view.pending);
    }
    status
}

/// The amounts of the queue whose limit or quota the group would exceed. Null if its reason is another
/// one, or the queue is gone.
fn details(view: &GroupView, queues: &[QueueView]) -> Value {
    let Some(over) = &view.over else {
        return Value::Null;
    };
    let Some(queue) = queues.iter().find(|queue| queue.queue == over.queue) else {
        return Value::Null;
    };
    let requested: [u128; 3] = std::array::from_fn(|at| queue.held[at] + queue.wanted[at]);
    json!({"queueDetails": {
        "name": over.queue.as_str(),
        "queueRequestedResources": amounts::list(requested),
        "queueDeservedResources": amounts::bounds(queue.quota),
        "queueAllocatedResources": amounts::list(queue.held),
        "queueAllocatedNonPreemptibleResources": amounts::list(queue.held_non_preemptible),
        "queueResourceLimits": amounts::bounds(queue.limit),
        "podGroupRequestedResources": amounts::list(over.wanted),
        "podGroupRequestedNonPreemptibleResources": amounts::list(over.wanted_non_preemptible),
    }})
}

/// KAI's codes; `PodSchedulingErrors` where it has none of its own.
fn code(kind: ReasonKind) -> &'static str {
    match kind {
        ReasonKind::QueueDoesNotExist
        | ReasonKind::OverLimit
        | ReasonKind::NonPreemptibleOverQuota => kind.as_str(),
        _ => "PodSchedulingErrors",
    }
}
