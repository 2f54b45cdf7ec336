//! Feasibility: every rule of a node and of its cards, with a typed reason for each refusal.
//!
//! Input: the state, a request signature, a node. Output: an [`Assignment`], or why there is none.
//! Changes nothing; decisions and explanations use the same functions.
//! - here: rules of the node, its countable resources, and usable volumes.
//! - [`crate::devices`]: devices for the pod's claims.
//! - [`pods`]: rules between pods, and host ports.
//! - [`card`]: one card, whole or shared.
//! - [`numa`]: would the kubelet align the pod to NUMA zones.
//! - [`assignment`]: which cards of the node.
//! - [`each_card`]: which cards of a node that fits have no room themselves.
//! - [`free`]: what of a node's GPUs is free, in sum.
//! - [`back`]: whether a victim fits on the cards that it is leaving.
//! - [`after_evictions`]: could the pod fit at all, whichever pods are evicted.
//!
//! Each answer covers two moments: an assignment may be free `now`, or only once terminating pods
//! have ended, less existing promises.

mod after_evictions;
pub(crate) mod assignment;
mod back;
pub(crate) mod card;
mod chosen;
pub(crate) mod each_card;
pub(crate) mod free;
mod numa;
pub(crate) mod pods;

use crate::config::Config;
use crate::devices::{self, ClaimsReason};
use crate::ids::ResourceName;
use crate::model::{Effect, Front, Node, NodeRules, Taint, Toleration};
use crate::reason::{CardLine, NodeReason, NodeVerdict};
use crate::state::State;
use crate::state::cell::Amounts;
use crate::state::keys::NodeKey;
use crate::state::rows::{MigStrategy, MissingLabels, NodeRow, Spec, SpecRow};
pub(crate) use after_evictions::could_fit;
pub(crate) use assignment::Assignment;
pub(crate) use back::fits_back;
pub(crate) use chosen::choose_whole;
use std::collections::BTreeMap;
use std::sync::Arc;

/// MiB that one GPU of a product counts for in queues, where the configuration says so.
pub(crate) type Bases = BTreeMap<String, u64>;

/// Everything that a node must say yes to.
pub(crate) fn node(
    state: &State,
    spec: &SpecRow,
    key: NodeKey,
    config: &Config,
    promise: bool,
) -> Result<Assignment, NodeVerdict> {
    let no = |why: Vec<NodeReason>| NodeVerdict {
        why,
        cards: Vec::new(),
    };
    let Some((row, node)) = announced(state, key) else {
        return Err(no(vec![NodeReason::Unschedulable]));
    };
    rules(row, &spec.spec, spec.is_gpu_work()).map_err(|why| no(vec![why]))?;
    let mut room = Room { now: true, promise };
    let front = before_cards(state, spec, key, node, &mut room).map_err(|why| NodeVerdict {
        cards: device_lines(state, spec, key, &why),
        why,
    })?;
    assignment::cards(state, spec, key, config, front, room)
}

/// What the node says to it, without a seat or words of its cards: the same as [`node`] asked
/// for real. `None`: nothing is known of the node.
pub(crate) fn why(
    state: &State,
    spec: &SpecRow,
    key: NodeKey,
    config: &Config,
) -> Option<Result<(), Vec<NodeReason>>> {
    let (row, announced) = announced(state, key)?;
    if spec.shares {
        let assignment = node(state, spec, key, config, false);
        return Some(assignment.map(drop).map_err(|no| no.why));
    }
    let mut room = Room {
        now: true,
        promise: false,
    };
    let open = rules(row, &spec.spec, spec.is_gpu_work()).map_err(|why| vec![why]);
    let open = open.and_then(|()| before_cards(state, spec, key, announced, &mut room));
    Some(open.and_then(|front| {
        assignment::whole(state, spec, key, announced, front).map_err(|why| vec![why])
    }))
}

fn announced(state: &State, key: NodeKey) -> Option<(&NodeRow, &Node)> {
    let row = state.nodes.get(key)?;
    Some((row, row.node.as_ref()?))
}

/// What a node must have beside its own rules and free cards: countable resources, volumes,
/// devices, and the MIG strategy. Says how the node would give whole GPUs.
fn before_cards(
    state: &State,
    spec: &SpecRow,
    key: NodeKey,
    node: &Node,
    room: &mut Room,
) -> Result<Front, Vec<NodeReason>> {
    let short = resources(state, spec, key, node, room);
    if !short.is_empty() {
        return Err(short);
    }
    if !pods::ports(state, spec, key, room) {
        return Err(vec![NodeReason::Ports]);
    }
    if !attachments(state, spec, key, node, room) {
        return Err(vec![NodeReason::VolumeLimit]);
    }
    pods::let_in(state, spec, key, node, room).map_err(|why| vec![why])?;
    if !spec.spec.claims.is_empty() {
        let picked = state.volumes.pick(&spec.spec.claims, key);
        picked.map_err(|why| vec![why])?;
    }
    let mut front = Front::Plugin;
    if !spec.spec.devices.is_empty() {
        front = front_of(state, spec, key, node);
        let found = state.find_devices(&spec.spec, key, front);
        room.now &= found.map_err(|why| vec![NodeReason::Devices(why)])?;
    }
    if spec.wants_gpus() {
        mig(state, spec, key).map_err(|why| vec![why])?;
    }
    if node.aligns && numa::is_unknown(state, key) && !spec.spec.aligned.is_empty() {
        return Err(vec![NodeReason::AgentSilent]);
    }
    if !numa::admits(state, &spec.spec, key, front, room) {
        return Err(vec![NodeReason::NumaAlignment]);
    }
    Ok(front)
}

/// How the node would give the pod its whole GPUs. By its device plugin where that lists any, as
/// kube-scheduler does; where it lists none, by the claim that stands in for them. A plugin that
/// lists none while all cards are shared will list some when the shares have left: that counts
/// where the claim has no devices.
fn front_of(state: &State, spec: &SpecRow, key: NodeKey, node: &Node) -> Front {
    if spec.either == 0 || node.gpus > 0 || !state.has_devices(node) {
        return Front::Plugin;
    }
    let by_claim = state.find_devices(&spec.spec, key, Front::Claim).is_ok();
    if by_claim || assignment::whole(state, spec, key, node, Front::Plugin).is_err() {
        Front::Claim
    } else {
        Front::Plugin
    }
}

/// A line for each device that will not do for the request for which there is none.
fn device_lines(state: &State, spec: &SpecRow, key: NodeKey, why: &[NodeReason]) -> Vec<CardLine> {
    let [NodeReason::Devices(ClaimsReason::Request(name))] = why else {
        return Vec::new();
    };
    let requests = spec.spec.devices.iter().flat_map(|ask| &ask.wants.requests);
    let stuck = requests.filter(|request| request.name == *name);
    // Only a claim that stands in has none where another front might.
    let by_annotation = spec.spec.is_by_annotation(Front::Claim);
    let lines = stuck
        .flat_map(|request| &request.alternatives)
        .flat_map(|ask| devices::lines(state, key, ask, by_annotation));
    lines.map(|(id, no)| CardLine::Device(id, no)).collect()
}

/// Whether countable resources are free now, or only later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub now: bool,
    /// The pod is to be promised a place only, even if it is free.
    pub promise: bool,
}

/// Rules of the node that no pod's coming or going changes; `gpus`: the pod wants some.
pub(crate) fn rules(row: &NodeRow, spec: &Spec, gpus: bool) -> Result<(), NodeReason> {
    let Some(node) = &row.node else {
        return Err(NodeReason::Unschedulable);
    };
    if let Some(why) = node.not_ready.first() {
        return Err(NodeReason::NotReady(Arc::clone(why)));
    }
    if node.unschedulable && !tolerates_unschedulable(&spec.tolerations) {
        return Err(NodeReason::Unschedulable);
    }
    if let Some(taint) = taint(node, spec) {
        return Err(NodeReason::Taint(taint.clone()));
    }
    if !selects(&spec.rules, node) {
        return Err(NodeReason::Selector);
    }
    match (&row.lacks, gpus) {
        (
            MissingLabels {
                gpu: Some(label), ..
            },
            true,
        ) => Err(NodeReason::NoGpuWorker(Arc::clone(label))),
        (
            MissingLabels {
                cpu: Some(label), ..
            },
            false,
        ) => Err(NodeReason::NoCpuWorker(Arc::clone(label))),
        _ => Ok(()),
    }
}

/// A taint that keeps the pod away.
pub(crate) fn taint<'a>(node: &'a Node, spec: &Spec) -> Option<&'a Taint> {
    let mut taints = untolerated(node, spec);
    taints.find(|taint| taint.effect != Effect::PreferNoSchedule)
}

/// Taints of the node that prefer other pods.
pub(crate) fn soft_taints(node: &Node, spec: &Spec) -> usize {
    let taints = untolerated(node, spec);
    taints
        .filter(|taint| taint.effect == Effect::PreferNoSchedule)
        .count()
}

fn untolerated<'a>(node: &'a Node, spec: &Spec) -> impl Iterator<Item = &'a Taint> {
    let tolerated = |taint: &Taint| spec.tolerations.iter().any(|one| one.tolerates(taint));
    node.taints.iter().filter(move |taint| !tolerated(taint))
}

/// What a node's MIG strategy lets in (KAI's `PredicateByNodeResourcesType`).
fn mig(state: &State, spec: &SpecRow, key: NodeKey) -> Result<(), NodeReason> {
    let Some(row) = state.nodes.get(key) else {
        return Ok(());
    };
    if spec.mig_nano > 0 && row.mig != MigStrategy::Off && has_legacy_mig(state, key) {
        return Err(NodeReason::LegacyMig);
    }
    mig_strategy(row, spec)
}

/// The same without the pods that hold slices, which may be evicted. A node with an agent may have
/// cards beside those in MIG mode: there the cards decide.
pub(super) fn mig_strategy(row: &NodeRow, spec: &SpecRow) -> Result<(), NodeReason> {
    let wants_profile = spec.mig_nano > 0;
    let by_card = row.node.as_ref().is_some_and(|node| node.managed);
    match row.mig {
        MigStrategy::Off if wants_profile => Err(NodeReason::NotMig),
        MigStrategy::Single if wants_profile || spec.shares => Err(NodeReason::MigSingle),
        MigStrategy::Mixed if !wants_profile && !by_card => Err(NodeReason::MigMixed),
        _ => Ok(()),
    }
}

/// A pod that KAI placed by a legacy annotation holds MIG slices that are not counted.
fn has_legacy_mig(state: &State, key: NodeKey) -> bool {
    state.on_node.get(key).into_iter().flatten().any(|task| {
        state
            .tasks
            .get(*task)
            .and_then(|row| state.specs.get(row.spec))
            .is_some_and(|spec| {
                let rules = &spec.spec.unsupported;
                rules.iter().any(|rule| **rule == *crate::model::LEGACY_MIG)
            })
    })
}

/// Kubernetes' own taint for the flag.
fn tolerates_unschedulable(tolerations: &[Toleration]) -> bool {
    let taint = Taint {
        key: Arc::from("node.kubernetes.io/unschedulable"),
        value: Arc::from(""),
        effect: Effect::NoSchedule,
    };
    tolerations
        .iter()
        .any(|toleration| toleration.tolerates(&taint))
}

/// The pod's own node rules admit the node.
pub(crate) fn selects(rules: &NodeRules, node: &Node) -> bool {
    rules
        .selector
        .iter()
        .all(|(key, value)| node.labels.get(key) == Some(value))
        && rules
            .terms
            .as_ref()
            .is_none_or(|terms| terms.iter().any(|term| term.matches(node)))
}

/// One countable resource: total, allocated, being released and promised.
fn has_room(room: &mut Room, has: u64, [used, leaving, promised]: [u128; 3], wanted: u64) -> bool {
    let (has, wanted) = (u128::from(has), u128::from(wanted));
    if wanted == 0 {
        return true;
    }
    room.now &= used + wanted <= has;
    used + promised + wanted <= has + leaving
}

/// Volumes that are attached to the node, and those that the pod brings: kube-scheduler's
/// `NodeVolumeLimits`.
fn attachments(state: &State, spec: &SpecRow, key: NodeKey, node: &Node, room: &mut Room) -> bool {
    let used = |name: &ResourceName| {
        let used = state.extra_use.get(&(key, name.clone()));
        used.copied().unwrap_or_default()
    };
    // Of each driver: volumes that are not attached now, and those that will not be.
    let mut brings: BTreeMap<&ResourceName, [u128; 2]> = BTreeMap::new();
    for [pods, volumes] in &spec.attached {
        if !node.extended.contains_key(volumes) {
            continue;
        }
        let pods = used(pods);
        let [now, later] = brings.entry(volumes).or_default();
        *now += u128::from(pods.used == 0);
        *later += u128::from(!pods.stays());
    }
    brings.into_iter().all(|(volumes, [now, later])| {
        let has = u128::from(node.extended.get(volumes).copied().unwrap_or(0));
        let all = used(volumes);
        room.now &= now == 0 || all.used + now <= has;
        // A node that has more than its limit takes a pod with a volume that is attached, also
        // where the pods that have it leave.
        let stays_attached = now == 0 && room.now && !room.promise;
        stays_attached || later == 0 || all.used + all.promised + later <= has + all.releasing
    })
}

/// What a share requests from the kubelet besides its card's memory.
const SHARE_TOKEN: &str = "aliquot.dev/gpu-share";

/// How many of them there will be is what the node's cards say, once they are free.
fn is_token(node: &Node, name: &ResourceName) -> bool {
    node.managed && name.as_str() == SHARE_TOKEN
}

/// CPU, memory, pods and other resources that are short.
fn resources(
    state: &State,
    spec: &SpecRow,
    key: NodeKey,
    node: &Node,
    room: &mut Room,
) -> Vec<NodeReason> {
    let used = state.node_use.get(key).copied().unwrap_or_default();
    let of = |field: fn(&Amounts) -> u128| {
        [
            field(&used.used),
            field(&used.releasing),
            field(&used.promised),
        ]
    };
    let mut short = Vec::new();
    if !has_room(room, node.pods, of(|sums| sums.pods), 1) {
        short.push(NodeReason::Pods);
    }
    if !has_room(room, node.cpu.0, of(|sums| sums.cpu), spec.spec.cpu.0) {
        short.push(NodeReason::Cpu);
    }
    if !has_room(
        room,
        node.memory.0,
        of(|sums| sums.memory),
        spec.spec.memory.0,
    ) {
        short.push(NodeReason::Memory);
    }
    for (name, amount) in &spec.spec.extended {
        let taken = state
            .extra_use
            .get(&(key, name.clone()))
            .copied()
            .unwrap_or_default();
        let has = node.extended.get(name).copied().unwrap_or(0);
        let sums = [taken.used, taken.releasing, taken.promised];
        if is_token(node, name) {
            // The agent takes a card's tokens back while it is held whole, and gives them
            // out again after: how many there will be is what the cards' slots say.
            room.now &= taken.used + u128::from(*amount) <= u128::from(has);
            continue;
        }
        if !has_room(room, has, sums, *amount) {
            short.push(NodeReason::Extended(name.clone()));
        }
    }
    short
}
