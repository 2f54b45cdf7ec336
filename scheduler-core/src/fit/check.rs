//! Whether one node takes a pod: its rules, its countable resources, volumes, devices and cards, in this
//! order.

use crate::config::Config;
use crate::devices::{self, ClaimsReason};
use crate::fit::resources::{Room, attachments, resources};
use crate::fit::rules::{mig, rules};
use crate::fit::seating::Assignment;
use crate::fit::{assignment, numa, pods};
use crate::model::{Front, Node};
use crate::reason::{CardLine, NodeReason, NodeVerdict};
use crate::state::State;
use crate::state::keys::NodeKey;
use crate::state::rows::NodeRow;
use crate::state::spec_row::SpecRow;

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

pub(super) fn announced(state: &State, key: NodeKey) -> Option<(&NodeRow, &Node)> {
    let row = state.nodes.get(key)?;
    Some((row, row.node.as_ref()?))
}

/// What a node must have beside its own rules and free cards: countable resources, volumes,
/// devices, and the MIG strategy. Says how the node would give whole GPUs.
pub(super) fn before_cards(
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
