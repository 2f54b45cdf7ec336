//! Which success covers the next groups, and when a stamp waits for its group.

use super::site::{NS, Site};
use api::PodGroup;
use kube::ResourceExt as _;
use kube::api::PostParams;
use proto::names::kai;
use serde_json::json;

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
    let stamp = async |value| groups.stamp(NS, "g", kai::LAST_START, Some(value)).await;
    stamp("first").await;
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
    // It exists: what was expected for the other pod holds up nothing any more.
    stamp("second").await;
    assert_eq!(stamped().await.as_deref(), Some("second"));
}
