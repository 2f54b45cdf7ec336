//! Which pods must not have a share: those with a way around their containers' isolation. Pure.
//!
//! The same rules as the admission policy `aliquot-share-isolation`, which knows a share by
//! its annotations and cannot tell by a claim's name whose devices it is for.

use k8s_openapi::api::core::v1::{Container, PodSpec};

/// Capabilities of Pod Security's baseline, and what a service mesh and RDMA need, which
/// reach no farther than the pod's own network and memory.
const ALLOWED: [&str; 16] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
    "IPC_LOCK",
    "NET_ADMIN",
    "NET_RAW",
];

/// The first way that the pod has, and what to change.
pub(super) fn way_around(spec: &PodSpec) -> Option<String> {
    if spec.host_pid == Some(true) {
        return Some("it sets hostPID, which shows it the processes of others".to_owned());
    }
    if spec.host_ipc == Some(true) {
        return Some("it sets hostIPC, which shows it the memory of others".to_owned());
    }
    let init = spec.init_containers.iter().flatten();
    init.chain(&spec.containers).find_map(of_container)
}

fn of_container(container: &Container) -> Option<String> {
    let name = &container.name;
    let security = container.security_context.as_ref();
    if security.and_then(|security| security.privileged) == Some(true) {
        return Some(format!(
            "container {name} is privileged and could reach every GPU of the node"
        ));
    }
    let capabilities = security.and_then(|security| security.capabilities.as_ref());
    let added = capabilities.and_then(|capabilities| capabilities.add.as_deref());
    let mut added = added.unwrap_or_default().iter();
    if let Some(capability) = added.find(|added| !ALLOWED.contains(&added.as_str())) {
        return Some(format!(
            "container {name} adds the capability {capability}, with which it could reach other processes or the GPU driver"
        ));
    }
    let proc_mount = security.and_then(|security| security.proc_mount.as_deref());
    if proc_mount.is_some_and(|proc_mount| proc_mount != "Default") {
        return Some(format!(
            "container {name} sets procMount, which shows it the kernel of the node"
        ));
    }
    let mut mounts = container.volume_mounts.iter().flatten();
    mounts.any(|mount| is_ours(&mount.mount_path)).then(|| {
        format!(
            "container {name} mounts something below /run/aliquot or /dev/shm, which Aliquot mounts in a container with a share: mount it elsewhere"
        )
    })
}

/// At `/dev/shm` itself a pod may have its own.
fn is_ours(path: &str) -> bool {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    // The image may have one as a link to the other.
    let parts = parts
        .strip_prefix(&["var"])
        .filter(|rest| rest.first() == Some(&"run"))
        .unwrap_or(&parts);
    match parts {
        ["run", "aliquot", ..] => true,
        ["dev", "shm", rest @ ..] => !rest.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: serde_json::Value) -> PodSpec {
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn each_way_around_the_walls_is_named() {
        let container = |more: serde_json::Value| {
            let mut container = serde_json::json!({"name": "main"});
            container
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            serde_json::json!({"containers": [{"name": "other"}, container]})
        };
        let mount = |path: &str| {
            container(serde_json::json!({"volumeMounts": [{"name": "v", "mountPath": path}]}))
        };
        let security =
            |of: serde_json::Value| container(serde_json::json!({"securityContext": of}));
        for (spec, way) in [
            (
                serde_json::json!({"containers": [], "hostPID": true}),
                "hostPID",
            ),
            (
                serde_json::json!({"containers": [], "hostIPC": true}),
                "hostIPC",
            ),
            (
                security(serde_json::json!({"privileged": true})),
                "privileged",
            ),
            (
                security(serde_json::json!({"capabilities": {"add": ["CHOWN", "SYS_ADMIN"]}})),
                "SYS_ADMIN",
            ),
            (
                security(serde_json::json!({"procMount": "Unmasked"})),
                "procMount",
            ),
            (mount("/run/aliquot/mps"), "mounts"),
            (mount("/var/run//aliquot"), "mounts"),
            (mount("/a/../run/./aliquot/x"), "mounts"),
            (mount("/dev/shm/x"), "mounts"),
        ] {
            let found = way_around(&pod(spec.clone()));
            assert!(
                found.as_deref().is_some_and(|found| found.contains(way)),
                "{spec}: {found:?}"
            );
        }
        for spec in [
            security(
                serde_json::json!({"privileged": false, "capabilities": {"add": ["NET_RAW"]}}),
            ),
            mount("/dev/shm"),
            mount("/run/aliquots"),
            mount("/var/lib"),
        ] {
            assert_eq!(way_around(&pod(spec)), None);
        }
    }
}
