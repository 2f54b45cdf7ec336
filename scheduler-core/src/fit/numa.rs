//! Would the node's kubelet align the pod, or refuse it with `TopologyAffinityError`?
//!
//! Input: the state, a request, a node, whose agent has said that its topology manager refuses
//! pods. Changes nothing. [`merge`] is the kubelet's rule for one container (or pod, by its scope)
//! when its CPU, memory and device managers give their hints.
//!
//! Which zone a pod has is known once the agent has reported it. Until then the kubelet may not
//! have admitted it, and it may admit several such pods in any order. A pod is placed beside them
//! only if all of them fit in every order.

use crate::fit::card;
use crate::fit::resources::Room;
use crate::model::{
    AlignedContainer, Ask, Front, NumaUse, NumaZone, Pool, TopologyManager, TopologyPolicy,
    TopologyScope,
};
use crate::state::State;
use crate::state::hold::Hold;
use crate::state::keys::{CardKey, NodeKey, TaskKey};
use crate::state::rows::NodeRow;
use crate::state::spec::Spec;
use crate::state::task_cell::TaskCell;
use crate::state::uid::Uid;
use crate::state::way::As;

/// What the topology manager has hints of: exclusive CPUs, bytes of pinned memory, whole GPUs,
/// tokens of shares.
const CPUS: usize = 0;

const MEMORY: usize = 1;

const GPUS: usize = 2;

const SHARES: usize = 3;

type Need = [u64; 4];

/// A card has more share tokens than shares fit on it: they never run out in a zone.
const TOKENS: u64 = 1 << 20;

/// A set of zones, by their place in the list.
type Mask = u8;

/// One zone at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Zone {
    total: Need,
    free: Need,
    /// The zones with which it shares pinned memory, itself too; 0: none is pinned.
    group: Mask,
}

/// Now, or once all that is leaving has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Now,
    Later,
}

impl Moment {
    fn counts(self, how: As) -> bool {
        match how {
            As::Taken => true,
            As::Leaving => self == Self::Now,
            As::Promised => self == Self::Later,
        }
    }
}

/// A node at one moment.
struct Node {
    /// Without what [`Self::unreported`] have.
    zones: Vec<Zone>,
    /// What each pod wants whose zones the agent has not reported, and its cards.
    unreported: Vec<(Items, Vec<CardKey>)>,
}

/// What is aligned of a pod, one by one. None: nothing.
#[derive(Clone, Debug, Default)]
struct Items {
    /// In order, at the same time.
    apps: Vec<Need>,
    /// Before them, one after the other, and lent to them.
    inits: Vec<Need>,
}

/// False: the pod would be refused, or might be. `room`: whether it would not be now.
pub(super) fn admits(
    state: &State,
    spec: &Spec,
    key: NodeKey,
    front: Front,
    room: &mut Room,
) -> bool {
    let Some((row, manager)) = aligning(state, key) else {
        return true;
    };
    let wants = Items::of(spec, front, row, manager, state);
    if wants.is_none() {
        return true;
    }
    let at =
        |moment| Node::at(state, key, row, manager, moment, None).takes(manager.policy, &wants);
    room.now = room.now && at(Moment::Now);
    at(Moment::Later)
}

/// Whether the empty node could align each of its parts. An upper bound of [`admits`].
pub(super) fn could_admit(state: &State, spec: &Spec, key: NodeKey, front: Front) -> bool {
    let Some((row, manager)) = aligning(state, key) else {
        return true;
    };
    let wants = Items::of(spec, front, row, manager, state);
    let mut zones: Vec<Zone> = manager.zones.iter().map(zone).collect();
    add_cards(state, row, manager, &mut zones, &mut |_, _| true);
    let mut all = wants.inits.iter().chain(&wants.apps);
    all.all(|need| merge(&zones, manager.policy, need).is_some())
}

/// The zones whose cards the pod's GPUs should be of: those that the kubelet will take, as far as
/// that is known. `None`: any. `task`: the pod, where it stands on the node already.
pub(super) fn zones_of_cards(
    state: &State,
    spec: &Spec,
    key: NodeKey,
    task: Option<TaskKey>,
) -> Option<Vec<u32>> {
    let (row, manager) = aligning(state, key)?;
    let wants = Items::of(spec, Front::Plugin, row, manager, state);
    let mut node = Node::at(state, key, row, manager, Moment::Now, task);
    // Of those that are not reported: where their cards are, else where the kubelet would put
    // them if it came to them in this order.
    for (items, cards) in std::mem::take(&mut node.unreported) {
        let numa = cards
            .first()
            .and_then(|card| numa_of(state, manager, *card));
        for need in &items.apps {
            let mask = match numa {
                Some(at) => Some(1 << at),
                None => merge(&node.zones, manager.policy, need),
            };
            take(&mut node.zones, mask.unwrap_or(0), need);
        }
    }
    let mut mask = 0;
    for need in &wants.apps {
        let zones = merge(&node.zones, manager.policy, need)?;
        take(&mut node.zones, zones, need);
        if need[GPUS] > 0 || need[SHARES] > 0 {
            mask |= zones;
        }
    }
    (mask != 0).then(|| {
        let zones = manager.zones.iter().enumerate();
        let zones = zones.filter(|(at, _)| mask & (1 << at) != 0);
        zones.map(|(_, zone)| zone.id).collect()
    })
}

/// No agent has reported the node's zones yet.
pub(super) fn is_unknown(state: &State, key: NodeKey) -> bool {
    let row = state.nodes.get(key);
    row.is_some_and(|row| row.agent.is_none() && row.topology_manager.is_none())
}

fn aligning(state: &State, key: NodeKey) -> Option<(&NodeRow, &TopologyManager)> {
    let row = state.nodes.get(key)?;
    Some((row, row.topology_manager.as_deref()?))
}

impl Items {
    fn is_none(&self) -> bool {
        self.apps.is_empty() && self.inits.is_empty()
    }

    fn of(
        spec: &Spec,
        front: Front,
        row: &NodeRow,
        manager: &TopologyManager,
        state: &State,
    ) -> Self {
        let mut items = Self::default();
        if spec.aligned.is_empty() && spec.gpus.is_empty() {
            return items;
        }
        // Without a zone of any card, the device plugin gives no hints.
        let hinted = manager.zones.is_empty()
            || row
                .cards
                .iter()
                .any(|card| numa_of(state, manager, *card).is_some());
        let by_claim = front == Front::Claim && spec.stands_in();
        let need = |one: &AlignedContainer| {
            let mut need = [0; 4];
            if manager.cpu_manager {
                need[CPUS] = u64::from(one.cpus);
            }
            if manager.memory_manager {
                need[MEMORY] = one.memory.0;
            }
            if hinted {
                need[GPUS] = if by_claim { 0 } else { u64::from(one.gpus) };
                need[SHARES] = u64::from(one.shares);
            }
            need
        };
        let of_gpus = spec.gpus.iter().map(|ask| match &ask.ask {
            Ask::Whole(gpus) => AlignedContainer {
                init: ask.init,
                gpus: *gpus,
                ..AlignedContainer::default()
            },
            Ask::Share(share) => AlignedContainer {
                init: ask.init,
                shares: share.devices,
                ..AlignedContainer::default()
            },
        });
        let gpus_alone: Vec<AlignedContainer> = if spec.aligned.is_empty() {
            of_gpus.collect()
        } else {
            Vec::new()
        };
        for one in spec.aligned.iter().chain(&gpus_alone) {
            let need = need(one);
            if need == [0; 4] {
                continue;
            }
            if one.init {
                items.inits.push(need);
            } else {
                items.apps.push(need);
            }
        }
        if manager.scope == TopologyScope::Pod && !items.is_none() {
            let sum = items.apps.iter().fold([0; 4], plus);
            let all = items.inits.iter().fold(sum, most);
            items = Self {
                apps: vec![all],
                inits: Vec::new(),
            };
        }
        items
    }
}

fn plus(sum: Need, one: &Need) -> Need {
    std::array::from_fn(|at| sum[at].saturating_add(one[at]))
}

fn most(sum: Need, one: &Need) -> Need {
    std::array::from_fn(|at| sum[at].max(one[at]))
}

fn zone(zone: &NumaZone) -> Zone {
    let total = [u64::from(zone.cpus), zone.memory.0, 0, 0];
    Zone {
        total,
        free: [u64::from(zone.allocatable_cpus), zone.memory.0, 0, 0],
        group: 0,
    }
}

/// The place of a card's zone in the list.
fn numa_of(state: &State, manager: &TopologyManager, key: CardKey) -> Option<usize> {
    let numa = state.cards.get(key)?.card.as_ref()?.numa?;
    manager.zones.iter().position(|zone| zone.id == numa)
}

/// Adds the cards to their zones. `is_free`: as a whole GPU, or, with true, for shares.
fn add_cards(
    state: &State,
    row: &NodeRow,
    manager: &TopologyManager,
    zones: &mut [Zone],
    is_free: &mut dyn FnMut(CardKey, bool) -> bool,
) {
    for key in &row.cards {
        let at = numa_of(state, manager, *key);
        let Some((zone, card)) = at
            .and_then(|at| zones.get_mut(at))
            .zip(state.cards.get(*key))
        else {
            continue;
        };
        let Some(facts) = &card.card else {
            continue;
        };
        if facts.mig || facts.pool == Pool::None {
            continue;
        }
        // What is unhealthy, or not offered now, still counts as there.
        zone.total[GPUS] += 1;
        if card::whole_in_time(state, card) && is_free(*key, false) {
            zone.free[GPUS] += 1;
        }
        if !facts.slice {
            zone.total[SHARES] += TOKENS;
            if card::usable(state, card).is_ok() && is_free(*key, true) {
                zone.free[SHARES] += TOKENS;
            }
        }
    }
}

impl Node {
    /// `without`: as if that pod did not stand there.
    fn at(
        state: &State,
        key: NodeKey,
        row: &NodeRow,
        manager: &TopologyManager,
        moment: Moment,
        without: Option<TaskKey>,
    ) -> Self {
        let mut zones: Vec<Zone> = manager.zones.iter().map(zone).collect();
        let mut unreported = Vec::new();
        let tasks = state.index.on_node.get(key).into_iter().flatten();
        for task in tasks.filter(|task| Some(**task) != without) {
            let (Some(cell), Some(row_of)) = (state.cells.tasks.get(*task), state.tasks.get(*task))
            else {
                continue;
            };
            let Some(spec) = state.specs.get(row_of.spec) else {
                continue;
            };
            for (node, how) in cell.taken() {
                if node != key || !moment.counts(how) {
                    continue;
                }
                let (front, holds) = place(cell, how);
                let items = Items::of(&spec.spec, front, row, manager, state);
                // A promise is never of what the kubelet has given.
                let is_known =
                    how != As::Promised && is_reported(state, manager, &row_of.uid, &items, &holds);
                if !items.is_none() && !is_known {
                    unreported.push((items, holds));
                }
            }
        }
        for used in &manager.used {
            if stands(state, key, used, moment) {
                subtract(&mut zones, manager, used);
            }
        }
        group(&mut zones, manager, |used| stands(state, key, used, moment));
        let known_later = |card: &CardKey| unreported.iter().any(|(_, cards)| cards.contains(card));
        add_cards(state, row, manager, &mut zones, &mut |key, shared| {
            let used = state.cells.cards.get(key).copied().unwrap_or_default();
            let sums = match moment {
                Moment::Now => used.held,
                Moment::Later => used.after(),
            };
            if shared {
                return sums.modes[0] == 0 || known_later(&key);
            }
            // Some time after its last share has left, the kubelet may give it whole again.
            let row = state.cards.get(key);
            let is_offered = row.is_some_and(|row| card::whole_usable(state, row).is_ok());
            (is_offered || moment == Moment::Later)
                && (sums.holds() == 0 || known_later(&key) && sums.modes[0] == 1)
        });
        Self { zones, unreported }
    }

    /// Whether the pod fits beside those that are not reported, in every order of them.
    fn takes(mut self, policy: TopologyPolicy, wants: &Items) -> bool {
        let others: Vec<Need> = self
            .unreported
            .iter()
            .flat_map(|(items, _)| items.apps.iter().chain(&items.inits).copied())
            .collect();
        let largest_init = wants.inits.iter().fold([0; 4], most);
        let all: Vec<Need> = others.iter().chain(&wants.apps).copied().collect();
        let alike = all.windows(2).all(|two| two[0] == two[1]);
        if others.is_empty() || alike && wants.inits.is_empty() {
            // The kubelet's way, in the one order that there is.
            return (wants.inits.iter()).all(|need| merge(&self.zones, policy, need).is_some())
                && all.iter().all(|need| {
                    let mask = merge(&self.zones, policy, need);
                    take(&mut self.zones, mask.unwrap_or(0), need);
                    mask.is_some()
                });
        }
        let sizes = all.iter().chain(&wants.inits);
        let mut sizes = sizes.map(|need| span(&self.zones, need));
        // Those that need several zones wait until it is known what is where.
        if !sizes.all(|span| span == Some(1)) {
            return false;
        }
        let sum = wants.inits.iter().chain(&all).fold([0; 4], plus);
        let largest = all.iter().fold(largest_init, most);
        let single = self.zones.iter().enumerate();
        let single = single.filter(|(at, zone)| zone.group & !(1 << at) == 0);
        let mut room_for = 0;
        for (_, zone) in single {
            // All of them fit into this zone alone: whatever goes elsewhere only helps.
            if (0..4).all(|at| sum[at] == 0 || sum[at] <= zone.free[at]) {
                return true;
            }
            // So many are needed to close this zone to another one.
            let times = (0..4).filter(|at| largest[*at] > 0);
            room_for += times
                .map(|at| zone.free[at] / largest[at])
                .min()
                .unwrap_or(0);
        }
        let count = all.len() + wants.inits.len();
        u64::try_from(count).is_ok_and(|count| count <= room_for)
    }
}

fn place(cell: &TaskCell, how: As) -> (Front, Vec<CardKey>) {
    let cards = |holds: &[Hold]| holds.iter().map(|hold| hold.card).collect();
    match (&cell.leaving, how) {
        (Some(leaving), As::Leaving) => (leaving.front, cards(leaving.holds())),
        _ => (cell.front, cards(cell.holds())),
    }
}

/// The agent has reported all that the kubelet has given to the pod. The kubelet gives it container
/// by container, so a report may have a part. And it may have the zones before the agent has said
/// which cards the pod got: the expected ones may be of other zones.
fn is_reported(
    state: &State,
    manager: &TopologyManager,
    pod: &Uid,
    items: &Items,
    cards: &[CardKey],
) -> bool {
    let used = pod.with_text(|pod| used_by(manager, pod));
    let wanted = items.apps.iter().fold([0; 4], plus);
    let given = used.iter().fold([0_u64; 2], |[cpus, memory], one| {
        [
            cpus + u64::from(one.cpus),
            memory.saturating_add(one.memory.0),
        ]
    });
    // A container with GPUs alone says nothing of its zone but by its cards.
    let mut with_gpus = items.apps.iter().filter(|need| need[GPUS] > 0);
    let by_cards = with_gpus.any(|need| need[CPUS] == 0 && need[MEMORY] == 0);
    let is_of_zone = |card: &CardKey| {
        let at = numa_of(state, manager, *card);
        let zone = at.and_then(|at| manager.zones.get(at)).map(|zone| zone.id);
        zone.is_none() || used.iter().any(|one| one.zone == zone)
    };
    !used.is_empty()
        && wanted[CPUS] <= given[0]
        && wanted[MEMORY] <= given[1]
        && (by_cards || cards.iter().all(is_of_zone))
}

/// What the kubelet has given to the pod.
fn used_by<'a>(manager: &'a TopologyManager, pod: &str) -> &'a [NumaUse] {
    let from = manager.used.partition_point(|used| used.pod.as_str() < pod);
    let rest = manager.used.get(from..).unwrap_or_default();
    let count = rest.partition_point(|used| used.pod.as_str() == pod);
    rest.get(..count).unwrap_or_default()
}

/// Whether a pod that the kubelet has reported has its zones at that moment. One that does not
/// stand here any more has, until the report says so too.
fn stands(state: &State, key: NodeKey, used: &NumaUse, moment: Moment) -> bool {
    let cell = state.task_of(&used.pod).map(|task| state.cell(task));
    let mut places = cell.iter().flat_map(TaskCell::taken);
    let here = places.find(|(node, how)| *node == key && *how != As::Promised);
    moment.counts(here.map_or(As::Leaving, |(_, how)| how))
}

fn subtract(zones: &mut [Zone], manager: &TopologyManager, used: &NumaUse) {
    let at = manager
        .zones
        .iter()
        .position(|zone| Some(zone.id) == used.zone);
    if let Some(zone) = at.and_then(|at| zones.get_mut(at)) {
        zone.free[CPUS] = zone.free[CPUS].saturating_sub(u64::from(used.cpus));
        zone.free[MEMORY] = zone.free[MEMORY].saturating_sub(used.memory.0);
    }
}

/// Zones over which a pod's memory is spread are one for the memory manager.
fn group(zones: &mut [Zone], manager: &TopologyManager, stands: impl Fn(&NumaUse) -> bool) {
    for pod in manager.used.chunk_by(|one, other| one.pod == other.pod) {
        let pinned = pod.iter().filter(|used| used.memory.0 > 0 && stands(used));
        let places = pinned.filter_map(|used| {
            let zones = &manager.zones;
            zones.iter().position(|zone| Some(zone.id) == used.zone)
        });
        let mask: Mask = places.fold(0, |mask, at| mask | 1 << at);
        for (at, zone) in zones.iter_mut().enumerate() {
            if mask & (1 << at) != 0 {
                zone.group |= mask;
            }
        }
    }
}

/// The least number of zones that could hold the request if they were empty: of every resource the
/// same. Where one resource needs more zones than another, no hint is preferred.
fn span(zones: &[Zone], need: &Need) -> Option<usize> {
    let least = |at: usize| {
        let mut all: Vec<u64> = zones.iter().map(|zone| zone.total[at]).collect();
        all.sort_unstable_by(|one, other| other.cmp(one));
        let mut sum = 0_u64;
        let enough = all.iter().position(|total| {
            sum = sum.saturating_add(*total);
            sum >= need[at]
        });
        enough.map(|last| last + 1)
    };
    let mut spans = (0..4).filter(|at| need[*at] > 0).map(least);
    let first = spans.next()??;
    spans.all(|span| span == Some(first)).then_some(first)
}

/// The zones that the kubelet would give: of the least number, the lowest.
fn merge(zones: &[Zone], policy: TopologyPolicy, need: &Need) -> Option<Mask> {
    let span = span(zones, need)?;
    if policy == TopologyPolicy::SingleNumaNode && span > 1 {
        return None;
    }
    let fits = |mask: Mask| {
        let of = || {
            let all = zones.iter().enumerate();
            all.filter(move |(at, _)| mask & (1 << at) != 0)
        };
        let enough = |at: usize| {
            let free = of().map(|(_, zone)| zone.free[at]);
            need[at] <= free.fold(0, u64::saturating_add)
        };
        // Pinned memory of a zone is shared with all zones of its group, or with none.
        let apart = |zone: &Zone| zone.group == 0 || zone.group == mask;
        (0..4).all(|at| need[at] == 0 || enough(at))
            && (need[MEMORY] == 0 || of().all(|(_, zone)| apart(zone)))
    };
    let mut single = (0..zones.len()).map(|at| 1 << at);
    if span == 1 {
        return single.find(|mask| fits(*mask));
    }
    let all = u16::try_from(zones.len()).map_or(0, |count| 1_u16 << count.min(8));
    let mut masks = (1..all).filter_map(|mask| Mask::try_from(mask).ok());
    masks.find(|mask| mask.count_ones() as usize == span && fits(*mask))
}

/// Takes it of these zones, the lowest first.
fn take(zones: &mut [Zone], mask: Mask, need: &Need) {
    let mut left = *need;
    for (at, zone) in zones.iter_mut().enumerate() {
        if mask & (1 << at) == 0 {
            continue;
        }
        for (left, free) in left.iter_mut().zip(&mut zone.free) {
            let part = (*left).min(*free);
            *left -= part;
            *free -= part;
        }
        if need[MEMORY] > 0 {
            zone.group |= mask;
        }
    }
}

#[cfg(test)]
mod tests;
