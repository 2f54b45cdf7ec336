//! What the relay sends to the cycle and to the grouper.

use super::site::NS;
use crate::config::LonePodGroups;
use crate::group::member::Membership;
use crate::group::object::Object;
use crate::group::relay::{GroupDecision, GrouperChannels, GrouperEvent};
use crate::group::{FactRelay, Shared, write};
use crate::watch::{Fact, Seen};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

/// The output of a relay: facts that it passes on, and messages to the grouper.
fn relay(facts: channel::Receiver<Fact>) -> (channel::Receiver<Fact>, GrouperChannels) {
    let nowhere = kube::Config::new("http://localhost:1".parse().unwrap());
    let client = kube::Client::try_from(nowhere).unwrap();
    let shared = Shared::new(client, LonePodGroups::Write);
    let (relay, passed, told) =
        FactRelay::new("kai-scheduler", shared, facts, &channel::Lengths::default());
    tokio::spawn(relay.run());
    (passed, told)
}

/// A pod is gone while a listing goes on, and in the middle of that its group is decided.
#[tokio::test]
async fn a_pod_that_goes_in_a_listing_takes_the_group_that_was_decided_meanwhile() {
    let (facts, facts_in) = channel::unbounded();
    let (mut passed, told) = relay(facts_in);
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": NS, "uid": "u", "resourceVersion": "1",
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j"}]},
        "spec": {"schedulerName": "kai-scheduler", "containers": []},
    }))
    .unwrap();
    for fact in [
        Fact::Group(Seen::Listing),
        Fact::Group(Seen::Listed),
        Fact::Pod(Seen::Listing),
        Fact::Pod(Seen::There(Box::new(pod.clone()))),
        Fact::Pod(Seen::Listed),
        Fact::Pod(Seen::Listing),
    ] {
        facts.send(fact).unwrap();
        passed.recv().await.unwrap();
    }
    let object = Object::of_pod(&pod);
    let draft = super::draft(&object, &[]);
    let decided = GroupDecision {
        pod: Box::new(pod),
        membership: Membership::of(&draft, &object, false),
        group: write::group(&draft),
        is_written: false,
    };
    told.decided.send(decided).unwrap();
    let group = passed.recv().await.unwrap();
    assert!(matches!(group, Fact::Group(Seen::There(_))), "{group:?}");
    let there = passed.recv().await.unwrap();
    assert!(matches!(there, Fact::Pod(Seen::There(_))), "{there:?}");
    facts.send(Fact::Pod(Seen::Gone("u".into()))).unwrap();
    let group = passed.recv().await.unwrap();
    assert!(matches!(group, Fact::Group(Seen::Gone(_))), "{group:?}");
    match passed.recv().await.unwrap() {
        Fact::Pod(Seen::Gone(uid)) => assert_eq!(uid, "u"),
        other => panic!("{other:?}"),
    }
}

/// The grouper reads one pod of a group that it creates again.
#[tokio::test]
async fn a_missing_group_is_told_again_when_the_pod_that_was_named_leaves_it() {
    let (facts, facts_in) = channel::unbounded();
    let (_passed, mut told) = relay(facts_in);
    let pod = |name: &str, going: bool| -> Box<Pod> {
        let since = going.then_some("2026-01-01T00:00:00Z");
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": NS, "uid": name, "deletionTimestamp": since,
                "annotations": {"pod-group-name": "g"}},
            "spec": {"schedulerName": "kai-scheduler", "containers": []},
        }))
        .unwrap()
    };
    for fact in [
        Fact::Group(Seen::Listing),
        Fact::Group(Seen::Listed),
        Fact::Pod(Seen::Listing),
        Fact::Pod(Seen::There(pod("a", false))),
        Fact::Pod(Seen::There(pod("b", false))),
        Fact::Pod(Seen::There(pod("c", false))),
        Fact::Pod(Seen::Listed),
        Fact::Pod(Seen::Gone("a".into())),
        Fact::Pod(Seen::There(pod("b", true))),
        Fact::Pod(Seen::Gone("b".into())),
        // No receiver is left.
        Fact::Pod(Seen::Gone("c".into())),
    ] {
        facts.send(fact).unwrap();
    }
    drop(facts);
    let mut named = Vec::new();
    while let Some(news) = told.news.recv().await {
        if let GrouperEvent::NoGroup { name, pod, .. } = news {
            assert_eq!(name, "g");
            named.push(pod.unwrap());
        }
    }
    assert_eq!(named, ["a", "b", "c"]);
}
