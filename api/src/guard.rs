//! What the pod policies of `deploy/scheduler.yaml` refuse, asked of pods that are older than the
//! policies.
//!
//! The API server evaluates the policies themselves. This copy of three of them tells an admin before
//! the installation which running pods would be refused when they are created again. The claims about
//! the guard compare both, pod by pod.

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, PodSpec};
use proto::names::request;

/// The policy about environment variables and mounts by which NVIDIA's runtime hands out GPUs.
pub const VISIBLE_DEVICES: &str = "aliquot-visible-devices";
/// The policy about NVIDIA's runtime classes.
pub const RUNTIME_CLASSES: &str = "aliquot-runtime-classes";
/// The policy about folders of Aliquot, of MPS and of the driver.
pub const HOST_PATHS: &str = "aliquot-host-paths";
/// The policies that [`refusal`] knows.
pub const POLICIES: [&str; 3] = [VISIBLE_DEVICES, RUNTIME_CLASSES, HOST_PATHS];

/// Runtime classes whose handler is NVIDIA's runtime.
const CLASSES: [&str; 4] = [
    "nvidia",
    "nvidia-cdi",
    "nvidia-legacy",
    "nvidia-experimental",
];
/// Paths of Aliquot, of MPS and of the driver that no pod may mount.
const PROTECTED: [&str; 11] = [
    "/run/aliquot/",
    "/var/lib/aliquot/",
    "/run/cdi/",
    "/etc/cdi/",
    "/var/lib/kubelet/device-plugins/",
    "/run/nvidia/driver/dev/",
    "/run/nvidia/mps/",
    "/run/nvidia-mps/",
    "/tmp/nvidia-mps/",
    "/dev/nvidia",
    "/dev/char/195:",
];
/// Paths that a pod with a share may not mount either, nor any parent of all these.
const AROUND: [&str; 8] = [
    "/var/lib/kubelet/",
    "/run/containerd/",
    "/run/crio/",
    "/run/docker",
    "/var/lib/containerd/",
    "/var/lib/containers/",
    "/proc/",
    "/sys/fs/cgroup/",
];

/// The reason why a policy refuses a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The name of the `ValidatingAdmissionPolicy`.
    pub policy: &'static str,
    /// The reason in one sentence, with the fix.
    pub why: String,
}

/// Returns why one policy refuses a pod.
type Judge = fn(&Pod, &PodSpec) -> Option<String>;

/// Returns why one of the [`POLICIES`] refuses the creation of a pod. `None`: they admit it.
pub fn refusal(pod: &Pod) -> Option<Refusal> {
    let spec = pod.spec.as_ref()?;
    let judges: [Judge; 3] = [visible_devices, runtime_classes, host_paths];
    POLICIES
        .into_iter()
        .zip(judges)
        .find_map(|(policy, judge)| {
            let why = judge(pod, spec)?;
            Some(Refusal { policy, why })
        })
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
}

fn environment(container: &Container) -> impl Iterator<Item = &EnvVar> {
    container.env.iter().flatten()
}

/// Returns true for a variable that hides all GPUs: operators set it on launcher pods.
fn hides(variable: &EnvVar) -> bool {
    let value = variable.value.as_deref().unwrap_or_default();
    variable.name == "NVIDIA_VISIBLE_DEVICES"
        && variable.value_from.is_none()
        && ["", "none", "void"].contains(&value)
}

fn visible_devices(_: &Pod, spec: &PodSpec) -> Option<String> {
    let sets = |one: &&EnvVar| {
        one.name.starts_with("CUDA_MPS_") || one.name == "NVIDIA_VISIBLE_DEVICES" && !hides(one)
    };
    for container in containers(spec) {
        let name = &container.name;
        if let Some(variable) = environment(container).find(sets) {
            return Some(format!(
                "container {name} sets {}: remove it and request the GPU from Kubernetes",
                variable.name
            ));
        }
        let mounts = container.volume_mounts.iter().flatten();
        let mut paths = mounts.map(|mount| mount.mount_path.as_str());
        let hands_out = |path: &str| {
            path.split('/').any(|part| part == "..")
                || normal(path).starts_with("/run/nvidia-container-devices/")
        };
        if let Some(path) = paths.find(|path| hands_out(path)) {
            return Some(format!(
                "container {name} mounts a volume at {path}: remove it and request the GPU from Kubernetes"
            ));
        }
    }
    None
}

fn runtime_classes(_: &Pod, spec: &PodSpec) -> Option<String> {
    let class = spec.runtime_class_name.as_deref()?;
    if !CLASSES.contains(&class) {
        return None;
    }
    let has_own = |container: &&Container| {
        let limits = container.resources.as_ref();
        let limits = limits.and_then(|resources| resources.limits.as_ref());
        let of = |name: &str| limits.and_then(|limits| limits.get(name));
        of("aliquot.dev/gpu-share").is_some()
            || of("nvidia.com/gpu").is_some_and(|count| count.0 != "0")
            || environment(container).any(hides)
    };
    let without = containers(spec).find(|one| !has_own(one))?;
    Some(format!(
        "container {} has no GPU of its own, and the runtime class {class} gives it what its image asks for: remove runtimeClassName, or set NVIDIA_VISIBLE_DEVICES to void",
        without.name
    ))
}

fn host_paths(pod: &Pod, spec: &PodSpec) -> Option<String> {
    let volumes = spec.volumes.iter().flatten();
    let paths = volumes.filter_map(|volume| Some(volume.host_path.as_ref()?.path.as_str()));
    let of_proc = |path: &str| {
        let below = path.strip_prefix("/proc/").unwrap_or_default();
        below
            .split('/')
            .any(|part| ["root", "cwd", "fd"].contains(&part))
    };
    let shares = requests_share(pod);
    for given in paths {
        let path = normal(given).replace("//", "/");
        if PROTECTED.iter().any(|one| path.starts_with(one)) || of_proc(&path) {
            return Some(format!(
                "a hostPath volume names {given}, which belongs to Aliquot, to MPS or to the GPU driver: remove it"
            ));
        }
        let is_around = PROTECTED.iter().any(|one| one.starts_with(&path))
            || (AROUND.iter()).any(|one| path.starts_with(one) || one.starts_with(&path));
        if shares && is_around {
            return Some(format!(
                "a hostPath volume names {given}, which is too wide for a pod with a share: mount something narrower"
            ));
        }
    }
    None
}

/// Returns true for a pod with annotations of a share: GPU memory, a fraction, or memory of one of its
/// containers.
pub fn requests_share(pod: &Pod) -> bool {
    let (Some(annotations), Some(spec)) = (&pod.metadata.annotations, &pod.spec) else {
        return false;
    };
    let of_container = |container: &Container| {
        ["request", "limit"].iter().any(|kind| {
            let name = &container.name;
            annotations.contains_key(&format!(
                "{}{name}.gpu-memory.{kind}",
                request::CONTAINER_PREFIX
            ))
        })
    };
    [request::MEMORY, request::FRACTION]
        .iter()
        .any(|one| annotations.contains_key(*one))
        || containers(spec).any(of_container)
}

/// Returns a path without doubled slashes and dots, with a slash at both ends. `/var/run` is `/run`.
fn normal(path: &str) -> String {
    let parts = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".");
    let parts: Vec<&str> = parts.collect();
    format!("/{}/", parts.join("/")).replace("/var/run/", "/run/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn policy(spec: Value) -> Option<&'static str> {
        let mut pod = json!({"spec": {"containers": []}});
        pod["spec"] = spec;
        refusal(&serde_json::from_value(pod).unwrap()).map(|refusal| refusal.policy)
    }

    /// The claims about the guard compare many more pods with the API server's own judgement.
    #[test]
    fn a_pod_that_takes_a_gpu_past_kubernetes_is_refused_and_a_plain_one_is_not() {
        let with = |container: Value, more: Value| {
            let mut spec = more;
            let mut main = json!({"name": "main"});
            main.as_object_mut()
                .unwrap()
                .extend(container.as_object().unwrap().clone());
            spec["containers"] = json!([main]);
            policy(spec)
        };
        let env =
            |value: &str| json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]});
        let host = |path: &str| json!({"volumes": [{"name": "v", "hostPath": {"path": path}}]});
        let nvidia = json!({"runtimeClassName": "nvidia"});
        let gpu = json!({"resources": {"limits": {"nvidia.com/gpu": "1"}}});
        assert_eq!(with(env("all"), json!({})), Some("aliquot-visible-devices"));
        assert_eq!(with(env("void"), json!({})), None);
        assert_eq!(
            with(json!({}), nvidia.clone()),
            Some("aliquot-runtime-classes")
        );
        assert_eq!(with(gpu, nvidia.clone()), None);
        assert_eq!(with(env("void"), nvidia), None);
        for path in ["/dev//nvidia0", "/var/run/./cdi", "/proc/1/root/etc"] {
            assert_eq!(
                with(json!({}), host(path)),
                Some("aliquot-host-paths"),
                "{path}"
            );
        }
        for path in ["/", "/data", "/proc/cpuinfo", "/devices"] {
            assert_eq!(with(json!({}), host(path)), None, "{path}");
        }
    }
}
