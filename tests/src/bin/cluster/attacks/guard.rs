//! A tenant against admission: what may be written in a pod, and by which account.

use std::time::Duration;

use aliquot_tests::claims;
use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::node;
use aliquot_tests::pod::{describe, phase_of};
use aliquot_tests::share::{pod, why_pending};
use aliquot_tests::suite::Claim;
use aliquot_tests::verdict::Write;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use proto::names::{NAMESPACE, guard, kai, request, resource};
use serde_json::{Map, Value, json};

use crate::attacks;
use crate::guard::{Table, creates, guarded, share, with_container};

pub(crate) fn claims() -> Vec<Claim> {
    claims![
        attacks::guard::what_a_pod_asked_for_is_not_rewritten,
        attacks::guard::tokens_are_not_taken_past_the_scheduler,
        attacks::guard::a_runtime_class_gives_no_gpu_to_who_has_none,
        attacks::guard::a_namespace_is_exempted_by_an_admin_alone,
        attacks::guard::a_pod_full_of_annotations_is_seen_to_run_and_end,
        attacks::guard::a_namespace_uses_the_queues_of_its_list_alone,
        attacks::guard::a_pod_whose_group_is_refused_is_not_placed,
    ]
}

/// One `kubectl annotate` took a running share's amount out of its queue; one `kubectl label`
/// moved it to another's.
async fn what_a_pod_asked_for_is_not_rewritten(cluster: &mut Cluster) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    cluster
        .run_share(&pod(&ns, "runs", &[("gpu-memory", "9000")], "hold"))
        .await?;
    cluster
        .apply_one(&pod(&ns, "waits", &[("gpu-memory", "9000")], "hold"))
        .await?;
    cluster.reason(&ns, "waits").await?;
    let path = |name: &str| format!("/api/v1/namespaces/{ns}/pods/{name}");
    let annotation =
        |key: &str, value: Value| json!({ "metadata": { "annotations": { key: value } } });
    let label = |key: &str| json!({ "metadata": { "labels": { key: "other" } } });
    let mut table = Table::new(cluster, "aliquot-grant", &ns);
    let amounts = [
        (request::MEMORY, json!("1")),
        (request::MEMORY, Value::Null),
        (request::FRACTION, json!("0.1")),
        (request::NUM_DEVICES, json!("2")),
        (request::CONTAINER, json!("other")),
        (request::MPS, json!("true")),
        (request::COMPUTE, json!("10")),
        (request::MEMORY_LIMIT, json!("12Gi")),
        (request::FRACTION_LIMIT, json!("0.9")),
        (request::COMPUTE_MODE, json!("time-slicing")),
        (
            "kai.scheduler/container.main.gpu-memory.portion.limit",
            json!("0.9"),
        ),
        ("nvidia.com/container.main.gpu-memory.request", json!("1Mi")),
        (
            "nvidia.com/container.main.gpu-compute.mode",
            json!("time-slicing"),
        ),
    ];
    for (key, value) in amounts {
        let change = annotation(key, value);
        for name in ["runs", "waits"] {
            table.refused_write(Write::patch(path(name), change.clone()), key);
        }
        let status = format!("{}/status", path("runs"));
        table.refused_write(Write::patch(status, change), key);
    }
    for key in [
        kai::QUEUE_LABEL,
        kai::QUEUE_LABEL_OLD,
        kai::PROJECT_LABEL,
        kai::PRIORITY_CLASS_LABEL,
        kai::PREEMPTIBILITY_LABEL,
        kai::NODE_POOL_LABEL,
        kai::SUB_GROUP_LABEL,
    ] {
        table.refused_write(Write::patch(path("runs"), label(key)), key);
        // A pending pod may still change queues.
        table.admitted_write(Write::patch(path("waits"), label(key)));
    }
    let group = annotation(kai::POD_GROUP, json!("other"));
    table.refused_write(Write::patch(path("runs"), group), kai::POD_GROUP);
    // A Binding's metadata becomes the pod's.
    let mut binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "target": { "apiVersion": "v1", "kind": "Node", "name": node::NAME },
    });
    binding["metadata"] = json!({ "name": "waits", "annotations": { "gpu-memory": "1" } });
    let to = format!("{}/binding", path("waits"));
    table.refused_write(Write::create(&to, binding.clone()), request::MEMORY);
    binding["metadata"] = json!({ "name": "waits", "labels": { (kai::QUEUE_LABEL): "x" } });
    table.refused_write(Write::create(&to, binding), kai::QUEUE_LABEL);
    let note =
        json!({ "metadata": { "annotations": { "example.com/a": "b" }, "labels": { "c": "d" } } });
    for name in ["runs", "waits"] {
        table.admitted_write(Write::patch(path(name), note.clone()));
    }
    table.holds().await
}

/// Tokens in a pod of any scheduler, on a node of its own choice, were all that the node had.
async fn tokens_are_not_taken_past_the_scheduler(cluster: &mut Cluster) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let mut hog = pod(&ns, "hog", &[("gpu-memory", "1")], "hold");
    let tokens = |count: &str| json!({ "limits": { (resource::SHARE): count } });
    hog["spec"]["containers"][0]["resources"] = tokens("48");
    hog["spec"]["schedulerName"] = json!("default-scheduler");
    let mut here = hog.clone();
    here["spec"]["nodeName"] = json!(node::NAME);
    let mut ours = pod(&ns, "hog", &[("gpu-memory", "1")], "hold");
    ours["spec"]["nodeName"] = json!(node::NAME);
    let mut side = pod(&ns, "hog", &[("gpu-memory", "1")], "hold");
    let mut second = side["spec"]["containers"][0].clone();
    second["name"] = json!("second");
    second["resources"] = tokens("1");
    side["spec"]["containers"]
        .as_array_mut()
        .context("no containers")?
        .push(second);
    for (hog, word) in [
        (hog, "exactly one"),
        (here, "exactly one"),
        (ours, "spec.nodeName"),
        (side, "container second"),
    ] {
        let refusal = match cluster.apply_one(&hog).await {
            Ok(_) => anyhow::bail!("admitted: {hog}"),
            Err(refusal) => format!("{refusal:#}"),
        };
        ensure!(refusal.contains(word), "{hog}: {refusal}");
    }
    // The form of KAI that names a limit alone is a share like any other.
    let limit = ("nvidia.com/container.main.gpu-memory.limit", "2000Mi");
    cluster
        .run_share(&pod(&ns, "limit", &[limit], "hold"))
        .await?;
    cluster
        .ledger_is(&[(&format!("{ns}/limit"), "main", 2000)])
        .await?;
    Ok(())
}

/// An image of CUDA in the class of NVIDIA's runtime held every GPU of its node.
async fn a_runtime_class_gives_no_gpu_to_who_has_none(cluster: &mut Cluster) -> Result<()> {
    let ns = guarded(cluster).await?;
    for class in ["nvidia", "nvidia-legacy", "gvisor"] {
        cluster
            .apply_one(&json!({
                "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
                "metadata": { "name": class }, "handler": "runc",
            }))
            .await?;
    }
    let void = json!([{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "void" }]);
    let class = |name: &str| json!({ "runtimeClassName": name });
    let holds = |name: &str| {
        let one = json!({ name: "1" });
        json!({ "resources": { "limits": one, "requests": one } })
    };
    let nothing = json!({});
    let mut table = Table::new(cluster, "aliquot-runtime-classes", &ns);
    for name in ["nvidia", "nvidia-legacy"] {
        table.refused(with_container(&nothing, &class(name)), "container main");
        let mut beside = with_container(&holds(resource::GPU), &class(name));
        table.admitted(beside.clone());
        beside["spec"]["initContainers"] = json!([{ "name": "first", "image": "busybox" }]);
        table.refused(beside.clone(), "container first");
        beside["spec"]["initContainers"][0]["env"] = void.clone();
        table.admitted(beside);
        table.admitted(with_container(&json!({ "env": void }), &class(name)));
        let empty = json!([{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "" }]);
        table.admitted(with_container(&json!({ "env": empty }), &class(name)));
        let mut held = class(name);
        held["schedulerName"] = json!(kai::SCHEDULER_NAME);
        table.admitted(share(&with_container(&holds(resource::SHARE), &held)));
        let mut zero = with_container(&holds(resource::GPU), &class(name));
        let none = json!({ (resource::GPU): "0" });
        zero["spec"]["containers"][0]["resources"] =
            json!({ "limits": none.clone(), "requests": none });
        table.refused(zero, "container main");
    }
    table.admitted(with_container(&nothing, &class("gvisor")));
    table.admitted(nothing.clone());
    // A container that joins later is no way around it.
    let live = with_container(&holds(resource::GPU), &class("nvidia"));
    cluster.apply_one(&crate::guard::live(&ns, &live)).await?;
    let joins = |env: &Value| {
        let late = json!({ "name": "late", "image": "busybox", "env": env });
        Write::strategic(
            format!("/api/v1/namespaces/{ns}/pods/live/ephemeralcontainers"),
            json!({ "spec": { "ephemeralContainers": [late] } }),
        )
    };
    table.refused_write(joins(&json!([])), "container late");
    table.admitted_write(joins(&void));
    table.holds().await
}

/// An account that may make namespaces may not make one that is exempt.
async fn a_namespace_is_exempted_by_an_admin_alone(cluster: &mut Cluster) -> Result<()> {
    let ns = guarded(cluster).await?;
    let exempt = |value: &str| json!({ "metadata": { "labels": { (guard::LABEL): value } } });
    let named = |name: &str, labels: Value| {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": name, "labels": labels },
        });
        Write::create("/api/v1/namespaces", namespace)
    };
    let labels = json!({ (guard::LABEL): guard::EXEMPT });
    let path = format!("/api/v1/namespaces/{ns}");
    let who = "validatingadmissionpolicybindings";
    let tenant = tenant(cluster).await?;
    let mut table = Table::new(cluster, "aliquot-exempt-namespaces", &ns);
    table.refused_write(named("mine", labels.clone()), who);
    table.refused_write(Write::patch(&path, exempt(guard::EXEMPT)), who);
    table.refused_write(
        Write::patch(format!("{path}/status"), exempt(guard::EXEMPT)),
        who,
    );
    table.admitted_write(named("gpu-operator", json!({})));
    table.admitted_write(Write::patch(&path, exempt("no")));
    let mut admin = Table::new(cluster, "aliquot-exempt-namespaces", &ns);
    admin.admitted_write(named("mine", labels));
    admin.admitted_write(Write::patch(&path, exempt(guard::EXEMPT)));
    // Only an admin may set labels that open the metrics and the page, or allow claims for every
    // card of a node.
    for key in [
        "aliquot.dev/monitoring",
        "resource.kubernetes.io/admin-access",
        "resource.k8s.io/admin-access",
    ] {
        let opens = |value: &str| json!({ "metadata": { "labels": { key: value } } });
        let labels = json!({ key: "true" });
        table.refused_write(named("mine", labels.clone()), key);
        table.refused_write(Write::patch(&path, opens("true")), who);
        table.refused_write(Write::patch(format!("{path}/status"), opens("true")), key);
        table.admitted_write(Write::patch(&path, opens("false")));
        admin.admitted_write(named("mine", labels));
        admin.admitted_write(Write::patch(&path, opens("true")));
    }
    table.by(tenant.clone()).holds().await?;
    admin.admits().await?;

    let thief = with_container(
        &json!({ "env": [{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" }] }),
        &json!({}),
    );
    let labelled = cluster.namespace().await?;
    let patch = Patch::Merge(exempt(guard::EXEMPT));
    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> =
        kube::Api::all(cluster.client.clone());
    namespaces
        .patch(&labelled, &PatchParams::default(), &patch)
        .await?;
    // A tenant may write to the exempt one beside its label, and may take the label away.
    let path = format!("/api/v1/namespaces/{labelled}");
    let mut table = Table::new(cluster, "aliquot-exempt-namespaces", &ns);
    table.admitted_write(Write::patch(
        &path,
        json!({ "metadata": { "labels": { "a": "b" } } }),
    ));
    let gone = json!({ "metadata": { "labels": { (guard::LABEL): null } } });
    table.admitted_write(Write::patch(&path, gone));
    table.by(tenant).admits().await?;
    // The name of the GPU operator's namespace exempts no pod.
    cluster.make_namespace("gpu-operator").await?;
    let mut table = Table::new(cluster, "aliquot-visible-devices", &ns);
    for guarded in [&ns, "default", "gpu-operator"] {
        table.refused_write(creates(guarded, &thief), "NVIDIA_VISIBLE_DEVICES");
    }
    for exempt in ["kube-system", NAMESPACE, &labelled] {
        table.admitted_write(creates(exempt, &thief));
    }
    let held = table.holds().await;
    namespaces
        .delete("gpu-operator", &DeleteParams::default())
        .await?;
    held
}

/// Expressions that went through a pod's annotations took a time that grew with the square of
/// their number, at every write, also of the status: 18,000 were more than a request may take.
async fn a_pod_full_of_annotations_is_seen_to_run_and_end(cluster: &mut Cluster) -> Result<()> {
    const ANNOTATIONS: usize = 20_000;
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let mut full = pod(&ns, "full", &[("gpu-memory", "2000")], "alloc 100 hold");
    let annotations: Map<String, Value> = (0..ANNOTATIONS)
        .map(|number| (format!("z{number:x}"), json!("")))
        .chain([(request::MEMORY.to_owned(), json!("2000"))])
        .collect();
    full["metadata"]["annotations"] = Value::Object(annotations);
    let pods = cluster.pods(&ns);
    let made = serde_json::from_value(full)?;
    pods.create(&kube::api::PostParams::default(), &made)
        .await?;
    cluster.pod_phase(&ns, "full", "Running").await?;
    pods.delete("full", &DeleteParams::default()).await?;
    until("the pod gone", Duration::from_mins(1), || async {
        let left = pods.get_opt("full").await?;
        let phase = left.as_ref().map(phase_of).unwrap_or_default().to_owned();
        Ok(Seen::when(left.is_none(), phase))
    })
    .await
}

/// Any pod may name any queue, but where `deploy/queues` says which.
async fn a_namespace_uses_the_queues_of_its_list_alone(cluster: &mut Cluster) -> Result<()> {
    let ns = guarded(cluster).await?;
    let other = cluster.namespace().await?;
    let applied = cluster.apply_file("deploy/queues/queues.yaml").await;
    let held = match applied {
        Ok(_) => listed(cluster, &ns, &other).await,
        Err(error) => Err(error),
    };
    unlist(cluster, &other).await?;
    held
}

/// Deletes the list, and waits until the API server uses none. The namespace is one that may not
/// use the queue c.
async fn unlist(cluster: &Cluster, other: &str) -> Result<()> {
    for kind in [
        "validatingadmissionpolicybinding",
        "validatingadmissionpolicy",
    ] {
        let delete = ["delete", "--ignore-not-found", kind, "aliquot-queues"];
        cluster.kubectl.run(&delete).await?;
    }
    // The server uses it for a moment more, and it would affect the next claim.
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), other);
    let refused: Pod = serde_json::from_value(crate::guard::live(
        other,
        &json!({
            "metadata": { "labels": { (kai::QUEUE_LABEL): "c" } },
            "spec": { "schedulerName": kai::SCHEDULER_NAME },
        }),
    ))?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    until("no list of queues", Duration::from_secs(10), || async {
        api.create(&dry_run, &refused).await?;
        Ok(Seen::Done(()))
    })
    .await
}

/// The policy does not see workloads of operators that it does not name, but it sees the pod group
/// that is created for one.
async fn a_pod_whose_group_is_refused_is_not_placed(cluster: &mut Cluster) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let held = refused_group(cluster, &ns).await;
    unlist(cluster, &ns).await?;
    held?;
    // No policy rejects it any more.
    let pods = cluster.pods(&ns);
    until("it runs", Duration::from_mins(1), || async {
        let pod = pods.get("server").await?;
        Ok(Seen::when(phase_of(&pod) == "Running", describe(&pod)))
    })
    .await
}

async fn refused_group(cluster: &Cluster, ns: &str) -> Result<()> {
    let all = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
    let queue = json!({
        "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": { "name": "theirs" },
        "spec": { "parentQueue": "", "resources": { "cpu": all, "gpu": all, "memory": all } },
    });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "seldondeployments.machinelearning.seldon.io" },
        "spec": {
            "group": "machinelearning.seldon.io", "scope": "Namespaced",
            "names": { "kind": "SeldonDeployment", "plural": "seldondeployments", "singular": "seldondeployment" },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    });
    for document in [&queue, &definition] {
        cluster.apply_one(document).await?;
    }
    cluster.apply_file("deploy/queues/queues.yaml").await?;
    cluster
        .apply_one(&json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "aliquot-queues", "namespace": NAMESPACE },
            "data": { ns: kai::DEFAULT_QUEUE, "_default": kai::DEFAULT_QUEUE },
        }))
        .await?;
    // The server takes a moment to go by it.
    let named: Pod = serde_json::from_value(crate::guard::live(
        ns,
        &json!({
            "metadata": { "labels": { (kai::QUEUE_LABEL): "theirs" } },
            "spec": { "schedulerName": kai::SCHEDULER_NAME },
        }),
    ))?;
    let pods = cluster.pods(ns);
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    until("the list of queues", Duration::from_secs(10), || async {
        let seen = match pods.create(&dry_run, &named).await {
            Ok(_) => "admitted".to_owned(),
            Err(error) => error.to_string(),
        };
        Ok(Seen::when(
            seen.contains("may not use the queue theirs"),
            seen,
        ))
    })
    .await?;
    let owner = json!({
        "apiVersion": "machinelearning.seldon.io/v1", "kind": "SeldonDeployment",
        "metadata": { "namespace": ns, "name": "model", "labels": { (kai::QUEUE_LABEL): "theirs" } },
    });
    let made = until("the kind served", Duration::from_secs(20), || async {
        match cluster.apply_one(&owner).await {
            Ok(made) => Ok(Seen::Done(made)),
            Err(error) => Ok(Seen::NotYet(format!("{error:#}"))),
        }
    })
    .await?;
    let mut manifest = pod(ns, "server", &[("gpu-memory", "2000")], "report hold");
    manifest["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "machinelearning.seldon.io/v1", "kind": "SeldonDeployment", "name": "model",
        "uid": made.uid(), "controller": true,
    }]);
    cluster.apply_one(&manifest).await?;
    until("why it waits", Duration::from_secs(30), || async {
        let pod = pods.get("server").await?;
        let why = why_pending(&pod).unwrap_or_default();
        if pod.spec.is_some_and(|spec| spec.node_name.is_some()) {
            return Ok(Seen::Never(anyhow::anyhow!(
                "it is placed, in a queue of others"
            )));
        }
        Ok(Seen::when(
            why.contains("may not use the queue theirs"),
            why,
        ))
    })
    .await
}

async fn listed(cluster: &Cluster, ns: &str, other: &str) -> Result<()> {
    cluster
        .apply_one(&json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "aliquot-queues", "namespace": NAMESPACE },
            "data": { ns: "a b", "_default": kai::DEFAULT_QUEUE },
        }))
        .await?;
    let mut table = Table::new(cluster, "aliquot-queues", ns);
    let queued = |labels: Value| {
        json!({
            "metadata": { "labels": labels },
            "spec": { "schedulerName": kai::SCHEDULER_NAME },
        })
    };
    for (labels, word) in [
        // Refused by the new list alone: the server may have the file's own for a moment.
        (json!({}), kai::DEFAULT_QUEUE),
        (json!({ (kai::QUEUE_LABEL): "c" }), "the queue c"),
        (json!({ (kai::QUEUE_LABEL_OLD): "c" }), "the queue c"),
        (json!({ (kai::PROJECT_LABEL): "c" }), "the queue c"),
    ] {
        table.refused(queued(labels), word);
    }
    table.refused_write(
        creates(other, &queued(json!({ (kai::QUEUE_LABEL): "a" }))),
        "the queue a",
    );
    table.admitted(queued(json!({ (kai::QUEUE_LABEL): "b" })));
    table.admitted(queued(
        json!({ (kai::QUEUE_LABEL): "a", (kai::PROJECT_LABEL): "c" }),
    ));
    table.admitted_write(creates(other, &queued(json!({}))));
    // Of another scheduler.
    table.admitted(json!({ "metadata": { "labels": { (kai::QUEUE_LABEL): "c" } } }));
    let waits = queued(json!({ (kai::QUEUE_LABEL): "a" }));
    cluster.apply_one(&crate::guard::live(ns, &waits)).await?;
    let moves = |queue: &str| {
        Write::patch(
            format!("/api/v1/namespaces/{ns}/pods/live"),
            json!({ "metadata": { "labels": { (kai::QUEUE_LABEL): queue } } }),
        )
    };
    table.refused_write(moves("c"), "the queue c");
    table.admitted_write(moves("b"));
    // What owns a pod names the queue as well, and a group has one.
    let owner = |queue: &str| {
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "owner", "labels": { (kai::QUEUE_LABEL): queue } },
            "spec": {
                "selector": { "matchLabels": { "a": "b" } },
                "template": {
                    "metadata": { "labels": { "a": "b" } },
                    "spec": { "containers": [{ "name": "main", "image": "busybox" }] },
                },
            },
        });
        Write::create(
            format!("/apis/apps/v1/namespaces/{ns}/deployments"),
            deployment,
        )
    };
    table.refused_write(owner("c"), "the queue c");
    table.admitted_write(owner("a"));
    let group = |queue: &str| {
        let group = json!({
            "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
            "metadata": { "name": "group" }, "spec": { "minMember": 1, "queue": queue },
        });
        Write::create(
            format!("/apis/scheduling.run.ai/v2alpha2/namespaces/{ns}/podgroups"),
            group,
        )
    };
    table.refused_write(group("c"), "the queue c");
    table.admitted_write(group("a"));
    table.holds().await
}

/// An account that may do everything with namespaces and pods, and nothing with the guard.
async fn tenant(cluster: &Cluster) -> Result<Client> {
    let name = "tenant";
    for object in [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": name },
            "rules": [{
                "apiGroups": [""],
                "resources": ["namespaces", "namespaces/status", "namespaces/finalize", "pods"],
                "verbs": ["get", "create", "update", "patch", "delete"],
            }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name }],
        }),
    ] {
        cluster.apply_one(&object).await?;
    }
    let mut kubeconfig = Kubeconfig::read_from(cluster.control_plane.kubeconfig("admin"))?;
    for user in &mut kubeconfig.auth_infos {
        if let Some(info) = &mut user.auth_info {
            info.impersonate = Some(name.to_owned());
        }
    }
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}
