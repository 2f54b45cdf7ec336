//! What claims hold: the devices that a decision picked for them, and the pods for whose sake
//! they have them.

use super::super::State;
use super::super::cell::{Cell, Status, TaskCell};
use super::super::keys::{NodeKey, TaskKey};
use super::super::transition::As;
use super::{DeviceUse, Devices, Sum};
use crate::devices::{Free, Wanted, counters_suffice};
use crate::ids::{ClaimUid, DeviceId};
use crate::model::{
    AllocatedDevice, DeviceClaim, DeviceNodes, DeviceWants, Front, NodeTerm, Operator, Requirement,
};
use crate::units::Quantity;
use std::sync::Arc;

/// A claim, as it is; or as it will be when those who have it now have left, and it is given
/// other devices for those of them that get another place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot {
    pub claim: ClaimUid,
    pub again: bool,
}

impl Slot {
    pub(crate) fn now(claim: &ClaimUid) -> Self {
        Self {
            claim: claim.clone(),
            again: false,
        }
    }
}

/// Devices that a decision picked for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Picked {
    pub devices: Arc<[AllocatedDevice]>,
    /// Nodes that can use them: for one of these. `None`: all.
    pub nodes: Option<Arc<[NodeTerm]>>,
}

/// A pod with a place, one on its way out or one that is promised a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub task: TaskKey,
    pub node: NodeKey,
    pub how: As,
}

/// What holds a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimHold {
    /// Made for one pod.
    pub own: bool,
    /// `None`: what the API server shows.
    pub picked: Option<Picked>,
    pub users: Vec<User>,
}

impl ClaimHold {
    fn count(&self, how: As) -> u32 {
        let users = self.users.iter().filter(|user| user.how == how);
        u32::try_from(users.count()).unwrap_or(u32::MAX)
    }
}

/// What a claim of a pod had.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    claim: ClaimUid,
    picked: Picked,
}

/// Devices that count, and how.
pub(super) type Counted = Vec<(Arc<[AllocatedDevice]>, As)>;

impl Devices {
    /// How a claim counts.
    fn how(&self, slot: &Slot, hold: Option<&ClaimHold>) -> Option<As> {
        let seen = self.allocated.get(&slot.claim).filter(|_| !slot.again);
        let count = |how| hold.map_or(0, |hold| hold.count(how));
        let (taken, leaving, promised) =
            (count(As::Taken), count(As::Leaving), count(As::Promised));
        let stays = taken + promised > 0;
        match seen {
            Some(seen) if !stays && leaving == 0 => {
                Some(if seen.leaving { As::Leaving } else { As::Taken })
            }
            Some(seen) if !stays && seen.consumers <= leaving => Some(As::Leaving),
            Some(_) => Some(As::Taken),
            None if taken > 0 || leaving > 0 && promised > 0 => Some(As::Taken),
            None if leaving > 0 => Some(As::Leaving),
            None => (promised > 0).then_some(As::Promised),
        }
    }

    /// What a claim counts for: the devices that the API server shows, and those that were
    /// picked for it, where they are others.
    pub(super) fn counts_for(&self, slot: &Slot, hold: Option<&ClaimHold>) -> Counted {
        let Some(how) = self.how(slot, hold) else {
            return Counted::new();
        };
        let seen = self.allocated.get(&slot.claim).filter(|_| !slot.again);
        let seen = seen.map(|seen| Arc::clone(&seen.devices));
        let picked = hold.and_then(|hold| hold.picked.as_ref());
        let picked = picked.map(|picked| Arc::clone(&picked.devices));
        let picked = picked.filter(|picked| seen.as_ref() != Some(picked));
        let both = seen.into_iter().chain(picked);
        both.map(|devices| (devices, how)).collect()
    }

    /// It is free once its terminating users are gone.
    pub(super) fn ends(&self, claim: &ClaimUid) -> bool {
        let slot = Slot::now(claim);
        self.how(&slot, self.holds.get(&slot)) == Some(As::Leaving)
    }

    /// It has devices once others have left: of all its pods none has its place yet.
    pub(super) fn is_promised(&self, claim: &ClaimUid) -> bool {
        let slot = Slot::now(claim);
        self.how(&slot, self.holds.get(&slot)) == Some(As::Promised)
    }
}

impl Sum {
    fn change(&mut self, device: &AllocatedDevice, comes: bool) {
        let count = |sum: &mut u32| {
            *sum = if comes {
                sum.saturating_add(1)
            } else {
                sum.saturating_sub(1)
            };
        };
        let Some(consumed) = &device.consumed else {
            return count(&mut self.whole);
        };
        count(&mut self.shares);
        for (name, amount) in consumed {
            let sum = self.taken.entry(Arc::clone(name)).or_default();
            *sum = if comes {
                sum.plus(*amount)
            } else {
                sum.less(*amount)
            };
        }
        self.taken.retain(|_, amount| amount.0 != 0);
    }
}

impl DeviceUse {
    pub(crate) fn change(&mut self, device: &AllocatedDevice, how: As, comes: bool) {
        match how {
            As::Taken => self.held.change(device, comes),
            As::Leaving => {
                self.held.change(device, comes);
                self.leaving.change(device, comes);
            }
            As::Promised => self.promised.change(device, comes),
        }
    }
}

/// The places of a pod with claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Places {
    /// Which it leaves.
    leaves: Option<(NodeKey, Front)>,
    /// Which it has or is promised.
    own: Option<(NodeKey, As, Front)>,
}

impl Places {
    fn of(cell: &TaskCell) -> Self {
        let leaves = cell.leaving.as_ref();
        let own = cell.node.zip(cell.status.counts_as());
        Self {
            leaves: leaves.map(|leaving| (leaving.node, leaving.front)),
            own: own.map(|(node, how)| (node, how, cell.front)),
        }
    }

    /// Those at which the pod has that claim.
    fn with(self, claim: &DeviceClaim) -> (Option<NodeKey>, Option<(NodeKey, As)>) {
        let leaves = self.leaves.filter(|(_, front)| claim.is_used(*front));
        let own = self.own.filter(|(.., front)| claim.is_used(*front));
        (
            leaves.map(|(node, _)| node),
            own.map(|(node, how, _)| (node, how)),
        )
    }
}

/// One claim of a pod that moves.
struct Moving<'a> {
    claim: &'a DeviceClaim,
    slot: Slot,
    hold: ClaimHold,
    /// It gets devices.
    wants: bool,
}

impl State {
    /// A pod's claims leave its places and come to its new ones.
    pub(in super::super) fn move_devices(&mut self, task: TaskKey, from: &TaskCell, to: &TaskCell) {
        let Some(claims) = self.devices.of.get(&task).map(Arc::clone) else {
            return;
        };
        let places = Places::of(to);
        if Places::of(from) == places {
            return;
        }
        let had: Vec<[Option<Picked>; 2]> = claims
            .iter()
            .map(|claim| {
                let (leaves, own) = places.with(claim);
                self.leave_claim(task, claim, leaves, own)
            })
            .collect();
        let Some((node, how, front)) = places.own else {
            return;
        };
        let come = claims.iter().zip(had);
        let come = come.filter(|(claim, _)| claim.is_used(front));
        let mut moving: Vec<Moving> = come
            .map(|(claim, had)| self.enter_claim(claim, had, node, to))
            .collect();
        if self.deciding && moving.iter().any(|one| one.wants) {
            self.pick_devices(task, &mut moving, node, to);
        }
        for mut one in moving {
            one.hold.users.push(User { task, node, how });
            self.set_hold(one.slot, Some(one.hold));
        }
    }

    /// Takes the pod off its claim, but for the place that it leaves. Returns what was picked for
    /// the place that it has then, where it had that before: for the claim as it is, and as it
    /// will be.
    fn leave_claim(
        &mut self,
        task: TaskKey,
        claim: &DeviceClaim,
        leaves: Option<NodeKey>,
        own: Option<(NodeKey, As)>,
    ) -> [Option<Picked>; 2] {
        let mut had = [None, None];
        for (again, had) in [false, true].into_iter().zip(&mut had) {
            let slot = Slot {
                again,
                ..Slot::now(&claim.uid)
            };
            let Some(mut hold) = self.devices.holds.get(&slot).cloned() else {
                if !again && leaves.is_some() {
                    self.keep_leaving(task, claim, leaves, slot, None);
                }
                continue;
            };
            let was_there = hold
                .users
                .iter()
                .any(|user| user.task == task && Some(user.node) == own.map(|(node, _)| node));
            if was_there {
                had.clone_from(&hold.picked);
            }
            hold.users.retain(|user| user.task != task);
            self.keep_leaving(task, claim, leaves.filter(|_| !again), slot, Some(hold));
        }
        had
    }

    fn keep_leaving(
        &mut self,
        task: TaskKey,
        claim: &DeviceClaim,
        leaves: Option<NodeKey>,
        slot: Slot,
        hold: Option<ClaimHold>,
    ) {
        let mut hold = hold.unwrap_or_else(|| ClaimHold {
            own: claim.own,
            picked: None,
            users: Vec::new(),
        });
        if let Some(node) = leaves {
            let how = As::Leaving;
            hold.users.push(User { task, node, how });
        }
        let value = (!hold.users.is_empty()).then_some(hold);
        self.set_hold(slot, value);
    }

    /// The claim of a pod that comes to a node.
    fn enter_claim<'a>(
        &self,
        claim: &'a DeviceClaim,
        [had, had_again]: [Option<Picked>; 2],
        node: NodeKey,
        to: &TaskCell,
    ) -> Moving<'a> {
        let row = self.nodes.get(node).and_then(|row| row.node.as_ref());
        let here = row.and_then(|node| self.is_here(&claim.uid, node));
        // Its devices go with those who leave, and the pod is to have others elsewhere.
        let has_some = self.devices.devices_of(&claim.uid).is_some();
        let again = to.status == Status::Promised && here.is_none() && has_some;
        let slot = Slot {
            again,
            ..Slot::now(&claim.uid)
        };
        let known = self.devices.holds.get(&slot).cloned();
        let mut hold = known.unwrap_or_else(|| ClaimHold {
            own: claim.own,
            picked: None,
            users: Vec::new(),
        });
        let is_seen = !again && self.devices.allocated.contains_key(&claim.uid);
        if hold.picked.is_none() && !is_seen {
            hold.picked = if again { had_again } else { had };
        }
        Moving {
            wants: hold.picked.is_none() && !is_seen,
            claim,
            slot,
            hold,
        }
    }

    /// The devices that [`State::find_devices`] has found.
    fn pick_devices(&self, task: TaskKey, moving: &mut [Moving], node: NodeKey, to: &TaskCell) {
        let spec = self
            .tasks
            .get(task)
            .and_then(|row| self.specs.get(row.spec));
        let wanting = || moving.iter().enumerate().filter(|(_, one)| one.wants);
        let at: Vec<usize> = wanting().map(|(at, _)| at).collect();
        let wants: Vec<&DeviceWants> = wanting().map(|(_, one)| &*one.claim.wants).collect();
        let now = to.status != Status::Promised || wanting().all(|(_, one)| !one.slot.again);
        let wanted = Wanted {
            claims: &wants,
            by_annotation: spec.is_some_and(|row| row.spec.is_by_annotation(to.front)),
        };
        let Ok((found, _)) = self.allocate(node, wanted, now) else {
            return;
        };
        for (at, devices) in at.into_iter().zip(found) {
            let nodes = self.nodes_for(&devices, node);
            if let Some(one) = moving.get_mut(at) {
                one.hold.picked = Some(Picked {
                    devices: Arc::from(devices),
                    nodes,
                });
            }
        }
    }

    /// Which nodes can use these devices, allocated for that one: Kubernetes'
    /// `createNodeSelector`.
    fn nodes_for(&self, devices: &[AllocatedDevice], on: NodeKey) -> Option<Arc<[NodeTerm]>> {
        let mut all = NodeTerm::default();
        for device in devices {
            let Some(device) = self.devices.device(&device.device) else {
                continue;
            };
            let only_here = device.binds_to_node || matches!(device.nodes, DeviceNodes::Node(_));
            if only_here {
                let name = self.nodes.get(on).map(|row| row.name.shared());
                all = NodeTerm {
                    labels: Vec::new(),
                    name: vec![Requirement {
                        key: Arc::from("metadata.name"),
                        operator: Operator::In(name.into_iter().collect()),
                    }],
                };
                break;
            }
            if let DeviceNodes::Terms(terms) = &device.nodes
                && let [term] = terms.as_slice()
            {
                let add = |into: &mut Vec<Requirement>, from: &[Requirement]| {
                    for one in from {
                        if !into.contains(one) {
                            into.push(one.clone());
                        }
                    }
                };
                add(&mut all.labels, &term.labels);
                add(&mut all.name, &term.name);
            }
        }
        (all != NodeTerm::default()).then(|| Arc::from([all]))
    }

    fn set_hold(&mut self, slot: Slot, value: Option<ClaimHold>) {
        let old = self.devices.holds.get(&slot).cloned();
        if old == value {
            return;
        }
        let before = self.devices.counts_for(&slot, old.as_ref());
        let after = self.devices.counts_for(&slot, value.as_ref());
        self.set(Cell::Hold(slot, value));
        self.move_uses(&before, &after);
    }

    /// What devices are used for changes.
    pub(super) fn move_uses(&mut self, before: &Counted, after: &Counted) {
        if before == after {
            return;
        }
        for (all, comes) in [(before, false), (after, true)] {
            for (devices, how) in all {
                for device in devices.iter().filter(|device| !device.admin) {
                    let id: &DeviceId = &device.device;
                    let mut used = self.devices.uses.get(id).cloned().unwrap_or_default();
                    used.change(device, *how, comes);
                    self.set_use(id, used);
                }
            }
        }
    }

    /// What was picked for the claims of a pod.
    pub(crate) fn picked_for(&self, task: TaskKey) -> Vec<Kept> {
        let kept = |claim: &DeviceClaim| {
            let hold = self.devices.holds.get(&Slot::now(&claim.uid))?;
            let picked = hold.picked.clone()?;
            let claim = claim.uid.clone();
            Some(Kept { claim, picked })
        };
        self.devices.of(task).iter().filter_map(kept).collect()
    }

    /// The same again, for a pod that stands there again.
    pub(crate) fn pick_again(&mut self, kept: Vec<Kept>, cell: &TaskCell) {
        for Kept { claim, picked } in kept {
            let stands = |node: &NodeKey| {
                let row = self.nodes.get(*node).and_then(|row| row.node.as_ref());
                row.is_some_and(|node| {
                    let terms = picked.nodes.as_deref();
                    terms.is_none_or(|terms| terms.iter().any(|term| term.matches(node)))
                })
            };
            if cell.places().iter().flatten().any(stands) {
                self.pick(&claim, picked);
            }
        }
    }

    /// A claim in use had these devices before its pod was looked at again.
    pub(crate) fn pick(&mut self, claim: &ClaimUid, picked: Picked) {
        let slot = Slot::now(claim);
        let Some(hold) = self.devices.holds.get(&slot).cloned() else {
            return;
        };
        let picked = Some(picked);
        self.set_hold(slot, Some(ClaimHold { picked, ..hold }));
    }

    /// What the claims of a pod hold is held or promised by no others: a victim that stays where
    /// it is has not lost it.
    pub(crate) fn has_its_devices(&self, task: TaskKey) -> bool {
        self.devices.of(task).iter().all(|claim| {
            let devices = self.devices.devices_of(&claim.uid);
            let devices = devices.map_or(&[][..], |(devices, _)| devices);
            devices
                .iter()
                .filter(|device| !device.admin)
                .all(|device| self.devices.is_within(&device.device))
        })
    }

    /// Whether a victim can keep its devices if it stays: they were promised to no other pod.
    pub(crate) fn can_keep_its_devices(&self, task: TaskKey) -> bool {
        self.devices.of(task).iter().all(|claim| {
            let known = self.devices.devices_of(&claim.uid);
            known.is_none_or(|(devices, _)| {
                !self.devices.ends(&claim.uid) || self.can_be_kept(devices)
            })
        })
    }

    /// Whether there is room for these beside all that will be held and that is promised. They
    /// are a claim's that loses them when those who leave have left.
    pub(super) fn can_be_kept(&self, devices: &[AllocatedDevice]) -> bool {
        let mut counted = devices.iter().filter(|device| !device.admin);
        counted.all(|device| self.devices.has_room_for(device))
    }
}

impl Devices {
    /// No more is held and promised of a device than there will be.
    pub(crate) fn is_within(&self, id: &DeviceId) -> bool {
        self.within(id, &self.used(id, Free::Later))
    }

    /// No more is held of a device than it has.
    pub(crate) fn is_held_within(&self, id: &DeviceId) -> bool {
        let used = self.uses.get(id);
        used.is_none_or(|used| self.within(id, &used.held))
    }

    /// [`Devices::is_within`] with one more, of the device and of what the devices of its pool share.
    fn has_room_for(&self, more: &AllocatedDevice) -> bool {
        let id = &more.device;
        let mut used = self.used(id, Free::Later);
        let is_held = used.is_held();
        used.change(more, true);
        self.within(id, &used) && (is_held || self.counters_allow(id))
    }

    fn within(&self, id: &DeviceId, used: &Sum) -> bool {
        let Some(device) = self.device(id) else {
            return used.whole <= 1;
        };
        let within = |(name, taken): (&Arc<str>, &Quantity)| {
            let has = device.capacity.get(name).map(|capacity| capacity.has);
            has.is_some_and(|has| *taken <= has)
        };
        used.whole <= 1 && (used.whole == 0 || used.shares == 0) && used.taken.iter().all(within)
    }

    /// Whether the pool's counters allow one more device to be held.
    fn counters_allow(&self, id: &DeviceId) -> bool {
        let row = id.split().and_then(|(name, _)| self.pools.get(&name));
        let (Some(row), Some(device)) = (row, self.device(id)) else {
            return true;
        };
        let others = row
            .all()
            .filter(|(other, _)| *other != id && self.used(other, Free::Later).is_held());
        let others = others.map(|(_, other)| other);
        device.consumes.is_empty() || counters_suffice(&row.pool, others.chain([device]))
    }
}
