//! The demo's walkthrough, and whether it went as expected.
//!
//! Whole cards, two shares that meet on one card, one pod that must wait, and a tenant that runs
//! into its limit beside them: sized by the cluster so that this is so whatever `--nodes` and
//! `--gpu` say. Pure: objects and a
//! verdict; applying and watching are others'.

use crate::view::{ClusterView, phase};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// Namespace of the demo's pods.
pub(crate) const NAMESPACE: &str = "demo";

/// What a pod is to end up with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// This number of whole cards.
    Whole(u32),
    /// A share; shares of one name before the dash meet on one card.
    Share,
    /// Nothing, and a reason.
    Waits,
    /// To run, whatever it holds: the user's own.
    Runs,
    /// To run with a GPU, which a mistake of its manifest may cost it.
    Gpu,
}

/// One built-in pod, or one of the user's files.
#[derive(Clone, Debug)]
pub(crate) struct Role {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) want: Want,
}

/// A pod to apply once all before it are placed.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) role: Role,
    pub(crate) object: Value,
}

/// The manifests that an admin applies to install the scheduler.
const INSTALLED: &str = include_str!("../../../deploy/scheduler.yaml");

/// Returns the queues and priority classes of an installation, which every demo gets too, so that a
/// pod that its queue's quota keeps waiting there waits here as well.
pub(crate) fn installed() -> anyhow::Result<Vec<Value>> {
    let mut objects = crate::manifest::parse(INSTALLED).map_err(anyhow::Error::msg)?;
    objects.retain(|object| object["kind"] == "Queue" || object["kind"] == "PriorityClass");
    Ok(objects)
}

/// The walkthrough's own queues.
pub(crate) fn queues() -> Vec<Value> {
    vec![
        queue("company", None, -1.0),
        queue("research", Some("company"), -1.0),
        queue("product", Some("company"), -1.0),
    ]
}

fn queue(name: &str, parent: Option<&str>, limit: f64) -> Value {
    let resource = json!({"quota": -1, "limit": limit, "overQuotaWeight": 1});
    let mut queue = json!({
        "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name},
        "spec": {"resources": {"gpu": resource, "cpu": resource, "memory": resource}},
    });
    if let Some(parent) = parent {
        queue["spec"]["parentQueue"] = json!(parent);
    }
    queue
}

/// Name of the pod that takes all it can get.
pub(crate) const GREEDY: &str = "greedy";

/// A tenant that takes more and more until it is refused, beside the other shares.
fn greedy() -> Step {
    let script = ["workload", "grow", "250", "hold"];
    Step {
        role: Role {
            namespace: NAMESPACE.to_owned(),
            name: GREEDY.to_owned(),
            want: Want::Share,
        },
        object: pod(
            GREEDY,
            "product",
            &json!({"gpu-memory": "4000"}),
            &json!({}),
            &script,
        ),
    }
}

/// The pods, in the order in which they are applied.
pub(crate) fn steps(nodes: u32, cards: u32) -> Vec<Step> {
    let mut steps = Vec::new();
    let whole = |name: String, count: u32, want: Want| {
        step(
            &name,
            "research",
            &json!({}),
            &json!({"nvidia.com/gpu": count.to_string()}),
            want,
        )
    };
    for number in 1..nodes {
        steps.push(whole(
            format!("training-{number}"),
            cards,
            Want::Whole(cards),
        ));
    }
    let shares = [
        ("inference", json!({"gpu-memory": "2000"})),
        ("notebook", json!({"gpu-fraction": "0.5"})),
    ];
    for (name, annotations) in shares {
        steps.push(step(name, "product", &annotations, &json!({}), Want::Share));
    }
    if cards > 1 {
        steps.push(whole(
            format!("training-{nodes}"),
            cards - 1,
            Want::Whole(cards - 1),
        ));
    }
    steps.push(whole("later".to_owned(), 1, Want::Waits));
    steps.push(greedy());
    steps
}

fn step(name: &str, queue: &str, annotations: &Value, limits: &Value, want: Want) -> Step {
    let script = ["workload", "alloc", "512", "hold"];
    Step {
        role: Role {
            namespace: NAMESPACE.to_owned(),
            name: name.to_owned(),
            want,
        },
        object: pod(name, queue, annotations, limits, &script),
    }
}

/// A pod of one container that runs that script of the simulated CUDA program.
pub(crate) fn pod(
    name: &str,
    queue: &str,
    annotations: &Value,
    limits: &Value,
    script: &[&str],
) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"kai.scheduler/queue": queue},
            "annotations": annotations},
        "spec": {"schedulerName": "kai-scheduler", "restartPolicy": "Never", "terminationGracePeriodSeconds": 2,
            "containers": [{"name": "main", "image": "registry.example/cuda-workload:1", "resources": {"limits": limits},
                "args": script}]},
    })
}

/// The pods that keep running beside the greedy tenant, on the same card; `None`: not all of them
/// do.
pub(crate) fn neighbours(view: &ClusterView) -> Option<String> {
    let holder = format!("{NAMESPACE}/{GREEDY}");
    let mut cards = view.cards();
    let (_, card) = cards.find(|(_, card)| card.grants.iter().any(|one| one.pod == holder))?;
    let names: Vec<&str> = card
        .grants
        .iter()
        .filter_map(|grant| grant.pod.split_once('/'))
        .filter(|(_, name)| *name != GREEDY)
        .filter(|(namespace, name)| {
            let pod = view.pod(namespace, name);
            pod.is_some_and(|pod| phase(pod) == "Running")
        })
        .map(|(_, name)| name)
        .collect();
    let all = names.len() + 1 == card.grants.len() && !names.is_empty();
    all.then(|| format!("On the same card {} run on.", names.join(" and ")))
}

/// The unmet expectations; empty if there are none.
pub(crate) fn missing(roles: &[Role], view: &ClusterView) -> Vec<String> {
    let mut missing: Vec<String> = roles
        .iter()
        .filter_map(|role| {
            judge(role, view).map(|why| format!("{}/{}: {why}", role.namespace, role.name))
        })
        .collect();
    let mut homes: Vec<&str> = roles
        .iter()
        .filter(|role| role.want == Want::Share)
        .flat_map(|role| view.cards_of(&role.namespace, &role.name))
        .collect();
    homes.dedup();
    if missing.is_empty() && homes.len() > 1 {
        missing.push("the shares are on different cards".to_owned());
    }
    missing
}

/// Returns the pods that run without the GPU that their manifest was to request.
pub(crate) fn without_gpu(roles: &[Role], view: &ClusterView) -> Vec<String> {
    let lacks = |role: &&Role| {
        role.want == Want::Gpu && view.cards_of(&role.namespace, &role.name).is_empty()
    };
    let lacking = roles.iter().filter(lacks);
    lacking
        .map(|role| {
            format!(
                "{}/{}: a GPU: its manifest requests none",
                role.namespace, role.name
            )
        })
        .collect()
}

/// Whether a pod has got as far as the next one may be applied.
pub(crate) fn settled(role: &Role, view: &ClusterView) -> bool {
    judge(role, view).is_none()
}

fn judge(role: &Role, view: &ClusterView) -> Option<String> {
    let Some(pod) = view.pod(&role.namespace, &role.name) else {
        return Some("is not there".to_owned());
    };
    let phase = phase(pod);
    let cards = view.cards_of(&role.namespace, &role.name).len();
    let running = || match phase {
        "Running" => None,
        _ => Some(format!("is {phase}, should run: {}", crate::view::why(pod))),
    };
    match role.want {
        Want::Runs | Want::Gpu => match phase {
            "Running" if cards == 0 && granted(pod) => {
                Some("runs, but no GpuNode shows its share yet".to_owned())
            }
            "Running" | "Succeeded" => None,
            _ => Some(format!("is {phase}: {}", crate::view::why(pod))),
        },
        Want::Share => running().or_else(|| {
            (cards != 1)
                .then(|| format!("holds {cards} cards by the GpuNodes, should hold a share of 1"))
        }),
        Want::Whole(count) => running().or_else(|| {
            (cards != count as usize)
                .then(|| format!("holds {cards} cards by the GpuNodes, should hold {count}"))
        }),
        Want::Waits => match (phase, crate::view::reason(pod)) {
            ("Pending", Some(_)) => None,
            ("Pending", None) => Some("waits without a reason".to_owned()),
            _ => Some(format!("is {phase}, should wait")),
        },
    }
}

fn granted(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.contains_key(proto::names::grant::GRANT))
}
