//! This module writes KAI's events of pod groups that are stale or lose pods.

use super::context::WriteContext;
use super::event::{Annotations, KubeEvent};
use super::eviction_batch::EvictionBatch;
use super::stamps::rfc3339;
use crate::status::Victim;
use k8s_openapi::api::core::v1::ObjectReference;
use proto::names::kai;
use scheduler_core::Evict;
use scheduler_core::ids::GroupName;
use scheduler_core::units::Time;

/// Records the event that the group has been below its minimum since then.
pub(super) fn stale(context: &WriteContext, group: &GroupName, since: Time) {
    let since = rfc3339(since).unwrap_or_default();
    let note = format!("Job is stale since {since}: fewer of its pods are active than must be");
    let told = about(context, group).map(|about| KubeEvent {
        about,
        warning: false,
        reason: "StaleJob",
        action: "Scheduling",
        note,
    });
    if let Some(event) = told {
        context.events.record(event);
    }
}

/// KAI's event of a group that loses pods, with the annotations that tools read
/// (`status_updater.Evicted`). KAI writes one for each pod, of which its recorder lets a part
/// through; here it is one for all pods of the group that go together.
pub(super) fn evicted(context: &WriteContext, evict: &Evict, together: &EvictionBatch) {
    let Some(group) = &evict.group else {
        return;
    };
    let Some((all, of_group)) = together.unreported(group) else {
        return;
    };
    let message = &evict.message;
    let note = match of_group.saturating_sub(1) {
        0 => message.to_string(),
        1 => format!("{message} (and one more pod of this group)"),
        more => format!("{message} (and {more} more pods of this group)"),
    };
    let mut says = Annotations::from([
        (kai::EVICTED_PODS.to_owned(), all.to_string()),
        (
            kai::EVICTOR_ACTION.to_owned(),
            Victim::action(evict.cause).to_owned(),
        ),
    ]);
    if let Some((namespace, name)) = evictor(context, evict) {
        says.insert(kai::EVICTOR_NAMESPACE.to_owned(), namespace.to_owned());
        says.insert(kai::EVICTOR_NAME.to_owned(), name.to_owned());
    }
    let told = about(context, group).map(|about| KubeEvent {
        about,
        warning: false,
        reason: "Evict",
        action: "Evicting",
        note,
    });
    if let Some(event) = told {
        context.events.record_annotated(event, says);
    }
}

/// Namespace and name of the group that room was made for. Where pods alone get no groups, a name
/// that the watch does not show is that of none.
fn evictor<'a>(context: &WriteContext, evict: &'a Evict) -> Option<(&'a str, &'a str)> {
    let (namespace, name) = evict.in_favour_of.as_ref()?.as_str().split_once('/')?;
    let there = || context.grouping.known.reference(namespace, name).is_some();
    (context.grouping.groups_lone_pods() || there()).then_some((namespace, name))
}

/// A group that the watch does not show has no events.
fn about(context: &WriteContext, group: &GroupName) -> Option<ObjectReference> {
    let (namespace, name) = group.as_str().split_once('/')?;
    context.grouping.known.reference(namespace, name)
}
