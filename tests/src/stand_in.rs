//! What runs in place of the images that users' manifests name.
//!
//! In: this workspace's static programs. Out: images under public names that do with a GPU what the
//! real ones do, and nothing else of theirs. Must never need the network: names that only a
//! cluster's DNS knows are believed.

use crate::image::{Recipe, WORKLOAD, WORKLOAD_IMAGE};
use crate::programs::Programs;

/// The path of vLLM's stand-in: the multi-call program knows itself by this name.
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
/// `bash` in Ray's image. Its pods' probes ask their own dashboard by `wget`, and
/// busybox's shell takes its own one before any on the path, but none before a function.
const RAY_BASH: &str = r#"[ "$1" = -c ] || exec busybox sh "$@"
shift
[ "$1" = -- ] && shift
wget() {
    for url; do :; done
    cat "/tmp/ray/${url#http://localhost:*/}"
}
eval "$1"
"#;
/// What waits for a name, in an image that does nothing else, finds it: no DNS serves
/// the cluster.
const FOUND: &str = "exit 0\n";

/// Every image and the name it is served under.
pub fn images(programs: &Programs) -> Vec<(&'static str, Recipe)> {
    let workload = |script| Recipe::workload(programs, script);
    let program = programs.ours_static.join("sim-gpu");
    let bash = || Recipe::busybox().script("/bin/bash", BASH);
    vec![
        (WORKLOAD_IMAGE, workload("report hold")),
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
        ("alpine:3.10", Recipe::busybox().script("/bin/sh", FOUND)),
        (
            "rayproject/ray:2.46.0",
            Recipe::busybox()
                .file(&program, WORKLOAD)
                .script("/usr/local/bin/ray", RAY)
                .script("/bin/bash", RAY_BASH),
        ),
    ]
}
