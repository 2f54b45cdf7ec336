//! Countable resources of the node: CPU, memory, pods, extended resources and attached volumes.

use crate::ids::ResourceName;
use crate::model::Node;
use crate::reason::NodeReason;
use crate::state::State;
use crate::state::keys::NodeKey;
use crate::state::node_use::Amounts;
use crate::state::spec_row::SpecRow;
use std::collections::BTreeMap;

/// Whether countable resources are free now, or only later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub now: bool,
    /// The pod is to be promised a place only, even if it is free.
    pub promise: bool,
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
pub(super) fn attachments(
    state: &State,
    spec: &SpecRow,
    key: NodeKey,
    node: &Node,
    room: &mut Room,
) -> bool {
    let used = |name: &ResourceName| {
        let used = state.cells.extra.get(&(key, name.clone()));
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
pub(super) fn is_token(node: &Node, name: &ResourceName) -> bool {
    node.managed && name.as_str() == SHARE_TOKEN
}

/// CPU, memory, pods and other resources that are short.
pub(super) fn resources(
    state: &State,
    spec: &SpecRow,
    key: NodeKey,
    node: &Node,
    room: &mut Room,
) -> Vec<NodeReason> {
    let used = state.cells.nodes.get(key).copied().unwrap_or_default();
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
            .cells
            .extra
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
