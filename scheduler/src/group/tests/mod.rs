//! What all groups have in common, and what is written of it. `kinds` has a row per kind of
//! owner, as KAI's own table has; `parts` is about gangs with parts. `grouper` and `groups` use the
//! simulated API server of `site`; `missing` and `relay` need none.

mod grouper;
mod groups;
mod jobset;
mod kinds;
mod missing;
mod native;
mod parts;
mod relay;
mod site;
mod types;

use super::draft::{Classes, Draft};
use super::member::Membership;
use super::need;
use super::object::Object;
use super::rule::{LookupResult, RuleContext};
use super::rules;
use super::write;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use std::sync::Arc;

/// A pod `p-0` with UID `up`, with this merged into it.
fn pod(patch: &Value) -> Object {
    let mut pod = json!({
        "metadata": {"name": "p-0", "namespace": "ns", "uid": "up"},
        "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main"}]},
    });
    json_patch::merge(&mut pod, patch);
    Object::of_pod(&serde_json::from_value::<Pod>(pod).unwrap())
}

/// An owner `o` with UID `uo`, with this merged into it.
fn owner(api_version: &str, kind: &str, patch: &Value) -> Object {
    let mut owner = json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": {"name": "o", "namespace": "ns", "uid": "uo"},
    });
    json_patch::merge(&mut owner, patch);
    Object::new(owner)
}

/// An owner between the pod and the top.
fn between(api_version: &str, kind: &str) -> Object {
    let names = json!({"metadata": {"name": "i", "uid": "ui"}});
    owner(api_version, kind, &names)
}

fn classes() -> Classes {
    Classes {
        names: Arc::new(
            ["train", "build", "inference", "own"]
                .map(String::from)
                .into(),
        ),
        types: Arc::default(),
    }
}

fn draft_with(
    pod: &Object,
    chain: &[Object],
    extra: Option<&LookupResult>,
) -> Result<Draft, String> {
    rules::draft(RuleContext {
        pod,
        chain,
        extra,
        classes: &classes(),
        deployment_gangs: true,
    })
    .map_err(|error| error.to_string())
}

fn draft(pod: &Object, chain: &[Object]) -> Draft {
    draft_with(pod, chain, None).unwrap()
}

/// Name, pods (or sub-groups, below zero) that are needed, parent.
fn parts(draft: &Draft) -> Vec<(&str, i32, Option<&str>)> {
    let least = |part: &api::kai::SubGroup| match (part.min_member, part.min_sub_group) {
        (Some(pods), None) => pods,
        (None, Some(parts)) => -parts,
        both => panic!("{both:?}"),
    };
    draft
        .sub_groups
        .iter()
        .map(|part| (part.name.as_str(), least(part), part.parent.as_deref()))
        .collect()
}

#[test]
fn the_queue_is_the_owners_the_pods_the_projects_or_the_default() {
    for (top, own, expected) in [
        (
            json!({"kai.scheduler/queue": "a"}),
            json!({"kai.scheduler/queue": "b"}),
            "a",
        ),
        (
            json!({}),
            json!({"kai.scheduler/queue": "b", "project": "x"}),
            "b",
        ),
        (json!({"runai/queue": "old"}), json!({}), "old"),
        (json!({"project": "x"}), json!({}), "x"),
        (
            json!({"project": "x"}),
            json!({"kai.scheduler/node-pool": "gold"}),
            "x-gold",
        ),
        (json!({}), json!({}), "default-queue"),
    ] {
        let chain = [owner(
            "apps/v1",
            "ReplicaSet",
            &json!({"metadata": {"labels": top}}),
        )];
        let draft = draft(&pod(&json!({"metadata": {"labels": own}})), &chain);
        assert_eq!(draft.queue, expected);
    }
}

#[test]
fn a_class_counts_only_where_it_exists_owners_before_the_pod() {
    for (top, label, own, expected) in [
        (Some("own"), Some("build"), Some("train"), "own"),
        (Some("missing"), Some("build"), Some("train"), "build"),
        (None, Some("missing"), Some("own"), "own"),
        (None, None, Some("missing"), "inference"),
        (None, None, None, "inference"),
    ] {
        let chain = [owner(
            "apps/v1",
            "Deployment",
            &json!({"metadata": {"labels": {"priorityClassName": top}}}),
        )];
        let pod = pod(
            &json!({"metadata": {"labels": {"priorityClassName": label}}, "spec": {"priorityClassName": own}}),
        );
        assert_eq!(
            draft(&pod, &chain).class,
            expected,
            "{top:?} {label:?} {own:?}"
        );
    }
}

#[test]
fn preemptibility_and_topology_are_taken_where_they_say_something() {
    let chain = |word: &str| {
        [owner(
            "apps/v1",
            "ReplicaSet",
            &json!({"metadata": {
        "labels": {"kai.scheduler/preemptibility": word},
        "annotations": {"kai.scheduler/topology": "dc", "kai.scheduler/topology-required-placement": "rack"}}}),
        )]
    };
    let pod =
        pod(&json!({"metadata": {"labels": {"kai.scheduler/preemptibility": "preemptible"}}}));
    let said = draft(&pod, &chain("non-preemptible"));
    assert_eq!(said.preemptibility.as_deref(), Some("non-preemptible"));
    let place = said.topology.unwrap();
    assert_eq!(
        (
            place.topology.as_deref(),
            place.required_topology_level.as_deref()
        ),
        (Some("dc"), Some("rack"))
    );
    assert_eq!(
        draft(&pod, &chain("perhaps")).preemptibility.as_deref(),
        Some("preemptible")
    );
}

#[test]
fn a_group_carries_its_owners_labels_and_no_private_annotations() {
    let chain = [owner(
        "apps/v1",
        "Thing",
        &json!({"metadata": {
        "labels": {"team": "a", "runai-gpu-group": "x"},
        "annotations": {"note": "n", "aliquot.dev/grant": "g", "kubectl.kubernetes.io/last-applied-configuration": "{}"}}}),
    )];
    let pod = pod(&json!({"metadata": {
        "labels": {"user": "me", "kai.scheduler/node-pool": "gold"}, "annotations": {"kai.scheduler/preemption-delay": "5m"}}}));
    let draft = draft(&pod, &chain);
    let pairs = |map: &std::collections::BTreeMap<String, String>| {
        map.iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        pairs(&draft.labels),
        ["kai.scheduler/node-pool=gold", "team=a", "user=me"]
    );
    assert_eq!(
        pairs(&draft.annotations),
        [
            "kai.scheduler/preemption-delay=5m",
            "kai.scheduler/top-owner-metadata=name: o\nuid: uo\ngroup: apps\nversion: v1\nkind: Thing\n",
            "note=n",
        ]
    );
}

#[test]
fn a_long_name_is_cut_but_the_uid_is_whole() {
    let name = "x".repeat(253);
    let chain = [owner(
        "apps/v1",
        "ReplicaSet",
        &json!({"metadata": {"name": name}}),
    )];
    let draft = draft(&pod(&json!({})), &chain);
    assert_eq!(draft.name.len(), 253);
    assert!(draft.name.ends_with("x-uo"));
}

#[test]
fn what_a_person_edited_is_kept_and_the_rest_follows_the_owner() {
    let chain = |min: u32| {
        [owner(
            "kubeflow.org/v1",
            "JAXJob",
            &json!({
        "metadata": {"labels": {"kai.scheduler/queue": "a", "team": "t"}},
        "spec": {"jaxReplicaSpecs": {"Worker": {"replicas": min}}}}),
        )]
    };
    let made = write::group(&draft(&pod(&json!({})), &chain(2)));
    assert_eq!(write::change(&made, &made), None);
    let mut edited = made.clone();
    edited.metadata.resource_version = Some("7".into());
    edited.spec.queue = Some("b".into());
    edited.spec.mark_unschedulable = Some(false);
    edited.spec.scheduling_backoff = Some(1);
    let labels = edited.metadata.labels.as_mut().unwrap();
    labels.insert("kai.scheduler/queue".into(), "b".into());
    labels.insert("kai.scheduler/node-pool".into(), "gold".into());
    labels.insert("mine".into(), "yes".into());
    edited
        .metadata
        .annotations
        .as_mut()
        .unwrap()
        .insert("mine".into(), "yes".into());
    assert_eq!(write::change(&edited, &made), None);

    let wanted = write::group(&draft(&pod(&json!({})), &chain(3)));
    let change = write::change(&edited, &wanted).unwrap();
    assert_eq!(
        change,
        json!({"metadata": {"resourceVersion": "7"}, "spec": {"minMember": 3}})
    );
}

#[test]
fn a_topology_constraint_of_another_writer_is_kept_unless_the_workload_names_a_topology() {
    let chain = |annotations: Value| {
        let metadata = json!({"metadata": {"annotations": annotations}});
        [owner("apps/v1", "StatefulSet", &metadata)]
    };
    let of = |annotations| write::group(&draft(&pod(&json!({})), &chain(annotations))).spec;
    let mut found = write::group(&draft(&pod(&json!({})), &chain(json!({}))));
    found.spec.topology_constraint = Some(api::kai::TopologyConstraint {
        topology: Some("theirs".into()),
        required_topology_level: Some("rack".into()),
        preferred_topology_level: None,
    });
    let level = json!({"kai.scheduler/topology-required-placement": "zone"});
    for unnamed in [json!({}), level] {
        let mut wanted = found.clone();
        wanted.spec.topology_constraint = of(unnamed).topology_constraint;
        assert_eq!(write::change(&found, &wanted), None);
    }
    let mut wanted = found.clone();
    wanted.spec.topology_constraint =
        of(json!({"kai.scheduler/topology": "ours"})).topology_constraint;
    let change = write::change(&found, &wanted).unwrap();
    let constraint = &change["spec"]["topologyConstraint"];
    assert_eq!(constraint["topology"], "ours");
    assert_eq!(constraint["requiredTopologyLevel"], Value::Null);
}

#[test]
fn a_pod_is_told_its_group_its_part_and_its_pool_by_uid() {
    let chain = [owner(
        "kubeflow.org/v1",
        "PyTorchJob",
        &json!({
        "metadata": {"labels": {"kai.scheduler/node-pool": "gold"}},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 1}}}}),
    )];
    let worker =
        pod(&json!({"metadata": {"labels": {"training.kubeflow.org/replica-type": "worker"}}}));
    let member = Membership::of(&draft(&worker, &chain), &worker, false);
    assert_eq!(
        member.patch("up"),
        json!({"metadata": {
        "uid": "up",
        "annotations": {"pod-group-name": "pg-o-uo"},
        "labels": {"kai.scheduler/subgroup-name": "worker", "kai.scheduler/node-pool": "gold"}}})
    );
    let mut pod = *worker.pod().unwrap();
    member.lay_over(&mut pod);
    assert_eq!(pod.annotations()["pod-group-name"], "pg-o-uo");
    assert_eq!(pod.labels()["kai.scheduler/subgroup-name"], "worker");
    // A person was quicker.
    pod.annotations_mut()
        .insert("pod-group-name".into(), "mine".into());
    member.lay_over(&mut pod);
    assert_eq!(pod.annotations()["pod-group-name"], "mine");
}

#[test]
fn owned_pods_wait_for_their_group_and_others_do_not() {
    let owners = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "u"}]);
    let owned = |mut pod: Value| {
        pod["metadata"]["ownerReferences"] = owners.clone();
        pod
    };
    let wish = json!({"metadata": {"annotations": {"kai.scheduler/preemption-delay": "5m"}}});
    let grouped = json!({"metadata": {"annotations": {"pod-group-name": "g"}}});
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    for (case, patch, ungrouped, waits) in [
        ("alone", json!({}), true, false),
        ("alone with a wish", wish, true, true),
        ("owned", owned(json!({})), true, true),
        ("grouped", owned(grouped), false, false),
        (
            "bound",
            owned(json!({"spec": {"nodeName": "n"}})),
            true,
            false,
        ),
        (
            "another's",
            owned(json!({"spec": {"schedulerName": "other"}})),
            false,
            false,
        ),
        (
            "over",
            owned(json!({"status": {"phase": "Failed"}})),
            false,
            false,
        ),
        ("going", owned(going), false, false),
    ] {
        let mut pod = json!({
            "metadata": {"name": "p"},
            "spec": {"schedulerName": "kai-scheduler", "containers": []}});
        json_patch::merge(&mut pod, &patch);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let found = (
            need::is_ungrouped(&pod, "kai-scheduler"),
            need::must_wait(&pod, "kai-scheduler", false),
        );
        assert_eq!(found, (ungrouped, waits), "{case}");
    }
}

#[test]
fn a_workload_that_says_what_has_no_rule_yet_waits_and_says_so() {
    let metadata = json!({"annotations": {"kai.scheduler/safe-to-consolidate": "true"}});
    let top = owner("apps/v1", "Deployment", &json!({"metadata": metadata}));
    let chain = [between("apps/v1", "ReplicaSet"), top];
    let why = draft_with(&pod(&json!({})), &chain, None).unwrap_err();
    let key = "annotation kai.scheduler/safe-to-consolidate";
    assert!(
        why.starts_with("Deployment o: ") && why.contains(key),
        "{why}"
    );
}
