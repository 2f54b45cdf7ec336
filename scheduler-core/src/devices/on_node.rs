//! The devices of one node, and whether each of them will do for a request.

use crate::devices::amount;
use crate::devices::reason::DeviceReason;
use crate::ids::{DeviceId, GpuUuid};
use crate::model::{Alternative, Device, DeviceNodes, DeviceTaint, Front, Node, PoolFault};
use crate::state::State;
use crate::state::devices::usage::{Free, Sum};
use crate::state::devices::{Devices, PoolRow};
use crate::state::keys::NodeKey;
use crate::state::spec::Spec;
use std::collections::{BTreeMap, BTreeSet};

/// A device that the node can use.
pub(super) struct Candidate<'a> {
    pub(super) id: &'a DeviceId,
    pub(super) pool: &'a PoolRow,
    pub(super) device: &'a Device,
    /// By others.
    pub(super) used: Sum,
    /// Its card is another front's.
    pub(super) front: Option<DeviceReason>,
}

/// The devices of a node, pool by pool: those whose driver has to make something ready last.
pub(super) struct OnNode<'a> {
    pub(super) candidates: Vec<Candidate<'a>>,
    /// A pool that is not as it should be.
    pub(super) fault: Option<(&'a PoolRow, &'a PoolFault)>,
    pub(crate) devices: &'a Devices,
    pub(crate) free: Free,
}

impl<'a> OnNode<'a> {
    /// `by_annotation`: their pod asks for cards so, too.
    pub(super) fn of(state: &'a State, key: NodeKey, free: Free, by_annotation: bool) -> Self {
        let devices = &state.devices;
        let mut found = Self {
            candidates: Vec::new(),
            fault: None,
            devices,
            free,
        };
        let row = state.nodes.get(key);
        let Some(node) = row.and_then(|row| row.node.as_ref()) else {
            return found;
        };
        let mut late = Vec::new();
        for pool in devices.pools_of(&node.name) {
            let mut here = pool.devices_on(node).peekable();
            if here.peek().is_none() && !pool.blocks_all() {
                continue;
            }
            if let Some(fault) = &pool.pool.fault {
                found.fault.get_or_insert((pool, fault));
                continue;
            }
            let candidates: Vec<Candidate> = here
                .map(|(id, device)| Candidate {
                    used: devices.used(id, free),
                    front: device
                        .card
                        .as_ref()
                        .and_then(|card| other_front(state, key, card, free, by_annotation)),
                    id,
                    pool,
                    device,
                })
                .collect();
            if candidates.iter().any(|one| one.device.waits) {
                late.extend(candidates);
            } else {
                found.candidates.extend(candidates);
            }
        }
        found.candidates.extend(late);
        found
    }

    /// Allocated devices of the pool that consume counters.
    pub(super) fn consumers(&self, pool: &'a PoolRow) -> impl Iterator<Item = &'a Device> {
        let (devices, free) = (self.devices, self.free);
        let consume = pool.all().filter(|(_, device)| !device.consumes.is_empty());
        consume
            .filter(move |(id, _)| devices.used(id, free).is_held())
            .map(|(_, device)| device)
    }
}

/// A card has one front at a time, and a pod has one for all cards: grants by annotation exclude
/// claims.
fn other_front(
    state: &State,
    node: NodeKey,
    card: &GpuUuid,
    free: Free,
    by_annotation: bool,
) -> Option<DeviceReason> {
    if by_annotation {
        return Some(DeviceReason::OtherFront);
    }
    let key = state.names.cards.on(card, node);
    let used = key.and_then(|key| state.cells.cards.get(key));
    let granted = used.is_some_and(|used| match free {
        Free::Now => used.holders() > 0,
        Free::Later => used.after().holds() > 0,
        Free::Whatever => false,
    });
    granted.then_some(DeviceReason::Granted)
}

/// A taint that the request does not tolerate.
pub(super) fn taint<'a>(device: &'a Device, ask: &Alternative) -> Option<&'a DeviceTaint> {
    let tolerated = |taint: &DeviceTaint| ask.tolerations.iter().any(|one| one.tolerates(taint));
    let mut taints = device.taints.iter();
    taints.find(|taint| taint.keeps_away() && !tolerated(taint))
}

/// Whether the device alone would do, with what others hold of it.
pub(super) fn will_do(candidate: &Candidate, ask: &Alternative) -> Result<(), DeviceReason> {
    let device = candidate.device;
    if !device.selected_by.contains(&ask.filter) {
        return Err(DeviceReason::NotSelected);
    }
    if let Some(taint) = taint(device, ask) {
        return Err(DeviceReason::Taint(taint.clone()));
    }
    if let Some(front) = &candidate.front {
        return Err(front.clone());
    }
    let dedicated = candidate.used.whole > 0 || !device.shared && candidate.used.shares > 0;
    if !ask.admin && dedicated {
        return Err(DeviceReason::InUse);
    }
    amount::fits(device, ask, &candidate.used.taken)
}

/// Devices of a node that the filter selects and that will not do, and why.
pub(crate) fn lines(
    state: &State,
    key: NodeKey,
    ask: &Alternative,
    by_annotation: bool,
) -> Vec<(DeviceId, DeviceReason)> {
    let on_node = OnNode::of(state, key, Free::Now, by_annotation);
    let no = |candidate: Candidate| {
        let why = will_do(&candidate, ask).err()?;
        (why != DeviceReason::NotSelected).then(|| (candidate.id.clone(), why))
    };
    on_node.candidates.into_iter().filter_map(no).collect()
}

/// Returns, for each card of the node that is a device or part of one, whether a claim of the pod
/// has it or could get it, alone and now. The map is empty if the pod claims none of the cards.
pub(crate) fn by_card(
    state: &State,
    key: NodeKey,
    spec: &Spec,
    front: Front,
) -> BTreeMap<GpuUuid, Result<(), DeviceReason>> {
    let asks = spec.devices.iter();
    let asks = asks.filter(|ask| !ask.stands_in || front == Front::Claim);
    let (mut own, mut wanted) = (BTreeSet::new(), Vec::new());
    for ask in asks {
        let claim = ask.claim.as_ref();
        match claim.and_then(|claim| state.devices.devices_of(claim)) {
            Some((devices, _)) => own.extend(devices.iter().map(|one| one.device.clone())),
            None => wanted.extend(ask.wants.requests.iter().flat_map(|one| &one.alternatives)),
        }
    }
    let mut cards = BTreeMap::new();
    if own.is_empty() && wanted.is_empty() {
        return cards;
    }
    let on_node = OnNode::of(state, key, Free::Now, spec.is_by_annotation(front));
    for candidate in on_node.candidates {
        let Some(card) = &candidate.device.card else {
            continue;
        };
        let answers = wanted.iter().map(|ask| will_do(&candidate, ask));
        let first = answers.reduce(|one, next| one.or_else(|no| next.map_err(|_| no)));
        let answer = match first {
            _ if own.contains(candidate.id) => Ok(()),
            Some(answer) => answer,
            None => Err(DeviceReason::NotSelected),
        };
        let known = cards.entry(card.clone()).or_insert_with(|| answer.clone());
        if known.is_err() && answer.is_ok() {
            *known = answer;
        }
    }
    let selected = |answer: &Result<(), DeviceReason>| *answer != Err(DeviceReason::NotSelected);
    if !cards.values().any(selected) {
        cards.clear();
    }
    cards
}

/// GPUs of the node alone that no agent counts, for what queues divide.
pub(crate) fn gpus(devices: &Devices, node: &Node) -> u128 {
    if devices.is_empty() {
        return 0;
    }
    let is_own = |device: &Device| {
        device.gpu && matches!(&device.nodes, DeviceNodes::Node(name) if *name == node.name)
    };
    let count = |pool: &PoolRow| {
        let own = pool.devices_on(node).filter(|(_, device)| is_own(device));
        own.count() as u128
    };
    devices.pools_of(&node.name).map(count).sum()
}
