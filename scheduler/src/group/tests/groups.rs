//! Which success speaks for the groups that come next.

use super::site::{NS, Site};
use api::PodGroup;
use kube::api::PostParams;
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
