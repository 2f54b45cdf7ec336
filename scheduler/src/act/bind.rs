//! One `Binding`: node name, signed grant and KAI's annotation in one write.

use super::answer::{self, Answer, WriteState};
use super::context::WriteContext;
use super::event::{self, KubeEvent};
use super::permit::Permit;
use crate::group;
use api::grant::{Asked, ContainerGrant, Grant, NodeIdentity, PodIdentity, VERSION};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use proto::names::grant as key;
use proto::names::kai;
use scheduler_core::ids::GroupName;
use scheduler_core::model::{Amount, ContainerGrant as CoreGrant, Mode};
use scheduler_core::{Bind, OutcomeResult, Received};
use serde_json::{Map, Value, json};

/// Tries that may find the API server too busy.
const TRIES: u32 = 4;

/// Binds, and says how that ended.
pub(super) async fn bind(
    context: &WriteContext,
    bind: &Bind,
    permit: &mut Permit,
) -> OutcomeResult {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &bind.namespace);
    let result = write(context, &api, bind, permit).await;
    if result == OutcomeResult::Confirmed {
        tracing::info!("bound");
        if context.labels_apart {
            label(&api, bind, labels(context, bind)).await;
        }
    }
    result
}

/// KAI's event of a binding that ended, or was refused with that reason.
pub(super) fn tell(context: &WriteContext, bind: &Bind, refused: Option<&str>) {
    let (namespace, name, node) = (&bind.namespace, &bind.name, &bind.node);
    let about = event::pod(namespace, name, bind.pod.as_str());
    context.events.record(match refused {
        None => KubeEvent {
            about,
            warning: false,
            reason: "Scheduled",
            action: "Binding",
            note: format!(
                "Successfully assigned pod {namespace}/{name} to node {node} at node-pool {}",
                context.pool(bind.decision)
            ),
        },
        Some(why) => KubeEvent {
            about,
            warning: true,
            reason: "FailedBinding",
            action: "Binding",
            note: format!("Failed to bind pod {namespace}/{name} to node {node}. {why}"),
        },
    });
}

async fn write(
    context: &WriteContext,
    api: &Api<Pod>,
    bind: &Bind,
    permit: &mut Permit,
) -> OutcomeResult {
    let binding = binding(context, bind);
    let params = PostParams::default();
    // UID and node are in the binding: sent twice, it is taken once.
    let post = || {
        api.create_subresource::<Value, kube::core::Status>(
            "binding", &bind.name, &params, &binding,
        )
    };
    answer::written(permit, TRIES, post, || standing(api, bind)).await
}

/// Where the pod stands by the API server; `None`: no answer.
async fn standing(api: &Api<Pod>, bind: &Bind) -> Option<WriteState> {
    let Answer::Done(found) = answer::of(api.get_opt(&bind.name)).await else {
        return None;
    };
    let Some(pod) = found else {
        return Some(WriteState::Never(OutcomeResult::Refused {
            reason: format!("pod {}/{} is gone", bind.namespace, bind.name).into(),
            retryable: false,
        }));
    };
    if pod.metadata.uid.as_deref() != Some(bind.pod.as_str()) {
        let why = format!("pod {}/{} was created again", bind.namespace, bind.name);
        return Some(WriteState::Never(answer::refused(why)));
    }
    let node = pod.spec.and_then(|spec| spec.node_name).unwrap_or_default();
    Some(if node == bind.node.as_str() {
        WriteState::Taken
    } else if node.is_empty() {
        WriteState::NotYet
    } else {
        let why = format!(
            "pod {}/{} is bound to node {node}",
            bind.namespace, bind.name
        );
        WriteState::Never(answer::refused(why))
    })
}

fn binding(context: &WriteContext, bind: &Bind) -> Value {
    let mut annotations = Map::new();
    if !bind.grants.is_empty() {
        let grant = context
            .trust
            .signer()
            .sign(grant(bind, context.trust.cluster_id()));
        annotations.insert(key::GRANT.to_owned(), grant.into());
    }
    if let Some(group) = group(context, bind) {
        annotations.insert(kai::POD_GROUP.to_owned(), group.into());
    }
    match bind.received {
        Received::Nothing => {}
        Received::Regular => {
            annotations.insert(key::RECEIVED_TYPE.to_owned(), "Regular".into());
        }
        Received::Fraction => {
            annotations.insert(key::RECEIVED_TYPE.to_owned(), "Fraction".into());
        }
        Received::MigInstance => {
            annotations.insert(key::RECEIVED_TYPE.to_owned(), "MigInstance".into());
        }
    }
    json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": &*bind.name,
            "namespace": &*bind.namespace,
            "uid": bind.pod.as_str(),
            "annotations": annotations,
            "labels": labels(context, bind),
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": bind.node.as_str()},
    })
}

/// The pod's group, by name: what it says already, or will. A pod alone says it where it
/// becomes a group.
fn group(context: &WriteContext, bind: &Bind) -> Option<String> {
    match &bind.group {
        Some(group) => Some(name_of(group).to_owned()),
        None => context
            .grouping
            .groups_lone_pods()
            .then(|| group::name_of_pod_alone(&bind.name, bind.pod.as_str())),
    }
}

fn name_of(group: &GroupName) -> &str {
    let group = group.as_str();
    group.split_once('/').map_or(group, |(_, name)| name)
}

fn grant(bind: &Bind, cluster: &str) -> Grant {
    Grant {
        v: VERSION,
        key: String::new(),
        cluster: cluster.to_owned(),
        pod: PodIdentity {
            uid: bind.pod.to_string(),
            namespace: bind.namespace.to_string(),
            name: bind.name.to_string(),
        },
        node: NodeIdentity {
            name: bind.node.to_string(),
            uid: bind.node_uid.to_string(),
        },
        containers: bind.grants.iter().map(container).collect(),
        decision: bind.decision.to_string(),
        queue: bind.queue.as_ref().map(ToString::to_string),
        group: bind.group.as_ref().map(|group| name_of(group).to_owned()),
    }
}

fn container(grant: &CoreGrant) -> ContainerGrant {
    ContainerGrant {
        name: grant.container.to_string(),
        gpus: grant.cards.iter().map(ToString::to_string).collect(),
        memory_mib: api::Mib(grant.burst.unwrap_or(grant.memory).0),
        request_mib: grant.burst.map(|_| api::Mib(grant.memory.0)),
        compute_percent: grant.compute.get(),
        mode: mode(grant.mode),
        note: grant.note.as_deref().map(str::to_owned),
        asked: grant.asked.map(|asked| match asked {
            Amount::Memory(memory) => Asked::MemoryMib(api::Mib(memory.0)),
            Amount::Fraction(part) => Asked::NanoGpu(part.0),
        }),
    }
}

fn mode(mode: Mode) -> api::Mode {
    match mode {
        Mode::Exclusive => api::Mode::Exclusive,
        Mode::Mps => api::Mode::Mps,
        Mode::MpsIsolated => api::Mode::MpsIsolated,
        Mode::TimeSlicing => api::Mode::TimeSlicing,
    }
}

/// What follows from the pod's group; and KAI's label of a shared card, its UUID: one label per
/// card where there are several.
fn labels(context: &WriteContext, bind: &Bind) -> Map<String, Value> {
    let membership = context.grouping.memberships.of(bind.pod.as_str());
    let membership = membership.iter().flat_map(|one| one.labels.clone());
    let mut labels: Map<_, _> = membership
        .map(|(key, value)| (key, Value::String(value)))
        .collect();
    if bind.received != Received::Fraction {
        return labels;
    }
    let mut cards: Vec<&str> = bind
        .grants
        .iter()
        .flat_map(|grant| grant.cards.iter().map(scheduler_core::ids::GpuUuid::as_str))
        .collect();
    cards.sort_unstable();
    cards.dedup();
    if let [only] = cards.as_slice() {
        labels.insert(key::GPU_GROUP.to_owned(), (*only).into());
    } else {
        for card in cards {
            labels.insert(format!("{}/{card}", key::GPU_GROUP), card.into());
        }
    }
    labels
}

/// For servers that drop the labels of a Binding.
async fn label(api: &Api<Pod>, bind: &Bind, labels: Map<String, Value>) {
    if labels.is_empty() {
        return;
    }
    let patch = Patch::Merge(json!({"metadata": {"uid": bind.pod.as_str(), "labels": labels}}));
    let params = PatchParams::default();
    let request = api.patch_metadata(&bind.name, &params, &patch);
    if let Answer::Refused(_, why) | Answer::Busy(why) | Answer::Unknown(why) =
        answer::of(request).await
    {
        tracing::warn!(pod = %format!("{}/{}", bind.namespace, bind.name), why, "its GPU group label is not written");
    }
}
