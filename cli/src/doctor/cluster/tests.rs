use super::super::State;
use super::*;
use serde_json::{Value, json};

/// Where something is set, to what, and what is found then.
type Case = (String, Value, Vec<(&'static str, State)>);

fn good() -> Value {
    json!({
        "gpuNodes": [{"apiVersion": "aliquot.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n1"}, "spec": {},
            "status": {"gpus": [{"uuid": "GPU-1", "index": 0, "product": "L4", "totalMib": 1, "reservedMib": 0,
                "usedMib": 0, "grantedMib": 0, "grantableMib": 1, "ready": true, "health": "Healthy"}],
                "conditions": [{"type": "Offering", "status": "True", "reason": "x", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}],
        "queues": [{"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "default-queue"}, "spec": {}}],
        "nodes": [{"metadata": {"name": "n1", "labels": {"nvidia.com/gpu.present": "true"}},
            "status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.1.0", "architecture": "", "bootID": "",
                "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "",
                "operatingSystem": "", "osImage": "", "systemUUID": ""}}}],
        "pods": [{"metadata": {"name": "s", "namespace": "aliquot-system", "labels": {"app.kubernetes.io/name": "aliquot-scheduler"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}}],
        "webhooks": [{"metadata": {"name": "aliquot"}, "webhooks": [{"name": "a", "admissionReviewVersions": ["v1"],
            "sideEffects": "None", "clientConfig": {"url": "https://x", "caBundle": "AAAA"}}]}],
        "policies": GUARD.map(|name| json!({"metadata": {"name": name}})),
        "namespaces": [{"metadata": {"name": "nvidia", "labels": {"aliquot.dev/guard": "exempt"}}}],
        "clusterPolicies": [],
        "gpuClusters": [],
    })
}

fn seen(cluster: &Value) -> Seen {
    fn of<T: serde::de::DeserializeOwned>(value: &Value) -> Option<T> {
        serde_json::from_value(value.clone()).unwrap()
    }
    Seen {
        version: Some((1, 36, "v1.36.2".into())),
        gpu_nodes: of(&cluster["gpuNodes"]),
        queues: of(&cluster["queues"]),
        nodes: of(&cluster["nodes"]),
        pods: of(&cluster["pods"]),
        webhooks: of(&cluster["webhooks"]),
        policies: of(&cluster["policies"]),
        namespaces: of(&cluster["namespaces"]),
        cluster_policies: of(&cluster["clusterPolicies"]),
        gpu_clusters: of(&cluster["gpuClusters"]),
    }
}

fn faults(cluster: &Value) -> Vec<(&'static str, State)> {
    let found = findings(&seen(cluster)).into_iter();
    let bad = found.filter(|finding| finding.state != State::Fine);
    bad.map(|finding| {
        assert!(!finding.fix.is_empty(), "{finding:?}");
        (finding.check, finding.state)
    })
    .collect()
}

#[test]
fn a_cluster_as_it_should_be_has_no_finding() {
    assert_eq!(faults(&good()), []);
}

#[test]
fn each_fault_is_found_and_nothing_else() {
    use State::{Broken, Unknown, Warning};
    let node = |path: &str| format!("/gpuNodes/0{path}");
    let pod = |spec: Value| json!({"metadata": {"name": "p", "namespace": "d", "annotations": {"gpu-memory": "1"}}, "spec": spec});
    let old = pod(json!({"schedulerName": "kai-scheduler", "containers": [{"name": "c"}]}));
    let kai = pod(
        json!({"containers": [{"name": "c", "image": "ghcr.io/kai-scheduler/kai-scheduler/scheduler:v0.9"}]}),
    );
    let mut with_old = good()["pods"].clone();
    with_old.as_array_mut().unwrap().push(old);
    let mut with_kai = good()["pods"].clone();
    with_kai.as_array_mut().unwrap().push(kai);
    let cases: Vec<Case> = vec![
        (
            node("/status/gpus/0/health"),
            json!("Unhealthy"),
            vec![("cards", Broken)],
        ),
        (
            node("/status/gpus/0/cordoned"),
            json!(true),
            vec![("cards", Warning)],
        ),
        (
            node("/status/conditions/0/status"),
            json!("False"),
            vec![("agents", Broken)],
        ),
        (
            node("/status/conditions"),
            json!([]),
            vec![("agents", Broken)],
        ),
        (
            node("/status/conditions"),
            json!([
                good()["gpuNodes"][0]["status"]["conditions"][0],
                {"type": "DriverLimits", "status": "False", "reason": "Missing",
                    "message": "card GPU-1: echo +dmem > x", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ]),
            vec![("agents", Warning)],
        ),
        ("/gpuNodes".into(), json!([]), vec![("agents", Warning)]),
        (
            "/gpuNodes".into(),
            Value::Null,
            vec![("definitions", Broken), ("agents", Unknown)],
        ),
        (
            "/queues/0/metadata/name".into(),
            json!("other"),
            vec![("queues", Warning)],
        ),
        (
            "/queues/0/spec/parentQueue".into(),
            json!("nobody"),
            vec![("queues", Broken)],
        ),
        (
            "/nodes/0/status/nodeInfo/containerRuntimeVersion".into(),
            json!("containerd://1.7.3"),
            vec![("runtimes", Warning)],
        ),
        (
            "/nodes/0/status/nodeInfo/containerRuntimeVersion".into(),
            json!("docker://20"),
            vec![("runtimes", Broken)],
        ),
        ("/pods".into(), json!([]), vec![("scheduler", Warning)]),
        ("/pods".into(), with_old, vec![("pods", Broken)]),
        ("/pods".into(), with_kai, vec![("other schedulers", Broken)]),
        ("/webhooks".into(), json!([]), vec![("webhook", Broken)]),
        (
            "/webhooks/0/webhooks/0/clientConfig/caBundle".into(),
            Value::Null,
            vec![("webhook", Broken)],
        ),
        (
            "/policies/3/metadata/name".into(),
            json!("x"),
            vec![("guard", Warning)],
        ),
        ("/policies".into(), Value::Null, vec![("guard", Unknown)]),
    ];
    for (pointer, value, expected) in cases {
        let mut cluster = good();
        match cluster.pointer_mut(&pointer) {
            Some(there) => *there = value.clone(),
            None => {
                let (parent, key) = pointer.rsplit_once('/').unwrap();
                cluster.pointer_mut(parent).unwrap()[key] = value.clone();
            }
        }
        assert_eq!(faults(&cluster), expected, "{pointer}: {value}");
    }
}

#[test]
fn an_old_server_is_broken() {
    let mut seen = seen(&good());
    seen.version = Some((1, 30, "v1.30.0".into()));
    assert_eq!(findings(&seen)[0].state, State::Broken);
}

/// The objects and labels of the operator's release 26.7, in both of its modes.
fn operator(mode: (&str, &str), label: Value, ours: Value) -> Value {
    let mut cluster = good();
    let (list, kind) = mode;
    cluster[list] = json!([
        {"apiVersion": "nvidia.com/v1", "kind": kind, "metadata": {"name": "one"},
            "status": {"state": "ready", "namespace": "nvidia"}},
        {"apiVersion": "nvidia.com/v1", "kind": kind, "metadata": {"name": "two"},
            "status": {"state": "ignored"}},
    ]);
    let key = if kind == "ClusterPolicy" {
        "nvidia.com/gpu.deploy.device-plugin"
    } else {
        "nvidia.com/gpu.deploy.dra-driver"
    };
    let labels = cluster["nodes"][0]["metadata"]["labels"].as_object_mut();
    let labels = labels.unwrap();
    for (key, value) in [(key, label), ("aliquot.dev/agent", ours)] {
        if !value.is_null() {
            labels.insert(key.to_owned(), value);
        }
    }
    cluster
}

const MODES: [(&str, &str); 2] = [
    ("clusterPolicies", "ClusterPolicy"),
    ("gpuClusters", "GPUCluster"),
];

#[test]
fn the_operators_mode_is_named_with_the_label_that_hands_a_node_over() {
    let told = |cluster: &Value| -> Vec<String> {
        let found = findings(&seen(cluster)).into_iter();
        let found = found.filter(|finding| finding.check == "GPU Operator");
        found.map(|finding| finding.what).collect()
    };
    assert_eq!(told(&good()), ["none"]);
    let expected = [
        "ClusterPolicy one: a node is handed over with nvidia.com/gpu.deploy.device-plugin=false and aliquot.dev/agent=true",
        "GPUCluster one: a node is handed over with nvidia.com/gpu.deploy.dra-driver=false and aliquot.dev/agent=true",
    ];
    for (mode, expected) in MODES.into_iter().zip(expected) {
        assert_eq!(
            told(&operator(mode, json!("true"), Value::Null)),
            [expected]
        );
    }
}

#[test]
fn a_node_that_the_operator_still_serves_is_found_in_both_of_its_modes() {
    for mode in MODES {
        let faults = |label, ours| faults(&operator(mode, label, ours));
        assert_eq!(faults(json!("false"), json!("true")), [], "{mode:?}");
        // Nobody wants the agent there.
        assert_eq!(faults(json!("true"), Value::Null), [], "{mode:?}");
        assert_eq!(
            faults(json!("true"), json!("true")),
            [("GPU Operator", State::Broken)],
            "{mode:?}"
        );
    }
}

#[test]
fn an_operator_whose_pods_the_guard_rejects_is_found() {
    for mode in MODES {
        let mut cluster = operator(mode, json!("false"), json!("true"));
        cluster["namespaces"][0]["metadata"]["labels"] = json!({});
        let expected = [("GPU Operator", State::Warning)];
        assert_eq!(faults(&cluster), expected, "{mode:?}");
        cluster["policies"] = json!([]);
        // Without the guard nothing is rejected.
        assert_eq!(faults(&cluster), [("guard", State::Warning)], "{mode:?}");
    }
}

#[test]
fn a_node_with_nvidias_fractioning_and_an_agent_is_found() {
    for condition in [
        "gpu-fractioning.nvidia.com/Ready",
        "gpu-sharing.nvidia.com/Ready",
    ] {
        let mut cluster = good();
        let status = &mut cluster["nodes"][0]["status"];
        status["conditions"] = json!([{"type": condition, "status": "True"}]);
        assert_eq!(
            faults(&cluster),
            [("GPU fractioning", State::Broken)],
            "{condition}"
        );
        cluster["nodes"][0]["status"]["conditions"][0]["status"] = json!("False");
        assert_eq!(faults(&cluster), []);
    }
}
