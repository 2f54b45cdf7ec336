//! KAI's annotations of pod groups, and its event of those that are stale.

use super::Hands;
use super::notice::Notice;
use jiff::Timestamp;
use proto::names::kai;
use scheduler_core::ids::GroupName;
use scheduler_core::units::Time;

/// When it went from nothing to something.
pub(super) async fn started(hands: &Hands, group: &GroupName, at: Time) {
    annotate(hands, group, kai::LAST_START, stamp(at)).await;
}

/// Since when it is below its minimum; `None`: it is whole again.
pub(super) async fn stale(hands: &Hands, group: &GroupName, since: Option<Time>) {
    let since = since.and_then(stamp);
    if let Some(since) = &since {
        notice(
            hands,
            group,
            format!("Job is stale since {since}: fewer of its pods are active than must be"),
        );
    }
    annotate(hands, group, kai::STALE_SINCE, since).await;
}

fn stamp(at: Time) -> Option<String> {
    let millis = i64::try_from(at.0).ok()?;
    Some(Timestamp::from_millisecond(millis).ok()?.to_string())
}

async fn annotate(hands: &Hands, group: &GroupName, key: &str, value: Option<String>) {
    // A pod that is a group of its own has no object.
    if let Some((namespace, name)) = group.as_str().split_once('/') {
        let stamp = hands
            .grouping
            .groups
            .stamp(namespace, name, key, value.as_deref());
        stamp.await;
    }
}

fn notice(hands: &Hands, group: &GroupName, note: String) {
    let parts = group.as_str().split_once('/');
    let known = &hands.grouping.known;
    if let Some(about) = parts.and_then(|(namespace, name)| known.reference(namespace, name)) {
        hands.notices.say(Notice {
            about,
            warning: false,
            reason: "StaleJob",
            action: "Scheduling",
            note,
        });
    }
}
