//! An object as the API server or an agent has it → what is shown of it.

use api::request::{Amount, GpuRequest};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use proto::names::kai;
use proto::telemetry::NodeState;
use std::collections::BTreeMap;

/// A pod of ours that does not run yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodRow {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) queue: String,
    /// The group whose place in the queue it shares; its own UID where it has none.
    pub(super) group: String,
    /// What it asks for, as text.
    pub(super) asks: String,
    /// Name of its priority class; empty: the default.
    pub(super) class: String,
    /// Milliseconds since 1970.
    pub(super) created: i64,
    /// Where it is bound to; `None`: it waits to be placed.
    pub(super) node: Option<String>,
    /// Why it waits, as the scheduler or the kubelet said; lines after the first go into detail.
    pub(super) why: String,
}

/// What is said of a pod of this scheduler that does not run yet; `None`: nothing.
pub(super) fn pod(pod: &Pod, scheduler: &str) -> Option<PodRow> {
    let spec = pod.spec.as_ref()?;
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let ours = spec.scheduler_name.as_deref() == Some(scheduler);
    if !ours
        || !matches!(phase, None | Some("Pending"))
        || pod.metadata.deletion_timestamp.is_some()
    {
        return None;
    }
    let uid = pod.uid()?;
    let label = |key: &str| pod.labels().get(key).filter(|value| !value.is_empty());
    let queue = [kai::QUEUE_LABEL, kai::QUEUE_LABEL_OLD, kai::PROJECT_LABEL]
        .into_iter()
        .find_map(label)
        .map_or(kai::DEFAULT_QUEUE, String::as_str);
    let namespace = pod.namespace().unwrap_or_default();
    let group = pod
        .annotations()
        .get(kai::POD_GROUP)
        .filter(|name| !name.is_empty())
        .map_or_else(|| uid.clone(), |name| format!("{namespace}/{name}"));
    let class = label(kai::PRIORITY_CLASS_LABEL).or(spec.priority_class_name.as_ref());
    let created = pod.creation_timestamp();
    Some(PodRow {
        queue: queue.to_owned(),
        group,
        asks: asks(pod),
        class: class.cloned().unwrap_or_default(),
        created: created.map_or(0, |stamp| stamp.0.as_millisecond()),
        node: spec.node_name.clone().filter(|node| !node.is_empty()),
        why: why(pod),
        name: pod.name_any(),
        namespace,
        uid,
    })
}

/// `2000 MiB`, `0.5 GPU`, `2 x 0.5 GPU`, `8 GPUs`, `no GPU`; several joined by `+`.
fn asks(pod: &Pod) -> String {
    let asked = match api::request::of(pod) {
        Ok(asked) => asked,
        Err(error) => return error.to_string(),
    };
    let texts: Vec<String> = asked
        .containers
        .iter()
        .map(|container| match &container.gpus {
            GpuRequest::Whole(1) => "1 GPU".to_owned(),
            GpuRequest::Whole(count) => format!("{count} GPUs"),
            GpuRequest::Share(share) => {
                let amount = match share.amount {
                    Amount::Memory(mib) => format!("{} MiB", mib.0),
                    Amount::Fraction(nano) => format!("{} GPU", part(nano)),
                };
                match share.devices {
                    1 => amount,
                    devices => format!("{devices} x {amount}"),
                }
            }
        })
        .collect();
    if texts.is_empty() {
        "no GPU".to_owned()
    } else {
        texts.join(" + ")
    }
}

/// Billionths, without zeros at the end.
fn part(nano: u64) -> String {
    let digits = format!("{nano:09}");
    format!("0.{}", digits.trim_end_matches('0'))
}

fn why(pod: &Pod) -> String {
    let Some(status) = &pod.status else {
        return String::new();
    };
    let placed = status.conditions.iter().flatten();
    let refused = placed
        .filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .find_map(|condition| condition.message.clone());
    if let Some(message) = refused.filter(|message| !message.is_empty()) {
        return message;
    }
    let containers = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .flatten();
    for container in containers {
        let waiting = container
            .state
            .as_ref()
            .and_then(|state| state.waiting.as_ref());
        if let Some(waiting) = waiting {
            let reason = waiting.reason.as_deref().unwrap_or("waits");
            return match &waiting.message {
                Some(message) => format!("{}: {reason}: {message}", container.name),
                None => format!("{}: {reason}", container.name),
            };
        }
    }
    status.message.clone().unwrap_or_default()
}

/// What changes too fast for a `GpuNode`, as an agent said it last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Live {
    /// MiB in use, by card.
    pub(super) used: BTreeMap<String, u64>,
    /// MiB in use, by pod UID and container.
    pub(super) shares: BTreeMap<(String, String), u64>,
}

/// See [`Live`].
pub(super) fn live(state: &NodeState) -> Live {
    let cards = state.gpus.iter();
    let shares = state.shares.iter();
    Live {
        used: cards
            .map(|gpu| (gpu.uuid.clone(), gpu.memory_used_mib))
            .collect(),
        shares: shares
            .map(|share| {
                let key = (share.pod_uid.clone(), share.container.clone());
                (key, share.memory_used_mib)
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(patch: Value) -> Option<PodRow> {
        let mut object = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "creationTimestamp": "1970-01-01T00:00:01Z"},
            "spec": {"schedulerName": "us", "containers": [{"name": "main"}]},
            "status": {"phase": "Pending"},
        });
        json_patch::merge(&mut object, &patch);
        pod(&serde_json::from_value(object).unwrap(), "us")
    }

    #[test]
    fn only_pods_of_ours_that_do_not_run_yet_are_shown() {
        assert!(read(json!({})).is_some());
        for patch in [
            json!({"spec": {"schedulerName": "other"}}),
            json!({"status": {"phase": "Running"}}),
            json!({"status": {"phase": "Failed"}}),
            json!({"metadata": {"deletionTimestamp": "1970-01-01T00:00:02Z"}}),
        ] {
            assert_eq!(read(patch.clone()), None, "{patch}");
        }
    }

    #[test]
    fn what_is_asked_is_said_in_the_words_of_the_request() {
        let with = |annotations: Value| json!({"metadata": {"annotations": annotations}});
        for (patch, text) in [
            (json!({}), "no GPU"),
            (with(json!({"gpu-memory": "2000"})), "2000 MiB"),
            (with(json!({"gpu-fraction": "0.5"})), "0.5 GPU"),
            (
                with(json!({"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"})),
                "2 x 0.25 GPU",
            ),
            (
                json!({"spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}}),
                "8 GPUs",
            ),
        ] {
            assert_eq!(read(patch).unwrap().asks, text);
        }
    }

    #[test]
    fn why_a_pod_waits_is_the_schedulers_word_then_the_kubelets() {
        let condition =
            json!([{"type": "PodScheduled", "status": "False", "message": "no card\n  n1: full"}]);
        let row = read(json!({"status": {"conditions": condition}})).unwrap();
        assert_eq!(row.why, "no card\n  n1: full");
        let waiting = json!([{"name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ContainerCreating"}}}]);
        let row =
            read(json!({"spec": {"nodeName": "n1"}, "status": {"containerStatuses": waiting}}));
        let row = row.unwrap();
        assert_eq!(row.why, "main: ContainerCreating");
        assert_eq!(row.node.as_deref(), Some("n1"));
    }
}
