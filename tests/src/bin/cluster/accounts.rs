//! What the service accounts of `deploy/` may write: by their rights, and by the guard where
//! rights cannot say it. With tokens as the programs have them; none of the programs runs.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::control_plane;
use aliquot_tests::node;
use aliquot_tests::token::{self, AccountToken, Credential};
use aliquot_tests::verdict::Write;
use anyhow::{Context, Result, ensure};
use api::GpuNode;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use proto::names::{NAMESPACE, condition, grant, kai, object, request, resource};
use serde_json::{Map, Value, json};

use crate::guard::{Table, creates, guarded, live};

/// A node that has no kubelet.
pub(crate) const OTHER: &str = "other-node";

pub(crate) async fn a_grant_is_written_by_the_scheduler_alone(cluster: &mut Cluster) -> Result<()> {
    let ns = guarded(cluster).await?;
    let policy = "aliquot-grant";
    cluster.apply_one(&live(&ns, &json!({}))).await?;
    let path = format!("/api/v1/namespaces/{ns}/pods/live");
    let keys = grant::PROTECTED
        .into_iter()
        .chain(["runai-gpu-group/GPU-1"]);
    let carriers: Vec<(String, Value)> = keys
        .flat_map(|key| {
            ["annotations", "labels"].map(|kind| {
                (
                    key.to_owned(),
                    json!({ "metadata": { kind: { key: "x" } } }),
                )
            })
        })
        .collect();
    let bound = |metadata: &Value| {
        let mut binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": { "name": "live", "namespace": ns },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node::NAME },
        });
        for (key, value) in metadata["metadata"].as_object().into_iter().flatten() {
            binding["metadata"][key] = value.clone();
        }
        binding
    };
    let binding = format!("{path}/binding");
    let mut others = Table::new(cluster, policy, &ns);
    let mut scheduler = Table::new(cluster, policy, &ns);
    for (key, metadata) in &carriers {
        others.refused(metadata.clone(), key);
        others.refused_write(creates("kube-system", metadata), key);
        others.refused_write(Write::patch(&path, metadata.clone()), key);
        others.refused_write(
            Write::patch(format!("{path}/status"), metadata.clone()),
            key,
        );
        others.refused_write(Write::create(&binding, bound(metadata)), key);
        others.refused_write(
            Write::create(format!("/api/v1/namespaces/{ns}/bindings"), bound(metadata)),
            key,
        );
    }
    for (kind, key) in [
        ("annotations", grant::GRANT),
        ("annotations", grant::RECEIVED_TYPE),
        ("labels", grant::GPU_GROUP),
        ("labels", "runai-gpu-group/GPU-1"),
    ] {
        let metadata = json!({ "metadata": { kind: { key: "x" } } });
        scheduler.admitted_write(Write::create(&binding, bound(&metadata)));
    }
    let note = json!({ "metadata": { "annotations": { "example.com/note": "x" }, "labels": { "a": "b" } } });
    others.admitted(note.clone());
    others.admitted_write(Write::patch(&path, note.clone()));
    others.admitted_write(Write::patch(format!("{path}/status"), note.clone()));
    others.admitted_write(Write::create(&binding, bound(&json!({}))));
    others.holds().await?;
    let client = account(cluster, object::SCHEDULER_ACCOUNT, None).await?;
    scheduler.by(client.clone()).admits().await?;

    // Written once, it is neither changed nor taken away, and does not hold up other writes.
    let request = http::Request::post(&binding)
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&bound(&json!({ "metadata": {
            "annotations": { (grant::GRANT): "x", (grant::RECEIVED_TYPE): "Fraction" },
        } })))?)?;
    client.request_text(request).await?;
    let mut others = Table::new(cluster, policy, &ns);
    for (key, value) in [
        (grant::GRANT, json!("y")),
        (grant::GRANT, Value::Null),
        (grant::RECEIVED_TYPE, json!("Regular")),
    ] {
        let change = json!({ "metadata": { "annotations": { key: value } } });
        others.refused_write(Write::patch(&path, change.clone()), key);
        others.refused_write(Write::patch(format!("{path}/status"), change), key);
    }
    others.admitted_write(Write::patch(&path, note.clone()));
    others.admitted_write(Write::patch(format!("{path}/status"), note));
    others.holds().await
}

/// If the scheduler's account could patch all of a pod, it could replace the image of a privileged
/// pod.
pub(crate) async fn the_scheduler_writes_a_pods_group_and_its_own_conditions_alone(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = guarded(cluster).await?;
    let policy = "aliquot-scheduler-pods";
    // This value looks like another key, but must be treated as text.
    let sly = r#"x", "pod-group-name":"g"#;
    let one = json!({ (resource::GPU): "1" });
    let gpu = json!({ "name": "main", "image": "busybox",
        "resources": { "limits": one, "requests": one } });
    let mut there = live(
        &ns,
        &json!({ "metadata": {
            "annotations": { "note": "x", "other": sly, (kai::POD_GROUP): "g" },
            "labels": { "app": "x", (kai::QUEUE_LABEL): "q" },
        }, "spec": { "containers": [gpu] } }),
    );
    cluster.apply_one(&there).await?;
    // The pod has as many annotations as the API server takes with the other policies in force.
    let many: Map<String, Value> = (0..20_000)
        .map(|number| (format!("z{number:x}"), json!("")))
        .collect();
    there["metadata"]["annotations"] = Value::Object(many);
    there["metadata"]["name"] = json!("full");
    let full = serde_json::from_value(there)?;
    let pods = cluster.pods(&ns);
    pods.create(&PostParams::default(), &full).await?;
    let ready = json!({ "status": { "conditions": [
        { "type": "Ready", "status": "False" }, { "type": "PodScheduled", "status": "True" },
    ] } });
    pods.patch_status("live", &PatchParams::default(), &Patch::Strategic(ready))
        .await?;

    let path = |name: &str| format!("/api/v1/namespaces/{ns}/pods/{name}");
    let status = format!("{}/status", path("live"));
    let annotation =
        |key: &str, value: Value| json!({ "metadata": { "annotations": { key: value } } });
    let label = |key: &str, value: Value| json!({ "metadata": { "labels": { key: value } } });
    let condition = |kind: &str, value: &str| {
        let one = json!({ "type": kind, "status": value, "reason": "A", "message": "b" });
        json!({ "status": { "conditions": [one] } })
    };
    let image = json!({ "spec": { "containers": [{ "name": "main", "image": "evil" }] } });
    let mut table = Table::new(cluster, policy, &ns);
    table.refused_write(Write::strategic(path("live"), image), "spec of live");
    let deadline = json!({ "spec": { "activeDeadlineSeconds": 1 } });
    table.refused_write(Write::patch(path("live"), deadline), "spec of live");
    for change in [
        annotation("note", json!("y")),
        annotation("note", Value::Null),
        annotation("new", json!("")),
        annotation(grant::GRANT, json!("x")),
        annotation(request::MEMORY, json!("1")),
        annotation("other", json!(format!("{sly}h"))),
        json!({ "metadata": { "annotations": { "note": sly, (kai::POD_GROUP): Value::Null } } }),
    ] {
        table.refused_write(Write::patch(path("live"), change.clone()), kai::POD_GROUP);
        table.refused_write(Write::patch(&status, change), kai::POD_GROUP);
    }
    for change in [
        label("app", json!("y")),
        label("app", Value::Null),
        label(kai::QUEUE_LABEL, json!("r")),
        label("runai-gpu-groups", json!("r")),
    ] {
        table.refused_write(Write::patch(path("live"), change), kai::SUB_GROUP_LABEL);
    }
    for change in [
        json!({ "metadata": { "finalizers": ["a.example/b"] } }),
        json!({ "metadata": { "ownerReferences": [
            { "apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y" },
        ] } }),
    ] {
        table.refused_write(Write::patch(path("live"), change), "finalizers and owners");
    }
    for (kind, value) in [("Ready", "True"), ("ContainersReady", "True")] {
        let change = condition(kind, value);
        table.refused_write(Write::strategic(&status, change), "conditions");
    }
    let phase = json!({ "status": { "phase": "Succeeded" } });
    table.refused_write(Write::patch(&status, phase), "status.phase");
    let nominated = json!({ "status": { "nominatedNodeName": "n" } });
    table.refused_write(Write::patch(&status, nominated), "status.nominatedNodeName");
    let one_of_many = annotation("z77", json!("x"));
    table.refused_write(Write::patch(path("full"), one_of_many), kai::POD_GROUP);

    for change in [
        annotation(kai::POD_GROUP, json!(sly)),
        annotation(kai::POD_GROUP, json!("other")),
        annotation(kai::POD_GROUP, Value::Null),
        label(kai::SUB_GROUP_LABEL, json!("s")),
        label(kai::NODE_POOL_LABEL, json!("p")),
        label(grant::GPU_GROUP, json!("GPU-1")),
        json!({ "metadata": { "labels": {
            "runai-gpu-group/GPU-1": "b", "runai-gpu-group/GPU-2": "b", (kai::SUB_GROUP_LABEL): "s",
        } } }),
    ] {
        table.admitted_write(Write::patch(path("live"), change));
    }
    for kind in [
        "PodScheduled",
        "DisruptionTarget",
        condition::ISOLATION_VERIFIED,
    ] {
        table.admitted_write(Write::strategic(&status, condition(kind, "False")));
    }
    let claim = json!({ "resourceClaimName": "c", "requestMappings": [
        { "containerName": "main", "resourceName": resource::GPU, "requestName": "r" },
    ] });
    let claim = json!({ "status": { "extendedResourceClaimStatus": claim } });
    table.admitted_write(Write::patch(&status, claim));
    // Each of these writes takes the API server a second.
    let group = annotation(kai::POD_GROUP, json!("other"));
    table.admitted_write(Write::patch(path("full"), group));
    let why = condition("PodScheduled", "False");
    table.admitted_write(Write::strategic(format!("{}/status", path("full")), why));
    let client = account(cluster, object::SCHEDULER_ACCOUNT, None).await?;
    table.by(client.clone()).holds().await?;

    let binding = |metadata: &Value| {
        let mut binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": "live" },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node::NAME },
        });
        for (key, value) in metadata["metadata"].as_object().into_iter().flatten() {
            binding["metadata"][key] = value.clone();
        }
        Write::create(format!("{}/binding", path("live")), binding)
    };
    let mut table = Table::new(cluster, "aliquot-scheduler-bindings", &ns);
    for (change, key) in [
        (annotation("note", json!("x")), "note"),
        (annotation("cdi.k8s.io/x", json!("a.b/c=d")), "cdi.k8s.io/x"),
        (label("app", json!("x")), "app"),
        (label(kai::QUEUE_LABEL, json!("x")), kai::QUEUE_LABEL),
    ] {
        table.refused_write(binding(&change), key);
    }
    table.admitted_write(binding(&json!({})));
    for key in [grant::GRANT, kai::POD_GROUP, grant::RECEIVED_TYPE] {
        table.admitted_write(binding(&annotation(key, json!("x"))));
    }
    for key in [
        kai::SUB_GROUP_LABEL,
        kai::NODE_POOL_LABEL,
        grant::GPU_GROUP,
        "runai-gpu-group/GPU-1",
    ] {
        table.admitted_write(binding(&label(key, json!("x"))));
    }
    table.by(client).holds().await?;

    // The policy does not affect other accounts.
    let mut admin = Table::new(cluster, policy, &ns);
    admin.admitted_write(Write::patch(path("live"), annotation("note", json!("y"))));
    admin.admitted_write(Write::patch(
        &status,
        json!({ "status": { "phase": "Failed" } }),
    ));
    admin.admits().await
}

pub(crate) async fn the_scheduler_gives_a_claim_a_node_or_a_free_volume_alone(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = guarded(cluster).await?;
    let (free, taken) = (format!("{ns}-free"), format!("{ns}-taken"));
    let of_tenant = json!({ "namespace": "tenant", "name": "theirs" });
    for name in [&free, &taken] {
        let mut volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "none",
                "hostPath": { "path": "/data" },
            },
        });
        if *name == taken {
            volume["spec"]["claimRef"] = of_tenant.clone();
        }
        cluster.apply_one(&volume).await?;
    }
    cluster
        .apply_one(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "name": "claim", "namespace": ns, "annotations": { "note": "x" } },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
                "resources": { "requests": { "storage": "1Gi" } },
            },
        }))
        .await?;
    let claim = format!("/api/v1/namespaces/{ns}/persistentvolumeclaims/claim");
    let volume = |name: &str| format!("/api/v1/persistentvolumes/{name}");
    let annotation = |key: &str| json!({ "metadata": { "annotations": { key: "y" } } });
    let selected = "volume.kubernetes.io/selected-node";
    let bound = "pv.kubernetes.io/bound-by-controller";
    let owner = json!({ "spec": { "claimRef": {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": ns, "name": "claim",
    } } });
    let mut table = Table::new(cluster, "aliquot-scheduler-volumes", &ns);
    for (path, change, word) in [
        (volume(&taken), owner.clone(), "spec.claimRef"),
        (
            volume(&taken),
            json!({ "spec": { "claimRef": null } }),
            "spec.claimRef",
        ),
        (
            volume(&free),
            json!({ "spec": { "mountOptions": ["dev"] } }),
            "spec.mountOptions",
        ),
        (
            volume(&free),
            json!({ "spec": { "persistentVolumeReclaimPolicy": "Delete" } }),
            "spec.persistentVolumeReclaimPolicy",
        ),
        (volume(&free), annotation(selected), bound),
        (claim.clone(), annotation(bound), selected),
        (claim.clone(), annotation("note"), selected),
        (
            claim.clone(),
            json!({ "metadata": { "finalizers": null } }),
            "finalizers",
        ),
        (
            claim.clone(),
            json!({ "metadata": { "labels": { "a": "b" } } }),
            "labels",
        ),
    ] {
        table.refused_write(Write::patch(path, change), word);
    }
    table.admitted_write(Write::patch(&claim, annotation(selected)));
    let mut given = owner.clone();
    given["metadata"] = annotation(bound)["metadata"].clone();
    table.admitted_write(Write::patch(volume(&free), given));
    let client = account(cluster, object::SCHEDULER_ACCOUNT, None).await?;
    let held = table.by(client).holds().await;
    let mut admin = Table::new(cluster, "aliquot-scheduler-volumes", &ns);
    admin.admitted_write(Write::patch(volume(&taken), owner));
    let unaffected = admin.admits().await;
    let volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    for name in [&free, &taken] {
        volumes.delete(name, &DeleteParams::default()).await?;
    }
    held.and(unaffected)
}

pub(crate) async fn the_scheduler_creates_and_deletes_claims_of_extended_resources_alone(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = guarded(cluster).await?;
    let all = format!("/apis/resource.k8s.io/v1/namespaces/{ns}/resourceclaims");
    // Owners that are there: an object without one is collected.
    cluster.apply_one(&live(&ns, &json!({}))).await?;
    let pod = cluster.pods(&ns).get("live").await?;
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "owner", "namespace": ns } });
    cluster.apply_one(&map).await?;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), &ns);
    let map = maps.get("owner").await?;
    let pod = ("Pod", pod.metadata);
    let map = ("ConfigMap", map.metadata);
    let owner = |(kind, owner): &(&str, ObjectMeta), controller: bool| {
        json!([{ "apiVersion": "v1", "kind": kind, "name": owner.name, "uid": owner.uid,
            "controller": controller }])
    };
    let marked = json!({ "resource.kubernetes.io/extended-resource-claim": "true" });
    let other = json!({ "resource.kubernetes.io/extended-resource-claim": "false" });
    let claim = |name: &str, annotations: &Value, owner: Value| {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": { "name": name, "namespace": ns, "annotations": annotations,
                "ownerReferences": owner },
            "spec": { "devices": { "requests": [{ "name": "r", "exactly": {
                "deviceClassName": "gpu.aliquot.dev" } }] } },
        })
    };
    let tenants = [
        claim("plain", &json!({}), json!([])),
        claim("unmarked", &other, owner(&pod, true)),
        claim("of-a-map", &marked, owner(&map, true)),
        claim("owned", &marked, owner(&pod, false)),
    ];
    let stand_in = claim("stands-in", &marked, owner(&pod, true));
    let policy = "aliquot-scheduler-claims";
    let client = account(cluster, object::SCHEDULER_ACCOUNT, None).await?;
    let mut scheduler = Table::new(cluster, policy, &ns).by(client.clone());
    let mut others = Table::new(cluster, policy, &ns);
    for claim in &tenants {
        let name = claim["metadata"]["name"].as_str().context("a name")?;
        scheduler.refused_write(Write::create(&all, claim.clone()), name);
        others.admitted_write(Write::create(&all, claim.clone()));
    }
    scheduler.admitted_write(Write::create(&all, stand_in.clone()));
    scheduler.holds().await?;
    others.admits().await?;
    let mut scheduler = Table::new(cluster, policy, &ns).by(client);
    let mut others = Table::new(cluster, policy, &ns);
    for claim in &tenants {
        let name = claim["metadata"]["name"].as_str().context("a name")?;
        cluster.apply_one(claim).await?;
        scheduler.refused_write(Write::delete(format!("{all}/{name}")), name);
        others.admitted_write(Write::delete(format!("{all}/{name}")));
    }
    others.admits().await?;
    cluster.apply_one(&stand_in).await?;
    scheduler.admitted_write(Write::delete(format!("{all}/stands-in")));
    scheduler.holds().await
}

pub(crate) async fn the_scheduler_chooses_among_a_cards_mig_layouts_alone(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = guarded(cluster).await?;
    let nodes: Api<GpuNode> = Api::all(cluster.client.clone());
    let object = json!({
        "apiVersion": "aliquot.dev/v1alpha1", "kind": "GpuNode", "metadata": { "name": OTHER },
        "spec": { "reserveMib": 100, "gpus": [
            { "uuid": "GPU-a", "migLayouts": [{ "1g.5gb": 7 }, { "3g.20gb": 2 }] },
            { "uuid": "GPU-b" },
        ] },
    });
    cluster.apply_one(&object).await?;
    let made = serde_json::to_value(nodes.get(OTHER).await?)?;
    let path = format!("/apis/aliquot.dev/v1alpha1/gpunodes/{OTHER}");
    let with = |pointer: &str, key: &str, value: Value| {
        let mut changed = made.clone();
        if let Some(place) = changed.pointer_mut(pointer) {
            place[key] = value;
        }
        Write::patch(&path, changed)
    };
    let one = made["spec"]["gpus"][0].clone();
    let first = "/spec/gpus/0";
    let other = "everything else in the spec";
    let client = account(cluster, object::SCHEDULER_ACCOUNT, None).await?;
    let policy = "aliquot-scheduler-gpunode";
    let mut table = Table::new(cluster, policy, &ns).by(client);
    let mut others = Table::new(cluster, policy, &ns);
    for (write, word) in [
        (with(first, "cordoned", json!(true)), other),
        (with(first, "migLayouts", json!([{ "7g.40gb": 1 }])), other),
        (with(first, "uuid", json!("GPU-c")), other),
        (with("/spec", "gpus", json!([one])), other),
        (with("/spec", "reserveMib", json!(0)), other),
        (with("/spec", "minimumFence", json!("DriverLimit")), other),
        (with(first, "migLayout", json!({ "7g.40gb": 1 })), "among"),
        (with(first, "migLayout", json!({ "1g.5gb": 6 })), "among"),
        (
            with("/spec/gpus/1", "migLayout", json!({ "1g.5gb": 7 })),
            "among",
        ),
        (with("/metadata", "labels", json!({ "a": "b" })), "metadata"),
    ] {
        others.admitted_write(write.clone());
        table.refused_write(write, word);
    }
    table.admitted_write(with(first, "migLayout", json!({ "3g.20gb": 2 })));
    table.admitted_write(Write::patch(&path, made.clone()));
    let held = table.holds().await;
    let free = others.admits().await;
    nodes.delete(OTHER, &DeleteParams::default()).await?;
    held.and(free)
}

pub(crate) async fn an_agent_writes_two_amounts_of_its_own_node_alone(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = guarded(cluster).await?;
    with_other_node(cluster, async |cluster| {
        let policy = "aliquot-agent-node";
        let status = |name: &str| format!("/api/v1/nodes/{name}/status");
        let capacity = |name: &str| json!({ "status": { "capacity": { name: "12345" } } });
        let mut table = Table::new(cluster, policy, &ns);
        for (path, change, word) in [
            (status(OTHER), capacity(resource::MEMORY_MIB), "own node"),
            (status(node::NAME), capacity("cpu"), "not cpu"),
            (status(node::NAME), capacity(resource::GPU), resource::GPU),
            (
                status(node::NAME),
                capacity(resource::SHARE),
                resource::SHARE,
            ),
            (
                status(node::NAME),
                json!({ "status": { "allocatable": { (resource::MILLI): "1" } } }),
                "status.allocatable",
            ),
            (
                status(node::NAME),
                json!({ "status": { "conditions": [] } }),
                "status.conditions",
            ),
            (
                status(node::NAME),
                json!({ "status": { "nodeInfo": { "kubeletVersion": "v9" } } }),
                "status.nodeInfo",
            ),
            (
                status(node::NAME),
                json!({ "metadata": { "labels": { "a": "b" } } }),
                "metadata",
            ),
            (
                status(node::NAME),
                json!({ "metadata": { "annotations": { "a": "b" } } }),
                "metadata",
            ),
        ] {
            table.refused_write(Write::patch(path, change), word);
        }
        for name in [resource::MEMORY_MIB, resource::MILLI] {
            table.admitted_write(Write::patch(status(node::NAME), capacity(name)));
        }
        let agent = account(cluster, object::AGENT_ACCOUNT, Some(node::NAME)).await?;
        table.by(agent).holds().await?;
        // A token that names another node, or none.
        for of in [Some(OTHER), None] {
            let mut table = Table::new(cluster, policy, &ns);
            let write = Write::patch(status(node::NAME), capacity(resource::MILLI));
            table.refused_write(write, "own node");
            let agent = account(cluster, object::AGENT_ACCOUNT, of).await?;
            table.by(agent).refuses().await?;
        }
        // Accounts other than agents are not affected.
        let mut admin = Table::new(cluster, policy, &ns);
        admin.admitted_write(Write::patch(status(OTHER), capacity("example.com/thing")));
        admin.admits().await
    })
    .await
}

pub(crate) async fn an_agent_makes_and_reports_its_own_gpu_node_alone(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = guarded(cluster).await?;
    with_other_node(cluster, async |cluster| {
        let all = "/apis/aliquot.dev/v1alpha1/gpunodes";
        let gpu_node = |name: &str| json!({
            "apiVersion": "aliquot.dev/v1alpha1", "kind": "GpuNode", "metadata": { "name": name }, "spec": {},
        });
        let report = |name: &str| {
            Write::patch(format!("{all}/{name}/status"), json!({ "status": { "product": "x" } }))
        };
        let policy = "aliquot-agent-gpunode";
        let of_other = account(cluster, object::AGENT_ACCOUNT, Some(OTHER)).await?;
        let mut table = Table::new(cluster, policy, &ns);
        table.refused_write(Write::create(all, gpu_node(node::NAME)), "own node");
        table.admitted_write(Write::create(all, gpu_node(OTHER)));
        table.by(of_other.clone()).holds().await?;

        cluster.apply_one(&gpu_node(OTHER)).await?;
        let mut table = Table::new(cluster, policy, &ns);
        table.admitted_write(report(OTHER));
        table.by(of_other).admits().await?;
        for of in [Some(node::NAME), None] {
            let mut table = Table::new(cluster, policy, &ns);
            table.refused_write(report(OTHER), "own node");
            let agent = account(cluster, object::AGENT_ACCOUNT, of).await?;
            table.by(agent).refuses().await?;
        }
        Ok(())
    })
    .await
}

/// Account, verb, resource with group and subresource, then namespace and name where it is
/// not all of them.
const MAY: &str = "
scheduler watch pods
scheduler watch nodes
scheduler watch gpunodes.aliquot.dev
scheduler patch gpunodes.aliquot.dev
scheduler watch queues.scheduling.run.ai
scheduler watch podgroups.scheduling.run.ai
scheduler watch topologies.kai.scheduler
scheduler watch priorityclasses.scheduling.k8s.io
scheduler watch persistentvolumeclaims
scheduler patch persistentvolumeclaims
scheduler watch persistentvolumes
scheduler get persistentvolumes
scheduler patch persistentvolumes
scheduler watch storageclasses.storage.k8s.io
scheduler watch csinodes.storage.k8s.io
scheduler watch csidrivers.storage.k8s.io
scheduler watch csistoragecapacities.storage.k8s.io
scheduler watch resourceslices.resource.k8s.io
scheduler watch deviceclasses.resource.k8s.io
scheduler watch resourceclaims.resource.k8s.io
scheduler create resourceclaims.resource.k8s.io
scheduler update resourceclaims.resource.k8s.io
scheduler delete resourceclaims.resource.k8s.io
scheduler update resourceclaims/status.resource.k8s.io
scheduler update resourceclaims/binding.resource.k8s.io
scheduler watch namespaces
scheduler get customresourcedefinitions.apiextensions.k8s.io - queues.scheduling.run.ai
scheduler create pods/eviction
scheduler get namespaces
scheduler create pods/binding
scheduler patch pods/status
scheduler patch pods
scheduler delete pods
scheduler patch podgroups.scheduling.run.ai
scheduler create podgroups.scheduling.run.ai
scheduler get replicasets.apps
scheduler get deployments.apps
scheduler get statefulsets.apps
scheduler get jobs.batch
scheduler get cronjobs.batch
scheduler get pytorchjobs.kubeflow.org
scheduler get rayclusters.ray.io
scheduler get jobsets.jobset.x-k8s.io
scheduler get leaderworkersets.leaderworkerset.x-k8s.io
scheduler get podgangs.scheduler.grove.io
scheduler create events.events.k8s.io
scheduler create tokenreviews.authentication.k8s.io
scheduler create subjectaccessreviews.authorization.k8s.io
scheduler update secrets aliquot-system aliquot-grant-key
scheduler update secrets aliquot-system aliquot-tls
scheduler get secrets aliquot-system aliquot-tls
scheduler watch configmaps aliquot-system aliquot-trust
scheduler create configmaps aliquot-system
scheduler update configmaps aliquot-system aliquot-trust
scheduler create leases.coordination.k8s.io aliquot-system
scheduler update leases.coordination.k8s.io aliquot-system aliquot-scheduler
admission list pods
admission watch queues.scheduling.run.ai
admission get secrets aliquot-system aliquot-tls
admission update secrets aliquot-system aliquot-tls
admission get leases.coordination.k8s.io aliquot-system aliquot-scheduler
admission patch mutatingwebhookconfigurations.admissionregistration.k8s.io - aliquot
admission patch validatingwebhookconfigurations.admissionregistration.k8s.io - aliquot
agent watch pods
agent watch nodes
agent patch nodes/status
agent watch gpunodes.aliquot.dev
agent create gpunodes.aliquot.dev
agent patch gpunodes/status.aliquot.dev
agent watch configmaps aliquot-system aliquot-trust
";

/// What none of them does, and what would do harm.
const MAY_NOT: &str = "
scheduler get secrets aliquot-system of-others
scheduler create secrets aliquot-system
scheduler delete secrets aliquot-system aliquot-grant-key
admission create secrets aliquot-system
admission get secrets aliquot-system aliquot-grant-key
scheduler patch pods/ephemeralcontainers
scheduler patch pods/resize
scheduler list secrets aliquot-system
scheduler watch secrets aliquot-system aliquot-grant-key
scheduler get secrets elsewhere aliquot-tls
scheduler get secrets
scheduler create pods
scheduler update pods
scheduler create pods/exec
scheduler delete podgroups.scheduling.run.ai
scheduler patch deployments.apps
scheduler create jobs.batch
scheduler patch nodes
scheduler patch resourceclaims.resource.k8s.io
scheduler create resourceclaimtemplates.resource.k8s.io
scheduler associated-node:update resourceclaims/driver.resource.k8s.io - aliquot.dev
scheduler arbitrary-node:update resourceclaims/driver.resource.k8s.io - aliquot.dev
scheduler update resourceslices.resource.k8s.io
scheduler update deviceclasses.resource.k8s.io
scheduler update gpunodes.aliquot.dev
scheduler update gpunodes/status.aliquot.dev
scheduler create gpunodes.aliquot.dev
scheduler update leases.coordination.k8s.io elsewhere of-others
scheduler patch mutatingwebhookconfigurations.admissionregistration.k8s.io - aliquot
scheduler patch validatingwebhookconfigurations.admissionregistration.k8s.io - aliquot
admission create mutatingwebhookconfigurations.admissionregistration.k8s.io
admission create validatingwebhookconfigurations.admissionregistration.k8s.io
admission patch mutatingwebhookconfigurations.admissionregistration.k8s.io - of-others
admission get secrets aliquot-system aliquot-grant-key
admission list secrets aliquot-system
admission create pods/binding
admission patch pods
admission delete pods
admission patch pods/status
admission update leases.coordination.k8s.io aliquot-system aliquot-scheduler
admission patch queues.scheduling.run.ai
scheduler patch validatingadmissionpolicies.admissionregistration.k8s.io
scheduler create clusterrolebindings.rbac.authorization.k8s.io
agent patch gpunodes.aliquot.dev
agent patch nodes
agent patch pods
agent delete pods
agent create pods/binding
agent get secrets aliquot-system aliquot-grant-key
agent list configmaps aliquot-system
agent update configmaps aliquot-system aliquot-trust
mps get pods
mps get nodes
mps get configmaps aliquot-system aliquot-trust
";

pub(crate) async fn each_account_may_do_what_its_program_does_and_no_more(
    cluster: &mut Cluster,
) -> Result<()> {
    guarded(cluster).await?;
    rights_are(cluster, MAY, MAY_NOT).await
}

/// Whether the accounts may do what the first rows say, and nothing of the others.
pub(crate) async fn rights_are(cluster: &Cluster, may: &str, may_not: &str) -> Result<()> {
    let reviews: Api<SubjectAccessReview> = Api::all(cluster.client.clone());
    let mut wrong = Vec::new();
    for (rows, may) in [(may, true), (may_not, false)] {
        for row in rows.lines().filter(|row| !row.is_empty()) {
            let review = serde_json::from_value(review(row)?)?;
            let answer = reviews.create(&PostParams::default(), &review).await?;
            if answer.status.context("no answer")?.allowed != may {
                wrong.push(row);
            }
        }
    }
    ensure!(wrong.is_empty(), "not so: {wrong:?}");
    Ok(())
}

/// The question of a row.
fn review(row: &str) -> Result<Value> {
    let words: Vec<&str> = row.split(' ').collect();
    let [account, verb, kind, rest @ ..] = words.as_slice() else {
        anyhow::bail!("not a row: {row}");
    };
    let account = match *account {
        "scheduler" => object::SCHEDULER_ACCOUNT,
        "admission" => object::ADMISSION_ACCOUNT,
        "agent" => object::AGENT_ACCOUNT,
        "mps" => "aliquot-mps",
        other => anyhow::bail!("no such account: {other}"),
    };
    let (resource, group) = kind.split_once('.').unwrap_or((kind, ""));
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let place = |at: usize| rest.get(at).copied().filter(|word| *word != "-");
    Ok(json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": {
            "user": format!("system:serviceaccount:{NAMESPACE}:{account}"),
            "groups": [
                "system:serviceaccounts",
                format!("system:serviceaccounts:{NAMESPACE}"),
                "system:authenticated",
            ],
            "resourceAttributes": {
                "verb": verb,
                "group": group,
                "resource": resource,
                "subresource": subresource,
                "namespace": place(0).unwrap_or_default(),
                "name": place(1).unwrap_or_default(),
            },
        },
    }))
}

/// A client with a token of this account, bound to this node.
pub(crate) async fn account(
    cluster: &Cluster,
    account: &str,
    node: Option<&str>,
) -> Result<Client> {
    let name = format!("{account}-{}", node.unwrap_or("unbound"));
    let state = cluster.work.state();
    let token = AccountToken {
        namespace: NAMESPACE.to_owned(),
        account: account.to_owned(),
        node: node.map(str::to_owned),
        audience: None,
        file: state.join(format!("{name}.token")),
    };
    token.write(&cluster.client).await?;
    let kubeconfig = state.join(format!("{name}.kubeconfig"));
    token::write_kubeconfig(
        &kubeconfig,
        &control_plane::url(),
        &cluster.control_plane.authority(),
        &Credential::File(token.file.clone()),
    )?;
    cluster.client_of(&kubeconfig).await
}

/// Makes [`OTHER`] for as long as `claim` runs, and takes away what it leaves under that name.
pub(crate) async fn with_other_node(
    cluster: &Cluster,
    claim: impl AsyncFnOnce(&Cluster) -> Result<()>,
) -> Result<()> {
    let other = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": OTHER },
        // Nothing is placed there.
        "spec": { "unschedulable": true },
    });
    cluster.apply_one(&other).await?;
    let outcome = claim(cluster).await;
    let kubectl = &cluster.kubectl;
    kubectl
        .run(&["delete", "--ignore-not-found", "gpunode", OTHER])
        .await?;
    kubectl
        .run(&["delete", "--ignore-not-found", "node", OTHER])
        .await?;
    outcome
}
