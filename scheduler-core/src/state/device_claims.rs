//! Keeps [`Devices`] in line with claims, and with the pods that have them.

use crate::devices::Wanted;
use crate::ids::{ClaimUid, DeviceId};
use crate::model::AllocatedDevice;
use crate::model::Allocation;
use crate::model::DeviceClaim;
use crate::model::DeviceNodes;
use crate::model::DeviceWants;
use crate::model::Front;
use crate::model::NodeTerm;
use crate::model::Operator;
use crate::model::Requirement;
use crate::state::State;
use crate::state::cell::Cell;
use crate::state::devices::Devices;
use crate::state::devices::hold::{ClaimHold, Counted, Kept, Picked, Slot, User};
use crate::state::devices::usage::DeviceUse;
use crate::state::keys::{NodeKey, TaskKey};
use crate::state::task_cell::{Status, TaskCell};
use crate::state::way::As;
use std::sync::Arc;

impl State {
    /// The API server shows a claim with devices.
    pub(crate) fn claim_allocated(&mut self, allocation: Allocation) {
        let claim = allocation.claim.clone();
        if self.devices.allocated.get(&claim) == Some(&allocation) {
            return;
        }
        self.recount_claim(&claim, |devices| {
            devices
                .allocated
                .insert(allocation.claim.clone(), allocation);
        });
        self.changes.capacity_grew();
    }

    /// It has none, or is gone. False: it had none.
    pub(crate) fn claim_freed(&mut self, claim: &ClaimUid) -> bool {
        if !self.devices.allocated.contains_key(claim) {
            return false;
        }
        self.recount_claim(claim, |devices| drop(devices.allocated.remove(claim)));
        self.changes.capacity_grew();
        true
    }

    /// What the claim counts for before and after a fact about it has changed.
    fn recount_claim(&mut self, claim: &ClaimUid, change: impl FnOnce(&mut Devices)) {
        let slot = Slot::now(claim);
        let hold = self.devices.holds.get(&slot).cloned();
        let before = self.devices.counts_for(&slot, hold.as_ref());
        change(&mut self.devices);
        self.devices.version += 1;
        let after = self.devices.counts_for(&slot, hold.as_ref());
        self.move_uses(&before, &after);
        self.changes.touched += 1;
        self.changes.settled += 1;
    }

    /// Which claims a pod has.
    pub(crate) fn set_device_claims(&mut self, task: TaskKey, claims: &[DeviceClaim]) {
        if claims.is_empty() {
            self.devices.of.remove(&task);
        } else if self.devices.of(task) != claims {
            self.devices.of.insert(task, Arc::from(claims));
        }
    }

    /// The one setter of what a claim holds; returns what was there.
    pub(super) fn swap_hold(&mut self, slot: &Slot, value: Option<ClaimHold>) -> Option<ClaimHold> {
        let nodes = |hold: Option<&ClaimHold>| -> Vec<NodeKey> {
            let users = hold.into_iter().flat_map(|hold| &hold.users);
            users.map(|user| user.node).collect()
        };
        let mut touched = nodes(value.as_ref());
        let is_own = |hold: &ClaimHold| hold.own;
        let own = value.as_ref().is_none_or(is_own);
        let old = match value {
            Some(hold) => self.devices.holds.insert(slot.clone(), hold),
            None => self.devices.holds.remove(slot),
        };
        touched.extend(nodes(old.as_ref()));
        if !(own && old.as_ref().is_none_or(is_own)) {
            self.devices.version += 1;
        }
        touched.sort_unstable();
        touched.dedup();
        for node in touched {
            self.move_part(node);
        }
        old
    }

    /// The one setter of what is in use of a device; returns what was there.
    pub(super) fn swap_use(&mut self, id: &DeviceId, value: DeviceUse) -> DeviceUse {
        let leaves = |used: &DeviceUse| used.leaving.is_held();
        let old = self.devices.uses.remove(id).unwrap_or_default();
        self.devices.leaving += usize::from(leaves(&value));
        self.devices.leaving -= usize::from(leaves(&old));
        let found = self.devices.found(id);
        let node = found.and_then(|(_, device)| device.nodes.only());
        let node = node.map(|name| self.names.nodes.get(name).copied());
        let change = found.and_then(|(pool, device)| {
            let (was, is) = (old.leaves_some(device), value.leaves_some(device));
            let driver = Arc::clone(&pool.pool.name.driver);
            (was != is && pool.pool.fault.is_none()).then_some((driver, device.shared, is))
        });
        if let Some((driver, shared, comes)) = change {
            self.devices.free.change_device(&driver, shared, comes);
        }
        if !value.is_free() || leaves(&value) {
            self.devices.uses.insert(id.clone(), value);
        }
        match node {
            Some(key) => {
                if let Some(key) = key {
                    self.move_part(key);
                }
            }
            None => self.devices.version += 1,
        }
        old
    }

    fn set_use(&mut self, id: &DeviceId, value: DeviceUse) {
        self.set(Cell::Device(id.clone(), value));
    }

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
        if self.cells.deciding && moving.iter().any(|one| one.wants) {
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
}

/// The places of a pod with claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Places {
    /// Which it leaves.
    leaves: Option<(NodeKey, Front)>,
    /// Which it has or is promised.
    pub(crate) own: Option<(NodeKey, As, Front)>,
}

impl Places {
    pub(crate) fn of(cell: &TaskCell) -> Self {
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
    pub(crate) claim: &'a DeviceClaim,
    pub(super) slot: Slot,
    pub(crate) hold: ClaimHold,
    /// It gets devices.
    pub(crate) wants: bool,
}
