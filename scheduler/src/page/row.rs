//! An object of the API server or an agent → its row.

use crate::history::Tenant;
use crate::queue_label::queue_of;
use api::request::{Amount, GpuRequest};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;
use proto::names::{grant, kai, resource};
use proto::telemetry::NodeState;
use scheduler_core::units::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A pod of ours that does not run yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodRow {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) queue: String,
    /// The group whose place in the queue it shares; its own UID where it has none.
    pub(super) group: String,
    /// Its request, as text.
    pub(super) asks: String,
    /// Name of its priority class; empty: the default.
    pub(super) class: String,
    /// Milliseconds since 1970.
    pub(super) created: i64,
    /// Where it is bound to; `None`: it waits to be placed.
    pub(super) node: Option<String>,
    /// Why it waits, by the scheduler or the kubelet; lines after the first give details.
    pub(super) why: String,
}

/// The longest reason that is kept of a pod, in bytes: the message of a condition may be as long as
/// its object.
const WHY: usize = 16 << 10;
/// The longest first line of a reason in a list, in characters.
const LINE: usize = 300;

impl PodRow {
    /// The first line of why it waits, cut to what a list has room for.
    pub(super) fn reason(&self) -> &str {
        let line = self.why.lines().next().unwrap_or_default();
        // What follows is card by card.
        let line = line.split(". node ").next().unwrap_or(line);
        match line.char_indices().nth(LINE) {
            Some((end, _)) => &line[..end],
            None => line,
        }
    }
}

/// The state of a pod of this scheduler that does not run yet; `None`: nothing.
///
/// Its queue is the one that its labels name, where `queue_label` comes first. Once its group is
/// there, the group's counts: see [`super::rows::Rows::queue`].
pub(super) fn pod(pod: &Pod, scheduler: &str, queue_label: &str) -> Option<PodRow> {
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
    let queue = queue_of(pod.labels(), queue_label);
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
        why: cut(why(pod)),
        name: pod.name_any(),
        namespace,
        uid,
    })
}

/// MIG slices that its containers request, by profile.
fn slices(pod: &Pod) -> impl Iterator<Item = String> + '_ {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers.filter_map(|container| container.resources.as_ref()?.limits.as_ref());
    limits.flatten().filter_map(|(name, count)| {
        let profile = name.strip_prefix(resource::MIG_PREFIX)?;
        Some(match count.0.as_str() {
            "0" => return None,
            "1" => format!("mig-{profile}"),
            count => format!("{count} x mig-{profile}"),
        })
    })
}

/// `2000 MiB`, `0.5 GPU`, `2 x 0.5 GPU`, `8 GPUs`, `2 x mig-1g.10gb`, `no GPU`; several joined by
/// `+`.
pub(super) fn asks(pod: &Pod) -> String {
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
        .chain(slices(pod))
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

fn cut(mut why: String) -> String {
    if why.len() > WHY {
        let mut end = WHY;
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        why.truncate(end);
        why.push('…');
    }
    why
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

/// A pod by its UID, in 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Uid(u128);

impl Uid {
    /// Its 32 digits; of a UID that has others, as mirror pods may, a digest.
    pub(super) fn of(text: &str) -> Self {
        let digits: String = text.chars().filter(|one| *one != '-').collect();
        if digits.len() == 32
            && let Ok(number) = u128::from_str_radix(&digits, 16)
        {
            return Self(number);
        }
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest.as_ref()[..16]);
        Self(u128::from_be_bytes(bytes))
    }
}

/// The holders of a pod's grant; `None`: it has no grant, or has ended.
pub(super) fn tenant(pod: &Pod) -> Option<Tenant> {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    let text = pod.annotations().get(grant::GRANT)?;
    let queue = api::Grant::peek(text).ok().and_then(|grant| grant.queue);
    let queue = queue.unwrap_or_default();
    Some(Tenant {
        queue: queue.into(),
        namespace: pod.namespace().unwrap_or_default().into(),
        owner: match api::owner::controller(pod) {
            Some(owner) => workload(pod, owner),
            None => format!("Pod/{}", pod.name_any()),
        }
        .into(),
        product: Arc::default(),
    })
}

/// `Job/train`; of a replica set that a Deployment made, the Deployment.
fn workload(pod: &Pod, owner: &OwnerReference) -> String {
    let hash = pod.labels().get("pod-template-hash");
    let deployment = hash
        .filter(|_| owner.kind == "ReplicaSet")
        .and_then(|hash| owner.name.strip_suffix(hash.as_str())?.strip_suffix('-'));
    match deployment {
        Some(name) => format!("Deployment/{name}"),
        None => format!("{}/{}", owner.kind, owner.name),
    }
}

/// An eviction, as the scheduler writes it on the pod: time and message.
pub(super) fn evicted(pod: &Pod) -> Option<(Time, &str)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let told = conditions.iter().find(|condition| {
        condition.type_ == "DisruptionTarget"
            && condition.status == "True"
            && condition.reason.as_deref() == Some("PreemptionByScheduler")
    })?;
    let at = told.last_transition_time.as_ref()?.0.as_millisecond();
    let words = told.message.as_deref().unwrap_or_default();
    Some((Time(u64::try_from(at).ok()?), words))
}

/// A node's labels by which cards can be grouped: those that many nodes may share.
pub(super) fn labels(node: &Node) -> Vec<(String, String)> {
    let name = node.name_any();
    let shared = |(key, value): (&String, &String)| {
        (*value != name && !value.is_empty()).then(|| (key.clone(), value.clone()))
    };
    node.labels().iter().filter_map(shared).collect()
}

/// What changes too fast for a `GpuNode`, as the agent last reported it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Live {
    /// By UUID.
    pub(super) cards: BTreeMap<String, LiveCard>,
    /// By pod UID and container.
    pub(super) shares: BTreeMap<(String, String), LiveShare>,
}

/// A card; amounts in MiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LiveCard {
    pub(super) total: u64,
    pub(super) grantable: u64,
    pub(super) granted: u64,
    pub(super) used: u64,
    /// Why it is not healthy; empty: it is.
    pub(super) fault: String,
}

/// A share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LiveShare {
    /// MiB in use, over all its cards.
    pub(super) used: u64,
    /// The minutes for which it has done no work; `None`: not known.
    pub(super) idle_minutes: Option<u32>,
    /// Per cent of SM time, summed over its cards; `None`: not known.
    pub(super) sm: Option<u32>,
    pub(super) cards: Vec<String>,
    pub(super) namespace: String,
    pub(super) phase: String,
    /// Its complaint; empty: none.
    pub(super) complaint: String,
    pub(super) alloc: String,
    /// When it was first reported as prepared, and as running; `None`: it was so from the start.
    pub(super) prepared: Option<Time>,
    pub(super) running: Option<Time>,
}

/// See [`Live`].
pub(super) fn live(state: &NodeState) -> Live {
    let cards = state.gpus.iter().chain(&state.slices).map(|gpu| {
        let card = LiveCard {
            total: gpu.memory_total_mib,
            grantable: gpu.memory_grantable_mib,
            granted: gpu.memory_granted_mib,
            used: gpu.memory_used_mib,
            fault: if gpu.health == "Unhealthy" {
                format!("unhealthy: {}", gpu.health_reason)
            } else {
                String::new()
            },
        };
        (gpu.uuid.clone(), card)
    });
    let shares = state.shares.iter().map(|share| {
        let key = (share.pod_uid.clone(), share.container.clone());
        let live = LiveShare {
            used: share.memory_used_mib,
            idle_minutes: share.idle_minutes,
            sm: share.sm_percent,
            cards: share.gpu_uuids.clone(),
            namespace: share.pod_namespace.clone(),
            phase: share.phase.clone(),
            complaint: share.complaint.clone(),
            alloc: share.alloc_id.clone(),
            prepared: None,
            running: None,
        };
        (key, live)
    });
    Live {
        cards: cards.collect(),
        shares: shares.collect(),
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
        pod(&serde_json::from_value(object).unwrap(), "us", "squad")
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
            (
                json!({"spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "2"}}}]}}),
                "2 x mig-1g.10gb",
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

    #[test]
    fn who_pays_is_the_grants_word_and_the_workload_is_what_made_the_pod() {
        let of = |patch: Value| {
            let grant = json!({"v": 1, "key": "", "cluster": "", "pod": {"uid": "u1", "namespace": "ns", "name": "p"},
                "node": {"name": "n", "uid": "n"}, "containers": [], "decision": "1-1", "queue": "paid"});
            let grant = format!("c2ln.{grant}");
            let mut object = json!({
                "metadata": {"name": "p", "namespace": "ns", "uid": "u1", "labels": {"kai.scheduler/queue": "claimed"},
                    "annotations": {"aliquot.dev/grant": grant}},
                "spec": {"containers": [{"name": "main"}]},
            });
            json_patch::merge(&mut object, &patch);
            let pod: Pod = serde_json::from_value(object).unwrap();
            tenant(&pod)
                .map(|tenant| format!("{}|{}|{}", tenant.queue, tenant.namespace, tenant.owner))
        };
        let owned = |kind: &str, name: &str| {
            json!({"metadata": {"labels": {"pod-template-hash": "5d9"}, "ownerReferences": [
                {"apiVersion": "v1", "kind": kind, "name": name, "uid": "o", "controller": true}]}})
        };
        for (patch, expected) in [
            (json!({}), Some("paid|ns|Pod/p")),
            (owned("Job", "train-1"), Some("paid|ns|Job/train-1")),
            (
                owned("ReplicaSet", "web-5d9"),
                Some("paid|ns|Deployment/web"),
            ),
            (owned("ReplicaSet", "web"), Some("paid|ns|ReplicaSet/web")),
            (json!({"status": {"phase": "Succeeded"}}), None),
            (json!({"metadata": {"annotations": null}}), None),
        ] {
            assert_eq!(of(patch.clone()).as_deref(), expected, "{patch}");
        }
        assert_eq!(Uid::of("00000000-0000-0000-0000-00000000000a"), Uid(10));
        assert_ne!(Uid::of("mirror"), Uid::of("mirror2"));
    }
}
