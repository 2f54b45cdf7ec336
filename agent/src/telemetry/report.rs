//! The node's state → the message that schedulers get.
//!
//! Pure. In: [`State`]. Out: [`NodeState`], whole each time, in the state's own order.

use crate::gpu::GpuUuid;
use crate::inventory::{Card, Health};
use crate::ledger::Share;
use crate::mps::phase;
use crate::node::{self, State};
use crate::numa;
use crate::resource::Resource;
use api::Mode;
use api::gpu_node::TopologyScope;
use proto::mps::{ServerPhase, ServerState};
use proto::telemetry::{
    Gpu, NodeState, NumaUse, NumaZone, Refusal, Share as ProtoShare, Stranger, TopologyManager,
    UngrantedPod,
};

/// The report on the node for schedulers.
pub fn node_state(state: &State) -> NodeState {
    NodeState {
        node: state.node.name.clone(),
        node_uid: state.node.uid.clone(),
        gpus: gpus(state, is_gpu),
        slices: gpus(state, |card| !is_gpu(card)),
        shares: state.ledger.shares().map(|s| share(state, s)).collect(),
        strangers: state
            .inventory
            .cards
            .iter()
            .flat_map(|card| strangers(state, card))
            .collect(),
        not_offering: state.not_offering.clone().unwrap_or_default(),
        driver_version: state.inventory.driver_version.clone(),
        ungranted: (state.ungranted.iter())
            .map(|one| ungranted(state, one))
            .collect(),
        topology_manager: topology_manager(state),
    }
}

/// Where the kubelet refuses pods. Without zones until they are read.
fn topology_manager(state: &State) -> Option<TopologyManager> {
    let said = state.topology_manager.as_ref()?;
    let scope = match said.scope {
        Some(TopologyScope::Pod) => "pod",
        Some(TopologyScope::Container) | None => "container",
    };
    let numa = state.numa.as_deref();
    let zones = numa.iter().flat_map(|numa| &numa.zones);
    let used = numa.iter().flat_map(|numa| &numa.used);
    Some(TopologyManager {
        policy: said.policy.as_str().to_owned(),
        scope: scope.to_owned(),
        cpu_manager: numa.is_none_or(|numa| numa.cpu_manager),
        memory_manager: numa.is_none_or(|numa| numa.memory_manager),
        zones: zones.map(|(id, zone)| numa_zone(*id, *zone)).collect(),
        used: used
            .flat_map(|(pod, used)| numa_uses(state.api_uid(pod), used))
            .collect(),
    })
}

fn numa_zone(id: u32, zone: numa::Zone) -> NumaZone {
    NumaZone {
        id,
        cpus: zone.cpus,
        allocatable_cpus: zone.allocatable_cpus,
        memory_bytes: zone.memory,
    }
}

fn numa_uses(pod: &str, used: &numa::Used) -> Vec<NumaUse> {
    let of = |zone, taken: numa::Taken| NumaUse {
        pod_uid: pod.to_owned(),
        zone,
        cpus: taken.cpus,
        memory_bytes: taken.memory,
    };
    if used.is_empty() {
        return vec![of(None, numa::Taken::default())];
    }
    let used = used.iter();
    used.map(|(zone, taken)| of(Some(*zone), *taken)).collect()
}

/// Whether schedulers decide on it: it is a card, or a slice that is offered as one.
fn is_gpu(card: &Card) -> bool {
    let offered = !card.switchable.is_empty() && card.resource == Resource::Whole;
    card.slice.is_none() || offered
}

fn gpus(state: &State, which: impl Fn(&Card) -> bool) -> Vec<Gpu> {
    let cards = state.inventory.cards.iter();
    let cards = cards.filter(|card| which(card));
    cards.map(|card| gpu(state, card)).collect()
}

fn ungranted(state: &State, ungranted: &node::Ungranted) -> UngrantedPod {
    UngrantedPod {
        pod_uid: state.api_uid(&ungranted.pod.uid).to_owned(),
        container: ungranted.container.clone(),
        resource: ungranted.resource.clone(),
        devices: u32::try_from(ungranted.devices).unwrap_or(u32::MAX),
    }
}

/// The report on a refused grant for schedulers.
pub fn refusal(refusal: &node::RefusedGrant) -> Refusal {
    Refusal {
        pod_uid: refusal.pod.uid.clone(),
        pod_namespace: refusal.pod.namespace.clone(),
        pod_name: refusal.pod.name.clone(),
        container: refusal.container.clone(),
        decision_id: refusal.decision.clone(),
        reason: refusal.reason.clone(),
        r#final: refusal.is_final,
    }
}

/// MPS servers on a card, by their supervisor's account: the card's one, or those of its
/// isolated shares.
pub fn mps_servers<'a>(
    state: &'a State,
    card: &'a GpuUuid,
) -> impl Iterator<Item = &'a ServerState> {
    let on = |server: &&ServerState| {
        server.name == card.as_str() || server.gpu_uuids.iter().any(|uuid| uuid == card.as_str())
    };
    state.mps.seen.servers.iter().filter(on)
}

/// Phase of a card's MPS servers: that of the worst, as all but one matter to their own
/// share alone.
pub fn mps_phase(state: &State, card: &GpuUuid) -> ServerPhase {
    let rank = |phase: &ServerPhase| match phase {
        ServerPhase::Dead => 5,
        ServerPhase::ServerFault => 4,
        ServerPhase::Starting => 3,
        ServerPhase::Draining => 2,
        ServerPhase::Ready => 1,
        ServerPhase::Absent | ServerPhase::Unspecified => 0,
    };
    mps_servers(state, card)
        .map(ServerState::phase)
        .max_by_key(rank)
        .unwrap_or(ServerPhase::Absent)
}

/// Returns whether a container with a grant on this card can be started. The start itself switches
/// an idle card to its grant's mode; a card in use must have what its mode needs. A server that is
/// starting, or about to, is enough: `PreStartContainer` waits for it, and otherwise each of
/// several shares that come together would take another card.
pub fn is_ready(state: &State, card: &Card) -> bool {
    if !health(state, card).is_healthy() || state.not_offering.is_some() {
        return false;
    }
    match state.ledger.mode_of(&card.uuid) {
        Some(Mode::Mps) => {
            let mut servers = state.mps.seen.servers.iter();
            let own = servers.find(|server| server.name == card.uuid.as_str());
            let starts = own.map(ServerState::phase).is_none_or(|phase| {
                matches!(
                    phase,
                    ServerPhase::Absent | ServerPhase::Starting | ServerPhase::Ready
                )
            });
            state.mps.unreachable.is_empty() && starts
        }
        // A new share gets a server of its own, or none.
        Some(Mode::MpsIsolated | Mode::TimeSlicing) => state.mps.unreachable.is_empty(),
        Some(Mode::Exclusive) | None => true,
    }
}

/// Returns the card's health. A healthy card is shown as unhealthy while its slice is being removed
/// or while its shares cannot be held to their limits.
pub fn health(state: &State, card: &Card) -> Health {
    let unguarded = state.unguarded.get(&card.uuid).map(String::as_str);
    match state.layouts.closes(card).or(unguarded) {
        Some(reason) if card.health.is_healthy() => Health::Unhealthy {
            reason: reason.to_owned(),
            lasting: false,
        },
        _ => card.health.clone(),
    }
}

fn gpu(state: &State, card: &Card) -> Gpu {
    let health = health(state, card);
    let pool = state.kubelet_pools.get(&card.uuid).copied();
    Gpu {
        uuid: card.uuid.to_string(),
        index: card.index,
        product: card.product.clone(),
        memory_total_mib: card.total.0,
        memory_reserved_mib: card.reserved.0,
        memory_used_mib: card.used.0,
        memory_granted_mib: state.ledger.granted(&card.uuid).0,
        memory_grantable_mib: state.ledger.grantable(card).0,
        mode: state
            .ledger
            .mode_of(&card.uuid)
            .map(|mode| mode.as_str().to_owned())
            .unwrap_or_default(),
        switchable_modes: card
            .switchable
            .iter()
            .map(|mode| mode.as_str().to_owned())
            .collect(),
        ready: is_ready(state, card),
        mps_state: phase::word(mps_phase(state, &card.uuid)).to_owned(),
        health: health.word().to_owned(),
        health_reason: health.reason().to_owned(),
        compute_capability: card.compute_capability.clone(),
        pci_bus_id: card.pci.clone(),
        numa_node: card
            .numa
            .and_then(|node| i32::try_from(node).ok())
            .unwrap_or(-1),
        nvlink_peers: card.nvlink_peers.clone(),
        client_slots: card.client_slots,
        client_slots_used: state.ledger.slots_used(&card.uuid),
        cordoned: card.cordoned,
        mig_enabled: card.mig,
        kubelet_pool: pool.unwrap_or_default().as_str().to_owned(),
        context_allowance_mib: card.context_allowance.0,
        minimum_fence: card
            .minimum_fence
            .map(|fence| fence.as_str().to_owned())
            .unwrap_or_default(),
        compute_mode: card.compute_mode.as_str().to_owned(),
        parent_uuid: (card.slice.as_ref())
            .map(|slice| slice.parent.to_string())
            .unwrap_or_default(),
        mig_profile: card.mig_profile(),
        driver_limits: (card.driver_limits.backend())
            .map_or_else(String::new, |backend| backend.as_str().to_owned()),
    }
}

fn share(state: &State, share: &Share) -> ProtoShare {
    let complaint = state.complaints.get(&share.key());
    ProtoShare {
        pod_uid: state.api_uid(&share.pod.uid).to_owned(),
        pod_namespace: share.pod.namespace.clone(),
        pod_name: share.pod.name.clone(),
        container: share.container.clone(),
        gpu_uuids: share.gpus.iter().map(ToString::to_string).collect(),
        memory_mib: share.memory.0,
        compute_percent: share.compute_percent.into(),
        mode: share.mode.as_str().to_owned(),
        alloc_id: share.alloc_id.map(|id| id.to_string()).unwrap_or_default(),
        phase: share.phase.as_str().to_owned(),
        memory_used_mib: share.used.0,
        fence: share
            .fence
            .map(|fence| fence.level.as_str().to_owned())
            .unwrap_or_default(),
        limit_backend: (share.fence.and_then(|fence| fence.backend))
            .map_or_else(String::new, |backend| backend.as_str().to_owned()),
        observed_limit_mib: share
            .fence
            .and_then(|fence| fence.limit)
            .map_or(0, |limit| limit.0),
        decision_id: share.decision.clone(),
        complaint: complaint.map(|c| c.text.clone()).unwrap_or_default(),
        evict: complaint.is_some_and(|c| c.evict),
        idle_minutes: share.idle_minutes,
        reach_mib: share.fence.map_or(0, |fence| fence.reach.0),
        sm_percent: share.sm_percent,
        claim: (share.claimed.as_ref()).map_or_else(String::new, |claimed| claimed.name.clone()),
        holders: u32::try_from(state.ledger.holders(&share.limit_scope()).count())
            .unwrap_or(u32::MAX),
    }
}

fn strangers<'a>(state: &'a State, card: &'a Card) -> impl Iterator<Item = Stranger> + 'a {
    card.strangers.iter().map(move |stranger| Stranger {
        gpu_uuid: card.uuid.to_string(),
        pid: stranger.pid,
        command: stranger.command.clone(),
        container_id: stranger.container_id.clone().unwrap_or_default(),
        memory_mib: stranger.memory.0,
        pod_uid: (stranger.pod_uid.as_deref())
            .map(|uid| state.api_uid(uid).to_owned())
            .unwrap_or_default(),
        evict: state
            .evicted_strangers
            .contains(&(card.uuid.clone(), stranger.pid)),
    })
}
