//! The guard: what the API server refuses by itself, with no program of ours running, and
//! what it must let through. Every table has both sides.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::manifest::documents;
use aliquot_tests::verdict::{Verdict, Write, judge};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::Api;
use kube::api::{Patch, PatchParams};
use proto::names::{kai, request, resource};
use serde_json::{Value, json};

use crate::admission::admits_shares;

mod table;

use table::{IN_FORCE, merge, mounts, shares, with_init_container};
pub(crate) use table::{Table, creates, guarded, live, share, with_container};

pub(crate) async fn every_policy_type_checks_and_is_bound(cluster: &mut Cluster) -> Result<()> {
    guarded(cluster).await?;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(cluster.client.clone());
    let names = names_of("ValidatingAdmissionPolicy", cluster)?;
    ensure!(!names.is_empty(), "no policies in deploy/");
    for name in names {
        until(
            &format!("{name} type-checked"),
            Duration::from_secs(30),
            || async {
                let policy = policies.get(&name).await?;
                let status = policy.status.clone().unwrap_or_default();
                let Some(checked) = status
                    .type_checking
                    .filter(|_| status.observed_generation == policy.metadata.generation)
                else {
                    return Ok(Seen::NotYet("not checked".to_owned()));
                };
                let warnings = checked.expression_warnings.unwrap_or_default();
                Ok(if warnings.is_empty() {
                    Seen::Done(())
                } else {
                    Seen::Never(anyhow::anyhow!("{warnings:?}"))
                })
            },
        )
        .await?;
        let binding = bindings.get(&name).await?;
        let spec = binding.spec;
        ensure!(
            spec.policy_name == name && spec.validation_actions == ["Deny"],
            "{name}: {spec:?}"
        );
    }
    Ok(())
}

pub(crate) async fn visible_devices_and_mps_are_set_by_nobody(cluster: &mut Cluster) -> Result<()> {
    let ns = guarded(cluster).await?;
    let set = |name: &str, value: &str| json!({ "env": [{ "name": name, "value": value }] });
    let from = |name: &str| json!({ "env": [{ "name": name, "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }] });
    let mount = |path: &str| json!({ "volumeMounts": [{ "name": "null", "mountPath": path }] });
    let null = json!({ "volumes": [{ "name": "null", "hostPath": { "path": "/dev/null" } }] });
    let mut table = Table::new(cluster, "aliquot-visible-devices", &ns);
    for (container, word) in [
        (
            set("NVIDIA_VISIBLE_DEVICES", "all"),
            "NVIDIA_VISIBLE_DEVICES",
        ),
        (set("NVIDIA_VISIBLE_DEVICES", "0"), "NVIDIA_VISIBLE_DEVICES"),
        (
            set("NVIDIA_VISIBLE_DEVICES", "$(ALL)"),
            "NVIDIA_VISIBLE_DEVICES",
        ),
        (from("NVIDIA_VISIBLE_DEVICES"), "NVIDIA_VISIBLE_DEVICES"),
        (
            set("CUDA_MPS_PIPE_DIRECTORY", "/tmp"),
            "CUDA_MPS_PIPE_DIRECTORY",
        ),
        (
            set("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=80G"),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        ),
        (
            mount("/var/run/nvidia-container-devices/all"),
            "nvidia-container-devices",
        ),
        (
            mount("/run/x/../nvidia-container-devices/all"),
            "nvidia-container-devices",
        ),
        (
            mount("//run/./nvidia-container-devices/0"),
            "nvidia-container-devices",
        ),
    ] {
        table.refused(with_container(&container, &null), word);
        table.refused(with_init_container(&container, &null), "container prepare");
    }
    for container in [
        set("NVIDIA_VISIBLE_DEVICES", "void"),
        set("NVIDIA_VISIBLE_DEVICES", "none"),
        // As the operators of MPIJobs set it on launchers.
        set("NVIDIA_VISIBLE_DEVICES", ""),
        json!({ "env": [{ "name": "NVIDIA_VISIBLE_DEVICES" }] }),
        set("NVIDIA_DRIVER_CAPABILITIES", "compute"),
        set("CUDA_VISIBLE_DEVICES", "0"),
        set("MY_CUDA_MPS_NOTE", "x"),
        mount("/var/run/nvidia-container-devices-of-mine"),
    ] {
        table.admitted(with_container(&container, &null));
    }
    // A container that joins later is no way around it.
    cluster.apply_one(&live(&ns, &json!({}))).await?;
    let joins = |env: Value| {
        let mut container = json!({ "name": "late", "image": "busybox" });
        merge(&mut container, &env);
        Write::strategic(
            format!("/api/v1/namespaces/{ns}/pods/live/ephemeralcontainers"),
            json!({ "spec": { "ephemeralContainers": [container] } }),
        )
    };
    table.refused_write(
        joins(set("NVIDIA_VISIBLE_DEVICES", "all")),
        "container late",
    );
    table.admitted_write(joins(set("HOME", "/")));
    table.holds().await
}

pub(crate) async fn folders_of_ours_and_devices_are_mounted_by_nobody(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = guarded(cluster).await?;
    let mut table = Table::new(cluster, "aliquot-host-paths", &ns);
    for path in [
        "/run/aliquot",
        "/run/aliquot/mps/GPU-0/pipe",
        "/var/run/aliquot",
        "/run//aliquot/",
        "/run/./aliquot",
        "/var/lib/aliquot/bin",
        "/var/run/cdi",
        "/run/cdi",
        "/etc/cdi",
        "/tmp/nvidia-mps",
        "/run/nvidia/mps",
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia-caps",
        "/dev/char/195:0",
        "/run/nvidia/driver/dev/nvidia0",
        "/var/lib/kubelet/device-plugins",
        "/proc/1/root/run/aliquot",
        "/proc/self/root",
    ] {
        table.refused(mounts(path), "hostPath volume names /");
    }
    for path in [
        "/data",
        "/run/aliquots",
        "/run/nvidia-fabricmanager",
        "/dev/null",
        "/proc",
        "/tmp",
        "/var/lib/kubelet",
        "/home/run/aliquot",
        // A pod that may mount these controls the node; Pod Security has to prevent that.
        "/",
        "/dev",
    ] {
        table.admitted(mounts(path));
    }
    // A pod with a share must not mount the parents either.
    for path in [
        "/",
        "/run",
        "/var/run",
        "/dev/",
        "/var/lib",
        "/etc",
        "/tmp",
        "/var//lib",
        "/var/lib/kubelet",
        "/var/lib/kubelet/plugins_registry",
        "/var/lib/kubelet/pods",
        "/var/run/containerd/containerd.sock",
        "/run/crio",
        "/proc",
        "/proc/driver",
        "/sys",
        "/sys/fs/cgroup",
    ] {
        table.refused(share(&mounts(path)), "something narrower");
    }
    for path in ["/data", "/dev/null", "/var/lib/models", "/dev/shm"] {
        table.admitted(share(&mounts(path)));
    }
    table.holds().await
}

pub(crate) async fn devices_are_named_to_the_runtime_by_nobody(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = guarded(cluster).await?;
    let mut table = Table::new(cluster, "aliquot-cdi-names", &ns);
    let annotated =
        |key: &str, value: &str| json!({ "metadata": { "annotations": { key: value } } });
    let (ours, all) = (
        "aliquot.dev/grant=0123456789abcdef0123456789abcdef",
        "nvidia.com/gpu=all",
    );
    for (key, value) in [
        ("cdi.k8s.io/thief", ours),
        ("cdi.k8s.io/thief", all),
        ("cdi.k8s.io/thief", "vendor.com/net=eth0,nvidia.com/gpu=0"),
        (
            "nvidia.cdi.k8s.io/container.main",
            "management.nvidia.com/gpu=all",
        ),
    ] {
        table.refused(annotated(key, value), "CDI");
    }
    for (key, value) in [
        ("cdi.k8s.io/net", "vendor.com/net=eth0"),
        ("cdi.k8s.io/net", "notaliquot.dev/grant=1"),
        ("example.com/note", ours),
    ] {
        table.admitted(annotated(key, value));
    }
    cluster.apply_one(&live(&ns, &json!({}))).await?;
    let path = format!("/api/v1/namespaces/{ns}/pods/live");
    table.refused_write(
        Write::patch(&path, annotated("cdi.k8s.io/thief", ours)),
        "cdi.k8s.io/thief",
    );
    table.admitted_write(Write::patch(&path, annotated("example.com/note", "x")));
    // A write of the status may carry annotations, and a Binding's annotations become the pod's.
    let bound = |key: &str| {
        json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": "live", "annotations": { key: ours } },
            "target": { "apiVersion": "v1", "kind": "Node", "name": "n1" },
        })
    };
    let status = format!("{path}/status");
    let binding = format!("{path}/binding");
    let bindings = format!("/api/v1/namespaces/{ns}/bindings");
    for write in [
        Write::patch(&status, annotated("cdi.k8s.io/thief", ours)),
        Write::create(&binding, bound("cdi.k8s.io/thief")),
        Write::create(&bindings, bound("cdi.k8s.io/thief")),
    ] {
        table.refused_write(write, "cdi.k8s.io/thief");
    }
    table.admitted_write(Write::patch(&status, annotated("example.com/note", "x")));
    table.admitted_write(Write::create(&binding, bound("example.com/note")));
    table.holds().await
}

pub(crate) async fn a_share_is_asked_for_by_annotation_alone(cluster: &mut Cluster) -> Result<()> {
    let ns = guarded(cluster).await?;
    // A webhook corrects the number of tokens before a policy sees it.
    let had_webhooks = cluster.end_admission().await?;
    let outcome = asked_for(cluster, &ns).await;
    if had_webhooks {
        cluster.install().await?;
        cluster.admit().await?;
        admits_shares(cluster, &ns).await?;
    }
    outcome
}

async fn asked_for(cluster: &Cluster, ns: &str) -> Result<()> {
    let mut table = Table::new(cluster, "aliquot-requests", ns);
    let asks = |name: &str| {
        let amount = json!({ name: "1" });
        json!({ "resources": { "limits": amount, "requests": amount } })
    };
    let nothing = json!({});
    let ours = json!({ "schedulerName": kai::SCHEDULER_NAME });
    for name in [resource::SHARE, resource::MEMORY_MIB, resource::MILLI] {
        table.refused(with_container(&asks(name), &nothing), "grant");
        table.refused(
            with_init_container(&asks(name), &nothing),
            "container prepare",
        );
    }
    let given = |count: &str, amount: &str| {
        let all = json!({ (resource::SHARE): count, (amount): "2000" });
        json!({ "resources": { "limits": all, "requests": all } })
    };
    let one = given("1", resource::MEMORY_MIB);
    // As the webhook leaves it: by its scheduler alone, and not past it.
    for annotated in shares(&with_container(&one, &ours)) {
        table.admitted(annotated);
    }
    for annotated in shares(&with_container(&one, &nothing)) {
        table.refused(annotated, "kai-scheduler");
    }
    let placed = json!({ "schedulerName": kai::SCHEDULER_NAME, "nodeName": "n1" });
    table.refused(share(&with_container(&one, &placed)), "spec.nodeName");
    // One token, and in the container that asks.
    for count in ["2", "384"] {
        let many = given(count, resource::MILLI);
        table.refused(share(&with_container(&many, &ours)), "exactly one");
    }
    let amount = asks(resource::MEMORY_MIB);
    table.refused(share(&with_container(&amount, &ours)), "exactly one");
    table.refused(
        share(&with_init_container(&one, &ours)),
        "container prepare",
    );
    let mut prepare = share(&with_init_container(&one, &ours));
    prepare["metadata"]["annotations"][request::CONTAINER] = json!("prepare");
    table.admitted(prepare.clone());
    prepare["metadata"]["annotations"][request::CONTAINER] = json!("main");
    table.refused(prepare, "container prepare");
    for name in ["aliquot.dev/grant", "aliquot.dev/gpu"] {
        table.refused(share(&with_container(&asks(name), &ours)), name);
    }
    table.admitted(with_container(&asks(resource::GPU), &nothing));
    table.admitted(nothing);
    table.holds().await
}

pub(crate) async fn a_share_has_no_way_around_its_containers_walls(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = guarded(cluster).await?;
    let mut table = Table::new(cluster, "aliquot-share-isolation", &ns);
    let privileged = json!({ "securityContext": { "privileged": true } });
    let adds = |name: &str| json!({ "securityContext": { "capabilities": { "add": [name] } } });
    let unmasked = json!({ "securityContext": { "procMount": "Unmasked" } });
    let mounted = |path: &str| {
        let mounts = json!({ "volumeMounts": [{ "name": "own", "mountPath": path }] });
        with_container(
            &mounts,
            &json!({ "volumes": [{ "name": "own", "emptyDir": {} }] }),
        )
    };
    let limiting = json!({ "env": [{ "name": "NVIDIA_GPU_MEMORY_REQUEST", "value": "80000" }] });
    let nothing = json!({});
    for (around, word) in [
        (
            with_container(&limiting, &nothing),
            "container main sets NVIDIA_GPU_MEMORY_REQUEST",
        ),
        (
            with_container(&privileged, &nothing),
            "container main is privileged",
        ),
        (
            with_init_container(&privileged, &nothing),
            "container prepare is privileged",
        ),
        (json!({ "spec": { "hostPID": true } }), "hostPID"),
        (json!({ "spec": { "hostIPC": true } }), "hostIPC"),
        (with_container(&adds("SYS_ADMIN"), &nothing), "SYS_ADMIN"),
        (with_container(&adds("SYS_PTRACE"), &nothing), "SYS_PTRACE"),
        (
            with_init_container(&adds("SYS_RAWIO"), &nothing),
            "SYS_RAWIO",
        ),
        (with_container(&adds("ALL"), &nothing), "ALL"),
        (
            with_container(&unmasked, &json!({ "hostUsers": false })),
            "procMount",
        ),
        (mounted("/run/aliquot/mps/pipe"), "container main"),
        (mounted("/run/aliquot/mps/pipe/control"), "container main"),
        (mounted("/var/run/./aliquot/x"), "container main"),
        (mounted("/dev/shm/x"), "container main"),
    ] {
        for annotated in shares(&around) {
            table.refused(annotated, word);
        }
        table.admitted(around);
    }
    for fine in [adds("CHOWN"), adds("IPC_LOCK"), adds("NET_ADMIN")] {
        table.admitted(share(&with_container(&fine, &nothing)));
    }
    for path in ["/dev/shm", "/run/aliquots", "/data"] {
        table.admitted(share(&mounted(path)));
    }
    let isolated = json!({ "securityContext": { "privileged": false } });
    table.admitted(share(&with_container(
        &isolated,
        &json!({ "hostPID": false }),
    )));
    cluster.apply_one(&live(&ns, &share(&nothing))).await?;
    let joins = |context: Value| {
        let container = json!({ "name": "late", "image": "busybox", "securityContext": context });
        Write::strategic(
            format!("/api/v1/namespaces/{ns}/pods/live/ephemeralcontainers"),
            json!({ "spec": { "ephemeralContainers": [container] } }),
        )
    };
    table.refused_write(joins(json!({ "privileged": true })), "container late");
    let ptrace = json!({ "capabilities": { "add": ["SYS_PTRACE"] } });
    table.refused_write(joins(ptrace), "container late");
    table.admitted_write(joins(json!({})));
    table.holds().await
}

pub(crate) async fn a_policy_in_warn_mode_lets_through_and_says_so(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = guarded(cluster).await?;
    let thief = creates(&ns, &mounts("/run/aliquot"));
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(cluster.client.clone());
    let name = "aliquot-host-paths";
    let set = |actions: &[&str]| Patch::Merge(json!({ "spec": { "validationActions": actions } }));
    let parameters = PatchParams::default();
    bindings
        .patch(name, &parameters, &set(&["Warn", "Audit"]))
        .await?;
    let warned = until("a warning instead of a refusal", IN_FORCE, || async {
        Ok(match judge(&cluster.client, &thief).await? {
            Verdict::Admitted(warnings) => Seen::when(
                warnings
                    .iter()
                    .any(|warning| warning.contains("/run/aliquot,")),
                format!("admitted with {warnings:?}"),
            ),
            Verdict::Refused(why) => Seen::NotYet(why),
        })
    })
    .await;
    bindings.patch(name, &parameters, &set(&["Deny"])).await?;
    warned?;
    let mut table = Table::new(cluster, name, &ns);
    table.refused_write(thief, "/run/aliquot,");
    table.refuses().await
}

/// Names of the objects of a kind in `deploy/scheduler.yaml`.
fn names_of(kind: &str, cluster: &Cluster) -> Result<Vec<String>> {
    let path = cluster.programs.tree.join("deploy/scheduler.yaml");
    let yaml = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(documents(&yaml)?
        .into_iter()
        .filter(|document| document["kind"] == kind)
        .filter_map(|document| Some(document["metadata"]["name"].as_str()?.to_owned()))
        .collect())
}
