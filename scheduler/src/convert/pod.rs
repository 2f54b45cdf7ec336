//! A pod as Kubernetes has it → the core's.
//!
//! In: the pod, the priority classes. Out: what the core needs of it. A pod of another
//! scheduler counts where it stands and is nothing before.

use super::classes::{self, Classes};
use super::devices::stand_in;
use super::hindrance::Hindrance;
use super::queue::{created, group_name, preemptibility};
use super::{aligned, pod_rules, resources, rules};
use crate::bursts::Bursts;
use crate::queue_label::queue_of;
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

/// KAI's `stuck-in-releasing-threshold`. See [`Deletion`].
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
    let class = classes.first([
        label(kai::PRIORITY_CLASS_LABEL),
        spec.priority_class_name.as_ref(),
    ]);
    let priority = class.value;
    let mut out = Pod::named(&pod.name_any());
    out.uid = uid.into();
    out.namespace = Arc::from(pod.namespace().unwrap_or_default());
    out.ours = ours;
    out.queue = QueueName::new(queue_of(pod.labels(), queue_label));
    out.group = pod
        .annotations()
        .get(kai::POD_GROUP)
        .filter(|name| !name.is_empty())
        .map(|name| group_name(&out.namespace, name));
    out.sub_group = label(kai::SUB_GROUP_LABEL)
        .filter(|name| !name.is_empty())
        .map(SetName::new);
    out.priority = priority;
    out.preemptibility = preemptibility(
        label(kai::PREEMPTIBILITY_LABEL).map(String::as_str),
        priority,
    );
    out.never_preempts =
        class.never_preempts || spec.preemption_policy.as_deref() == Some(classes::NEVER);
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

/// The deletion of a pod. Its end is counted on until [`PATIENCE_MS`] after it is due.
///
/// KAI gives up only pods that run. A pod whose containers were being created when its node died stays
/// in Terminating as well, and a promise on its resources would never come true.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deletion {
    /// The time by which the pod is due to be gone, by the API server's clock, in milliseconds.
    due: u64,
    /// The grace period of the pod, in milliseconds.
    grace: u64,
}

impl Deletion {
    /// Returns `None` if the pod is not being deleted.
    pub(super) fn of(pod: &KubePod) -> Option<Self> {
        let due = pod.metadata.deletion_timestamp.as_ref()?.0.as_millisecond();
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        let positive = |number: i64| u64::try_from(number).unwrap_or(0);
        Some(Self {
            due: positive(due),
            grace: positive(grace).saturating_mul(1000),
        })
    }

    /// Returns the time from which the end of the pod is no longer counted on, by the API server's
    /// clock.
    pub(super) fn given_up_at(self) -> Time {
        Time(self.due.saturating_add(PATIENCE_MS))
    }

    /// Returns the same time by the clock of this process, which saw the deletion at `seen`.
    pub(super) fn given_up_after(self, seen: Time) -> Time {
        let due = seen.0.saturating_add(self.grace);
        Time(due.saturating_add(PATIENCE_MS))
    }
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
mod tests;
