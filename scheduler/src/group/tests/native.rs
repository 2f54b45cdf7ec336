//! Pods in a `PodGroup` of Kubernetes itself.

use super::super::rule::{Lookup, LookupResult, RuleContext};
use super::super::rules;
use super::site::{Site, until};
use super::{Object, between, classes, draft_with, owner, pod};
use crate::group::draft::Draft;
use crate::group::need;
use kube::api::PostParams;
use serde_json::{Value, json};

fn member() -> Object {
    pod(&json!({
        "metadata": {"labels": {"app": "w"}},
        "spec": {"schedulingGroup": {"podGroupName": "trainers"}},
    }))
}

fn group(patch: &Value) -> LookupResult {
    let mut group = json!({
        "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
        "metadata": {"name": "trainers", "namespace": "ns", "uid": "ug"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}},
    });
    json_patch::merge(&mut group, patch);
    LookupResult::Object(Box::new(Object::new(group)))
}

fn drafted(patch: &Value, chain: &[Object]) -> Result<Draft, String> {
    draft_with(&member(), chain, Some(&group(patch)))
}

#[test]
fn it_is_a_gang_of_its_count_with_the_queue_of_its_workload() {
    let labels = json!({"metadata": {"labels": {"kai.scheduler/queue": "team"}}});
    let chain = [
        between("apps/v1", "ReplicaSet"),
        owner("apps/v1", "Deployment", &labels),
    ];
    let draft = drafted(&json!({}), &chain).unwrap();
    assert_eq!(draft.name, "pg-trainers-ug");
    assert_eq!((draft.min, draft.queue.as_str()), (3, "team"));
    assert_eq!(draft.class, "inference");
    assert_eq!(draft.owner.kind, "PodGroup");
    assert_eq!(draft.owner.api_version, "scheduling.k8s.io/v1alpha2");
    assert!(!draft.labels.contains_key("app"), "{:?}", draft.labels);
    // What it says itself goes first.
    let own = json!({
        "metadata": {"labels": {"kai.scheduler/queue": "own"}},
        "spec": {"priorityClassName": "build"},
    });
    let draft = drafted(&own, &chain).unwrap();
    assert_eq!(
        (draft.queue.as_str(), draft.class.as_str()),
        ("own", "build")
    );
    let missing = json!({"spec": {"priorityClassName": "missing"}});
    assert_eq!(drafted(&missing, &chain).unwrap().class, "inference");
    // Pods without an owner: nothing but the object and the pod says anything.
    let draft = drafted(&json!({}), &[]).unwrap();
    assert_eq!((draft.min, draft.class.as_str()), (3, "train"));
    assert!(!draft.labels.contains_key("app"), "{:?}", draft.labels);
    let basic = json!({"spec": {"schedulingPolicy": {"gang": null, "basic": {}}}});
    assert_eq!(drafted(&basic, &[]).unwrap().min, 1);
}

#[test]
fn what_it_asks_for_is_followed_or_named() {
    let rack = json!({"spec": {"schedulingConstraints": {"topology": [{"key": "rack"}]}}});
    let mut with_topology = rack.clone();
    with_topology["metadata"]["annotations"] = json!({"kai.scheduler/topology": "racks"});
    let topology = drafted(&with_topology, &[]).unwrap().topology.unwrap();
    assert_eq!(topology.topology.as_deref(), Some("racks"));
    assert_eq!(topology.required_topology_level.as_deref(), Some("rack"));
    for (patch, word) in [
        (
            rack,
            "its topology constraint rack needs the annotation kai.scheduler/topology",
        ),
        (
            json!({"spec": {"parentCompositePodGroupName": "all"}}),
            "part of the CompositePodGroup all, which is not supported",
        ),
        (
            json!({"spec": {"schedulingPolicy": {"gang": {"minCount": 0}}}}),
            "neither basic nor a gang with a minCount from 1 on",
        ),
        (
            json!({"spec": {"schedulingPolicy": {"gang": null, "later": {}}}}),
            "neither basic nor a gang with a minCount from 1 on",
        ),
    ] {
        let why = drafted(&patch, &[]).unwrap_err();
        assert!(
            why.starts_with("PodGroup trainers: ") && why.contains(word),
            "{why}"
        );
    }
    let why = draft_with(&member(), &[], None).unwrap_err();
    assert!(
        why.ends_with("names the PodGroup trainers of scheduling.k8s.io, which is not there"),
        "{why}"
    );
}

#[test]
fn its_pods_wait_for_it_and_it_is_asked_for_before_what_their_owners_need() {
    let (pod, classes) = (member(), classes());
    assert!(need::must_wait(&pod.pod().unwrap(), "kai-scheduler", false));
    let chain = [owner("jobset.x-k8s.io/v1alpha2", "JobSet", &json!({}))];
    for chain in [&[][..], &chain] {
        let context = RuleContext {
            pod: &pod,
            chain,
            extra: None,
            classes: &classes,
            deployment_gangs: true,
        };
        let name = "trainers".to_owned();
        assert_eq!(rules::needed_lookup(context), Some(Lookup::Native { name }));
    }
}

#[tokio::test]
async fn it_is_read_in_the_version_that_is_served_and_waited_for_until_it_is_there() {
    let site = Site::start(true).await;
    site.define("scheduling.k8s.io", "v1alpha7", "PodGroup", "podgroups")
        .await;
    for name in ["a", "b"] {
        let pod = json!({"metadata": {"name": name}, "spec": {
            "schedulerName": "kai-scheduler", "containers": [{"name": "c", "image": "i"}],
            "schedulingGroup": {"podGroupName": "trainers"}}});
        let pod = serde_json::from_value(pod).unwrap();
        site.pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap();
    }
    let said = until(|| async {
        let pod = site.pods().get("a").await.unwrap();
        pod.status?.conditions?.pop()?.message
    })
    .await;
    assert!(
        said.contains("the PodGroup trainers of scheduling.k8s.io"),
        "{said}"
    );
    let group = json!({"metadata": {"name": "trainers"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}});
    let made = site
        .make("scheduling.k8s.io/v1alpha7", "PodGroup", "podgroups", group)
        .await;
    for name in ["a", "b"] {
        let group = site.grouped(name).await;
        assert_eq!(group.spec.min_member, Some(2));
        let owner = &group.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!(owner.uid, made["uid"].as_str().unwrap());
        assert_eq!(owner.api_version, "scheduling.k8s.io/v1alpha7");
    }
}
