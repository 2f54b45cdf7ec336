//! The targets, by whose text it is.
//!
//! - of a tenant: `request`, `quantity`, `pod`, `review`, `objects`, `selector`;
//! - of the scheduler, by way of the API server: `grant`; of its own snapshots: `snapshot`;
//! - of a node: `telemetry`, `cgroup`, `checkpoint`, `cdi`, `hook`, `limit`, `mps`.

mod cdi;
mod cgroup;
mod checkpoint;
mod grant;
mod hook;
mod limit;
mod mps;
mod objects;
mod pod;
mod quantity;
mod request;
mod review;
mod selector;
mod snapshot;
mod telemetry;
mod world;

use crate::Target;

/// All of them.
pub const TARGETS: &[Target] = &[
    request::TARGET,
    quantity::TARGET,
    review::TARGET,
    grant::TARGET,
    pod::TARGET,
    objects::TARGET,
    selector::TARGET,
    telemetry::TARGET,
    snapshot::TARGET,
    checkpoint::TARGET,
    cgroup::TARGET,
    cdi::JSON,
    cdi::YAML,
    cdi::NAME,
    hook::GUARD,
    hook::ARGUMENTS,
    hook::PROOF,
    limit::TARGET,
    mps::TARGET,
];

/// No long inputs but those that every target has.
fn none(_: usize) -> Vec<Vec<u8>> {
    Vec::new()
}

/// Words of annotations, labels and resources.
const KUBERNETES: &[&str] = &[
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
