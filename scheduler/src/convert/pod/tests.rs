use super::super::classes::Class;
use super::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const US: &str = kai::SCHEDULER_NAME;

fn read(patch: Value) -> Option<Pod> {
    let mut pod = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {"schedulerName": US, "containers": [{"name": "main"}]},
    });
    json_patch::merge(&mut pod, &patch);
    let class = |name: &str, value: i32| {
        let never_preempts = name == "patient";
        let class = Class {
            value,
            never_preempts,
        };
        (name.to_owned(), class)
    };
    let classes = Classes {
        by_name: BTreeMap::from([class("build", 100), class("low", 10), class("patient", 120)]),
        default: None,
    };
    of(
        &serde_json::from_value(pod).unwrap(),
        US,
        kai::QUEUE_LABEL,
        &classes,
        None,
    )
}

#[test]
fn another_schedulers_pod_counts_only_where_it_stands() {
    assert_eq!(read(json!({"spec": {"schedulerName": "other"}})), None);
    let bound = read(json!({"spec": {"schedulerName": "other", "nodeName": "n1"}})).unwrap();
    assert!(!bound.ours);
    assert!(matches!(bound.phase, Phase::Bound(_)));
}

#[test]
fn the_queue_is_the_label_the_old_label_the_project_or_the_default() {
    for (labels, queue) in [
        (json!({"kai.scheduler/queue": "a", "runai/queue": "b"}), "a"),
        (json!({"runai/queue": "b", "project": "c"}), "b"),
        (json!({"project": "c"}), "c"),
        (json!({}), "default-queue"),
    ] {
        let pod = read(json!({"metadata": {"labels": labels}})).unwrap();
        assert_eq!(pod.queue.as_str(), queue);
    }
}

#[test]
fn priority_is_the_labels_class_then_the_pods_then_50() {
    for (label, class, priority) in [
        (Some("build"), Some("low"), 100),
        (Some("missing"), Some("low"), 10),
        (None, Some("missing"), 50),
    ] {
        let pod = read(
            json!({"metadata": {"labels": {"priorityClassName": label}}, "spec": {"priorityClassName": class}}),
        );
        let pod = pod.unwrap();
        let preemptibility = (priority < 100).into();
        assert_eq!(
            (pod.priority, pod.preemptibility),
            (priority, preemptibility)
        );
    }
}

#[test]
fn labelled_tasks_go_first_higher_before_lower_and_unreadable_last() {
    let order = |label: Option<&str>| place(label.map(str::to_owned).as_ref());
    let orders = [Some("7"), Some("3"), Some("-2"), None, Some("x")].map(order);
    assert!(orders.is_sorted(), "{orders:?}");
}

#[test]
fn no_pod_is_evicted_for_one_whose_policy_is_never() {
    for (label, policy, never) in [
        (None, None, false),
        (None, Some("PreemptLowerPriority"), false),
        (None, Some("Never"), true),
        (Some("patient"), None, true),
        (Some("build"), None, false),
    ] {
        let pod = read(
            json!({"metadata": {"labels": {"priorityClassName": label}}, "spec": {"preemptionPolicy": policy}}),
        );
        assert_eq!(pod.unwrap().never_preempts, never, "{label:?} {policy:?}");
    }
}

#[test]
fn masters_launchers_and_heads_go_before_the_other_pods_of_their_jobs() {
    let order = |labels: Value| {
        let pod = read(json!({"metadata": {"labels": labels}}));
        pod.unwrap().task_order
    };
    let key = "training.kubeflow.org/job-role";
    let worker = order(json!({key: "worker", "kai.scheduler/task-priority": "100"}));
    for leads in [
        json!({key: "master"}),
        json!({key: "launcher"}),
        json!({"ray.io/node-type": "head"}),
    ] {
        assert!(order(leads.clone()) < worker, "{leads}");
    }
    assert_eq!(worker.lead, Lead::None);
    assert_eq!(
        order(json!({"ray.io/node-type": "worker"})).lead,
        Lead::None
    );
}

#[test]
fn a_share_without_its_token_waits_and_says_what_to_do() {
    let share = json!({"metadata": {"annotations": {"gpu-memory": "2000"}}});
    let pod = read(share).unwrap();
    assert!(
        pod.unsupported[0].contains("token"),
        "{:?}",
        pod.unsupported
    );
    let admitted = json!({"metadata": {"annotations": {"gpu-memory": "2000"}},
            "spec": {"containers": [{"name": "main", "resources": {"limits": {"aliquot.dev/gpu-share": "1", "aliquot.dev/gpu-memory-mib": "2000"}}}]}});
    let pod = read(admitted).unwrap();
    assert!(pod.unsupported.is_empty());
    assert_eq!(pod.gpus.len(), 1);
}

#[test]
fn what_was_granted_is_what_counts_whatever_the_pod_says_later() {
    let grant = |more: Value| {
        let mut grant = json!({"v": 1, "key": "k", "cluster": "c", "decision": "7-1",
                "pod": {"uid": "u1", "namespace": "ns", "name": "p"}, "node": {"name": "n1", "uid": "x"},
                "containers": [{"name": "main", "gpus": ["GPU-1"], "memoryMib": 20512, "computePercent": 50,
                    "mode": "mps", "asked": {"nanoGpu": 500_000_000}}]});
        json_patch::merge(&mut grant, &more);
        format!("sig.{grant}")
    };
    let place = |more: Value, annotations: Value| {
        let mut pod = json!({"metadata": {
                "annotations": {"aliquot.dev/grant": grant(more)},
                "labels": {"kai.scheduler/queue": "other"},
            }, "spec": {"nodeName": "n1"}});
        json_patch::merge(&mut pod["metadata"]["annotations"], &annotations);
        read(pod).unwrap()
    };
    let half = Amount::Fraction(NanoGpu(500_000_000));
    let amount = |pod: &Pod| match &pod.gpus[0].ask {
        Ask::Share(share) => share.amount,
        Ask::Whole(_) => panic!("a share"),
    };
    for annotations in [
        json!({"gpu-memory": "1"}),
        json!({"gpu-memory": "much"}),
        json!({}),
    ] {
        let pod = place(json!({"queue": "q", "group": "g"}), annotations);
        assert_eq!(amount(&pod), half);
        assert_eq!(pod.queue.as_str(), "q");
        assert_eq!(pod.group, Some(group_name("ns", "g")));
        let Phase::Bound(placement) = pod.phase else {
            panic!("bound")
        };
        assert_eq!(placement.grants[0].asked, Some(half));
    }
    // Bound as a group of its own: only the group that we make for it is its group.
    for (name, follows) in [("another", false), ("pg-p-u1", true)] {
        let pod = place(json!({"queue": "q"}), json!({"pod-group-name": name}));
        assert_eq!(pod.group.is_some(), follows, "{name}");
    }
    // A scheduler of before wrote neither queue nor what was asked: the limit counts.
    let before = json!({"containers": [{"name": "main", "gpus": ["GPU-1"], "memoryMib": 20512,
            "computePercent": 50, "mode": "mps"}]});
    let pod = place(before, json!({"gpu-memory": "1"}));
    assert_eq!(amount(&pod), Amount::Memory(Mib(20512)));
    assert_eq!(pod.queue.as_str(), "other");
}

#[test]
fn whole_cards_count_whatever_annotations_say() {
    let resources = json!({"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}});
    let pod = read(
        json!({"metadata": {"annotations": {"gpu-memory": "1"}}, "spec": {"nodeName": "n1", "containers": [resources]}}),
    );
    assert!(matches!(pod.unwrap().gpus[0].ask, Ask::Whole(2)));
}

#[test]
fn another_amount_than_was_admitted_waits_and_says_what_to_do() {
    let pod = |asked: &str, admitted: &str| {
        read(json!({"metadata": {"annotations": {"gpu-memory": asked}},
                "spec": {"containers": [{"name": "main", "resources": {"limits": {
                    "aliquot.dev/gpu-share": "1", "aliquot.dev/gpu-memory-mib": admitted}}}]}}))
        .unwrap()
    };
    // The API server writes 2000 so.
    for admitted in ["2000", "2k"] {
        let pod = pod("2000", admitted);
        assert!(pod.unsupported.is_empty(), "{:?}", pod.unsupported);
    }
    let changed = pod("4000", "2k");
    assert!(
        changed.unsupported[0].contains("4000 of aliquot.dev/gpu-memory-mib")
            && changed.unsupported[0].contains("admitted with 2k"),
        "{:?}",
        changed.unsupported
    );
}

#[test]
fn a_grant_of_another_pod_counts_as_none() {
    let grant = |uid: &str| {
        format!(
            "sig.{}",
            json!({"v": 1, "key": "k", "cluster": "c", "decision": "7-1",
                    "pod": {"uid": uid, "namespace": "ns", "name": "p"}, "node": {"name": "n1", "uid": "x"},
                    "containers": [{"name": "main", "gpus": ["GPU-1"], "memoryMib": 2000, "computePercent": 100, "mode": "mps"}]})
        )
    };
    let place = |uid: &str| {
        let pod = read(
            json!({"metadata": {"annotations": {"aliquot.dev/grant": grant(uid)}}, "spec": {"nodeName": "n1"}}),
        );
        match pod.unwrap().phase {
            Phase::Bound(placement) => placement,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(place("u1").grants[0].memory, Mib(2000));
    assert_eq!(place("u1").decision, DecisionId::parse("7-1"));
    assert!(place("u2").grants.is_empty());
}
