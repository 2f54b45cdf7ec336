//! A pod as the API server has it, through the scheduler's eyes and its core.

use super::request::{self, KUBERNETES};
use super::world::{Cluster, NODE, SCHEDULER, told};
use crate::{Shape, Target};
use k8s_openapi::api::core::v1::Pod;
use scheduler::watch::{Fact, Key as _, Seen};
use scheduler_core::Event;
use scheduler_core::model::Phase;
use serde_json::{Value, json};

pub(super) const TARGET: Target = Target {
    name: "pod",
    shape: Shape::Json,
    words: KUBERNETES,
    seeds,
    large,
    heap: 512,
    run,
};

fn run(input: &[u8]) {
    let Ok(pod) = serde_json::from_slice::<Pod>(input) else {
        return;
    };
    let mut cluster = Cluster::new();
    let events = cluster.take(Fact::Pod(Seen::There(Box::new(pod.clone()))));
    let _ = told(&events);
    for event in &events {
        if let Event::Pod(read) = event {
            holds(&pod, read);
        }
    }
    // The same word twice is none.
    let again = cluster.take(Fact::Pod(Seen::There(Box::new(pod.clone()))));
    assert_eq!(again, events);
    cluster.decide();
    cluster.take(Fact::Pod(Seen::Gone(pod.key())));
    cluster.decide();
}

/// It is on the node that it names, and holds what its own grant says, to the MiB.
fn holds(pod: &Pod, read: &scheduler_core::model::Pod) {
    let spec = pod.spec.as_ref().expect("only a pod with a spec is one");
    assert_eq!(read.ours, spec.scheduler_name.as_deref() == Some(SCHEDULER));
    let (Phase::Bound(placement)
    | Phase::Running(placement)
    | Phase::Stuck(placement)
    | Phase::Releasing(Some(placement))) = &read.phase
    else {
        return;
    };
    assert_eq!(spec.node_name.as_deref(), Some(placement.node.as_str()));
    let text = pod.metadata.annotations.as_ref();
    let text = text.and_then(|all| all.get("aliquot.dev/grant"));
    let payload = text.and_then(|text| text.split_once('.'));
    let grant: Value = payload
        .and_then(|(_, payload)| serde_json::from_str(payload).ok())
        .unwrap_or_default();
    for held in &placement.grants {
        assert_eq!(grant["pod"]["uid"].as_str(), pod.metadata.uid.as_deref());
        let same = grant["containers"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|container| {
                container["name"] == held.container.as_str()
                    && container["memoryMib"] == held.memory.0
            });
        assert!(same, "{held:?} is not in {grant}");
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut pods = request::pods();
    let grant = "sig.{\"v\":1,\"key\":\"k\",\"cluster\":\"c\",\"decision\":\"7-1\",\
        \"pod\":{\"uid\":\"u1\",\"namespace\":\"ns\",\"name\":\"p\"},\"node\":{\"name\":\"n1\",\"uid\":\"nu1\"},\
        \"containers\":[{\"name\":\"main\",\"gpus\":[\"GPU-0\"],\"memoryMib\":2000,\"computePercent\":100,\"mode\":\"mps\"}]}";
    for phase in ["Pending", "Running", "Succeeded"] {
        let mut placed = pods[0].clone();
        placed["metadata"]["annotations"]["aliquot.dev/grant"] = json!(grant);
        placed["spec"]["nodeName"] = json!(NODE);
        placed["status"] = json!({"phase": phase});
        pods.push(placed.clone());
        placed["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:01Z");
        pods.push(placed);
    }
    let mut ruled = pods[0].clone();
    ruled["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]},
            {"key": "c", "operator": "Gt", "values": ["5"]}],
            "matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}]}}});
    ruled["spec"]["tolerations"] =
        json!([{"key": "a", "operator": "Exists"}, {"operator": "Exists", "effect": "NoExecute"}]);
    ruled["spec"]["nodeSelector"] = json!({"zone": "z"});
    ruled["spec"]["initContainers"] = json!([{"name": "prepare", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}]);
    ruled["metadata"]["annotations"]["pod-group-name"] = json!("g");
    ruled["metadata"]["labels"]["kai.scheduler/subgroup-name"] = json!("s");
    ruled["spec"]["overhead"] = json!({"cpu": "250m", "memory": "1Mi"});
    pods.push(ruled);
    pods.iter()
        .map(|pod| serde_json::to_vec(pod).expect("it prints"))
        .collect()
}

fn large(size: usize) -> Vec<Vec<u8>> {
    request::large(size)
        .into_iter()
        .map(|pod| {
            let mut pod: Value = serde_json::from_slice(&pod).expect("it was printed");
            pod["metadata"]["uid"] = json!("u1");
            pod["spec"]["schedulerName"] = json!(SCHEDULER);
            serde_json::to_vec(&pod).expect("it prints")
        })
        .collect()
}
