//! An agent's word on its node → the core's cards.
//!
//! Samples of used memory stay out: only what changes what may be granted enters the core,
//! in steps, so that a stranger that breathes does not wake every decision.

use proto::telemetry::{Gpu, NodeState};
use scheduler_core::ids::{GpuUuid, NodeName, PodUid};
use scheduler_core::model::{
    Card, Fence, Mode, NodeCards, NumaUse, NumaZone, Pool, TopologyManager, TopologyPolicy,
    TopologyScope,
};
use scheduler_core::units::{Bytes, Mib};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What strangers hold is taken in steps of so many MiB, rounded up.
const STEP: u64 = 256;

/// What strangers hold by card, as it was last taken in.
pub(super) type Strangers = BTreeMap<String, Mib>;

/// Cards of a node, against what was taken in before. `default_mode` is the admin's, for
/// shares that name none.
pub(super) fn of(
    state: &NodeState,
    default_mode: Mode,
    before: &Strangers,
) -> (NodeCards, Strangers) {
    let mut seen = Strangers::new();
    for stranger in &state.strangers {
        let sum = seen.entry(stranger.gpu_uuid.clone()).or_default();
        sum.0 = sum.0.saturating_add(stranger.memory_mib);
    }
    let of = |by_card: &Strangers, uuid: &str| by_card.get(uuid).copied().unwrap_or_default();
    let held: Strangers = seen
        .iter()
        .map(|(uuid, memory)| (uuid.clone(), stepped(*memory, of(before, uuid))))
        .collect();
    let cards = NodeCards {
        node: NodeName::new(&state.node),
        default_mode,
        not_offering: Some(state.not_offering.as_str())
            .filter(|why| !why.is_empty())
            .map(Arc::from),
        cards: state
            .gpus
            .iter()
            .map(|gpu| card(gpu, of(&seen, &gpu.uuid), of(&held, &gpu.uuid)))
            .collect(),
        topology_manager: state.topology_manager.as_ref().and_then(topology_manager),
    };
    (cards, held)
}

/// `None`: a policy that refuses no pod, or one of a newer agent.
fn topology_manager(said: &proto::telemetry::TopologyManager) -> Option<TopologyManager> {
    Some(TopologyManager {
        policy: match said.policy.as_str() {
            "restricted" => TopologyPolicy::Restricted,
            "single-numa-node" => TopologyPolicy::SingleNumaNode,
            _ => return None,
        },
        scope: match said.scope.as_str() {
            "pod" => TopologyScope::Pod,
            _ => TopologyScope::Container,
        },
        cpu_manager: said.cpu_manager,
        memory_manager: said.memory_manager,
        zones: (said.zones.iter())
            .map(|zone| NumaZone {
                id: zone.id,
                cpus: zone.cpus,
                allocatable_cpus: zone.allocatable_cpus,
                memory: Bytes(zone.memory_bytes),
            })
            .collect(),
        used: (said.used.iter())
            .map(|used| NumaUse {
                pod: PodUid::new(&used.pod_uid),
                zone: used.zone,
                cpus: used.cpus,
                memory: Bytes(used.memory_bytes),
            })
            .collect(),
    })
}

/// Nothing new is placed on these cards: their agent is not connected.
pub(super) fn close(cards: &mut NodeCards) {
    cards
        .not_offering
        .get_or_insert_with(|| "its agent is not connected".into());
    for card in &mut cards.cards {
        card.pool = Pool::None;
    }
}

/// Up at once, in steps; down only by a whole step.
fn stepped(memory: Mib, before: Mib) -> Mib {
    let up = Mib(memory.0.div_ceil(STEP).saturating_mul(STEP));
    if up < before && memory.0.saturating_add(STEP) > before.0 {
        before
    } else {
        up
    }
}

/// `seen`: what strangers hold by its agent's word; `strangers`: as it is taken in.
fn card(gpu: &Gpu, seen: Mib, strangers: Mib) -> Card {
    let mut card = Card::named(&gpu.uuid, gpu.index, &gpu.product, gpu.memory_total_mib);
    card.reserved = Mib(gpu.memory_reserved_mib);
    // The agent's own figure holds where it is lower for a reason of its own; what
    // strangers take of it is taken in steps here.
    let alone = Mib(gpu.memory_grantable_mib.saturating_add(seen.0));
    let most = card.total.less(card.reserved);
    card.grantable = alone.min(most).less(strangers);
    card.strangers = strangers;
    card.mode = Mode::parse(&gpu.mode);
    card.switchable = gpu
        .switchable_modes
        .iter()
        .filter_map(|name| Mode::parse(name))
        .collect();
    card.ready = gpu.ready;
    card.unhealthy = (gpu.health != "Healthy").then(|| {
        let reason = if gpu.health_reason.is_empty() {
            "unhealthy"
        } else {
            gpu.health_reason.as_str()
        };
        Arc::from(reason)
    });
    card.cordoned = gpu.cordoned;
    card.mig = gpu.mig_enabled;
    card.slice = !gpu.parent_uuid.is_empty();
    card.client_slots = gpu.client_slots;
    card.numa = u32::try_from(gpu.numa_node).ok();
    card.nvlink_peers = gpu
        .nvlink_peers
        .iter()
        .filter(|peer| !peer.is_empty())
        .map(GpuUuid::new)
        .collect();
    card.allowance = Mib(gpu.context_allowance_mib);
    card.pool = match gpu.kubelet_pool.as_str() {
        "whole" => Pool::Whole,
        "whole-only" => Pool::WholeOnly,
        "shared" => Pool::Shared,
        "none" => Pool::None,
        _ => Pool::Unknown,
    };
    card.driver_limits = !gpu.driver_limits.is_empty();
    card.minimum_fence = match gpu.minimum_fence.as_str() {
        "" => None,
        // A word of a newer agent: no share is placed there that could be weaker.
        word => Some(Fence::parse(word).unwrap_or(Fence::DriverLimit)),
    };
    card
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::telemetry::Stranger;

    fn state(strangers: &[u64]) -> NodeState {
        NodeState {
            node: "n1".into(),
            gpus: vec![Gpu {
                uuid: "GPU-1".into(),
                memory_total_mib: 16_000,
                memory_reserved_mib: 500,
                memory_grantable_mib: 15_500 - strangers.iter().sum::<u64>(),
                switchable_modes: vec!["exclusive".into(), "mps".into()],
                health: "Healthy".into(),
                numa_node: -1,
                ..Gpu::default()
            }],
            strangers: strangers
                .iter()
                .map(|memory| Stranger {
                    gpu_uuid: "GPU-1".into(),
                    memory_mib: *memory,
                    ..Stranger::default()
                })
                .collect(),
            ..NodeState::default()
        }
    }

    #[test]
    fn what_strangers_hold_rises_at_once_and_falls_in_whole_steps() {
        let mut before = Strangers::new();
        let mut seen = Vec::new();
        for held in [0, 1, 255, 300, 257, 250, 200, 10] {
            let (cards, after) = of(&state(&[held]), Mode::Mps, &before);
            seen.push(after["GPU-1"].0);
            assert_eq!(cards.cards[0].grantable, Mib(15_500 - after["GPU-1"].0));
            before = after;
        }
        assert_eq!(seen, [0, 256, 256, 512, 512, 256, 256, 256]);
    }

    #[test]
    fn a_card_without_strangers_grants_what_its_agent_says() {
        let mut state = state(&[]);
        state.gpus[0].memory_grantable_mib = 15_000;
        assert_eq!(
            of(&state, Mode::Mps, &Strangers::new()).0.cards[0].grantable,
            Mib(15_000)
        );
    }

    #[test]
    fn what_its_agent_keeps_back_is_kept_back_beside_strangers_too() {
        let mut state = state(&[300]);
        state.gpus[0].memory_grantable_mib -= 64;
        assert_eq!(
            of(&state, Mode::Mps, &Strangers::new()).0.cards[0].grantable,
            Mib(15_500 - 64 - 512)
        );
    }

    #[test]
    fn slices_that_kubernetes_counts_are_no_cards_and_those_that_are_gpus_hold_no_shares() {
        let mut state = state(&[]);
        let slice = Gpu {
            uuid: "MIG-1".into(),
            parent_uuid: "GPU-1".into(),
            ..state.gpus[0].clone()
        };
        state.slices = vec![slice.clone()];
        let cards = of(&state, Mode::Mps, &Strangers::new()).0.cards;
        assert_eq!(cards.len(), 1);
        assert!(!cards[0].slice);
        state.gpus.push(slice);
        let cards = of(&state, Mode::Mps, &Strangers::new()).0.cards;
        assert!(cards[1].slice);
    }

    #[test]
    fn an_unhealthy_card_says_why() {
        let mut state = state(&[]);
        state.gpus[0].health = "Unhealthy".into();
        state.gpus[0].health_reason = "XID 79".into();
        let (cards, _) = of(&state, Mode::Mps, &Strangers::new());
        assert_eq!(cards.cards[0].unhealthy.as_deref(), Some("XID 79"));
        assert_eq!(cards.cards[0].numa, None);
    }

    /// A field that no release has yet, number 1000.
    const UNKNOWN: [u8; 3] = [0xc0, 0x3e, 0x01];

    /// An embedded message of that field.
    fn embedded(field: u8, message: &[u8]) -> Vec<u8> {
        let mut out = vec![field << 3 | 2];
        prost::encode_length_delimiter(message.len(), &mut out).unwrap();
        out.extend(message);
        out
    }

    #[test]
    fn agents_of_the_release_before_and_of_the_next_one_are_understood() {
        use prost::Message as _;
        use proto::telemetry::agent_message::Body;
        use proto::telemetry::{AgentMessage, SchedulerMessage};
        // The next one's has fields, words and a body that this release does not know.
        let mut gpu = state(&[]).gpus.remove(0);
        gpu.minimum_fence = "QuantumLimit".into();
        gpu.kubelet_pool = "elsewhere".into();
        gpu.switchable_modes.push("telepathy".into());
        gpu.compute_mode = "Undecided".into();
        let gpu = [gpu.encode_to_vec(), UNKNOWN.to_vec()].concat();
        let next = NodeState {
            node: "n1".into(),
            ..NodeState::default()
        };
        let next = [
            next.encode_to_vec(),
            embedded(3, &gpu),
            embedded(4, &UNKNOWN),
            UNKNOWN.to_vec(),
        ]
        .concat();
        let message = [vec![0x08, 0x01], embedded(3, &next), UNKNOWN.to_vec()].concat();
        let message = AgentMessage::decode(message.as_slice()).unwrap();
        let Some(Body::State(next)) = message.body else {
            panic!("{message:?}")
        };
        let card = &of(&next, Mode::Mps, &Strangers::new()).0.cards[0];
        assert_eq!(
            card.minimum_fence,
            Some(Fence::DriverLimit),
            "the strongest"
        );
        assert_eq!(card.pool, Pool::Unknown);
        assert_eq!(card.switchable, [Mode::Exclusive, Mode::Mps]);
        let nothing = AgentMessage::decode(&[&[0x08, 0x02][..], &UNKNOWN].concat()[..]).unwrap();
        assert_eq!((nothing.sequence, nothing.body), (2, None));
        // The one before says nothing of what came since.
        let before = AgentMessage {
            sequence: 1,
            agent_instance: "a".into(),
            body: Some(Body::State(state(&[]))),
            release: String::new(),
        };
        let before = AgentMessage::decode(before.encode_to_vec().as_slice()).unwrap();
        let Some(Body::State(before)) = before.body else {
            panic!("a state")
        };
        let card = &of(&before, Mode::Mps, &Strangers::new()).0.cards[0];
        assert_eq!((card.minimum_fence, card.driver_limits), (None, false));
        assert_eq!(card.pool, Pool::Unknown);
        // What agents hear, of a scheduler before and of the next one.
        for text in [
            vec![0x08, 0x07],
            [vec![0x08, 0x07], UNKNOWN.to_vec()].concat(),
        ] {
            let heard = SchedulerMessage::decode(text.as_slice()).unwrap();
            assert_eq!((heard.acknowledged, heard.release.as_str()), (7, ""));
        }
    }
}
