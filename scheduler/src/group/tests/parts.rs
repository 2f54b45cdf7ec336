//! Gangs that have parts.

use super::super::rule::{Lookup, LookupResult, RuleContext};
use super::super::rules;
use super::{Object, between, classes, draft, draft_with, owner, parts, pod};
use serde_json::{Value, json};

#[test]
fn a_pytorch_job_has_a_master_and_workers() {
    let job = |extra: Value| {
        let mut spec =
            json!({"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}});
        json_patch::merge(&mut spec, &extra);
        vec![owner(
            "kubeflow.org/v1",
            "PyTorchJob",
            &json!({"spec": spec}),
        )]
    };
    let worker = pod(
        &json!({"metadata": {"labels": {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": "2"}}}),
    );
    let master =
        pod(&json!({"metadata": {"labels": {"training.kubeflow.org/replica-type": "master"}}}));
    let whole = draft(&worker, &job(json!({})));
    assert_eq!(whole.min, 4);
    assert_eq!(parts(&whole), [("master", 1, None), ("worker", 3, None)]);
    assert_eq!(whole.part.as_deref(), Some("worker"));
    assert_eq!(
        draft(&master, &job(json!({}))).part.as_deref(),
        Some("master")
    );

    let elastic = draft(&worker, &job(json!({"elasticPolicy": {"minReplicas": 2}})));
    assert_eq!((elastic.min, parts(&elastic)[1].1), (2, 1));
    let both = draft(
        &worker,
        &job(
            json!({"elasticPolicy": {"minReplicas": 2}, "runPolicy": {"schedulingPolicy": {"minAvailable": 3}}}),
        ),
    );
    assert_eq!((both.min, parts(&both)[1].1), (3, 2));

    let none = draft_with(
        &worker,
        &[owner("kubeflow.org/v1", "PyTorchJob", &json!({"spec": {}}))],
        None,
    );
    assert!(none.unwrap_err().contains("pytorchReplicaSpecs"));
}

#[test]
fn workers_of_a_pytorch_job_are_cut_into_segments_with_a_place_each() {
    let template = json!({"metadata": {"annotations": {
        "kai.scheduler/segment-size": "2", "kai.scheduler/topology": "dc", "kai.scheduler/segment-topology-required-placement": "rack"}}});
    let job = vec![owner(
        "kubeflow.org/v1",
        "PyTorchJob",
        &json!({"spec": {"pytorchReplicaSpecs": {
        "Master": {"replicas": 1}, "Worker": {"replicas": 5, "template": template}}}}),
    )];
    let worker = |index: &str| {
        pod(
            &json!({"metadata": {"labels": {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": index}}}),
        )
    };
    let draft = draft(&worker("4"), &job);
    assert_eq!(
        parts(&draft),
        [
            ("master", 1, None),
            ("worker", -3, None),
            ("worker-0", 2, Some("worker")),
            ("worker-1", 2, Some("worker")),
            ("worker-2", 1, Some("worker")),
        ]
    );
    assert_eq!(draft.part.as_deref(), Some("worker-2"));
    let place = draft.sub_groups[2].topology_constraint.clone().unwrap();
    assert_eq!(
        (
            place.topology.as_deref(),
            place.required_topology_level.as_deref()
        ),
        (Some("dc"), Some("rack"))
    );
    assert_eq!(draft.sub_groups[1].topology_constraint, None);
    let error = draft_with(&worker("x"), &job, None).unwrap_err();
    assert!(error.contains("replica-index"), "{error}");
}

fn ray(kind: &str, groups: Value) -> Vec<Object> {
    let cluster = owner(
        "ray.io/v1",
        "RayCluster",
        &json!({"metadata": {"name": "c", "uid": "uc"}, "spec": {
        "headGroupSpec": {"template": {}}, "workerGroupSpecs": groups}}),
    );
    if kind == "RayCluster" {
        return vec![cluster];
    }
    vec![cluster, owner("ray.io/v1", kind, &json!({}))]
}

fn ray_pod(group: &str) -> Object {
    pod(&json!({"metadata": {"labels": {"ray.io/group": group}}}))
}

#[test]
fn head_and_worker_groups_of_a_ray_cluster_are_parts() {
    let groups = json!([
        {"groupName": "small", "replicas": 2, "minReplicas": 0},
        {"groupName": "large", "replicas": 3, "minReplicas": 1, "numOfHosts": 4, "template": {"metadata": {"annotations": {
            "kai.scheduler/topology": "dc", "kai.scheduler/topology-preferred-placement": "rack"}}}},
        {"groupName": "none", "replicas": 0},
        {"groupName": "paused", "replicas": 5, "suspend": true},
        {"replicas": 1},
    ]);
    for (kind, name) in [
        ("RayCluster", "pg-c-uc"),
        ("RayJob", "pg-o-uo"),
        ("RayService", "pg-o-uo"),
    ] {
        let draft = draft(&ray_pod("large"), &ray(kind, groups.clone()));
        assert_eq!(
            (draft.name.as_str(), draft.min),
            (name, 1 + 2 + 4 + 1),
            "{kind}"
        );
        assert_eq!(
            parts(&draft),
            [
                ("headgroup", 1, None),
                ("small", 2, None),
                ("large", 4, None),
                ("worker-group-4", 1, None)
            ]
        );
        assert_eq!(draft.part.as_deref(), Some("large"));
        let place = draft.sub_groups[2].topology_constraint.clone().unwrap();
        assert_eq!(place.preferred_topology_level.as_deref(), Some("rack"));
    }
}

#[test]
fn an_elastic_pytorch_job_needs_the_segments_that_hold_its_minimum() {
    let template = json!({"metadata": {"annotations": {"kai.scheduler/segment-size": "2"}}});
    let job = [owner(
        "kubeflow.org/v1",
        "PyTorchJob",
        &json!({"spec": {
            "elasticPolicy": {"minReplicas": 3},
            "pytorchReplicaSpecs": {"Worker": {"replicas": 8, "template": template}}}}),
    )];
    let worker = pod(
        &json!({"metadata": {"labels": {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": "0"}}}),
    );
    assert_eq!(parts(&draft(&worker, &job))[0], ("worker", -2, None));
}

#[test]
fn what_rays_autoscaler_asks_for_now_is_no_minimum() {
    let mut chain = ray(
        "RayCluster",
        json!([
            {"groupName": "a", "replicas": 5, "minReplicas": 2},
            {"groupName": "b", "replicas": 3},
            {"groupName": "c"},
        ]),
    );
    let scales = json!({"metadata": {"name": "c", "uid": "uc"}, "spec": {
        "enableInTreeAutoscaling": true, "workerGroupSpecs": chain[0].list(&["spec", "workerGroupSpecs"])}});
    chain[0] = owner("ray.io/v1", "RayCluster", &scales);
    let draft = draft(&ray_pod("b"), &chain);
    assert_eq!(
        parts(&draft),
        [
            ("headgroup", 1, None),
            ("a", 2, None),
            ("b", 0, None),
            ("c", 0, None)
        ]
    );
    assert_eq!(draft.min, 3);
}

#[test]
fn ray_says_its_class_in_its_own_label() {
    let mut chain = ray("RayJob", json!([]));
    chain[1] = owner(
        "ray.io/v1",
        "RayJob",
        &json!({"metadata": {"labels": {"ray.io/priority-class-name": "own"}}}),
    );
    assert_eq!(draft(&ray_pod("headgroup"), &chain).class, "own");
}

#[test]
fn who_submits_a_ray_job_does_not_wait_for_the_cluster_that_waits_for_it() {
    let chain = [
        between("batch/v1", "Job"),
        owner("ray.io/v1", "RayJob", &json!({})),
    ];
    let draft = draft(&pod(&json!({})), &chain);
    assert_eq!(
        (draft.name.as_str(), draft.min, draft.sub_groups.len()),
        ("pg-p-0-up", 1, 0)
    );
}

#[test]
fn a_ray_cluster_that_contradicts_itself_is_refused_with_the_field() {
    for (groups, expected) in [
        (
            json!([{"groupName": "g", "replicas": 1, "minReplicas": 2}]),
            "minReplicas",
        ),
        (json!([{"groupName": "other", "replicas": 1}]), "no group g"),
        (
            json!([{"groupName": "g", "replicas": 1, "template": {"metadata": {"annotations": {"kai.scheduler/topology-required-placement": "rack"}}}}]),
            "kai.scheduler/topology",
        ),
    ] {
        let error = draft_with(&ray_pod("g"), &ray("RayCluster", groups), None).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

fn lws(extra: Value) -> Vec<Object> {
    let mut set = json!({"spec": {"leaderWorkerTemplate": {"size": 5}}});
    json_patch::merge(&mut set, &extra);
    vec![
        between("apps/v1", "StatefulSet"),
        owner("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", &set),
    ]
}

fn lws_pod(worker: &str, extra: Value) -> Object {
    let mut patch = json!({"metadata": {"labels": {
        "leaderworkerset.sigs.k8s.io/group-index": "2", "leaderworkerset.sigs.k8s.io/worker-index": worker}}});
    json_patch::merge(&mut patch, &extra);
    pod(&patch)
}

#[test]
fn a_leader_and_its_workers_are_a_group_of_two_parts() {
    let draft_of = |worker: &str| draft(&lws_pod(worker, json!({})), &lws(json!({})));
    let draft = draft_of("3");
    assert_eq!((draft.name.as_str(), draft.min), ("pg-o-uo-group-2", 5));
    assert_eq!(parts(&draft), [("leader", 1, None), ("workers", 4, None)]);
    assert_eq!(draft.part.as_deref(), Some("workers"));
    assert_eq!(draft_of("0").part.as_deref(), Some("leader"));
}

#[test]
fn a_leader_that_must_be_ready_first_is_a_group_of_one_until_it_is_placed() {
    let set = lws(json!({"spec": {"startupPolicy": "LeaderReady"}}));
    for (worker, extra, min) in [
        ("0", json!({}), 1),
        ("0", json!({"spec": {"nodeName": "n"}}), 5),
        ("1", json!({}), 5),
        (
            "1",
            json!({"metadata": {"annotations": {"leaderworkerset.sigs.k8s.io/size": "3"}}}),
            3,
        ),
    ] {
        assert_eq!(draft(&lws_pod(worker, extra), &set).min, min, "{worker}");
    }
    let error = draft_with(
        &lws_pod("0", json!({})),
        &lws(json!({"spec": {"startupPolicy": "Never"}})),
        None,
    )
    .unwrap_err();
    assert!(error.contains("Never"), "{error}");
}

#[test]
fn a_leader_and_its_workers_are_cut_into_segments() {
    let policy = |size: u32, segment: u32, kind: Option<&str>| {
        lws(json!({"spec": {"leaderWorkerTemplate": {
        "size": size, "subGroupPolicy": {"subGroupSize": segment, "subGroupPolicyType": kind}}}}))
    };
    // Four workers come out even: the leader is one more in the first segment.
    let even = draft(&lws_pod("4", json!({})), &policy(5, 2, None));
    assert_eq!(
        parts(&even),
        [
            ("segment-0", -2, None),
            ("segment-1", 2, None),
            ("leader", 1, Some("segment-0")),
            ("workers", 2, Some("segment-0"))
        ]
    );
    assert_eq!(even.part.as_deref(), Some("segment-1"));
    // Else it is one of the first.
    let odd = draft(&lws_pod("1", json!({})), &policy(6, 2, None));
    assert_eq!(
        parts(&odd),
        [
            ("segment-0", -2, None),
            ("segment-1", 2, None),
            ("segment-2", 2, None),
            ("leader", 1, Some("segment-0")),
            ("workers", 1, Some("segment-0"))
        ]
    );
    assert_eq!(odd.part.as_deref(), Some("workers"));
    // Or apart.
    let apart = draft(
        &lws_pod("3", json!({})),
        &policy(5, 2, Some("LeaderExcluded")),
    );
    assert_eq!(
        parts(&apart),
        [
            ("leader", 1, None),
            ("segment-0", 2, None),
            ("segment-1", 2, None)
        ]
    );
    assert_eq!(apart.part.as_deref(), Some("segment-1"));
    for (chain, expected) in [
        (policy(6, 2, Some("LeaderExcluded")), "LeaderExcluded"),
        (policy(5, 7, None), "segments of 7"),
    ] {
        let error = draft_with(&lws_pod("0", json!({})), &chain, None).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    // The annotation says the same.
    let noted = draft(
        &lws_pod("4", json!({})),
        &lws(json!({"metadata": {"annotations": {"kai.scheduler/segment-size": "2"}}})),
    );
    assert_eq!(parts(&noted), parts(&even));
}

#[test]
fn groves_pod_gang_says_which_pods_belong_together() {
    let gang = |namespace: &str| {
        LookupResult::Object(Box::new(owner(
            "scheduler.grove.io/v1alpha1",
            "PodGang",
            &json!({
            "metadata": {"name": "g", "uid": "ug", "annotations": {"grove.io/topology-name": "dc"}},
            "spec": {
                "priorityClassName": "build",
                "topologyConstraint": {"packConstraint": {"preferred": "block"}},
                "topologyConstraintGroupConfigs": [{"name": "pair", "podGroupNames": ["a", "b"], "topologyConstraint": {"packConstraint": {"required": "rack"}}}],
                "podgroups": [
                    {"name": "a", "minReplicas": 2, "podReferences": [{"namespace": namespace, "name": "p-0"}]},
                    {"name": "b", "minReplicas": 1, "podReferences": []},
                    {"name": "c", "minReplicas": 3, "podReferences": []},
                ]}}),
        )))
    };
    let of =
        |name: &str| pod(&json!({"metadata": {"name": name, "labels": {"grove.io/podgang": "g"}}}));
    let chain = [
        between("grove.io/v1alpha1", "PodClique"),
        owner(
            "grove.io/v1alpha1",
            "PodCliqueSet",
            &json!({"metadata": {"labels": {"kai.scheduler/queue": "q"}}}),
        ),
    ];
    let there = classes();
    assert_eq!(
        rules::needed_lookup(RuleContext {
            pod: &of("p-0"),
            chain: &chain,
            extra: None,
            classes: &there,
            deployment_gangs: true,
        }),
        Some(Lookup::Object {
            api_version: "scheduler.grove.io/v1alpha1",
            kind: "PodGang",
            name: "g".into()
        })
    );
    let draft = draft_with(&of("p-0"), &chain, Some(&gang("ns"))).unwrap();
    assert_eq!(
        (
            draft.name.as_str(),
            draft.min,
            draft.queue.as_str(),
            draft.class.as_str()
        ),
        ("pg-g-ug", 6, "q", "build")
    );
    assert_eq!(
        parts(&draft),
        [
            ("pair", -2, None),
            ("a", 2, Some("pair")),
            ("b", 1, Some("pair")),
            ("c", 3, None)
        ]
    );
    assert_eq!(draft.part.as_deref(), Some("a"));
    assert_eq!(
        draft.topology.unwrap().preferred_topology_level.as_deref(),
        Some("block")
    );
    assert_eq!(
        draft.sub_groups[0]
            .topology_constraint
            .clone()
            .unwrap()
            .required_topology_level
            .as_deref(),
        Some("rack")
    );

    let error = |name: &str, extra: Option<&LookupResult>| {
        draft_with(&of(name), &chain, extra).unwrap_err()
    };
    assert!(
        error("p-9", Some(&gang("ns"))).contains("p-9"),
        "not listed yet"
    );
    assert!(error("p-0", Some(&gang("other"))).contains("namespace other"));
    assert!(error("p-0", None).contains("PodGang"));
}
