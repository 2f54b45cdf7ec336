//! A pod as Kubernetes has it → the core's.
//!
//! In: the pod, the priority classes. Out: what the core needs of it. A pod of another
//! scheduler counts where it stands and is nothing before.

use super::classes::Classes;
use super::devices::stand_in;
use super::hindrance::Hindrance;
use super::queue::{created, group_name, preemptible};
use super::{aligned, pod_rules, resources, rules};
use crate::bursts::Bursts;
use api::grant::{Asked, Grant};
use api::quantity;
use api::request::{Amount as AskedAmount, GpuRequest};
use k8s_openapi::api::core::v1::Pod as KubePod;
use kube::ResourceExt as _;
use proto::names::{grant, kai};
use scheduler_core::ids::{ContainerName, DecisionId, GpuUuid, NodeName, QueueName, SetName};
use scheduler_core::model::{
    Amount, Ask, ContainerAsk, ContainerGrant, Front, Lead, Mode, Phase, Placement, Pod, Share,
    TaskOrder,
};
use scheduler_core::units::{Mib, NanoGpu, Percent, Time};
use std::sync::Arc;

/// What is said of a share that admission has not seen.
/// See [`given_up_at`].
const PATIENCE_MS: u64 = 120_000;

/// Whether the scheduler of that name places this pod.
pub(super) fn is_ours(pod: &KubePod, scheduler: &str) -> bool {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.scheduler_name.as_deref())
        == Some(scheduler)
}

/// The pod; `None` while it does not matter: it is another scheduler's, and not bound.
/// `queue_label` is the key by which the admin has queues named, before KAI's own.
/// `held` is what the node's agent reports that it holds, where that is known to differ
/// from its grant.
pub(super) fn of(
    pod: &KubePod,
    scheduler: &str,
    queue_label: &str,
    classes: &Classes,
    held: Option<&[ContainerGrant]>,
) -> Option<Pod> {
    let spec = pod.spec.as_ref()?;
    let uid = pod.metadata.uid.as_deref()?;
    let ours = is_ours(pod, scheduler);
    let phase = phase(pod, held);
    if !ours && matches!(phase, Phase::Pending | Phase::Releasing(None)) {
        return None;
    }
    let label = |key: &str| pod.labels().get(key);
    let request = resources::of(pod);
    let priority = classes.value([
        label(kai::PRIORITY_CLASS_LABEL),
        spec.priority_class_name.as_ref(),
    ]);
    let mut out = Pod::named(&pod.name_any());
    out.uid = uid.into();
    out.namespace = Arc::from(pod.namespace().unwrap_or_default());
    out.ours = ours;
    out.queue = QueueName::new(
        [
            queue_label,
            kai::QUEUE_LABEL,
            kai::QUEUE_LABEL_OLD,
            kai::PROJECT_LABEL,
        ]
        .into_iter()
        .filter_map(label)
        .find(|name| !name.is_empty())
        .map_or(kai::DEFAULT_QUEUE, String::as_str),
    );
    out.group = pod
        .annotations()
        .get(kai::POD_GROUP)
        .filter(|name| !name.is_empty())
        .map(|name| group_name(&out.namespace, name));
    out.sub_group = label(kai::SUB_GROUP_LABEL)
        .filter(|name| !name.is_empty())
        .map(SetName::new);
    out.priority = priority;
    out.preemptible = preemptible(
        label(kai::PREEMPTIBILITY_LABEL).map(String::as_str),
        priority,
    );
    out.created = created(&pod.metadata);
    out.task_order = TaskOrder {
        lead: lead(&label),
        place: place(label(kai::TASK_PRIORITY_LABEL)),
    };
    out.labels = rules::labels(pod.metadata.labels.as_ref());
    out.cpu = request.cpu;
    out.memory = request.memory;
    out.extended = request.extended;
    out.tolerations = rules::tolerations(spec);
    out.gated = spec
        .scheduling_gates
        .as_ref()
        .is_some_and(|gates| !gates.is_empty());
    let nominated = pod
        .status
        .as_ref()
        .and_then(|status| status.nominated_node_name.as_deref());
    out.nodes = rules::nodes(spec, nominated);
    pod_rules::read(spec, &mut out);
    match api::request::of(pod) {
        Ok(asked) => {
            let pending = matches!(phase, Phase::Pending);
            out.gpus = asked.containers.iter().map(ask).collect();
            if ours && pending {
                let hindrance = not_as_admitted(spec, &asked);
                out.unsupported
                    .extend(hindrance.map(|why| Arc::from(why.to_string())));
            }
        }
        // Its meaning is unknown; admission, where it runs, rejects such pods.
        Err(error) => {
            out.gpus = api::request::whole(pod).iter().map(ask).collect();
            out.unsupported.push(Arc::from(error.to_string()));
        }
    }
    out.aligned = aligned::of(pod, &out.gpus);
    if let (Some(node), true) = (node(pod), ours)
        && let Some(grant) = own_grant(pod, node)
    {
        settle(&mut out, grant);
    }
    out.phase = phase;
    Some(out)
}

/// The limit is no higher than the admin lets it be.
pub(super) fn hold(ask: &mut ContainerAsk, bursts: Bursts) {
    let Ask::Share(share) = &mut ask.ask else {
        return;
    };
    share.burst = match (share.amount, share.burst) {
        (Amount::Memory(Mib(request)), Some(Amount::Memory(Mib(limit)))) => {
            let limit = bursts.limit(request, limit);
            limit.map(|limit| Amount::Memory(Mib(limit)))
        }
        (Amount::Fraction(NanoGpu(request)), Some(Amount::Fraction(NanoGpu(limit)))) => {
            let limit = bursts.limit(request, limit);
            limit.map(|limit| Amount::Fraction(NanoGpu(limit)))
        }
        // A limit is of the same kind as its request.
        _ => None,
    };
}

/// A share whose token is missing, or is for another amount than its annotations ask for by
/// now: `ResourceQuota` has counted what was admitted.
fn not_as_admitted(
    spec: &k8s_openapi::api::core::v1::PodSpec,
    asked: &api::request::PodRequest,
) -> Option<Hindrance> {
    let inits = spec.init_containers.iter().flatten();
    let containers: Vec<_> = inits.chain(&spec.containers).collect();
    asked.containers.iter().find_map(|asked| {
        let GpuRequest::Share(share) = &asked.gpus else {
            return None;
        };
        let has = |name: &str| {
            let container = containers.iter().find(|one| one.name == asked.name)?;
            let limits = container.resources.as_ref()?.limits.as_ref()?;
            limits.get(name)
        };
        if has(proto::names::resource::SHARE).is_none() {
            return Some(Hindrance::NoToken);
        }
        let (name, amount) = share.counted();
        let admitted = has(name).and_then(quantity::up);
        (admitted != Some(amount)).then(|| Hindrance::OtherAmount {
            container: asked.name.clone(),
            amount,
            name,
            admitted: has(name).map_or("none".to_owned(), |quantity| quantity.0.clone()),
        })
    })
}

/// What a placed pod counts for and in which queue was settled when it was bound: its grant
/// says so, and what its annotations and labels say meanwhile counts for nothing. Two things
/// do count: the queue that its group's object names, which is the group's to change, and the
/// group that we make for a pod that was bound as a group of its own.
fn settle(out: &mut Pod, grant: Grant) {
    let own_group = crate::group::name_of_pod_alone(&out.name, out.uid.as_str());
    let own_group = group_name(&out.namespace, &own_group);
    out.group = match grant.group {
        Some(name) => Some(group_name(&out.namespace, &name)),
        None if grant.queue.is_some() => out.group.take().filter(|name| *name == own_group),
        // A grant of before grants said so.
        None => out.group.take(),
    };
    if let Some(queue) = grant.queue {
        out.queue = QueueName::from(queue);
    }
    for granted in &grant.containers {
        let Some(granted) = share_of(granted) else {
            continue;
        };
        let asked = out
            .gpus
            .iter_mut()
            .find(|ask| ask.container == granted.container);
        match asked {
            Some(ask) => {
                let (compute, mode) = match &ask.ask {
                    Ask::Share(share) => (share.compute, share.mode),
                    Ask::Whole(_) => (None, None),
                };
                ask.ask = Ask::Share(Share {
                    compute,
                    mode,
                    ..granted.share
                });
            }
            None => out.gpus.push(ContainerAsk {
                container: granted.container,
                init: false,
                ask: Ask::Share(granted.share),
            }),
        }
    }
}

/// A share as it was asked for when it was granted.
struct Granted {
    container: ContainerName,
    share: Share,
}

fn share_of(granted: &api::grant::ContainerGrant) -> Option<Granted> {
    (granted.mode != api::Mode::Exclusive).then(|| Granted {
        container: ContainerName::new(&granted.name),
        share: Share {
            amount: granted
                .asked
                .map_or(Amount::Memory(Mib(granted.kept().0)), amount),
            // Of what was granted: what it may burst to elsewhere is what it may here.
            burst: granted
                .request_mib
                .map(|_| Amount::Memory(Mib(granted.memory_mib.0))),
            devices: u32::try_from(granted.gpus.len()).unwrap_or(u32::MAX),
            compute: None,
            mode: Some(mode(granted.mode)),
        },
    })
}

fn amount(asked: Asked) -> Amount {
    match asked {
        Asked::MemoryMib(memory) => Amount::Memory(Mib(memory.0)),
        Asked::NanoGpu(part) => Amount::Fraction(NanoGpu(part)),
    }
}

/// Where the pod stands.
fn node(pod: &KubePod) -> Option<&str> {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .filter(|node| !node.is_empty())
}

/// A grant that names another pod or node is not its own and counts as none: its agent
/// refuses it too. Its signature is its agent's to check: no account but the scheduler's may
/// write that annotation.
fn own_grant(pod: &KubePod, node: &str) -> Option<Grant> {
    pod.annotations()
        .get(grant::GRANT)
        .and_then(|text| Grant::peek(text).ok())
        .filter(|grant| {
            Some(grant.pod.uid.as_str()) == pod.metadata.uid.as_deref() && grant.node.name == node
        })
}

/// KAI's plugins `kubeflow` and `ray`.
fn lead<'a>(label: &impl Fn(&str) -> Option<&'a String>) -> Lead {
    let is = |key: &str, values: &[&str]| {
        label(key).is_some_and(|value| values.contains(&value.as_str()))
    };
    if is(kai::JOB_ROLE_LABEL, &["master", "launcher"]) {
        Lead::Kubeflow
    } else if is(kai::RAY_NODE_TYPE_LABEL, &["head"]) {
        Lead::Ray
    } else {
        Lead::None
    }
}

/// Higher first; unlabelled after labelled, unreadable last.
fn place(label: Option<&String>) -> i32 {
    match label.map(|text| text.parse::<i32>()) {
        Some(Ok(order)) => order.checked_neg().unwrap_or(i32::MAX).min(i32::MAX - 2),
        None => i32::MAX - 1,
        Some(Err(_)) => i32::MAX,
    }
}

fn ask(container: &api::request::ContainerRequest) -> ContainerAsk {
    ContainerAsk {
        container: ContainerName::new(&container.name),
        init: container.init,
        ask: match &container.gpus {
            GpuRequest::Whole(count) => Ask::Whole(*count),
            GpuRequest::Share(share) => Ask::Share(Share {
                amount: asked_of(share.amount),
                burst: share.limit.map(asked_of),
                devices: share.devices,
                compute: share.compute_percent.and_then(Percent::new),
                mode: share.mode.map(mode),
            }),
        },
    }
}

fn asked_of(amount: AskedAmount) -> Amount {
    match amount {
        AskedAmount::Memory(memory) => Amount::Memory(Mib(memory.0)),
        AskedAmount::Fraction(nano) => Amount::Fraction(NanoGpu(nano)),
    }
}

/// The same four, in the core's type.
pub(super) fn mode(mode: api::Mode) -> Mode {
    match mode {
        api::Mode::Exclusive => Mode::Exclusive,
        api::Mode::Mps => Mode::Mps,
        api::Mode::MpsIsolated => Mode::MpsIsolated,
        api::Mode::TimeSlicing => Mode::TimeSlicing,
    }
}

fn phase(pod: &KubePod, held: Option<&[ContainerGrant]>) -> Phase {
    let status = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    match status {
        Some("Succeeded") => return Phase::Succeeded,
        Some("Failed") => return Phase::Failed,
        _ => {}
    }
    let placement = node(pod).map(|node| placement(pod, node, held));
    let leaving = pod.metadata.deletion_timestamp.is_some();
    match (placement, leaving) {
        (placement, true) => Phase::Releasing(placement),
        (None, false) => Phase::Pending,
        (Some(placement), false) if status == Some("Running") => Phase::Running(placement),
        (Some(placement), false) => Phase::Bound(placement),
    }
}

/// When the end of a pod that is being deleted is no longer counted on (KAI's
/// `stuck-in-releasing-threshold`: two minutes after the time by which it was to be gone).
/// `None`: it is not being deleted, or does not run.
pub(super) fn given_up_at(pod: &KubePod) -> Option<Time> {
    let status = pod.status.as_ref()?;
    let deletion = pod.metadata.deletion_timestamp.as_ref()?;
    if status.phase.as_deref() != Some("Running") {
        return None;
    }
    let due = u64::try_from(deletion.0.as_millisecond()).unwrap_or(0);
    Some(Time(due.saturating_add(PATIENCE_MS)))
}

/// What a bound pod holds.
fn placement(pod: &KubePod, node: &str, held: Option<&[ContainerGrant]>) -> Placement {
    let grant = own_grant(pod, node);
    let by_claim = grant.is_none() && stand_in::of_placed(pod).is_some();
    Placement {
        front: if by_claim {
            Front::Claim
        } else {
            Front::Plugin
        },
        node: NodeName::new(node),
        decision: grant
            .as_ref()
            .and_then(|grant| DecisionId::parse(&grant.decision)),
        grants: match (held, grant) {
            (Some(held), _) => held.to_vec(),
            (None, Some(grant)) => grant.containers.iter().map(container_grant).collect(),
            (None, None) => Vec::new(),
        },
    }
}

fn container_grant(container: &api::grant::ContainerGrant) -> ContainerGrant {
    ContainerGrant {
        container: ContainerName::new(&container.name),
        cards: container.gpus.iter().map(GpuUuid::new).collect(),
        memory: Mib(container.kept().0),
        burst: container.request_mib.map(|_| Mib(container.memory_mib.0)),
        compute: Percent::new(container.compute_percent).unwrap_or(Percent::FULL),
        mode: mode(container.mode),
        note: container.note.as_deref().map(Arc::from),
        asked: container.asked.map(amount),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    const US: &str = kai::SCHEDULER_NAME;

    fn read(patch: Value) -> Option<Pod> {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
            "spec": {"schedulerName": US, "containers": [{"name": "main"}]},
        });
        json_patch::merge(&mut pod, &patch);
        let classes = Classes {
            values: BTreeMap::from([("build".to_owned(), 100), ("low".to_owned(), 10)]),
            default: None,
        };
        of(
            &serde_json::from_value(pod).unwrap(),
            US,
            kai::QUEUE_LABEL,
            &classes,
            None,
        )
    }

    #[test]
    fn another_schedulers_pod_counts_only_where_it_stands() {
        assert_eq!(read(json!({"spec": {"schedulerName": "other"}})), None);
        let bound = read(json!({"spec": {"schedulerName": "other", "nodeName": "n1"}})).unwrap();
        assert!(!bound.ours);
        assert!(matches!(bound.phase, Phase::Bound(_)));
    }

    #[test]
    fn the_queue_is_the_label_the_old_label_the_project_or_the_default() {
        for (labels, queue) in [
            (json!({"kai.scheduler/queue": "a", "runai/queue": "b"}), "a"),
            (json!({"runai/queue": "b", "project": "c"}), "b"),
            (json!({"project": "c"}), "c"),
            (json!({}), "default-queue"),
        ] {
            let pod = read(json!({"metadata": {"labels": labels}})).unwrap();
            assert_eq!(pod.queue.as_str(), queue);
        }
    }

    #[test]
    fn priority_is_the_labels_class_then_the_pods_then_50() {
        for (label, class, priority) in [
            (Some("build"), Some("low"), 100),
            (Some("missing"), Some("low"), 10),
            (None, Some("missing"), 50),
        ] {
            let pod = read(
                json!({"metadata": {"labels": {"priorityClassName": label}}, "spec": {"priorityClassName": class}}),
            );
            let pod = pod.unwrap();
            assert_eq!((pod.priority, pod.preemptible), (priority, priority < 100));
        }
    }

    #[test]
    fn labelled_tasks_go_first_higher_before_lower_and_unreadable_last() {
        let order = |label: Option<&str>| place(label.map(str::to_owned).as_ref());
        let orders = [Some("7"), Some("3"), Some("-2"), None, Some("x")].map(order);
        assert!(orders.is_sorted(), "{orders:?}");
    }

    #[test]
    fn masters_launchers_and_heads_go_before_the_other_pods_of_their_jobs() {
        let order = |labels: Value| {
            let pod = read(json!({"metadata": {"labels": labels}}));
            pod.unwrap().task_order
        };
        let key = "training.kubeflow.org/job-role";
        let worker = order(json!({key: "worker", "kai.scheduler/task-priority": "100"}));
        for leads in [
            json!({key: "master"}),
            json!({key: "launcher"}),
            json!({"ray.io/node-type": "head"}),
        ] {
            assert!(order(leads.clone()) < worker, "{leads}");
        }
        assert_eq!(worker.lead, Lead::None);
        assert_eq!(
            order(json!({"ray.io/node-type": "worker"})).lead,
            Lead::None
        );
    }

    #[test]
    fn a_share_without_its_token_waits_and_says_what_to_do() {
        let share = json!({"metadata": {"annotations": {"gpu-memory": "2000"}}});
        let pod = read(share).unwrap();
        assert!(
            pod.unsupported[0].contains("token"),
            "{:?}",
            pod.unsupported
        );
        let admitted = json!({"metadata": {"annotations": {"gpu-memory": "2000"}},
            "spec": {"containers": [{"name": "main", "resources": {"limits": {"aliquot.dev/gpu-share": "1", "aliquot.dev/gpu-memory-mib": "2000"}}}]}});
        let pod = read(admitted).unwrap();
        assert!(pod.unsupported.is_empty());
        assert_eq!(pod.gpus.len(), 1);
    }

    #[test]
    fn what_was_granted_is_what_counts_whatever_the_pod_says_later() {
        let grant = |more: Value| {
            let mut grant = json!({"v": 1, "key": "k", "cluster": "c", "decision": "7-1",
                "pod": {"uid": "u1", "namespace": "ns", "name": "p"}, "node": {"name": "n1", "uid": "x"},
                "containers": [{"name": "main", "gpus": ["GPU-1"], "memoryMib": 20512, "computePercent": 50,
                    "mode": "mps", "asked": {"nanoGpu": 500_000_000}}]});
            json_patch::merge(&mut grant, &more);
            format!("sig.{grant}")
        };
        let place = |more: Value, annotations: Value| {
            let mut pod = json!({"metadata": {
                "annotations": {"aliquot.dev/grant": grant(more)},
                "labels": {"kai.scheduler/queue": "other"},
            }, "spec": {"nodeName": "n1"}});
            json_patch::merge(&mut pod["metadata"]["annotations"], &annotations);
            read(pod).unwrap()
        };
        let half = Amount::Fraction(NanoGpu(500_000_000));
        let amount = |pod: &Pod| match &pod.gpus[0].ask {
            Ask::Share(share) => share.amount,
            Ask::Whole(_) => panic!("a share"),
        };
        for annotations in [
            json!({"gpu-memory": "1"}),
            json!({"gpu-memory": "much"}),
            json!({}),
        ] {
            let pod = place(json!({"queue": "q", "group": "g"}), annotations);
            assert_eq!(amount(&pod), half);
            assert_eq!(pod.queue.as_str(), "q");
            assert_eq!(pod.group, Some(group_name("ns", "g")));
            let Phase::Bound(placement) = pod.phase else {
                panic!("bound")
            };
            assert_eq!(placement.grants[0].asked, Some(half));
        }
        // Bound as a group of its own: only the group that we make for it is its group.
        for (name, follows) in [("another", false), ("pg-p-u1", true)] {
            let pod = place(json!({"queue": "q"}), json!({"pod-group-name": name}));
            assert_eq!(pod.group.is_some(), follows, "{name}");
        }
        // A scheduler of before wrote neither queue nor what was asked: the limit counts.
        let before = json!({"containers": [{"name": "main", "gpus": ["GPU-1"], "memoryMib": 20512,
            "computePercent": 50, "mode": "mps"}]});
        let pod = place(before, json!({"gpu-memory": "1"}));
        assert_eq!(amount(&pod), Amount::Memory(Mib(20512)));
        assert_eq!(pod.queue.as_str(), "other");
    }

    #[test]
    fn whole_cards_count_whatever_annotations_say() {
        let resources = json!({"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}});
        let pod = read(
            json!({"metadata": {"annotations": {"gpu-memory": "1"}}, "spec": {"nodeName": "n1", "containers": [resources]}}),
        );
        assert!(matches!(pod.unwrap().gpus[0].ask, Ask::Whole(2)));
    }

    #[test]
    fn another_amount_than_was_admitted_waits_and_says_what_to_do() {
        let pod = |asked: &str, admitted: &str| {
            read(json!({"metadata": {"annotations": {"gpu-memory": asked}},
                "spec": {"containers": [{"name": "main", "resources": {"limits": {
                    "aliquot.dev/gpu-share": "1", "aliquot.dev/gpu-memory-mib": admitted}}}]}}))
            .unwrap()
        };
        // The API server writes 2000 so.
        for admitted in ["2000", "2k"] {
            let pod = pod("2000", admitted);
            assert!(pod.unsupported.is_empty(), "{:?}", pod.unsupported);
        }
        let changed = pod("4000", "2k");
        assert!(
            changed.unsupported[0].contains("4000 of aliquot.dev/gpu-memory-mib")
                && changed.unsupported[0].contains("admitted with 2k"),
            "{:?}",
            changed.unsupported
        );
    }

    #[test]
    fn a_grant_of_another_pod_counts_as_none() {
        let grant = |uid: &str| {
            format!(
                "sig.{}",
                json!({"v": 1, "key": "k", "cluster": "c", "decision": "7-1",
                    "pod": {"uid": uid, "namespace": "ns", "name": "p"}, "node": {"name": "n1", "uid": "x"},
                    "containers": [{"name": "main", "gpus": ["GPU-1"], "memoryMib": 2000, "computePercent": 100, "mode": "mps"}]})
            )
        };
        let place = |uid: &str| {
            let pod = read(
                json!({"metadata": {"annotations": {"aliquot.dev/grant": grant(uid)}}, "spec": {"nodeName": "n1"}}),
            );
            match pod.unwrap().phase {
                Phase::Bound(placement) => placement,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(place("u1").grants[0].memory, Mib(2000));
        assert_eq!(place("u1").decision, DecisionId::parse("7-1"));
        assert!(place("u2").grants.is_empty());
    }
}
