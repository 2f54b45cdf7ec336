//! Which success covers the next groups, and when a stamp waits for its group.

use super::site::{NS, Site};
use crate::group::Stamps;
use api::PodGroup;
use kube::ResourceExt as _;
use kube::api::PostParams;
use proto::names::kai;
use serde_json::json;
use sim_cluster::api_server::Fault;

fn group(name: &str, min: u32) -> PodGroup {
    serde_json::from_value(json!({
        "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": NS},
        "spec": {"minMember": min, "queue": "q"},
    }))
    .unwrap()
}

/// The policy of queues judges an update only where it changes labels or the queue.
#[tokio::test]
async fn only_a_group_that_was_created_is_taken() {
    let site = Site::start(false).await;
    let params = PostParams::default();
    let made = site.groups().create(&params, &group("changed", 1)).await;
    made.unwrap();
    let groups = &site.shared.groups;
    groups.ensure(&group("changed", 2)).await.unwrap();
    let changed = site.groups().get("changed").await.unwrap();
    assert_eq!(changed.spec.min_member, Some(2));
    assert!(!groups.is_taken(&group("next", 1)), "by a change");
    // Nor is one that was there as it should be.
    groups.forget_all();
    groups.ensure(&group("changed", 2)).await.unwrap();
    assert!(!groups.is_taken(&group("next", 1)), "by no write");

    groups.ensure(&group("created", 1)).await.unwrap();
    assert!(groups.is_taken(&group("next", 1)));
}

#[tokio::test]
async fn a_stamp_waits_for_the_group_while_one_pod_is_left_for_which_it_is_made() {
    let site = Site::start(false).await;
    let groups = &site.shared.groups;
    groups.expect(NS, "g", "a");
    groups.expect(NS, "g", "b");
    // A deleted one, which was grouped again just before.
    groups.unexpect(NS, "g", "a");
    groups.unexpect(NS, "g", "a");
    let stamp = async |value: &str| {
        let wanted = Stamps::from([(kai::LAST_START, Some(value.to_owned()))]);
        groups.stamp(&format!("{NS}/g").into(), &wanted).await
    };
    assert!(!stamp("first").await, "the group is not there yet");
    let wanted = group("g", 1);
    let mut making = Box::pin(groups.ensure(&wanted));
    assert!(futures::poll!(&mut making).is_pending());
    // Groups are listed again in the middle of it.
    groups.forget_all();
    making.await.unwrap();
    let stamped = async || {
        let group = site.groups().get("g").await.unwrap();
        group.annotations().get(kai::LAST_START).cloned()
    };
    assert_eq!(stamped().await.as_deref(), Some("first"));
    // The creation has written the annotation, so no other request is sent for it. The other pod's
    // expectation does not delay the group any more.
    let refused = Fault::TooManyRequests;
    site.server.plan("PATCH", "/podgroups/g", refused);
    assert!(stamp("first").await);
    assert!(!stamp("second").await);
    assert!(stamp("second").await);
    assert_eq!(stamped().await.as_deref(), Some("second"));
    // An existing group is annotated even if no pod needs it any more.
    groups.expect(NS, "g", "c");
    assert!(!stamp("third").await);
    groups.unexpect(NS, "g", "c");
    assert!(stamp("third").await);
    assert_eq!(stamped().await.as_deref(), Some("third"));
}

#[tokio::test]
async fn stamps_that_are_not_taken_are_written_again() {
    let site = Site::start(false).await;
    let groups = &site.shared.groups;
    let stamp = async |name: &str, value: &str| {
        let wanted = Stamps::from([(kai::LAST_START, Some(value.to_owned()))]);
        groups.stamp(&format!("{NS}/{name}").into(), &wanted).await
    };
    let stamped = async |name: &str| {
        let group = site.groups().get(name).await.unwrap();
        group.annotations().get(kai::LAST_START).cloned()
    };
    groups.ensure(&group("g", 1)).await.unwrap();
    for fault in [Fault::TooManyRequests, Fault::InternalError] {
        site.server.plan("PATCH", "/podgroups/g", fault);
        assert!(!stamp("g", "lost").await, "{fault:?}");
    }
    assert!(stamp("g", "taken").await);
    assert_eq!(stamped("g").await.as_deref(), Some("taken"));
    // The creation does not include a stamp that comes while it is under way.
    groups.expect(NS, "late", "a");
    let wanted = group("late", 1);
    let mut making = Box::pin(groups.ensure(&wanted));
    assert!(futures::poll!(&mut making).is_pending());
    assert!(!stamp("late", "first").await);
    making.await.unwrap();
    assert_eq!(stamped("late").await, None);
    assert!(stamp("late", "first").await);
    assert_eq!(stamped("late").await.as_deref(), Some("first"));
}
