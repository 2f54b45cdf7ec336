//! Devices for all requests of all claims of a pod together: the first that go together, in the
//! order in which pools list them, as Kubernetes' allocator finds them. Exhaustive, but for the
//! number of steps.

use crate::devices::on_node::{Candidate, OnNode, will_do};
use crate::devices::{ClaimsReason, amount};
use crate::model::{
    AllocatedDevice, Alternative, Amounts, Attribute, Constraint, Count, DeviceRequest,
    DeviceWants, PoolFault,
};
use crate::state::State;
use crate::state::devices::usage::Free;
use crate::state::keys::NodeKey;
use std::sync::Arc;

/// Devices that are checked for one pod on one node: some milliseconds. Kubernetes' scheduler gives
/// up after ten seconds.
const STEPS: u32 = 10_000;

/// What a pod wants of a node's devices.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// By claim.
    pub claims: &'a [&'a DeviceWants],
    /// It asks for cards by annotation, too: its claims get no cards.
    pub by_annotation: bool,
}

/// Devices for each of the claims, in their order.
pub(crate) fn allocate(
    state: &State,
    key: NodeKey,
    wanted: Wanted,
    free: Free,
) -> Result<Vec<Vec<AllocatedDevice>>, ClaimsReason> {
    let claims = wanted.claims;
    let on_node = OnNode::of(state, key, free, wanted.by_annotation);
    let mut asks = Vec::with_capacity(claims.len());
    for claim in claims {
        asks.push(of_claim(&on_node, claim)?);
    }
    let mut search = Search {
        on_node: &on_node,
        claims,
        asks: &asks,
        taken: Vec::new(),
        steps: 0,
        deepest: (0, None),
    };
    if search.request(0, 0) {
        let mut found = vec![Vec::new(); claims.len()];
        for taken in search.taken {
            if let Some(devices) = found.get_mut(taken.claim) {
                devices.push(taken.device);
            }
        }
        return Ok(found);
    }
    if search.steps > STEPS {
        return Err(ClaimsReason::CutShort(STEPS));
    }
    let stuck = search.deepest.1;
    Err(ClaimsReason::Request(stuck.unwrap_or_default()))
}

/// One way to satisfy a request.
struct Ask<'a> {
    what: &'a Alternative,
    /// Which candidates would do, each alone.
    matching: Vec<usize>,
    /// How many of them.
    count: usize,
    /// All of them, and no others.
    all: bool,
}

/// For each request of a claim, its alternatives. An error where no node of this kind helps.
fn of_claim<'a>(
    on_node: &OnNode,
    claim: &'a DeviceWants,
) -> Result<Vec<Vec<Ask<'a>>>, ClaimsReason> {
    let mut least = 0_usize;
    let mut asks = Vec::with_capacity(claim.requests.len());
    for request in &claim.requests {
        let mut ways = Vec::with_capacity(request.alternatives.len());
        for what in &request.alternatives {
            if let Some(way) = way(on_node, request, what)? {
                ways.push(way);
            }
        }
        let Some(fewest) = ways.iter().map(|way| way.count).min() else {
            return Err(ClaimsReason::Request(Arc::clone(&request.name)));
        };
        least = least.saturating_add(fewest);
        if least > DeviceWants::MOST {
            return Err(ClaimsReason::TooMany(Arc::clone(&request.name)));
        }
        asks.push(ways);
    }
    Ok(asks)
}

/// `None`: there are too few devices for it.
fn way<'a>(
    on_node: &OnNode,
    request: &DeviceRequest,
    what: &'a Alternative,
) -> Result<Option<Ask<'a>>, ClaimsReason> {
    let all = what.count == Count::All;
    if let Some((pool, fault)) = on_node.fault.filter(|_| all) {
        return Err(ClaimsReason::Pool {
            request: Arc::clone(&request.name),
            pool: Arc::from(pool.pool.name.to_string()),
            why: match fault {
                PoolFault::Incomplete => Arc::from("is currently being updated"),
                PoolFault::Invalid(why) => Arc::from(format!("is currently invalid: {why}")),
            },
        });
    }
    let devices = || on_node.candidates.iter().map(|one| one.device);
    if let Some(why) = devices().find_map(|device| device.unanswered.get(&what.filter)) {
        return Err(ClaimsReason::Unanswered(Arc::clone(why)));
    }
    let candidates = on_node.candidates.iter().enumerate();
    let matching: Vec<usize> = candidates
        .filter(|(_, one)| {
            if all {
                // Those that are held or tainted count, and cannot be had.
                one.device.selected_by.contains(&what.filter)
                    && amount::fits(one.device, what, &one.used.taken).is_ok()
            } else {
                will_do(one, what).is_ok()
            }
        })
        .map(|(at, _)| at)
        .collect();
    let count = match what.count {
        Count::All => matching.len().max(1),
        Count::Exactly(count) => usize::try_from(count).unwrap_or(usize::MAX),
    };
    let enough = count <= DeviceWants::MOST && matching.len() >= count;
    // Too many for a claim has a reason of its own.
    let enough = enough || count > DeviceWants::MOST;
    Ok(enough.then_some(Ask {
        what,
        matching,
        count,
        all,
    }))
}

/// A device that the search has taken.
struct Taken {
    claim: usize,
    request: usize,
    alternative: usize,
    candidate: usize,
    device: AllocatedDevice,
    /// The amount that it consumes of a shared device.
    amounts: Amounts,
    /// It takes of what its pool's devices share.
    consumes: bool,
}

struct Search<'a> {
    on_node: &'a OnNode<'a>,
    claims: &'a [&'a DeviceWants],
    /// By claim, request and alternative.
    asks: &'a [Vec<Vec<Ask<'a>>>],
    taken: Vec<Taken>,
    steps: u32,
    /// How many were taken at most before a request found nothing, and which.
    deepest: (usize, Option<Arc<str>>),
}

/// Which alternative of which request.
#[derive(Clone, Copy)]
struct At {
    claim: usize,
    request: usize,
    alternative: usize,
}

impl<'a> Search<'a> {
    /// From this request of this claim on; true where all is found.
    fn request(&mut self, claim: usize, request: usize) -> bool {
        let Some(requests) = self.asks.get(claim) else {
            return true;
        };
        let Some(ways) = requests.get(request) else {
            return self.request(claim + 1, 0);
        };
        let before = self.taken.len();
        for alternative in 0..ways.len() {
            let at = At {
                claim,
                request,
                alternative,
            };
            if self.fill(at, 0, 0) {
                return true;
            }
            if self.steps > STEPS {
                return false;
            }
        }
        if self.deepest.1.is_none() || before > self.deepest.0 {
            let name = self.claims.get(claim).and_then(|claim| {
                let request = claim.requests.get(request)?;
                Some(Arc::clone(&request.name))
            });
            self.deepest = (before, name);
        }
        false
    }

    /// With this many devices of this request allocated, and the others from there on.
    fn fill(&mut self, at: At, have: usize, from: usize) -> bool {
        let asks: &'a [Vec<Vec<Ask<'a>>>] = self.asks;
        let ask = asks
            .get(at.claim)
            .and_then(|claim| claim.get(at.request)?.get(at.alternative));
        let Some(ask) = ask else {
            return false;
        };
        if have >= ask.count {
            return self.request(at.claim, at.request + 1);
        }
        let of_claim = self.taken.iter().filter(|taken| taken.claim == at.claim);
        if of_claim.count() + ask.count - have > DeviceWants::MOST {
            return false;
        }
        for (index, candidate) in ask.matching.iter().enumerate().skip(from) {
            self.steps += 1;
            if self.steps > STEPS {
                return false;
            }
            if let Some(taken) = self.take(at, ask, *candidate) {
                self.taken.push(taken);
                if self.fill(at, have + 1, index + 1) {
                    return true;
                }
                self.taken.pop();
            }
            // Each of them, or none.
            if ask.all {
                return false;
            }
        }
        false
    }

    /// The device, if it can be had beside those that are taken.
    fn take(&self, at: At, ask: &Ask, index: usize) -> Option<Taken> {
        let candidate = self.on_node.candidates.get(index)?;
        let device = candidate.device;
        if ask.all {
            will_do(candidate, ask.what).ok()?;
        }
        let own = || self.taken.iter().filter(|taken| taken.candidate == index);
        if !device.shared {
            // One for monitoring, which comes first, keeps others of the pod away: as in Kubernetes.
            let is_free = if ask.what.admin {
                own().all(|taken| taken.claim != at.claim)
            } else {
                own().next().is_none()
            };
            if !is_free {
                return None;
            }
        }
        let mut used = candidate.used.taken.clone();
        for taken in own() {
            for (name, amount) in &taken.amounts {
                let sum = used.entry(Arc::clone(name)).or_default();
                *sum = sum.plus(*amount);
            }
        }
        if device.shared {
            amount::fits(device, ask.what, &used).ok()?;
        }
        let in_use = device.shared && (candidate.used.is_held() || own().next().is_some());
        let consumes = !in_use && !device.consumes.is_empty();
        if consumes && !self.has_counters(candidate) {
            return None;
        }
        if !self.satisfies(at, candidate) {
            return None;
        }
        let amounts = if device.shared {
            amount::of(device, ask.what)
        } else {
            Amounts::new()
        };
        let claim = self.claims.get(at.claim)?;
        let request = &claim.requests.get(at.request)?.name;
        Some(Taken {
            claim: at.claim,
            request: at.request,
            alternative: at.alternative,
            candidate: index,
            device: AllocatedDevice {
                request: match &ask.what.name {
                    None => Arc::clone(request),
                    Some(sub) => Arc::from(format!("{request}/{sub}")),
                },
                device: candidate.id.clone(),
                admin: ask.what.admin,
                consumed: device.shared.then(|| amounts.clone()),
            },
            amounts,
            consumes,
        })
    }

    /// The shared counters of the pool have room for one more unallocated device.
    fn has_counters(&self, candidate: &Candidate<'a>) -> bool {
        let pool = candidate.pool;
        let taken = self.taken.iter().filter(|taken| taken.consumes);
        // One for monitoring counts, too, although nothing of it will be held: as Kubernetes does.
        let taken = taken
            .filter_map(|taken| self.on_node.candidates.get(taken.candidate))
            .filter(|other| other.pool.pool.name == pool.pool.name);
        let all = (self.on_node.consumers(pool))
            .chain(taken.map(|other| other.device))
            .chain([candidate.device]);
        pool.pool.counters_suffice(all)
    }

    /// The claim's constraints hold with this device, too.
    fn satisfies(&self, at: At, candidate: &Candidate) -> bool {
        let Some(claim) = self.claims.get(at.claim) else {
            return false;
        };
        let concerns = |constraint: &Constraint, request: usize, alternative: usize| {
            let of = self.asks.get(at.claim).and_then(|claim| claim.get(request));
            let ask = of.and_then(|ways| ways.get(alternative));
            let request = claim.requests.get(request);
            request
                .zip(ask)
                .is_some_and(|(request, ask)| constraint.concerns(request, ask.what))
        };
        claim.constraints.iter().all(|constraint| {
            if !concerns(constraint, at.request, at.alternative) {
                return true;
            }
            let value = |candidate: &'a Candidate<'a>| -> Option<&'a Attribute> {
                candidate.device.attributes.get(&constraint.attribute)
            };
            let Some(own) = candidate.device.attributes.get(&constraint.attribute) else {
                return false;
            };
            let beside = self.taken.iter().filter(|taken| {
                taken.claim == at.claim && concerns(constraint, taken.request, taken.alternative)
            });
            let mut values = beside
                .filter_map(|taken| self.on_node.candidates.get(taken.candidate))
                .map(value);
            if constraint.distinct {
                values.all(|other| other != Some(own))
            } else {
                values.all(|other| other == Some(own))
            }
        })
    }
}
