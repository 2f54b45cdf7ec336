//! What claims hold, put together again from the pods and the facts, without the code that moves
//! it.

use crate::action::{Action, Decision};
use crate::ids::{ClaimUid, DeviceId};
use crate::model::{AllocatedDevice, DeviceClaim};
use crate::state::State;
use crate::state::devices::usage::DeviceUse;
use crate::state::devices::{FreeDevices, Slot};
use crate::state::keys::{NodeKey, TaskKey};
use crate::state::way::As;
use std::collections::{BTreeMap, BTreeSet};

/// Pods of a claim: which, where, and how.
type Users = Vec<(TaskKey, NodeKey, u8)>;

fn rank(how: As) -> u8 {
    match how {
        As::Taken => 0,
        As::Leaving => 1,
        As::Promised => 2,
    }
}

/// Each claim that holds something else than its pods and the API server say.
pub(super) fn check(state: &State, wrong: &mut Vec<String>) {
    let mut users: BTreeMap<ClaimUid, Users> = BTreeMap::new();
    for (task, cell) in &state.cells.tasks {
        for claim in state.devices.of(task) {
            let of = users.entry(claim.uid.clone()).or_default();
            let leaving = cell.leaving.as_ref().map(|leaving| leaving.front);
            let fronts = leaving.into_iter().chain([cell.front]);
            let places = cell
                .taken()
                .zip(fronts)
                .filter(|(_, front)| claim.is_used(*front));
            of.extend(places.map(|((node, how), _)| (task, node, rank(how))));
        }
    }
    users.retain(|_, users| !users.is_empty());
    let mut held: BTreeMap<ClaimUid, Users> = BTreeMap::new();
    for (slot, hold) in state.devices.holds() {
        let users = hold.users.iter();
        held.entry(slot.claim.clone())
            .or_default()
            .extend(users.map(|user| (user.task, user.node, rank(user.how))));
    }
    for users in users.values_mut().chain(held.values_mut()) {
        users.sort_unstable();
    }
    if users != held {
        wrong.push(format!(
            "the claims on devices have {held:?}, their pods have {users:?}"
        ));
    }
    let uses = uses(state);
    if uses.len() != state.devices.uses().len() {
        let (is, should) = (state.devices.uses().len(), uses.len());
        wrong.push(format!(
            "the number of devices in use has {is}, their claims have {should}"
        ));
    }
    for (id, should) in &uses {
        let is = state.devices.uses().get(id);
        if is != Some(should) {
            wrong.push(format!(
                "device {id} has {is:?}, its claims have {should:?}"
            ));
        }
    }
    let devices = &state.devices;
    let free = FreeDevices::counted(devices.pools(), devices.uses());
    if *devices.free() != free {
        let is = devices.free();
        wrong.push(format!("free devices are {is:?}, counted are {free:?}"));
    }
}

/// What each device is used for.
fn uses(state: &State) -> BTreeMap<DeviceId, DeviceUse> {
    let devices = &state.devices;
    let mut uses: BTreeMap<DeviceId, DeviceUse> = BTreeMap::new();
    let mut count = |all: &[AllocatedDevice], how: As| {
        for device in all.iter().filter(|device| !device.admin) {
            let used = uses.entry(device.device.clone()).or_default();
            used.change(device, how, true);
        }
    };
    for seen in devices.allocated() {
        let hold = devices.holds().get(&Slot::now(&seen.claim));
        let all = hold.map_or(&[][..], |hold| hold.users.as_slice());
        let leaving = all.iter().filter(|user| user.how == As::Leaving).count();
        let how = if all.is_empty() && seen.leaving
            || leaving > 0 && leaving == all.len() && seen.consumers as usize <= leaving
        {
            As::Leaving
        } else {
            As::Taken
        };
        count(&seen.devices, how);
        let picked = hold.and_then(|hold| hold.picked.as_ref());
        if let Some(picked) = picked.filter(|picked| picked.devices != seen.devices) {
            count(&picked.devices, how);
        }
    }
    for (slot, hold) in devices.holds() {
        let is_seen = !slot.again && devices.allocated().any(|seen| seen.claim == slot.claim);
        let Some(picked) = hold.picked.as_ref().filter(|_| !is_seen) else {
            continue;
        };
        let all = |how: As| hold.users.iter().all(|user| user.how == how);
        let how = if all(As::Leaving) {
            As::Leaving
        } else if all(As::Promised) {
            As::Promised
        } else {
            As::Taken
        };
        count(&picked.devices, how);
    }
    uses
}

/// Devices that this decision allocated to claims are within their capacity.
pub(super) fn check_decided(state: &State, decision: &Decision, wrong: &mut Vec<String>) {
    let binds = || {
        decision.actions.iter().filter_map(|action| match action {
            Action::Bind(bind) => Some(bind),
            Action::Evict(_) => None,
        })
    };
    let bound: BTreeSet<TaskKey> = binds()
        .filter_map(|bind| state.task_of(&bind.pod))
        .collect();
    // What a claim had before, others may have got, too, behind our back.
    let is_new = |claim: &ClaimUid| {
        let hold = state.devices.holds().get(&Slot::now(claim));
        let seen = state.devices.allocated().any(|seen| seen.claim == *claim);
        !seen && hold.is_some_and(|hold| hold.users.iter().all(|user| bound.contains(&user.task)))
    };
    for bind in binds() {
        let of_pod = state.task_of(&bind.pod);
        let used = |claim: &&DeviceClaim| claim.is_used(bind.front);
        let claims = of_pod.map_or(0, |task| state.devices.of(task).iter().filter(used).count());
        if claims != bind.devices.len() {
            wrong.push(format!("pod {} is bound without its devices", bind.pod));
        }
        let new = bind.devices.iter().filter(|claim| is_new(&claim.uid));
        for device in new.flat_map(|claim| &*claim.devices) {
            let id = &device.device;
            let is_free = state.devices.is_within(id) && state.devices.is_held_within(id);
            if !device.admin && !is_free {
                wrong.push(format!("device {id} is allocated beyond what it has"));
            }
        }
    }
}
