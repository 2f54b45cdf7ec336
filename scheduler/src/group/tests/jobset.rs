//! One group for a `JobSet`, and what was made by the rule before.

use super::super::object::Object;
use super::super::rule::LookupResult;
use super::super::write;
use super::{between, draft, draft_with, owner, parts, pod};
use serde_json::{Value, json};

/// A `JobSet` `o` with its job in between.
fn job_set(patch: &Value) -> Vec<Object> {
    let mut set = json!({"spec": {"replicatedJobs": [
        {"name": "driver", "template": {"spec": {}}},
        {"name": "workers", "replicas": 2,
            "template": {"spec": {"parallelism": 4, "completions": 3}}},
    ]}});
    json_patch::merge(&mut set, patch);
    vec![
        between("batch/v1", "Job"),
        owner("jobset.x-k8s.io/v1alpha2", "JobSet", &set),
    ]
}

fn worker() -> Object {
    pod(&json!({"metadata": {"labels": {
        "jobset.sigs.k8s.io/replicatedjob-name": "workers", "jobset.sigs.k8s.io/job-index": "1"}}}))
}

fn ordered(order: Option<&str>, min: Option<&str>) -> Vec<Object> {
    job_set(&json!({
        "metadata": {"annotations": {"kai.scheduler/batch-min-member": min}},
        "spec": {"startupPolicy": {"startupPolicyOrder": order}}}))
}

#[test]
fn a_job_set_is_one_group_with_a_part_for_each_job_and_each_of_its_replicas() {
    let tree = [
        ("driver", -1, None),
        ("driver-replica-0", 1, Some("driver")),
        ("workers", -2, None),
        ("workers-replica-0", 3, Some("workers")),
        ("workers-replica-1", 3, Some("workers")),
    ];
    for (order, min, needed) in [
        (None, None, 2),
        (Some("AnyOrder"), None, 2),
        (Some("InOrder"), None, 1),
        (Some("InOrder"), Some("2"), 2),
        (None, Some("1"), 1),
        (None, Some("7"), 2),
    ] {
        let draft = draft(&worker(), &ordered(order, min));
        assert_eq!(draft.name, "pg-o-uo");
        assert_eq!(parts(&draft), tree);
        assert_eq!(draft.part.as_deref(), Some("workers-replica-1"));
        let group = write::group(&draft).spec;
        let least = (group.min_member, group.min_sub_group);
        assert_eq!(least, (None, Some(needed)), "{order:?} {min:?}");
    }
    let trainer = owner(
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        &json!({"metadata": {"name": "t", "uid": "ut",
            "labels": {"kai.scheduler/queue": "q", "priorityClassName": "own"}}}),
    );
    let draft = draft(&worker(), &[ordered(None, None), vec![trainer]].concat());
    let common = (draft.name, draft.queue, draft.class);
    assert_eq!(common, ("pg-o-uo".into(), "q".into(), "own".into()));
}

#[test]
fn a_replica_of_a_job_set_starts_with_what_its_template_says_where_it_says() {
    let annotations = json!({
        "kai.scheduler/batch-min-member": "2", "kai.scheduler/topology": "floor",
        "kai.scheduler/topology-required-placement": "rack"});
    let set = job_set(
        &json!({"spec": {"replicatedJobs": [{"name": "workers", "replicas": 2,
        "template": {"metadata": {"annotations": annotations}, "spec": {"parallelism": 4}}}]}}),
    );
    let draft = draft(&worker(), &set);
    for leaf in &draft.sub_groups[1..] {
        assert_eq!(leaf.min_member, Some(2));
        let constraint = leaf.topology_constraint.as_ref().unwrap();
        assert_eq!(constraint.topology.as_deref(), Some("floor"));
        assert_eq!(constraint.required_topology_level.as_deref(), Some("rack"));
    }
    assert_eq!(draft.sub_groups[0].topology_constraint, None);
    // More replicas than a group may have sub-groups.
    let set = job_set(
        &json!({"spec": {"replicatedJobs": [{"name": "workers", "replicas": 2000,
        "template": {"spec": {"parallelism": 3}}}]}}),
    );
    let draft = self::draft(&worker(), &set);
    assert_eq!(parts(&draft), [("workers", 6000, None)]);
    assert_eq!(draft.part.as_deref(), Some("workers"));
}

#[test]
fn a_job_set_that_was_grouped_by_the_rule_before_stays_so() {
    let flat = LookupResult::Former(true);
    for (order, min, name, expected) in [
        (Some("InOrder"), None, "pg-o-uo-workers", 6),
        (None, None, "pg-o-uo-workers", 6),
        (Some("AnyOrder"), None, "pg-o-uo", 7),
        (Some("AnyOrder"), Some("1"), "pg-o-uo", 1),
    ] {
        let draft = draft_with(&worker(), &ordered(order, min), Some(&flat)).unwrap();
        let made = (draft.name.as_str(), draft.min, draft.sub_groups.len());
        assert_eq!(made, (name, expected, 0), "{order:?} {min:?}");
    }
}

#[test]
fn a_pod_of_a_job_set_that_cannot_be_told_says_what_it_lacks() {
    for (labels, says) in [
        (json!({}), "replicatedjob-name"),
        (
            json!({"jobset.sigs.k8s.io/replicatedjob-name": "workers"}),
            "job-index",
        ),
        (
            json!({"jobset.sigs.k8s.io/replicatedjob-name": "workers", "jobset.sigs.k8s.io/job-index": "2"}),
            "no sub-group workers-replica-2",
        ),
    ] {
        let pod = pod(&json!({"metadata": {"labels": labels}}));
        let why = draft_with(&pod, &ordered(None, None), None).unwrap_err();
        assert!(why.contains(says), "{why}");
    }
    let why = draft_with(&worker(), &ordered(None, Some("0")), None).unwrap_err();
    assert!(why.contains("batch-min-member"), "{why}");
}
