//! One `Binding`: node name, signed grant and KAI's annotation in one write.

use super::Hands;
use super::answer::{self, Answer};
use super::notice::{Notice, PodName};
use api::grant::{Asked, ContainerGrant, Grant, NodeIdentity, PodIdentity, VERSION};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use proto::names::grant as key;
use scheduler_core::model::{Amount, ContainerGrant as CoreGrant, Mode};
use scheduler_core::{Bind, OutcomeResult, Received};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Tries of a write that was not taken, and the pause before the second.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(200);

/// Binds, and says how that ended.
pub(super) async fn bind(hands: &Hands, bind: &Bind) -> OutcomeResult {
    let api: Api<Pod> = Api::namespaced(hands.client.clone(), &bind.namespace);
    let result = write(hands, &api, bind).await;
    if result == OutcomeResult::Confirmed {
        if hands.labels_apart {
            label(&api, bind).await;
        }
        hands.notices.say(Notice {
            about: PodName::of(&bind.namespace, &bind.name, bind.pod.as_str()),
            warning: false,
            reason: "Scheduled",
            action: "Binding",
            note: format!(
                "Successfully assigned pod {}/{} to node {} at node-pool {}",
                bind.namespace,
                bind.name,
                bind.node,
                hands.pool(bind.decision)
            ),
        });
    }
    result
}

async fn write(hands: &Hands, api: &Api<Pod>, bind: &Bind) -> OutcomeResult {
    let binding = binding(hands, bind);
    let params = PostParams::default();
    let mut pause = PAUSE;
    for attempt in 1..=TRIES {
        let request = api.create_subresource::<Value, kube::core::Status>(
            "binding", &bind.name, &params, &binding,
        );
        match answer::of(request).await {
            Answer::Done(_) => return OutcomeResult::Confirmed,
            Answer::Refused(404, _) => {
                return refused(
                    format!("pod {}/{} is gone", bind.namespace, bind.name),
                    false,
                );
            }
            // Bound already, perhaps by us: an answer may have been lost.
            Answer::Refused(409, why) => {
                return match stands(api, bind).await {
                    Some(Stands::Here) => OutcomeResult::Confirmed,
                    Some(_) => refused(why, true),
                    None => OutcomeResult::TimedOut,
                };
            }
            Answer::Refused(_, why) => return refused(why, true),
            Answer::Busy(why) => tracing::debug!(decision = %bind.decision, why, attempt, "again"),
            Answer::Unknown(why) => match stands(api, bind).await {
                Some(Stands::Here) => return OutcomeResult::Confirmed,
                Some(Stands::Elsewhere) => return refused(why, true),
                // The same write again: UID and node are in it, so it is taken once.
                Some(Stands::Nowhere) => {
                    tracing::debug!(decision = %bind.decision, why, attempt, "again");
                }
                None => return OutcomeResult::TimedOut,
            },
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    refused("the API server is too busy".to_owned(), true)
}

fn refused(reason: String, retryable: bool) -> OutcomeResult {
    OutcomeResult::Refused {
        reason: reason.into(),
        retryable,
    }
}

enum Stands {
    Here,
    Elsewhere,
    Nowhere,
}

/// Where the pod stands by the API server; `None`: no answer.
async fn stands(api: &Api<Pod>, bind: &Bind) -> Option<Stands> {
    match answer::of(api.get_opt(&bind.name)).await {
        Answer::Done(Some(pod)) if pod.metadata.uid.as_deref() == Some(bind.pod.as_str()) => {
            let node = pod.spec.and_then(|spec| spec.node_name).unwrap_or_default();
            Some(if node == bind.node.as_str() {
                Stands::Here
            } else if node.is_empty() {
                Stands::Nowhere
            } else {
                Stands::Elsewhere
            })
        }
        // Gone, or made anew under its name.
        Answer::Done(_) => Some(Stands::Elsewhere),
        _ => None,
    }
}

fn binding(hands: &Hands, bind: &Bind) -> Value {
    let mut annotations = Map::new();
    if !bind.grants.is_empty() {
        let grant = hands
            .trust
            .signer()
            .sign(grant(bind, hands.trust.cluster_id()));
        annotations.insert(key::GRANT.to_owned(), grant.into());
    }
    match bind.received {
        Received::Nothing => {}
        Received::Regular => {
            annotations.insert(key::RECEIVED_TYPE.to_owned(), "Regular".into());
        }
        Received::Fraction => {
            annotations.insert(key::RECEIVED_TYPE.to_owned(), "Fraction".into());
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
            "labels": labels(bind),
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": bind.node.as_str()},
    })
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
        group: bind.group.as_ref().map(|group| {
            let group = group.as_str();
            let name = group.split_once('/').map_or(group, |(_, name)| name);
            name.to_owned()
        }),
    }
}

fn container(grant: &CoreGrant) -> ContainerGrant {
    ContainerGrant {
        name: grant.container.to_string(),
        gpus: grant.cards.iter().map(ToString::to_string).collect(),
        memory_mib: api::Mib(grant.memory.0),
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

/// KAI's group label, the card's UUID; one label per card where there are several.
fn labels(bind: &Bind) -> Map<String, Value> {
    let mut labels = Map::new();
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
async fn label(api: &Api<Pod>, bind: &Bind) {
    let labels = labels(bind);
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
