//! Devices that claims may get, and the claims of pods that have a place.
//!
//! A claim has its devices from the first of its pods that gets a place until the last of them
//! has left, or as long as the API server shows it with some. What a claim holds moves with its
//! pods ([`State::transition`]) and is undone with them.
//! - [`pools`]: what drivers publish.
//! - [`hold`]: what claims hold.
//! - [`free`]: how many devices are left, in sum.

mod free;
mod hold;
mod pools;

use super::State;
use super::cell::{Cell, Status};
use super::keys::{NodeKey, TaskKey};
use super::transition::As;
use crate::action::DeviceBinding;
use crate::devices::{ClaimsReason, Free, Wanted, allocate};
use crate::ids::{ClaimUid, DeviceId, GpuUuid, NodeName, PoolName};
use crate::model::{
    AllocatedDevice, Allocation, Amounts, DeviceClaim, DeviceWants, Front, Node, NodeTerm,
};
use crate::state::rows::Spec;
pub(crate) use free::FreeDevices;
pub(crate) use hold::{ClaimHold, Kept, Picked, Slot};
pub(crate) use pools::PoolRow;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is held of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    /// Claims that have all of it.
    pub whole: u32,
    /// Claims that have a part of it.
    pub shares: u32,
    /// By parts.
    pub taken: Amounts,
}

impl Sum {
    pub(crate) fn is_held(&self) -> bool {
        self.whole > 0 || self.shares > 0
    }

    fn plus(mut self, other: &Self) -> Self {
        self.whole = self.whole.saturating_add(other.whole);
        self.shares = self.shares.saturating_add(other.shares);
        for (name, amount) in &other.taken {
            let sum = self.taken.entry(Arc::clone(name)).or_default();
            *sum = sum.plus(*amount);
        }
        self
    }

    fn less(mut self, other: &Self) -> Self {
        self.whole = self.whole.saturating_sub(other.whole);
        self.shares = self.shares.saturating_sub(other.shares);
        for (name, amount) in &other.taken {
            let sum = self.taken.entry(Arc::clone(name)).or_default();
            *sum = sum.less(*amount);
        }
        self
    }
}

/// What is held of a device, by whether its holders leave or are only promised it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceUse {
    /// By all that have it, those on their way out too.
    pub held: Sum,
    /// By those on their way out.
    pub leaving: Sum,
    /// Promised on top.
    pub promised: Sum,
}

impl DeviceUse {
    fn is_free(&self) -> bool {
        !self.held.is_held() && !self.promised.is_held()
    }

    fn after(&self) -> Sum {
        self.held.clone().less(&self.leaving).plus(&self.promised)
    }
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Devices {
    pools: BTreeMap<PoolName, PoolRow>,
    /// Pools with devices of that node alone.
    local: BTreeMap<NodeName, BTreeSet<PoolName>>,
    /// Pools with devices that several nodes can use.
    roaming: BTreeSet<PoolName>,
    /// Devices that are cards of our agents.
    cards: FxHashMap<GpuUuid, DeviceId>,
    /// Claims that have devices, as the API server shows them.
    allocated: BTreeMap<ClaimUid, Allocation>,
    /// Of each pod with claims.
    of: FxHashMap<TaskKey, Arc<[DeviceClaim]>>,
    /// Claims of pods that have a place. Looked up, never walked for a decision.
    holds: FxHashMap<Slot, ClaimHold>,
    /// Devices in use.
    uses: FxHashMap<DeviceId, DeviceUse>,
    /// Devices that will be free once those who leave have left.
    leaving: usize,
    /// Those that are free or leaving, in sum.
    free: FreeDevices,
    /// Changes with what may be another node's: a claim that several pods can use, a device that
    /// several nodes can use.
    pub version: u64,
}

impl Devices {
    /// There are no devices and no claims: nothing is to be looked at.
    pub(crate) fn is_empty(&self) -> bool {
        self.pools.is_empty() && self.allocated.is_empty() && self.of.is_empty()
    }

    pub(crate) fn pools(&self) -> impl Iterator<Item = &PoolRow> {
        self.pools.values()
    }

    pub(crate) fn allocated(&self) -> impl Iterator<Item = &Allocation> {
        self.allocated.values()
    }

    pub(crate) fn holds(&self) -> &FxHashMap<Slot, ClaimHold> {
        &self.holds
    }

    pub(crate) fn uses(&self) -> &FxHashMap<DeviceId, DeviceUse> {
        &self.uses
    }

    /// How many are free or leaving.
    pub(crate) fn free(&self) -> &FreeDevices {
        &self.free
    }

    /// The claims of a pod.
    pub(crate) fn of(&self, task: TaskKey) -> &[DeviceClaim] {
        self.of.get(&task).map_or(&[], |claims| claims)
    }

    /// What is in use of a device.
    pub(crate) fn used(&self, id: &DeviceId, free: Free) -> Sum {
        match (self.uses.get(id), free) {
            (None, _) | (_, Free::Whatever) => Sum::default(),
            (Some(used), Free::Now) => used.held.clone().plus(&used.promised),
            (Some(used), Free::Later) => used.after(),
        }
    }

    /// A claim holds the card, leaves it or is promised it: it is not granted by annotation.
    pub(crate) fn has_card(&self, card: &GpuUuid) -> bool {
        let id = self.cards.get(card);
        id.is_some_and(|id| self.uses.contains_key(id))
    }

    /// The devices of a claim, and on which nodes they can be used. `None`: it has none.
    pub(crate) fn devices_of(
        &self,
        claim: &ClaimUid,
    ) -> Option<(&[AllocatedDevice], Option<&[NodeTerm]>)> {
        if let Some(seen) = self.allocated.get(claim) {
            return Some((&seen.devices, seen.nodes.as_deref()));
        }
        let hold = self.holds.get(&Slot::now(claim))?;
        let picked = hold.picked.as_ref()?;
        Some((&picked.devices, picked.nodes.as_deref()))
    }

    /// What the claims of a pod have that has its whole GPUs so.
    pub(crate) fn bindings(&self, task: TaskKey, front: Front) -> Vec<DeviceBinding> {
        let binding = |claim: &DeviceClaim| {
            let (devices, nodes) = self.devices_of(&claim.uid)?;
            Some(DeviceBinding {
                uid: claim.uid.clone(),
                name: Arc::clone(&claim.name),
                devices: Arc::from(devices),
                nodes: nodes.map(Arc::from),
            })
        };
        let claims = self.of(task).iter();
        claims
            .filter(|claim| claim.is_used(front))
            .filter_map(binding)
            .collect()
    }
}

impl DeviceClaim {
    /// A pod that has its whole GPUs so has the claim's devices.
    pub(crate) fn is_used(&self, front: Front) -> bool {
        !self.stands_in || front == Front::Claim
    }
}

impl State {
    /// Whether the claim has devices, and the node can use them. `None`: it has none, or will
    /// have none when those who leave have left, and can have others: the node cannot use these,
    /// or they are promised to others.
    fn is_here(&self, claim: &ClaimUid, node: &Node) -> Option<bool> {
        let (devices, nodes) = self.devices.devices_of(claim)?;
        let ends = self.devices.ends(claim);
        let here = nodes.is_none_or(|terms| terms.iter().any(|term| term.matches(node)));
        if here && (!ends || self.can_be_kept(devices)) {
            return Some(true);
        }
        (!ends).then_some(false)
    }

    /// Returns the number of pods that use the claim, and the number of those that are not leaving.
    /// The API server may show reservations for pods that are not known here.
    fn users_of(&self, claim: &ClaimUid) -> (usize, usize) {
        let hold = self.devices.holds.get(&Slot::now(claim));
        let users = hold.map_or(&[][..], |hold| &hold.users);
        let of_before = users.iter().filter(|user| {
            let status = self.cell(user.task).status;
            !matches!(status, Status::Assumed | Status::Promised)
        });
        let seen = self.devices.allocated.get(claim);
        let seen = seen.map_or(0, |seen| seen.consumers as usize);
        let all = users.len() + seen.saturating_sub(of_before.count());
        let leave = users.iter().filter(|user| user.how == As::Leaving);
        (all, all - leave.count())
    }

    /// Whether those claims can have devices there: now, or (false) when those who leave have
    /// left. `front`: how its whole GPUs are to be given.
    pub(crate) fn find_devices(
        &self,
        spec: &Spec,
        key: NodeKey,
        front: Front,
    ) -> Result<bool, ClaimsReason> {
        let row = self.nodes.get(key);
        let Some(node) = row.and_then(|row| row.node.as_ref()) else {
            return Err(ClaimsReason::Elsewhere);
        };
        let (mut now, mut wants) = (true, Vec::new());
        for ask in &spec.devices {
            if let Some(claim) = &ask.claim {
                let (all, stay) = self.users_of(claim);
                if stay >= DeviceClaim::MOST_USERS {
                    return Err(ClaimsReason::Full);
                }
                now &= all < DeviceClaim::MOST_USERS;
            }
            let known = ask
                .claim
                .as_ref()
                .and_then(|claim| Some((claim, self.devices.devices_of(claim)?)));
            if ask.stands_in && front == Front::Plugin {
                // A binding that did not come to its end left it: its pod goes on from there, or
                // waits until it is gone.
                if known.is_some() {
                    return Err(ClaimsReason::Elsewhere);
                }
                continue;
            }
            match known.map(|(claim, _)| (claim, self.is_here(claim, node))) {
                Some((claim, Some(true))) => now &= !self.devices.is_promised(claim),
                Some((_, Some(false))) => return Err(ClaimsReason::Elsewhere),
                // Those who have it now leave.
                Some((_, None)) => {
                    now = false;
                    wants.push(&*ask.wants);
                }
                None => wants.push(&*ask.wants),
            }
        }
        if wants.is_empty() {
            return Ok(now);
        }
        let wanted = Wanted {
            claims: &wants,
            by_annotation: spec.is_by_annotation(front),
        };
        self.allocate(key, wanted, now).map(|(_, now)| now)
    }

    /// Devices that are free now, if that is enough, else such as will be.
    fn allocate(
        &self,
        key: NodeKey,
        wanted: Wanted,
        now: bool,
    ) -> Result<(Vec<Vec<AllocatedDevice>>, bool), ClaimsReason> {
        let first = now.then(|| allocate(self, key, wanted, Free::Now));
        match first {
            Some(Ok(found)) => Ok((found, true)),
            Some(Err(no)) if !self.may_leave(key) => Err(no),
            _ => Ok((allocate(self, key, wanted, Free::Later)?, false)),
        }
    }

    /// Some device may be free later that is not now.
    fn may_leave(&self, key: NodeKey) -> bool {
        let cards = self.nodes.get(key).into_iter().flat_map(|row| &row.cards);
        let mut used = cards.filter_map(|card| self.card_use.get(*card));
        self.devices.leaving > 0 || used.any(|used| used.releasing.holds() > 0)
    }

    /// Whether the node has devices for the claims at all, allocated or not. Of claims that
    /// several pods can use nothing is asked: one may have devices already.
    pub(crate) fn could_serve_devices(&self, spec: &Spec, key: NodeKey, front: Front) -> bool {
        let own = spec.devices.iter().filter(|ask| ask.claim.is_none());
        let own = own.filter(|ask| !ask.stands_in || front == Front::Claim);
        let wants: Vec<&DeviceWants> = own.map(|ask| &*ask.wants).collect();
        if wants.is_empty() {
            return true;
        }
        let wanted = Wanted {
            claims: &wants,
            by_annotation: spec.is_by_annotation(front),
        };
        match allocate(self, key, wanted, Free::Whatever) {
            Ok(_) | Err(ClaimsReason::CutShort(_)) => true,
            Err(_) => false,
        }
    }

    /// Some device can be used there, free or not.
    pub(crate) fn has_devices(&self, node: &Node) -> bool {
        let mut pools = self.devices.pools_of(&node.name);
        pools.any(|pool| pool.devices_on(node).next().is_some())
    }

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
        self.capacity_grew();
    }

    /// It has none, or is gone. False: it had none.
    pub(crate) fn claim_freed(&mut self, claim: &ClaimUid) -> bool {
        if !self.devices.allocated.contains_key(claim) {
            return false;
        }
        self.recount_claim(claim, |devices| drop(devices.allocated.remove(claim)));
        self.capacity_grew();
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
        self.touched += 1;
        self.settled += 1;
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
        let node = node.map(|name| self.node_names.get(name).copied());
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
}

#[cfg(test)]
impl Devices {
    /// What decisions move.
    pub(crate) fn in_order(&self) -> impl std::fmt::Debug {
        let holds: BTreeMap<_, _> = self.holds.clone().into_iter().collect();
        let uses: BTreeMap<_, _> = self.uses.clone().into_iter().collect();
        (holds, uses, self.leaving)
    }
}
