//! Queues, pod groups, topologies and `GpuNode`s, through the scheduler's eyes and its core.

use super::world::{Cluster, NODE, told};
use crate::{Shape, Target};
use api::{GpuNode, PodGroup, Queue, SchedulingShard, Topology};
use kube::Resource;
use scheduler::watch::{Fact, Key as _, Seen};
use scheduler_core::Event;
use scheduler_core::model::SubGroup;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(super) const TARGET: Target = Target {
    name: "objects",
    shape: Shape::Json,
    words: &[
        "Queue",
        "PodGroup",
        "Topology",
        "GpuNode",
        "spec",
        "metadata",
        "name",
        "parentQueue",
        "quota",
        "limit",
        "overQuotaWeight",
        "minMember",
        "minSubGroup",
        "subGroups",
        "parent",
        "topology",
        "requiredTopologyLevel",
        "levels",
        "nodeLabel",
        "preemptMinRuntime",
        "1m30s",
        "-1s",
        "1e300h",
        "9223372036854775807ns",
        "106751991167300d",
        "preemptible",
        "non-preemptible",
        "default-queue",
        "schedulingBackoff",
        "markUnschedulable",
        "kai.scheduler/last-start-timestamp",
        "1970-01-01T00:00:02Z",
        "9999-12-30T22:00:00Z",
        "defaultMode",
        "mps",
        "exclusive",
        "gpus",
        "uuid",
        "reserveMib",
        "contextAllowanceMib",
        "minimumFence",
        "ServerLimit",
        "Kill",
        "root",
        "a",
        "b",
    ],
    seeds,
    large,
    heap: 256,
    run,
};

fn run(input: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(input) else {
        return;
    };
    let fact = match value["kind"].as_str() {
        Some("Queue") => read::<Queue>(&value).map(|it| Fact::Queue(Seen::There(it))),
        Some("PodGroup") => read::<PodGroup>(&value).map(|it| Fact::Group(Seen::There(it))),
        Some("Topology") => read::<Topology>(&value).map(|it| Fact::Topology(Seen::There(it))),
        Some("SchedulingShard") => {
            read::<SchedulingShard>(&value).map(|it| Fact::Shard(Seen::There(it)))
        }
        Some("GpuNode") => read::<GpuNode>(&value).map(|it| Fact::GpuNode(Seen::There(it))),
        _ => None,
    };
    let Some(fact) = fact else {
        return;
    };
    let mut cluster = Cluster::new();
    let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u1",
            "annotations": {"gpu-memory": "2000", "pod-group-name": "g"},
            "labels": {"kai.scheduler/queue": "a", "kai.scheduler/subgroup-name": "a"}},
        "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main",
            "resources": {"requests": {"aliquot.dev/gpu-share": "1", "cpu": "1"}}}]}});
    let pod = serde_json::from_value(pod).expect("a pod");
    cluster.take(Fact::Pod(Seen::There(Box::new(pod))));
    let events = cluster.take(fact.clone());
    let _ = told(&events);
    for event in &events {
        if let Event::Group(group) = event {
            let said = value["spec"]["subGroups"].as_array().map_or(0, Vec::len);
            let (groups, sets) = parts(&group.root);
            assert!(
                groups + sets <= said.max(1),
                "{groups} and {sets} of {said}"
            );
        }
    }
    // The messages about it are bounded.
    for report in cluster.world.reports() {
        let said: usize = report.wants.iter().map(|want| want.message.len()).sum();
        assert!(said < 32_768, "{said}");
    }
    cluster.decide();
    cluster.core.queues();
    cluster.core.groups();
    // Applying it again breaks nothing, and neither does its deletion.
    cluster.take(fact.clone());
    cluster.decide();
    cluster.take(match fact {
        Fact::Queue(Seen::There(it)) => Fact::Queue(Seen::Gone(it.key())),
        Fact::Group(Seen::There(it)) => Fact::Group(Seen::Gone(it.key())),
        Fact::Topology(Seen::There(it)) => Fact::Topology(Seen::Gone(it.key())),
        Fact::Shard(Seen::There(it)) => Fact::Shard(Seen::Gone(it.key())),
        Fact::GpuNode(Seen::There(it)) => Fact::GpuNode(Seen::Gone(it.key())),
        other => other,
    });
    cluster.decide();
}

/// What is read, printed and read again is the same.
fn read<K>(value: &Value) -> Option<Box<K>>
where
    K: Resource + DeserializeOwned + Serialize + PartialEq + std::fmt::Debug,
{
    let object: K = serde_json::from_value(value.clone()).ok()?;
    let printed = serde_json::to_value(&object).expect("it prints");
    let again: K = serde_json::from_value(printed).expect("what was printed is read");
    assert_eq!(again, object);
    Some(Box::new(object))
}

/// Groups below a group, and sets.
fn parts(group: &SubGroup) -> (usize, usize) {
    group.groups.iter().fold(
        (group.groups.len(), group.sets.len()),
        |(groups, sets), inner| {
            let (more, other) = parts(inner);
            (groups + more, sets + other)
        },
    )
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    [
        json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "a", "uid": "q"},
            "spec": {"parentQueue": "default-queue", "displayName": "A", "priority": 100,
                "preemptMinRuntime": "1m30s", "reclaimMinRuntime": "10s", "resources": {
                    "gpu": {"quota": 0.5, "limit": -1, "overQuotaWeight": 2},
                    "cpu": {"quota": 1000, "limit": -1, "overQuotaWeight": 1},
                    "memory": {"quota": 10, "limit": 20, "overQuotaWeight": 1}}}}),
        json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
            "metadata": {"name": "g", "namespace": "ns", "uid": "g", "annotations": {
                "kai.scheduler/last-start-timestamp": "1970-01-01T00:00:02Z"}},
            "spec": {"minMember": 1, "queue": "a", "priorityClassName": "train", "schedulingBackoff": 1,
                "preemptibility": "preemptible", "markUnschedulable": true}}),
        json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
            "metadata": {"name": "g", "namespace": "ns", "uid": "g"},
            "spec": {"queue": "a", "minSubGroup": 1,
                "topologyConstraint": {"topology": "t", "requiredTopologyLevel": "rack", "preferredTopologyLevel": "zone"},
                "subGroups": [
                    {"name": "root", "minSubGroup": 1}, {"name": "a", "minMember": 1, "parent": "root"},
                    {"name": "b", "minMember": 2, "parent": "root",
                        "topologyConstraint": {"topology": "t", "preferredTopologyLevel": "rack"}}]}}),
        json!({"apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": {"name": "t"},
            "spec": {"levels": [{"nodeLabel": "zone"}, {"nodeLabel": "rack"}]}}),
        json!({"apiVersion": "kai.scheduler/v1", "kind": "SchedulingShard", "metadata": {"name": "default", "generation": 1},
            "spec": {"args": {"max-consolidation-preemptees": "4", "v": "3"}, "kValue": 0.5,
                "placementStrategy": {"gpu": "spread", "cpu": "binpack"}, "minRuntime": {"preemptMinRuntime": "5m"},
                "plugins": {"minruntime": {"enabled": false}, "dreams": {"priority": 3, "arguments": {"a": "b"}}},
                "actions": {"preempt": {"enabled": false, "priority": 3}}, "goMemLimit": "1Gi"}}),
        json!({"apiVersion": "aliquot.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": NODE},
            "spec": {"defaultMode": "mps-isolated", "reserveMib": 100, "contextAllowanceMib": 512,
                "minimumFence": "ServerLimit", "timeSlice": "Short", "onViolation": "Evict", "onStranger": "Report",
                "gpus": [{"uuid": "GPU-0", "mode": "exclusive", "cordoned": true, "hiddenFromOtherPlugins": false}]},
            "status": {"gpuCount": 2, "gpus": [{"uuid": "GPU-0", "index": 0, "product": "T", "totalMib": 16000,
                "reservedMib": 500, "usedMib": 0, "grantedMib": 0, "grantableMib": 15500, "ready": true, "health": "Healthy"}]}}),
    ]
    .iter()
    .map(|object| serde_json::to_vec(object).expect("it prints"))
    .collect()
}

/// Sub-groups in one line below each other, in the worst order, and side by side.
pub(super) fn large(size: usize) -> Vec<Vec<u8>> {
    let group = |sub_groups: Vec<Value>| {
        json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
            "metadata": {"name": "g", "namespace": "ns", "uid": "g"}, "spec": {"queue": "a", "subGroups": sub_groups}})
    };
    let count = size / 40;
    let chain = |at: usize| match at {
        0 => json!({"name": "s0"}),
        _ => json!({"name": format!("s{at}"), "parent": format!("s{}", at - 1)}),
    };
    let pairs = |at: usize| match at % 2 {
        0 => json!({"name": format!("s{at}")}),
        _ => json!({"name": format!("s{at}"), "parent": format!("s{}", at - 1), "minMember": 1}),
    };
    let topology = json!({"apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": {"name": "t"},
        "spec": {"levels": (0..size / 24).map(|at| json!({"nodeLabel": format!("l{at}")})).collect::<Vec<_>>()}});
    let flat = |at: usize| json!({"name": format!("s{at}"), "minSubGroup": 1});
    [
        group((0..count).map(chain).collect()),
        group((0..count).rev().map(chain).collect()),
        group((0..count).map(pairs).collect()),
        group((0..count).map(flat).collect()),
        topology,
    ]
    .iter()
    .map(|object| serde_json::to_vec(object).expect("it prints"))
    .collect()
}
