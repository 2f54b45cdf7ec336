//! Devices of other drivers, under Aliquot's scheduler: Kubernetes' example driver, as its own
//! users run it, and devices that have to be made ready before their pod is bound.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::image::Recipe;
use aliquot_tests::pod::describe;
use aliquot_tests::share::why_pending;
use aliquot_tests::wait::{Seen, stays, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::setup::{LIMIT, ledger_is, manifest, template, unbound, with_driver};

/// The example driver's name; its class has the same.
const DRIVER: &str = "gpu.example.com";
const IMAGE: &str = "registry.k8s.io/dra-example-driver/dra-example-driver:v0.2.1";
const NAMESPACE: &str = "dra-example-driver";
/// How many GPUs it pretends to have.
const GPUS: usize = 3;

fn class(name: &str, driver: &str) -> Value {
    let selector = format!("device.driver == '{driver}'");
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": { "name": name },
        "spec": { "selectors": [{ "cel": { "expression": selector } }] },
    })
}

async fn template_of(cluster: &Cluster, ns: &str, name: &str, exactly: Value) -> Result<()> {
    let request = json!({ "name": "theirs", "exactly": exactly });
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": { "namespace": ns, "name": name },
        "spec": { "spec": { "devices": { "requests": [request] } } },
    });
    cluster.apply_one(&template).await.map(drop)
}

/// A pod of our scheduler whose container takes a claim of each of these templates.
fn asks(ns: &str, name: &str, templates: &[&str]) -> Value {
    let mut pod = manifest(ns, name, "", "report hold");
    pod["spec"]["schedulerName"] = json!("kai-scheduler");
    let claims = templates
        .iter()
        .map(|one| json!({ "name": one, "resourceClaimTemplateName": one }));
    pod["spec"]["resourceClaims"] = claims.collect();
    let names = templates.iter().map(|one| json!({ "name": one }));
    let names: Value = names.collect();
    pod["spec"]["containers"][0]["resources"] = json!({ "claims": names });
    pod
}

/// The names of the example driver's devices that claims of the namespace hold, sorted.
async fn held(cluster: &Cluster, ns: &str, driver: &str) -> Result<Vec<String>> {
    let claims: Api<ResourceClaim> = Api::namespaced(cluster.client.clone(), ns);
    let mut names = Vec::new();
    for claim in claims.list(&ListParams::default()).await?.items {
        let allocation = claim.status.and_then(|status| status.allocation);
        let results = allocation.and_then(|one| one.devices?.results);
        let of_it = results.into_iter().flatten();
        let of_it = of_it.filter(|result| result.driver == driver);
        names.extend(of_it.map(|result| result.device));
    }
    names.sort();
    Ok(names)
}

/// Waits with these words, and without a node.
async fn waits(cluster: &Cluster, ns: &str, name: &str, words: &str) -> Result<()> {
    cluster
        .pod_until(ns, name, words, |pod| {
            why_pending(pod).is_some_and(|why| why.contains(words))
        })
        .await?;
    unbound(cluster, ns, name).await
}

/// The GPUs that the container sees, by the example driver's CDI edits, sorted.
async fn sees(cluster: &Cluster, ns: &str, name: &str) -> Result<Vec<String>> {
    let env = cluster
        .kubectl
        .exec(ns, name, "main", &["/bin/busybox", "env"])
        .await?;
    let mut seen: Vec<String> = env
        .lines()
        .filter_map(|line| line.strip_prefix("GPU_DEVICE_")?.split_once('='))
        .filter(|(key, _)| key.bytes().all(|byte| byte.is_ascii_digit()))
        .map(|(_, device)| device.to_owned())
        .collect();
    seen.sort();
    Ok(seen)
}

/// Its `DaemonSet`, with the rights and folders that its chart gives it.
async fn install(cluster: &Cluster) -> Result<()> {
    let program = cluster
        .programs
        .operator_file("bin/dra-example-kubeletplugin")?;
    let image = Recipe::busybox()
        .file(program, "/dra-example-kubeletplugin")
        .entrypoint(["/dra-example-kubeletplugin"]);
    cluster.serve_image(&image, IMAGE).await?;
    cluster.make_namespace(NAMESPACE).await?;
    // As docs/security.md says of other drivers: it mounts the kubelet's and CDI's folders.
    cluster
        .kubectl
        .run(&["label", "namespace", NAMESPACE, "aliquot.dev/guard=exempt"])
        .await?;
    let name = json!({ "namespace": NAMESPACE, "name": "driver" });
    let rule = |group: &str, resource: &str, verbs: &[&str]| json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs });
    let slices = [
        "get", "list", "watch", "create", "update", "patch", "delete",
    ];
    let folder = |name: &str, path: &str| {
        (
            json!({ "name": name, "mountPath": path }),
            json!({ "name": name, "hostPath": { "path": path } }),
        )
    };
    let (mounts, volumes): (Vec<_>, Vec<_>) = [
        folder("registry", "/var/lib/kubelet/plugins_registry"),
        folder("plugins", "/var/lib/kubelet/plugins"),
        folder("cdi", "/var/run/cdi"),
    ]
    .into_iter()
    .unzip();
    let node = json!({ "fieldRef": { "fieldPath": "spec.nodeName" } });
    let pods = json!({ "app": "dra-example-driver" });
    for document in [
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": name }),
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": "dra-example-driver" }, "rules": [
                rule("resource.k8s.io", "resourceclaims", &["get"]),
                rule("", "nodes", &["get"]),
                rule("resource.k8s.io", "resourceslices", &slices),
            ] }),
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": "dra-example-driver" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "dra-example-driver" },
            "subjects": [{ "kind": "ServiceAccount", "namespace": NAMESPACE, "name": "driver" }] }),
        json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": name,
            "spec": { "selector": { "matchLabels": pods }, "template": {
                "metadata": { "labels": pods },
                "spec": { "serviceAccountName": "driver", "volumes": volumes,
                    "containers": [{ "name": "plugin", "image": IMAGE,
                        "securityContext": { "privileged": true },
                        "volumeMounts": mounts,
                        "env": [
                            { "name": "CDI_ROOT", "value": "/var/run/cdi" },
                            { "name": "NODE_NAME", "valueFrom": node },
                            { "name": "NUM_DEVICES", "value": GPUS.to_string() },
                        ] }] } } } }),
        class(DRIVER, DRIVER),
    ] {
        cluster.apply_one(&document).await?;
    }
    let slices: Api<ResourceSlice> = Api::all(cluster.client.clone());
    until("the example driver's slice", LIMIT, || async {
        let all = slices.list(&ListParams::default()).await?.items;
        let of_it = all.iter().find(|slice| slice.spec.driver == DRIVER);
        let devices = of_it.and_then(|slice| slice.spec.devices.as_ref());
        Ok(Seen::when(
            devices.map(Vec::len) == Some(GPUS),
            format!("{devices:?}"),
        ))
    })
    .await
}

async fn uninstall(cluster: &Cluster) -> Result<()> {
    for what in [
        ["namespace", NAMESPACE],
        ["clusterrole", "dra-example-driver"],
        ["clusterrolebinding", "dra-example-driver"],
        ["deviceclass", DRIVER],
    ] {
        let [kind, name] = what;
        cluster
            .kubectl
            .run(&["delete", kind, name, "--ignore-not-found"])
            .await?;
    }
    cluster
        .kubectl
        .run(&[
            "delete",
            "resourceslices",
            "--field-selector",
            &format!("spec.driver={DRIVER}"),
        ])
        .await
        .map(drop)
}

/// The example driver's devices, allocated by our scheduler and by Kubernetes' own, prepared by
/// their driver.
pub(crate) async fn beside_the_example_driver(cluster: &mut Cluster) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        install(cluster).await?;
        let outcome = example(cluster, ns).await;
        // Its pods end while it is there: the kubelet needs it for that.
        let ended = cluster
            .kubectl
            .run(&["delete", "pods", "--all", "--namespace", ns])
            .await;
        let uninstalled = uninstall(cluster).await;
        outcome.and(ended.map(drop)).and(uninstalled)
    })
    .await
}

async fn example(cluster: &mut Cluster, ns: &str) -> Result<()> {
    let one = json!({ "deviceClassName": DRIVER });
    template_of(cluster, ns, "one", one.clone()).await?;
    let by_index = |index: usize| {
        let expression = format!("device.attributes['{DRIVER}'].index == {index}");
        let mut exactly = one.clone();
        exactly["selectors"] = json!([{ "cel": { "expression": expression } }]);
        exactly
    };
    template_of(cluster, ns, "last", by_index(GPUS - 1)).await?;
    template(cluster, ns, "share", "2000Mi", &json!({})).await?;

    // A share of ours and a device of theirs in one container, each isolated by its own driver.
    cluster
        .apply_one(&asks(ns, "both", &["share", "last"]))
        .await?;
    cluster.pod_phase(ns, "both", "Running").await?;
    let report = cluster.said(ns, "both", "main", "report").await?;
    ensure!(report["devices"][0]["limit_mib"] == 2000, "{report}");
    let last = format!("gpu-{}", GPUS - 1);
    ensure!(
        sees(cluster, ns, "both").await? == [last.clone()],
        "both sees {:?}",
        sees(cluster, ns, "both").await?
    );
    ledger_is(cluster, ns, &[("both", 2000)]).await?;

    // The one that Kubernetes' scheduler gave away is known to ours.
    cluster
        .apply_one(&manifest(ns, "foreign", "one", "report hold"))
        .await?;
    cluster.pod_phase(ns, "foreign", "Running").await?;
    cluster.apply_one(&asks(ns, "third", &["one"])).await?;
    cluster.pod_phase(ns, "third", "Running").await?;
    let mut all = Vec::new();
    for name in ["both", "foreign", "third"] {
        all.extend(sees(cluster, ns, name).await?);
    }
    all.sort();
    ensure!(
        all == held(cluster, ns, DRIVER).await? && all.len() == GPUS,
        "{all:?} are seen"
    );
    cluster.apply_one(&asks(ns, "fourth", &["one"])).await?;
    let none = "cannot allocate all claims";
    waits(cluster, ns, "fourth", none).await?;

    // A gang of two has both or none.
    cluster.delete_pod(ns, "fourth").await?;
    cluster.delete_pod(ns, "third").await?;
    let group = json!({
        "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": { "namespace": ns, "name": "pair" },
        "spec": { "minMember": 2, "queue": "default-queue" },
    });
    cluster.apply_one(&group).await?;
    for name in ["left", "right"] {
        let mut pod = asks(ns, name, &["one"]);
        pod["metadata"]["annotations"] = json!({ "pod-group-name": "pair" });
        cluster.apply_one(&pod).await?;
    }
    waits(cluster, ns, "left", "gang").await?;
    stays(
        "nothing is held for half a gang",
        Duration::from_secs(2),
        || async {
            let held = held(cluster, ns, DRIVER).await?;
            Ok(Seen::when(held.len() == GPUS - 1, format!("{held:?}")))
        },
    )
    .await?;
    cluster.delete_pod(ns, "foreign").await?;
    for name in ["left", "right"] {
        cluster.pod_phase(ns, name, "Running").await?;
    }
    Ok(())
}

/// A driver's slice for the cluster's one node.
fn slice(name: &str, driver: &str, device: &Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": { "name": name },
        "spec": { "driver": driver, "nodeName": aliquot_tests::node::NAME,
            "pool": { "name": name, "generation": 1, "resourceSliceCount": 1 },
            "devices": [device] },
    })
}

/// What a driver says of the claim's only device.
async fn told(cluster: &Cluster, ns: &str, kind: &str) -> Result<()> {
    let claims: Api<ResourceClaim> = Api::namespaced(cluster.client.clone(), ns);
    let name = until("a claim with a device", LIMIT, || async {
        let all = claims.list(&ListParams::default()).await?.items;
        let has = all.into_iter().find_map(|claim| {
            claim.status?.allocation?;
            claim.metadata.name
        });
        Ok(Seen::from_option(has, "none has"))
    })
    .await?;
    let claim = claims.get_status(&name).await?;
    let status = claim.status.context("no status")?;
    let result = status.allocation.and_then(|one| one.devices?.results);
    let result = result.and_then(|all| all.into_iter().next());
    let result = result.context("no device")?;
    let condition = json!({ "type": kind, "status": "True", "reason": "Told", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let device = json!({ "driver": result.driver, "pool": result.pool, "device": result.device,
        "conditions": [condition] });
    let patch = json!({ "status": { "devices": [device] } });
    claims
        .patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

/// The fabric's driver attaches its device once it is allocated; the pod is bound then, and not
/// before. Where it cannot attach it, the claim loses it, and the pod waits for another.
pub(crate) async fn a_pod_is_bound_once_the_driver_has_made_its_device_ready(
    cluster: &mut Cluster,
) -> Result<()> {
    const FABRIC: &str = "fabric.example.com";
    cluster
        .aliquot(&aliquot_tests::gpu::Hardware::preset("T4", 1))
        .await?;
    let ns = cluster.namespace().await?;
    let device = json!({ "name": "remote",
        "bindingConditions": ["example.com/Attached"],
        "bindingFailureConditions": ["example.com/AttachFailed"] });
    cluster.apply_one(&class(FABRIC, FABRIC)).await?;
    cluster.apply_one(&slice("fabric", FABRIC, &device)).await?;
    let outcome = attached(cluster, &ns, FABRIC).await;
    // No kubelet plugin serves it: what was bound has not started and is ended by force.
    for what in [
        &[
            "pod",
            "--all",
            "--namespace",
            &ns,
            "--force",
            "--grace-period=0",
        ][..],
        &["resourceslice", "fabric"],
        &["deviceclass", FABRIC],
    ] {
        let mut args = vec!["delete", "--ignore-not-found"];
        args.extend(what);
        cluster.kubectl.run(&args).await?;
    }
    outcome
}

async fn attached(cluster: &Cluster, ns: &str, driver: &str) -> Result<()> {
    template_of(cluster, ns, "remote", json!({ "deviceClassName": driver })).await?;
    cluster.apply_one(&asks(ns, "first", &["remote"])).await?;
    until("who waits is told", LIMIT, || async {
        let events = cluster.events_of(ns, "first").await?;
        let told = events
            .iter()
            .any(|one| one.contains("BindingConditionsPending"));
        Ok(Seen::when(told, events.join("; ")))
    })
    .await?;
    let pods = cluster.pods(ns);
    stays("not bound before", Duration::from_secs(2), || async {
        let pod = pods.get("first").await?;
        let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        Ok(Seen::when(bound.is_none(), describe(&pod)))
    })
    .await?;
    told(cluster, ns, "example.com/AttachFailed").await?;
    until("the claim without a device", LIMIT, || async {
        // It may get it again a moment later.
        let events = cluster.events_of(ns, "first").await?;
        let refused = events.iter().any(|one| one.contains("AttachFailed"));
        Ok(Seen::when(refused, events.join("; ")))
    })
    .await?;
    until("it is tried again and attached", LIMIT, || async {
        told(cluster, ns, "example.com/Attached").await?;
        let pod = pods.get("first").await?;
        let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        Ok(Seen::from_option(bound, describe(&pod)))
    })
    .await
    .map(drop)
}
