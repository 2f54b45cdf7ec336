//! The node's state → the status of its `GpuNode`, and when it is worth a write.
//!
//! Pure. In: [`State`], the status that was written last, time as a value. Out: the status
//! to write; [`urgency`] of writing it. Fast values are quantised with hysteresis, so that
//! a job that takes and frees memory all the time writes nothing.

use super::report;
use crate::inventory::{Card, DriverLimits};
use crate::ledger::Share;
use crate::mps::phase;
use crate::node::State;
use api::Mib;
use api::gpu_node::{GpuNodeStatus, GpuStatus, GrantStatus, StrangerStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use proto::mps::ServerPhase;
use proto::names::node_condition;

/// The CRD's limits.
const MOST_CARDS: usize = 64;
const MOST_GRANTS: usize = 64;
const MOST_STRANGERS: usize = 16;
/// Larger statuses lose their lists of grants and strangers, card by card alike.
const MOST_BYTES: usize = 128 << 10;

/// How soon a status must be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Nothing changed.
    None,
    /// Only quantised fast values did.
    Low,
    /// Anything else.
    High,
}

/// The current status. `last`: the last written one, for values that must not flicker.
pub fn status(state: &State, last: Option<&GpuNodeStatus>, now: Timestamp) -> GpuNodeStatus {
    let cards = || state.inventory.cards.iter().take(MOST_CARDS);
    let count = cards().filter(|card| card.slice.is_none()).count();
    let sum = |of: &dyn Fn(&Card) -> Mib| {
        cards().fold(Mib(0), |sum, card| Mib(sum.0.saturating_add(of(card).0)))
    };
    let generation = state.policy.as_ref().map(|policy| policy.generation);
    let mut status = GpuNodeStatus {
        observed_generation: generation,
        driver_version: state.inventory.driver_version.clone(),
        gpu_count: u32::try_from(count).unwrap_or(u32::MAX),
        product: cards()
            .next()
            .map(|card| card.product.clone())
            .unwrap_or_default(),
        granted_mib: sum(&|card| state.ledger.granted(&card.uuid)),
        grantable_mib: sum(&|card| state.ledger.grantable(card)),
        share_count: u32::try_from(state.ledger.shares().count()).unwrap_or(u32::MAX),
        gpus: cards().map(|card| gpu(state, card, last)).collect(),
        conditions: conditions(state, generation, last, now),
    };
    cap(&mut status);
    status
}

/// How soon `now` must replace `last`.
pub fn urgency(last: &GpuNodeStatus, now: &GpuNodeStatus) -> Urgency {
    if last == now {
        return Urgency::None;
    }
    let slow = |status: &GpuNodeStatus| {
        let mut status = status.clone();
        for gpu in &mut status.gpus {
            gpu.used_mib = Mib(0);
            for stranger in &mut gpu.strangers {
                stranger.memory_mib = Mib(0);
            }
        }
        status
    };
    if slow(last) == slow(now) {
        Urgency::Low
    } else {
        Urgency::High
    }
}

fn gpu(state: &State, card: &Card, last: Option<&GpuNodeStatus>) -> GpuStatus {
    let last = last.and_then(|status| {
        let uuid = card.uuid.as_str();
        status.gpus.iter().find(|gpu| gpu.uuid == uuid)
    });
    let mps = report::mps_phase(state, &card.uuid);
    let health = report::health(state, card);
    let layout = state.layouts.messages.get(&card.uuid);
    GpuStatus {
        uuid: card.uuid.to_string(),
        index: card.index,
        product: card.product.clone(),
        total_mib: card.total,
        reserved_mib: card.reserved,
        used_mib: quantised(card.used, step(card.total), last.map(|gpu| gpu.used_mib)),
        granted_mib: state.ledger.granted(&card.uuid),
        grantable_mib: state.ledger.grantable(card),
        mode: state.ledger.mode_of(&card.uuid),
        switchable_modes: card.switchable.clone(),
        ready: report::is_ready(state, card),
        mps: match mps {
            ServerPhase::Absent => String::new(),
            mps => phase::word(mps).to_owned(),
        },
        health: health.word().to_owned(),
        health_reason: health.reason().to_owned(),
        compute_capability: card.compute_capability.clone(),
        pci: card.pci.clone(),
        numa: card.numa,
        nvlink_peers: card.nvlink_peers.clone(),
        cordoned: card.cordoned,
        mig_enabled: card.mig,
        mig_profile: card.mig_profile(),
        mig_layout_message: layout.cloned().unwrap_or_default(),
        grants: state
            .ledger
            .on(&card.uuid)
            .take(MOST_GRANTS)
            .map(|share| grant(state, share))
            .collect(),
        strangers: card
            .strangers
            .iter()
            .take(MOST_STRANGERS)
            .map(|stranger| {
                let before = last.and_then(|gpu| {
                    let same = |s: &&StrangerStatus| s.pid == stranger.pid;
                    gpu.strangers.iter().find(same).map(|s| s.memory_mib)
                });
                StrangerStatus {
                    pid: stranger.pid,
                    command: stranger.command.clone(),
                    memory_mib: quantised(stranger.memory, step(card.total), before),
                }
            })
            .collect(),
    }
}

fn grant(state: &State, share: &Share) -> GrantStatus {
    let complaint = state.complaints.get(&share.key());
    GrantStatus {
        pod: share.pod.to_string(),
        pod_uid: state.api_uid(&share.pod.uid).to_owned(),
        container: share.container.clone(),
        memory_mib: share.memory,
        request_mib: (share.kept < share.memory).then_some(share.kept),
        compute_percent: share.compute_percent,
        phase: share.phase.as_str().to_owned(),
        fence: share.fence.map(|fence| fence.level),
        reach_mib: share.fence.map(|fence| fence.reach),
        complaint: complaint.map(|c| c.text.clone()).unwrap_or_default(),
        claim: (share.claimed.as_ref()).map_or_else(String::new, |claimed| claimed.name.clone()),
    }
}

/// A hundredth of the card, and at least 64 MiB.
fn step(total: Mib) -> Mib {
    Mib((total.0 / 100).max(64))
}

/// The published value: the previous one if it is within one step of `value`, else the nearest
/// multiple of the step.
fn quantised(value: Mib, step: Mib, shown: Option<Mib>) -> Mib {
    match shown {
        Some(shown) if shown.0.abs_diff(value.0) <= step.0 => shown,
        _ => Mib((value.0 + step.0 / 2) / step.0 * step.0),
    }
}

/// Returns the conditions of a `GpuNode`: whether the node offers shares and, if its driver is new
/// enough, whether the driver limits cgroups.
fn conditions(
    state: &State,
    generation: Option<i64>,
    last: Option<&GpuNodeStatus>,
    now: Timestamp,
) -> Vec<Condition> {
    let (status, reason, message) = match &state.not_offering {
        None => ("True", "Offering", String::new()),
        Some(why) => ("False", "NotOffering", why.clone()),
    };
    let offering = Some((node_condition::OFFERING, status, reason, message));
    // The time of a condition changes only when its status does.
    let since = |kind: &str, status: &str| {
        let mut conditions = last.iter().flat_map(|last| &last.conditions);
        let same = |one: &&Condition| one.type_ == kind && one.status == status;
        let before = conditions.find(same);
        before.map_or(Time(now), |one| one.last_transition_time.clone())
    };
    let all = offering.into_iter().chain(driver_limits(state));
    all.map(|(kind, status, reason, message)| Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: since(kind, status),
    })
    .collect()
}

/// The type, status, reason and message of a condition.
type Said = (&'static str, &'static str, &'static str, String);

/// Returns the condition about memory limits. `None`: no card was worth a probe. A card that lost
/// them is named before one that never had them.
fn driver_limits(state: &State) -> Option<Said> {
    let mut probed = false;
    let mut kept = Vec::new();
    let mut missing = None;
    for card in &state.inventory.cards {
        let found = match &card.driver_limits {
            DriverLimits::None => continue,
            DriverLimits::Unknown => Err(("Missing", "not probed yet")),
            DriverLimits::Missing(part) => Err(("Missing", part.as_str())),
            DriverLimits::Lost(part) => Err(("Lost", part.as_str())),
            DriverLimits::Kept(backend) => Ok(backend.as_str()),
        };
        probed = true;
        match found {
            Ok(backend) => kept.push(format!("card {}: {backend}", card.uuid)),
            Err((reason, part)) => {
                let message = format!("card {}: {part}", card.uuid);
                let said = (node_condition::DRIVER_LIMITS, "False", reason, message);
                if reason == "Lost" {
                    return Some(said);
                }
                missing.get_or_insert(said);
            }
        }
    }
    if missing.is_some() {
        return missing;
    }
    probed.then(|| {
        (
            node_condition::DRIVER_LIMITS,
            "True",
            "Probed",
            kept.join(", "),
        )
    })
}

fn cap(status: &mut GpuNodeStatus) {
    let mut most = MOST_GRANTS;
    while most > 0 {
        let size = serde_json::to_string(&status).map_or(0, |text| text.len());
        if size <= MOST_BYTES {
            return;
        }
        most /= 2;
        for gpu in &mut status.gpus {
            gpu.grants.truncate(most);
            gpu.strangers.truncate(most);
        }
    }
}
