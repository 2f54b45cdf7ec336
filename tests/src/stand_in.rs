//! What runs in place of the images that users' manifests name.
//!
//! Comes in: this workspace's static programs. Goes out: images under public names that
//! do with a GPU what the real ones do, and nothing else of theirs.
//! Must never need the network: names that only a cluster's DNS knows are believed.

use crate::cluster::Programs;
use crate::image::{Recipe, WORKLOAD};

/// Where vLLM's stand-in lies: the multi-call program knows itself by this name.
const VLLM: &str = "/usr/local/bin/vllm";
/// `bash` as far as manifests use it.
const BASH: &str = "exec sh \"$@\"\n";
/// Ray's command: a head or a worker that is healthy from its start, with the memory of
/// its GPU where it has one.
const RAY: &str = r"case $1 in
health-check) exit 0 ;;
start)
    mkdir -p /tmp/ray/api
    echo success | tee /tmp/ray/api/local_raylet_healthz >/tmp/ray/api/gcs_healthz
    [ -e /dev/nvidiactl ] && exec workload report alloc 1000 hold
    exec sleep infinity
    ;;
*) exit 2 ;;
esac
";
/// The probes of Ray's pods ask their own dashboards, by `wget`.
const RAY_WGET: &str = r"for url; do :; done
exec cat /tmp/ray/${url#http://localhost:*/}
";
/// No DNS serves the cluster: every name is known.
const NSLOOKUP: &str = "echo \"Name: $1\"\n";

/// Every image and the name it is served under.
pub fn images(programs: &Programs) -> Vec<(&'static str, Recipe)> {
    let workload = |script| Recipe::workload(programs, script);
    let program = programs.ours_static.join("sim-gpu");
    let bash = || Recipe::busybox().script("/bin/bash", BASH);
    vec![
        (crate::share::IMAGE, workload("report hold")),
        (
            "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0",
            workload("vectoradd alloc 1000 hold"),
        ),
        // A claim may run the workload in it.
        ("ubuntu", bash().file(&program, WORKLOAD).command(["bash"])),
        (
            "vllm/vllm-openai:latest",
            bash().file(&program, VLLM).entrypoint([VLLM, "serve"]),
        ),
        (
            "ghcr.io/kubeflow/training-v1/pytorch-dist-mnist:latest",
            workload("report alloc 1000 hold"),
        ),
        (
            "alpine:3.10",
            Recipe::busybox().script("/usr/local/bin/nslookup", NSLOOKUP),
        ),
        (
            "rayproject/ray:2.46.0",
            bash()
                .file(&program, WORKLOAD)
                .script("/usr/local/bin/ray", RAY)
                .script("/usr/local/bin/wget", RAY_WGET),
        ),
    ]
}
