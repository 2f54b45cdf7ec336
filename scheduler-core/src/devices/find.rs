//! Which devices the claims of a request can have on a node, with those that they have already.

use crate::devices::{ClaimsReason, Wanted, allocate};
use crate::ids::ClaimUid;
use crate::model::{AllocatedDevice, DeviceClaim, DeviceWants, Front, Node};
use crate::state::State;
use crate::state::devices::hold::Slot;
use crate::state::devices::usage::Free;
use crate::state::keys::NodeKey;
use crate::state::spec::Spec;
use crate::state::task_cell::Status;
use crate::state::way::As;

impl State {
    /// Whether the claim has devices, and the node can use them. `None`: it has none, or will
    /// have none when those who leave have left, and can have others: the node cannot use these,
    /// or they are promised to others.
    pub(crate) fn is_here(&self, claim: &ClaimUid, node: &Node) -> Option<bool> {
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
    pub(crate) fn allocate(
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
        let mut used = cards.filter_map(|card| self.cells.cards.get(*card));
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

    /// Whether there is room for these beside all that will be held and that is promised. They
    /// are a claim's that loses them when those who leave have left.
    pub(crate) fn can_be_kept(&self, devices: &[AllocatedDevice]) -> bool {
        let mut counted = devices.iter().filter(|device| !device.admin);
        counted.all(|device| self.devices.has_room_for(device))
    }
}
