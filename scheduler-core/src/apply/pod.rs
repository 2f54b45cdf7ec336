//! Pods come, change and go.

use crate::apply::node::worth;
use crate::config::{Config, Plugin};
use crate::event::Activity;
use crate::ids::{GroupName, PodUid};
use crate::model::{
    Amount, Ask, ContainerAsk, ContainerGrant, Front, Lead, Phase, Placement, Pod, PodRules,
    TaskOrder,
};
use crate::problem::Problem;
use crate::state::State;
use crate::state::hold::Hold;
use crate::state::keys::{JobKey, NodeKey, TaskKey};
use crate::state::rows::{PodFacts, Rare, Seen, TaskRow};
use crate::state::spec::{ClaimAsk, PodRelations, Spec};
use crate::state::task_cell::{Status, TaskCell};
use crate::state::uid::Uid;
use crate::units::{Mib, NanoGpu, Time};
use std::sync::Arc;

/// More containers with cards than any node has cards.
const MOST_DEVICES: u32 = 1024;

pub(super) fn upsert(state: &mut State, config: &Config, pod: Pod, problems: &mut Vec<Problem>) {
    let spec = spec_of(state, &pod, problems);
    let key = match state.task_of(&pod.uid) {
        Some(key) => key,
        None => insert(state, &pod),
    };
    let before = state.cells.tasks.get(key).cloned().unwrap_or_default();
    let (given, picked) = (state.claims_of(key), state.picked_for(key));
    let changed = take_row(state, config, key, &pod, spec, &before);
    if let Some(job) = state.tasks.get(key).and_then(|row| row.job) {
        super::group::charge_by_pods(state, job);
    }
    let to = target(state, config, key, &pod.phase, &before, problems);
    settle(state, key, to.status);
    state.transition(key, to.clone());
    state.give_back(given, &to);
    state.pick_again(picked, &to);
    if changed || to != before {
        // Anything that stood somewhere and changed may have made room.
        if before.node.is_some()
            && (changed || before.holds != to.holds || before.status != to.status)
        {
            state.changes.capacity_grew();
        } else {
            state.changes.wake();
        }
    }
    for card in before.holds().iter().map(|hold| hold.card) {
        state.release_card(card);
    }
    if let Some(node) = before.node {
        state.release_node(node);
    }
}

pub(super) fn gone(state: &mut State, uid: &PodUid, problems: &mut Vec<Problem>) {
    let Some(key) = state.task_of(uid) else {
        problems.push(Problem::Unknown {
            what: "pod",
            name: uid.shared(),
        });
        return;
    };
    let before = state.cells.tasks.get(key).cloned().unwrap_or_default();
    state.transition(key, TaskCell::of(Status::Detached));
    state.open.forget(key);
    state.set_idle(key, None);
    state.index.background.remove(&key);
    state.index.to_evict.remove(&(Uid::from(uid), key));
    state.end_pause(key);
    let job = state.tasks.get(key).and_then(|row| row.job);
    state.leave_job(key);
    if let Some(job) = job {
        super::group::charge_by_pods(state, job);
    }
    state.set_counted_in(key, None);
    state.set_device_claims(key, &[]);
    if let Some(row) = state.tasks.remove(key) {
        if let Some(job) = job {
            super::group::member_gone(state, job, &row);
        }
        state
            .cells
            .pod_counts
            .index
            .leave(&row.facts.namespace, &row.labels, key);
        state.release_spec(row.spec);
    }
    state.names.tasks.remove(&Uid::from(uid));
    state.cells.tasks.remove(key);
    state.outputs.said.remove(&key);
    for hold in before.holds() {
        state.release_card(hold.card);
    }
    if let Some(node) = before.node {
        state.release_node(node);
        state.changes.capacity_grew();
    }
    state.changes.wake();
}

/// Applies whether a pod is idle or works.
pub(super) fn activity(state: &mut State, said: &Activity, problems: &mut Vec<Problem>) {
    match state.task_of(&said.pod) {
        Some(key) => state.set_idle(key, said.idle_since),
        None => problems.push(Problem::Unknown {
            what: "pod",
            name: said.pod.shared(),
        }),
    }
}

fn insert(state: &mut State, pod: &Pod) -> TaskKey {
    // Before the first pod there are no sums to rebuild.
    if state.tasks.is_empty() {
        state.refresh_queues();
    }
    let nothing = state.spec(Spec {
        cpu: crate::units::CpuMilli(0),
        memory: crate::units::Bytes(0),
        extended: std::collections::BTreeMap::new(),
        gpus: Vec::new(),
        aligned: Vec::new(),
        claims: Vec::new(),
        attachments: Vec::new(),
        devices: Vec::new(),
        rules: crate::model::NodeRules::default(),
        tolerations: Vec::new(),
        ports: Vec::new(),
        others: None,
        unsupported: Vec::new(),
        lacks: Vec::new(),
        bad: None,
    });
    let key = state.tasks.insert(TaskRow {
        uid: Uid::from(&pod.uid),
        name: Arc::clone(&pod.name),
        facts: state.interner.pod(PodFacts::of(pod, pod.task_order)),
        spec: nothing,
        labels: state.interner.labels(&pod.labels),
        counted_in: None,
        job: None,
        created: pod.created,
        gated: pod.gated,
        seen: Seen::Pending,
        rare: Rare::default(),
    });
    if let Some(row) = state.tasks.get(key) {
        state
            .cells
            .pod_counts
            .index
            .join(&row.facts.namespace, &row.labels, key);
    }
    state.cells.tasks.insert(key, TaskCell::default());
    state.names.tasks.insert(Uid::from(&pod.uid), key);
    key
}

/// Start time of a placed pod that is a job of its own. That job is deleted with any change of the
/// pod, and the group of a pod without an owner is created while the pod is being bound.
fn started_alone(state: &State, key: TaskKey, before: &TaskCell) -> Option<Time> {
    let job = state.jobs.get(state.tasks.get(key)?.job?)?;
    let start = job.last_start.get();
    start.filter(|_| job.single && before.node.is_some())
}

/// A pod came into a job and had started before.
fn has_started(state: &mut State, key: TaskKey, job: JobKey, at: Time) {
    let Some(row) = state.jobs.get(job) else {
        return;
    };
    let mut others = row.tasks.iter().filter(|task| **task != key);
    if others.any(|task| state.cell(*task).node.is_some()) {
        return;
    }
    let (single, name) = (row.single, row.name.clone());
    if let Some(row) = state.jobs.get_mut(job) {
        row.last_start = row.last_start.get().max(Some(at)).into();
    }
    if !single {
        state.outputs.unreported.insert(name);
    }
}

/// Brings the row up to date; the task is detached if anything changed that its sums or
/// its order depend on. True when something changed beside the phase.
fn take_row(
    state: &mut State,
    config: &Config,
    key: TaskKey,
    pod: &Pod,
    spec: Spec,
    before: &TaskCell,
) -> bool {
    let Some(row) = state.tasks.get_mut(key) else {
        return false;
    };
    row.seen = match pod.phase {
        Phase::Pending => Seen::Pending,
        Phase::Bound(_) => Seen::Bound,
        Phase::Running(_) => Seen::Running,
        Phase::Releasing(_) => Seen::Releasing,
        Phase::Stuck(_) => Seen::Stuck,
        Phase::Succeeded => Seen::Succeeded,
        Phase::Failed => Seen::Failed,
    };
    if let Phase::Bound(placement)
    | Phase::Running(placement)
    | Phase::Releasing(Some(placement))
    | Phase::Stuck(placement) = &pod.phase
    {
        if let Some(decision) = placement.decision {
            row.rare.noted().granted_by = Some(decision);
        } else if let Some(rare) = row.rare.if_any() {
            rare.granted_by = None;
        }
    }
    let Some(row) = state.tasks.get(key) else {
        return false;
    };
    let same_spec = state
        .specs
        .get(row.spec)
        .is_some_and(|known| *known.spec == spec);
    let same = before.status != Status::Detached
        && same_spec
        && state.devices.of(key) == pod.devices
        && state.is_of_group(row, pod.group.as_ref())
        && row.facts.are(pod)
        && row.created == pod.created
        && row.gated == pod.gated
        && row.labels.are(&pod.labels)
        && row.name == pod.name;
    if same {
        return false;
    }
    let started = started_alone(state, key, before);
    state.transition(key, TaskCell::of(Status::Detached));
    state.leave_job(key);
    state.set_device_claims(key, &pod.devices);
    let spec_key = state.spec(spec);
    let labels = state.interner.labels(&pod.labels);
    let facts = PodFacts::of(pod, in_order(pod.task_order, config));
    let facts = state.interner.pod(facts);
    let job = pod.ours.then(|| match &pod.group {
        Some(name) => state.job(name, false),
        None => state.job(&GroupName::of_pod_alone(&pod.uid), true),
    });
    let mut old_spec = None;
    if let Some(row) = state.tasks.get_mut(key) {
        old_spec = Some(std::mem::replace(&mut row.spec, spec_key));
        state
            .cells
            .pod_counts
            .index
            .leave(&row.facts.namespace, &row.labels, key);
        state
            .cells
            .pod_counts
            .index
            .join(&facts.namespace, &labels, key);
        row.facts = facts;
        row.name = Arc::clone(&pod.name);
        row.labels = labels;
        row.created = pod.created;
        row.gated = pod.gated;
    }
    if let Some(old) = old_spec {
        state.release_spec(old);
    }
    let background = config.background.iter().any(|labels| {
        let mut labels = labels.iter();
        pod.ours && labels.all(|label| label.holds_in(&pod.labels))
    });
    if background {
        state.index.background.insert(key);
    } else {
        state.index.background.remove(&key);
    }
    let counted_in = state.tasks.get(key).and_then(|row| state.counted_in(row));
    state.set_counted_in(key, counted_in);
    // A refusal that no retry helps is over once the pod changed.
    if state
        .tasks
        .get(key)
        .and_then(|row| row.rare.pause.as_ref())
        .is_some_and(|pause| pause.until.is_none())
    {
        state.end_pause(key);
    }
    if let Some(job) = job {
        state.join_job(key, job);
        if let Some(row) = state.tasks.get_mut(key) {
            row.job = Some(job);
        }
        if let Some(at) = started {
            has_started(state, key, job, at);
        }
        if pod.group.is_none() {
            state.set_job_queue(job, Some(&pod.queue));
        }
    }
    true
}

fn in_order(order: TaskOrder, config: &Config) -> TaskOrder {
    let lead = match order.lead {
        Lead::Kubeflow if config.has(Plugin::Kubeflow) => Lead::Kubeflow,
        Lead::Ray if config.has(Plugin::Ray) => Lead::Ray,
        _ => Lead::None,
    };
    let place = if config.has(Plugin::TaskOrder) {
        order.place
    } else {
        0
    };
    TaskOrder { lead, place }
}

/// The task's placement after the API server's update.
fn target(
    state: &mut State,
    config: &Config,
    key: TaskKey,
    phase: &Phase,
    before: &TaskCell,
    problems: &mut Vec<Problem>,
) -> TaskCell {
    match phase {
        Phase::Pending => {
            let open = before
                .decision
                .as_deref()
                .and_then(|decision| state.open.get(decision));
            // Older than the binding, whatever came of that.
            if before.status == Status::Assumed && open.is_some() {
                let spec = state
                    .tasks
                    .get(key)
                    .and_then(|row| state.specs.get(row.spec));
                let asks = spec.map(|row| row.spec.gpus.as_slice()).unwrap_or_default();
                let holds = take_turns(asks, before.holds().to_vec());
                return TaskCell {
                    holds: (!holds.is_empty()).then(|| Arc::from(holds)),
                    ..before.clone()
                };
            }
            if let Some(decision) = &before.decision {
                state.open.remove(decision);
            }
            state.set_idle(key, None);
            // Not bound after all: a refusal of its grant is of the past, and so is an
            // agent's wish that was followed.
            if let Some(row) = state.tasks.get_mut(key)
                && let Some(rare) = row.rare.if_any()
            {
                let at = (row.uid.clone(), key);
                rare.evicting = None;
                if !state.index.to_evict.contains(&at) {
                    rare.evict_request = None;
                }
                if rare.refused.take().is_some() && rare.evict_request.is_none() {
                    state.index.to_evict.remove(&at);
                }
            }
            TaskCell::of(Status::Pending)
        }
        Phase::Bound(placement) => placed(state, config, key, placement, Status::Bound, problems),
        Phase::Running(placement) => {
            let cell = placed(state, config, key, placement, Status::Running, problems);
            // One that runs on may be a victim that may not go yet.
            if before.status != Status::Running {
                state.end_pause(key);
            }
            for hold in cell.holds() {
                if let Some(row) = state.cards.get_mut(hold.card)
                    && let Some(pause) = row.pause.take()
                {
                    let node = row.node;
                    if let Some(until) = pause.until {
                        state.pauses.cards.remove(&(until, hold.card));
                    }
                    state.touch_node(node);
                }
            }
            cell
        }
        Phase::Releasing(Some(placement)) => {
            placed(state, config, key, placement, Status::Releasing, problems)
        }
        Phase::Stuck(placement) => placed(state, config, key, placement, Status::Stuck, problems),
        // Deleted while its binding was under way: it may have been bound.
        Phase::Releasing(None)
            if before.status == Status::Assumed || before.status == Status::Releasing =>
        {
            TaskCell {
                status: Status::Releasing,
                decision: None,
                ..before.clone()
            }
        }
        Phase::Releasing(None) | Phase::Succeeded | Phase::Failed => {
            // Nothing is left of it to evict.
            if let Some(row) = state.tasks.get_mut(key)
                && let Some(rare) = row.rare.if_any()
            {
                rare.refused = None;
                rare.evict_request = None;
                let uid = row.uid.clone();
                state.index.to_evict.remove(&(uid, key));
            }
            TaskCell::of(Status::Done)
        }
    }
}

/// Decisions that the API server has now answered by showing the pod.
fn settle(state: &mut State, key: TaskKey, status: Status) {
    if matches!(status, Status::Pending | Status::Assumed) {
        return;
    }
    state.open.bindings_seen(key);
}

fn placed(
    state: &mut State,
    config: &Config,
    key: TaskKey,
    placement: &Placement,
    status: Status,
    problems: &mut Vec<Problem>,
) -> TaskCell {
    let node = state.node(&placement.node);
    let Some((spec, uid, seen, refused, evicted)) = state.tasks.get(key).and_then(|row| {
        let spec = state.specs.get(row.spec)?;
        Some((
            Arc::clone(&spec.spec),
            row.uid.clone(),
            row.seen,
            row.rare.refused.as_ref().map(|refused| refused.stays),
            row.rare.evicting.is_some(),
        ))
    }) else {
        return TaskCell::of(status);
    };
    // Evicted, and seen once more before it leaves: pods that wait for its place still may.
    let status = match status {
        Status::Bound | Status::Running if evicted => Status::Releasing,
        other => other,
    };
    if let Some(stays) = refused {
        return TaskCell {
            status: match status {
                Status::Stuck => Status::Stuck,
                _ if stays && seen != Seen::Releasing => Status::Stuck,
                _ => Status::Releasing,
            },
            node: Some(node),
            front: placement.front,
            holds: None,
            decision: None,
            leaving: None,
        };
    }
    let managed = state
        .nodes
        .get(node)
        .and_then(|row| row.node.as_ref())
        .is_some_and(|node| node.managed);
    let by_plugin = placement.front == Front::Plugin;
    if placement.grants.is_empty() && !spec.gpus.is_empty() && managed && by_plugin {
        problems.push(Problem::NoGrant {
            pod: uid.of_pod(),
            node: placement.node.clone(),
        });
    }
    let holds = if placement.grants.is_empty() {
        Vec::new()
    } else {
        let uid = uid.of_pod();
        holds(
            state,
            config,
            (&uid, &spec.gpus),
            node,
            &placement.grants,
            problems,
        )
    };
    TaskCell {
        status,
        node: Some(node),
        front: placement.front,
        holds: (!holds.is_empty()).then(|| Arc::from(holds)),
        decision: None,
        leaving: None,
    }
}

/// Converts a grant into holds on cards, in the order in which the pod's containers start.
pub(super) fn holds(
    state: &mut State,
    config: &Config,
    (uid, asks): (&PodUid, &[ContainerAsk]),
    node: NodeKey,
    grants: &[ContainerGrant],
    problems: &mut Vec<Problem>,
) -> Vec<Hold> {
    let mut holds: Vec<Hold> = Vec::new();
    for grant in grants {
        for uuid in &grant.cards {
            let card = state.card(uuid, node);
            let Some(row) = state.cards.get(card) else {
                continue;
            };
            if row.node != node {
                problems.push(Problem::UnknownCard {
                    pod: uid.clone(),
                    card: uuid.clone(),
                });
                continue;
            }
            if row.card.is_none() && state.nodes.get(node).is_some_and(|row| row.agent.is_some()) {
                problems.push(Problem::UnknownCard {
                    pod: uid.clone(),
                    card: uuid.clone(),
                });
            }
            let hold = Hold {
                container: grant.container.clone(),
                init: false,
                card,
                limit: grant.memory,
                burst: grant.burst.filter(|most| *most > grant.memory),
                nominal: grant.memory,
                nano: 0,
                compute: grant.compute,
                mode: grant.mode,
                note: grant.note.clone(),
                asked: grant.asked,
            };
            holds.push(worth(state, config, hold));
        }
    }
    take_turns(asks, holds)
}

/// Sorts the holds of a pod into the order in which its containers start, and marks those of init
/// containers, by the pod's present request.
fn take_turns(asks: &[ContainerAsk], mut holds: Vec<Hold>) -> Vec<Hold> {
    let place = |hold: &Hold| asks.iter().position(|ask| ask.container == hold.container);
    for hold in &mut holds {
        let ask = place(hold).and_then(|place| asks.get(place));
        hold.init = ask.is_some_and(|ask| ask.init);
    }
    // Stable: the cards of a container stay in the grant's order. A container that asks for none
    // any more is last.
    holds.sort_by_key(|hold| place(hold).unwrap_or(usize::MAX));
    holds
}

/// What its place has to do with other pods'. Of one that is not ours only what its terms do to
/// others.
fn others_of(state: &mut State, pod: &Pod) -> Option<Arc<PodRelations>> {
    if pod.pods.is_empty() && state.cells.pod_counts.is_empty() {
        return None;
    }
    let labels = state.interner.labels(&pod.labels);
    if !pod.ours {
        let rules = PodRules {
            anti_affinity: pod.pods.anti_affinity.clone(),
            preferred: pod.pods.preferred.clone(),
            ..PodRules::default()
        };
        return PodRelations::of(rules, None, false, |term| {
            state
                .cells
                .pod_counts
                .speaks_of(term, &pod.namespace, &labels)
        });
    }
    let namespace = state.interner.text(&pod.namespace);
    let subject = state.subject(&namespace, &labels, &pod.pods);
    PodRelations::of(pod.pods.clone(), subject, true, |term| {
        state.cells.pod_counts.speaks_of(term, &namespace, &labels)
    })
}

/// The request signature, and what is invalid in it.
fn spec_of(state: &mut State, pod: &Pod, problems: &mut Vec<Problem>) -> Spec {
    let mut bad = None;
    for ask in &pod.gpus {
        let what = match &ask.ask {
            Ask::Whole(count) if *count > MOST_DEVICES => Some("more GPUs than any node has"),
            Ask::Share(share) if share.devices == 0 => {
                Some("fraction count annotation value must be a positive integer greater than 0")
            }
            Ask::Share(share) if share.devices > MOST_DEVICES => {
                Some("more devices than any node has")
            }
            Ask::Share(share) => match share.amount {
                Amount::Memory(Mib(0)) => {
                    Some("gpu-memory annotation value must be a positive integer greater than 0")
                }
                Amount::Fraction(part) if part.0 == 0 || part > NanoGpu::ONE => {
                    Some("gpu-fraction annotation value must be a positive number smaller than 1.0")
                }
                _ => match share.mode {
                    Some(crate::model::Mode::Exclusive) => {
                        Some("a share cannot be in mode exclusive")
                    }
                    _ => None,
                },
            },
            Ask::Whole(_) => None,
        };
        if let Some(what) = what {
            problems.push(Problem::BadRequest {
                pod: pod.uid.clone(),
                container: ask.container.clone(),
                what: Arc::from(what),
            });
            bad.get_or_insert(Arc::from(what));
        }
    }
    Spec {
        cpu: pod.cpu,
        memory: pod.memory,
        extended: pod.extended.clone(),
        gpus: pod.gpus.clone(),
        aligned: pod.aligned.clone(),
        claims: pod.claims.clone(),
        attachments: pod.attachments.clone(),
        devices: pod.devices.iter().map(ClaimAsk::of).collect(),
        rules: pod.nodes.clone(),
        tolerations: pod.tolerations.clone(),
        ports: pod.ports.clone(),
        others: others_of(state, pod),
        unsupported: pod.unsupported.clone(),
        lacks: pod.lacks.clone(),
        bad,
    }
}
