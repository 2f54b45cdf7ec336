//! Devices that claims may get, and the claims of pods that have a place.
//!
//! A claim has its devices from the first of its pods that gets a place until the last of them
//! has left, or as long as the API server shows it with some. What a claim holds moves with its
//! pods ([`State::transition`](crate::state::State::transition)) and is undone with them.
//! - [`pools`]: what drivers publish.
//! - [`hold`]: what claims hold.
//! - [`free`]: how many devices are left, in sum.

mod free;
pub(crate) mod hold;
pub(super) mod pools;
pub(crate) mod usage;

use crate::action::DeviceBinding;
use crate::ids::{ClaimUid, DeviceId, GpuUuid, NodeName, PoolName};
use crate::model::{AllocatedDevice, Allocation, Device, DeviceClaim, Front, NodeTerm};
pub(crate) use crate::state::devices::free::FreeDevices;
use crate::state::devices::hold::Counted;
pub(crate) use crate::state::devices::hold::{ClaimHold, Kept, Picked, Slot};
pub(crate) use crate::state::devices::pools::PoolRow;
use crate::state::devices::usage::{DeviceUse, Free, Sum};
use crate::state::keys::TaskKey;
use crate::state::way::As;
use crate::units::Quantity;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Devices {
    pub(super) pools: BTreeMap<PoolName, PoolRow>,
    /// Pools with devices of that node alone.
    pub(super) local: BTreeMap<NodeName, BTreeSet<PoolName>>,
    /// Pools with devices that several nodes can use.
    pub(super) roaming: BTreeSet<PoolName>,
    /// Devices that are cards of our agents.
    pub(crate) cards: FxHashMap<GpuUuid, DeviceId>,
    /// Claims that have devices, as the API server shows them.
    pub(crate) allocated: BTreeMap<ClaimUid, Allocation>,
    /// Of each pod with claims.
    pub(super) of: FxHashMap<TaskKey, Arc<[DeviceClaim]>>,
    /// Claims of pods that have a place. Looked up, never walked for a decision.
    pub(crate) holds: FxHashMap<Slot, ClaimHold>,
    /// Devices in use.
    pub(super) uses: FxHashMap<DeviceId, DeviceUse>,
    /// Devices that will be free once those who leave have left.
    pub(crate) leaving: usize,
    /// Those that are free or leaving, in sum.
    pub(crate) free: FreeDevices,
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
    pub(crate) fn ends(&self, claim: &ClaimUid) -> bool {
        let slot = Slot::now(claim);
        self.how(&slot, self.holds.get(&slot)) == Some(As::Leaving)
    }

    /// It has devices once others have left: of all its pods none has its place yet.
    pub(crate) fn is_promised(&self, claim: &ClaimUid) -> bool {
        let slot = Slot::now(claim);
        self.how(&slot, self.holds.get(&slot)) == Some(As::Promised)
    }

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
    pub(crate) fn has_room_for(&self, more: &AllocatedDevice) -> bool {
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
        device.consumes.is_empty() || row.pool.counters_suffice(others.chain([device]))
    }

    /// Pools with devices that a node of that name can use, perhaps.
    pub(crate) fn pools_of(&self, node: &NodeName) -> impl Iterator<Item = &PoolRow> {
        let local = self.local.get(node).into_iter().flatten();
        let mut names: Vec<&PoolName> = local.chain(&self.roaming).collect();
        if !self.roaming.is_empty() {
            names.sort_unstable();
            names.dedup();
        }
        names.into_iter().filter_map(|name| self.pools.get(name))
    }

    /// The device and its pool, where they are there.
    pub(super) fn found(&self, id: &DeviceId) -> Option<(&PoolRow, &Device)> {
        let (pool, name) = id.split()?;
        let row = self.pools.get(&pool)?;
        let mut devices = row.pool.devices.iter();
        Some((row, devices.find(|device| *device.name == *name)?))
    }

    /// The device, where its pool is there.
    pub(crate) fn device(&self, id: &DeviceId) -> Option<&Device> {
        self.found(id).map(|(_, device)| device)
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
