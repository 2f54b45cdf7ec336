//! A pod's annotations and limits: `api::request`.

use crate::{Shape, Target};
use api::request::{self, Amount, GpuRequest, PodRequest};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use std::collections::BTreeSet;

pub(super) const TARGET: Target = Target {
    name: "request",
    shape: Shape::Json,
    words: KUBERNETES,
    seeds,
    large,
    // A container of a few bytes is a struct of several hundred.
    heap: 512,
    run,
};

fn run(input: &[u8]) {
    let Ok(pod) = serde_json::from_slice::<Pod>(input) else {
        return;
    };
    let asked = request::of(&pod);
    match &asked {
        Ok(asked) => holds(&pod, asked),
        Err(error) => sentence(&error.to_string()),
    }
    match request::admitted(&pod) {
        Ok(admitted) => {
            assert_eq!(Ok(&admitted.request), asked.as_ref(), "another request");
            admitted.warnings.iter().for_each(|line| sentence(line));
        }
        Err(error) => sentence(&error.to_string()),
    }
}

const MIB: f64 = 1_048_576.0;

/// 2^64 bytes in MiB: larger values are not distinguished, as no card has that much.
const MOST: f64 = 17_592_186_044_416.0;

/// No more than was asked for, for containers that are there, each once.
pub(super) fn holds(pod: &Pod, asked: &PodRequest) {
    let spec = pod.spec.as_ref().expect("only a pod with a spec asks");
    let inits = spec.init_containers.iter().flatten();
    let all: BTreeSet<(&str, bool)> = inits
        .map(|one| {
            (
                one.name.as_str(),
                one.restart_policy.as_deref() != Some("Always"),
            )
        })
        .chain(spec.containers.iter().map(|c| (c.name.as_str(), false)))
        .collect();
    let text = |key: &str| pod.metadata.annotations.as_ref()?.get(key);
    for container in &asked.containers {
        assert!(
            all.contains(&(container.name.as_str(), container.init)),
            "{container:?} is not in the pod"
        );
        let share = match &container.gpus {
            GpuRequest::Whole(count) => {
                assert!(*count > 0, "no cards are none");
                continue;
            }
            GpuRequest::Share(share) => share,
        };
        assert!(share.devices > 0, "{share:?}");
        let more = match (share.amount, share.limit) {
            (_, None) => true,
            (Amount::Memory(amount), Some(Amount::Memory(limit))) => limit > amount,
            (Amount::Fraction(amount), Some(Amount::Fraction(limit))) => limit > amount,
            _ => false,
        };
        assert!(more, "{share:?}");
        assert!(
            share.compute_percent.is_none_or(|p| (1..=100).contains(&p)),
            "{share:?}"
        );
        let by_pod = |key: &str| -> Option<f64> { text(key)?.parse().ok() };
        match share.amount {
            Amount::Memory(mib) => {
                assert!(mib.0 > 0, "{share:?}");
                let word =
                    |end: &str| format!("nvidia.com/container.{}.gpu-memory.{end}", container.name);
                let own = [word("request"), word("limit")];
                let own = own.iter().find_map(|key| text(key));
                let most = match own {
                    Some(quantity) => {
                        super::quantity::value(quantity).map(|bytes| (bytes / MIB).min(MOST))
                    }
                    None => by_pod("gpu-memory"),
                };
                let most = most.unwrap_or_else(|| panic!("{mib} of nothing: {share:?}"));
                // Rounded up to the MiB, and a float has 53 bits.
                #[allow(clippy::cast_precision_loss)]
                let mib = mib.0 as f64;
                assert!(mib <= most * (1.0 + 1e-9) + 1.0, "{mib} MiB for {most}");
                assert!(mib >= most * (1.0 - 1e-9), "{mib} MiB for {most}");
            }
            Amount::Fraction(nano) => {
                assert!((1..1_000_000_000).contains(&nano), "{share:?}");
                let most = by_pod("gpu-fraction").expect("a fraction is one by annotation");
                #[allow(clippy::cast_precision_loss)]
                let part = nano as f64 / 1e9;
                assert!(part <= most + 1e-9, "{part} for {most}");
            }
        }
    }
    let mut seen = BTreeSet::new();
    for container in &asked.containers {
        let once = seen.insert((&container.name, container.init));
        assert!(
            once || matches!(container.gpus, GpuRequest::Whole(_)),
            "{} has two shares",
            container.name
        );
    }
}

/// A message for the user is one line that fits into an event.
pub(super) fn sentence(text: &str) {
    assert!(!text.is_empty(), "no reason");
    assert!(!text.contains(char::is_control), "not one line: {text:?}");
    assert!(text.len() <= 1024, "{} bytes: {text:?}", text.len());
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    pods()
        .iter()
        .map(|pod| serde_json::to_vec(pod).expect("it prints"))
        .collect()
}

/// Pods as users write them.
pub(super) fn pods() -> Vec<Value> {
    let pod = |annotations: Value, limits: Value| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "annotations": annotations,
                "labels": {"kai.scheduler/queue": "default-queue"}},
            "spec": {"schedulerName": "kai-scheduler",
                "initContainers": [{"name": "prepare"}],
                "containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}, {"name": "side"}]}})
    };
    vec![
        pod(
            json!({"nvidia.com/container.main.gpu-memory.request": "1e-40",
                "nvidia.com/container.side.gpu-memory.limit": "59036854775806M"}),
            json!({}),
        ),
        pod(
            json!({"gpu-memory": "2000"}),
            json!({"aliquot.dev/gpu-share": "1", "cpu": "500m"}),
        ),
        pod(
            json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2", "aliquot.dev/gpu-compute": "50"}),
            json!({}),
        ),
        pod(
            json!({"gpu-fraction": "0.25", "mps": "true", "gpu-fraction-container-name": "prepare"}),
            json!({"memory": "1Gi"}),
        ),
        pod(
            json!({"gpu-memory": "2000", "gpu-memory.limit": "4Gi", "kai.scheduler/gpu-compute-sharing-mode": "time-slicing"}),
            json!({}),
        ),
        pod(
            json!({"gpu-fraction": "0.25", "kai.scheduler/container.main.gpu-memory.portion.limit": "0.5",
                "nvidia.com/container.main.gpu-compute.request": "0.5"}),
            json!({}),
        ),
        pod(
            json!({"nvidia.com/container.main.gpu-memory.request": "2Gi", "nvidia.com/container.main.gpu-memory.limit": "2Gi",
                "nvidia.com/container.main.gpu-compute.mode": "time-slicing", "nvidia.com/container.side.gpu-memory.request": "500Mi"}),
            json!({}),
        ),
        pod(json!({}), json!({"nvidia.com/gpu": "2", "memory": "1Gi"})),
        pod(json!({}), json!({"nvidia.com/gpu": "0"})),
    ]
}

/// Each container has its own annotation; most containers have none.
pub(super) fn large(size: usize) -> Vec<Vec<u8>> {
    let pod = |annotated: usize, containers: usize| {
        let annotations: serde_json::Map<String, Value> = (0..annotated)
            .map(|at| {
                (
                    format!("nvidia.com/container.c{at}.gpu-memory.request"),
                    json!("1Mi"),
                )
            })
            .collect();
        let containers: Vec<Value> = (0..containers)
            .rev()
            .map(|at| json!({"name": format!("c{at}")}))
            .collect();
        let pod = json!({"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": containers}});
        serde_json::to_vec(&pod).expect("it prints")
    };
    vec![
        pod(size / 80, size / 80),
        pod(size / 120, size / 30),
        pod(1, size / 16),
    ]
}

/// Words of annotations, labels and resources.
pub(super) const KUBERNETES: &[&str] = &[
    "gpu-memory",
    "gpu-fraction",
    "gpu-fraction-num-devices",
    "gpu-fraction-container-name",
    "aliquot.dev/gpu-compute",
    "mps",
    "true",
    "nvidia.com/container.main.gpu-memory.request",
    "nvidia.com/container.main.gpu-memory.limit",
    "nvidia.com/container.main.gpu-compute.mode",
    "nvidia.com/container.main.gpu-compute.request",
    "nvidia.com/container.main.gpus.devices",
    "kai.scheduler/container.main.gpu-memory.portion.limit",
    "kai.scheduler/gpu-compute-sharing-mode",
    "gpu-memory.limit",
    "gpu-fraction.limit",
    "nvidia.com/container.side.gpu-memory.request",
    "time-slicing",
    "sm-sharing",
    "nvidia.com/gpu",
    "aliquot.dev/gpu-share",
    "aliquot.dev/gpu-memory-mib",
    "aliquot.dev/gpu-milli",
    "aliquot.dev/grant",
    "kai.scheduler/queue",
    "kai.scheduler/subgroup-name",
    "pod-group-name",
    "priorityClassName",
    "kai-scheduler",
    "containers",
    "initContainers",
    "ephemeralContainers",
    "resources",
    "limits",
    "requests",
    "metadata",
    "annotations",
    "labels",
    "spec",
    "status",
    "name",
    "main",
    "side",
    "prepare",
    "0.5",
    ".5",
    "5e-1",
    "1e-400",
    "0.9999999999",
    "NaN",
    "inf",
    "2000",
    "18446744073709551615",
    "1Gi",
    "17592186044416Mi",
    "500m",
    "100",
    "101",
    "restartPolicy",
    "Always",
    "nodeName",
    "schedulerName",
];
