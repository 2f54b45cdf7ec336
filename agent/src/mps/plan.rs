//! What the node holds → which MPS servers it needs, and which cards need none.
//!
//! Pure. In: the ledger, the cards, what the supervisor saw. Out: the whole plan. In mode `mps` a
//! server's defaults are the largest limits of its card's shares: the lowest ceiling that still holds
//! when a tenant removes its own, lower limit from its environment. In mode `mps-isolated` they are
//! the share's own limits.
//!
//! A card changes its mode one step at a time: nothing is planned on it while a server of
//! another kind is still seen there.

use crate::gpu::GpuUuid;
use crate::inventory::{DriverLimits, Inventory};
use crate::ledger::{Ledger, Share};
use api::{Mib, Mode};
use proto::mps::{Card, LimitProbe, Plan, Server, ServerPhase, ServerState};
use std::collections::{BTreeMap, BTreeSet};

/// One server per card that has a share in mode `mps` or is about to have one, one per
/// bound share in mode `mps-isolated`, and the cards that are used in time slices. `seen` are the
/// servers as the supervisor last saw them; `mode_faults` says how often a card was seen in another
/// compute mode than its shares need.
pub fn plan(
    ledger: &Ledger,
    inventory: &Inventory,
    seen: &[ServerState],
    mode_faults: &BTreeMap<GpuUuid, u32>,
    time_slice: Option<u32>,
) -> Plan {
    let mut largest: BTreeMap<&GpuUuid, (Mib, u8)> = BTreeMap::new();
    let mut isolated: Vec<(String, &Share)> = Vec::new();
    let mut sliced: BTreeSet<&GpuUuid> = BTreeSet::new();
    for share in ledger.holds() {
        match share.mode {
            Mode::Mps => {
                for card in &share.gpus {
                    let (memory, percent) = largest.entry(card).or_default();
                    *memory = share.memory.max(*memory);
                    *percent = share.compute_percent.max(*percent);
                }
            }
            Mode::MpsIsolated => {
                isolated.extend(server_name(share).map(|name| (name, share)));
            }
            Mode::TimeSlicing => sliced.extend(&share.gpus),
            Mode::Exclusive => {}
        }
    }
    let faults = |card: &GpuUuid| mode_faults.get(card).copied().unwrap_or(0);
    let shared = largest
        .into_iter()
        .filter(|(card, _)| {
            !seen
                .iter()
                .any(|s| s.name != card.as_str() && holds(s, card))
        })
        .map(|(card, (memory, percent))| Server {
            name: card.to_string(),
            gpu_uuids: vec![card.to_string()],
            multiuser: true,
            exclusive: true,
            default_memory_mib: memory.0,
            default_thread_percent: percent.clamp(1, 100).into(),
            compute_mode_faults: faults(card),
        });
    let own = isolated
        .into_iter()
        .filter(|(_, share)| {
            let whole = |card: &GpuUuid| seen.iter().any(|s| s.name == card.as_str() && is_up(s));
            !share.gpus.iter().any(whole)
        })
        .map(|(name, share)| Server {
            name,
            gpu_uuids: share.gpus.iter().map(ToString::to_string).collect(),
            // A tenant's processes may have several users, and root's daemon takes no
            // commands from any of them but root.
            multiuser: true,
            exclusive: false,
            default_memory_mib: share.memory.0,
            default_thread_percent: share.compute_percent.clamp(1, 100).into(),
            compute_mode_faults: share.gpus.iter().map(faults).fold(0, u32::saturating_add),
        });
    let cards = sliced
        .into_iter()
        .filter(|card| !seen.iter().any(|server| holds(server, card)))
        .map(|card| Card {
            uuid: card.to_string(),
            time_slice,
            compute_mode_faults: faults(card),
        });
    let probed = (inventory.cards.iter()).filter(|card| card.driver_limits != DriverLimits::None);
    Plan {
        servers: shared.chain(own).collect(),
        cards: cards.collect(),
        probes: probed
            .map(|card| LimitProbe {
                uuid: card.uuid.to_string(),
                pci_bus_id: card.pci.clone(),
                driver_version: inventory.driver_version.clone(),
            })
            .collect(),
    }
}

/// Name of the server that a share is a client of; `None` for modes without one, and
/// before it is bound.
pub fn server_name(share: &Share) -> Option<String> {
    match share.mode {
        Mode::Mps => share.gpus.first().map(ToString::to_string),
        Mode::MpsIsolated => share.alloc_id.map(|alloc| alloc.to_string()),
        Mode::Exclusive | Mode::TimeSlicing => None,
    }
}

fn is_up(server: &ServerState) -> bool {
    server.phase() != ServerPhase::Absent
}

/// Whether a server may still have something of a card. One that was found and is not
/// known yet may have any.
pub fn holds(server: &ServerState, card: &GpuUuid) -> bool {
    let its = server.name == card.as_str()
        || server.gpu_uuids.is_empty() && !server.name.starts_with("GPU-")
        || server.gpu_uuids.iter().any(|uuid| uuid == card.as_str());
    its && is_up(server)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{AllocId, SharePhase, Turn};
    use api::grant::PodIdentity;

    fn share(pod: &str, card: &str, mode: Mode, memory: u64, percent: u8) -> Share {
        Share {
            pod: PodIdentity {
                uid: pod.into(),
                namespace: "ns".into(),
                name: pod.into(),
            },
            container: "main".into(),
            turn: Turn::default(),
            gpus: card.split(',').map(GpuUuid::from).collect(),
            memory: Mib(memory),
            kept: Mib(memory),
            compute_percent: percent,
            mode,
            claimed: None,
            wishes: crate::ledger::ShareOptions::default(),
            decision: String::new(),
            phase: SharePhase::Reserved,
            alloc_id: (mode == Mode::MpsIsolated).then(|| AllocId::new(7)),
            fence: None,
            container_id: None,
            used: Mib(0),
            sm_percent: None,
            idle_minutes: None,
        }
    }

    fn server(card: &str, memory: u64, percent: u32) -> Server {
        Server {
            name: card.into(),
            gpu_uuids: vec![card.into()],
            multiuser: true,
            exclusive: true,
            default_memory_mib: memory,
            default_thread_percent: percent,
            compute_mode_faults: 0,
        }
    }

    fn planned(ledger: &Ledger, seen: &[ServerState]) -> Plan {
        let (cards, faults) = (Inventory::default(), BTreeMap::new());
        plan(ledger, &cards, seen, &faults, None)
    }

    fn seen(name: &str, cards: &[&str], phase: ServerPhase) -> ServerState {
        ServerState {
            name: name.into(),
            gpu_uuids: cards.iter().map(|card| (*card).to_owned()).collect(),
            phase: phase.into(),
            ..ServerState::default()
        }
    }

    #[test]
    fn each_card_with_shares_under_mps_gets_one_server_with_the_largest_of_their_limits() {
        let mut ledger = Ledger::default();
        for share in [
            share("a", "GPU-1", Mode::Mps, 2000, 100),
            share("b", "GPU-1", Mode::Mps, 9000, 25),
            share("c", "GPU-0", Mode::Mps, 500, 10),
            share("d", "GPU-2", Mode::Exclusive, 40_000, 100),
            share("e", "GPU-3", Mode::TimeSlicing, 4000, 100),
            share("f", "GPU-4,GPU-5", Mode::MpsIsolated, 700, 30),
        ] {
            ledger.restore(share);
        }
        let servers = vec![
            server("GPU-0", 500, 10),
            server("GPU-1", 9000, 100),
            Server {
                name: AllocId::new(7).to_string(),
                gpu_uuids: vec!["GPU-4".into(), "GPU-5".into()],
                exclusive: false,
                ..server("", 700, 30)
            },
        ];
        let cards = vec![Card {
            uuid: "GPU-3".into(),
            time_slice: None,
            compute_mode_faults: 0,
        }];
        assert_eq!(
            planned(&ledger, &[]),
            Plan {
                probes: Vec::new(),
                servers,
                cards
            }
        );
        assert_eq!(planned(&Ledger::default(), &[]), Plan::default());
    }

    #[test]
    fn a_share_that_is_not_bound_yet_has_no_server_of_its_own() {
        let mut ledger = Ledger::default();
        ledger.restore(Share {
            alloc_id: None,
            ..share("a", "GPU-0", Mode::MpsIsolated, 700, 30)
        });
        assert_eq!(planned(&ledger, &[]), Plan::default());
    }

    #[test]
    fn a_card_gets_nothing_while_a_server_of_another_kind_is_on_it() {
        let others = [
            seen("00", &["GPU-0"], ServerPhase::Draining),
            // Found by a supervisor that does not know yet what it serves.
            seen("00", &[], ServerPhase::Starting),
            seen("GPU-0", &[], ServerPhase::Dead),
        ];
        for (mode, blocked) in [
            (Mode::Mps, [true, true, false]),
            (Mode::MpsIsolated, [false, false, true]),
            (Mode::TimeSlicing, [true, true, true]),
        ] {
            for (other, blocked) in others.iter().zip(blocked) {
                let mut ledger = Ledger::default();
                ledger.restore(share("a", "GPU-0", mode, 700, 30));
                let seen = std::slice::from_ref(other);
                let empty = planned(&ledger, seen) == Plan::default();
                assert_eq!(empty, blocked, "{mode} beside {other:?}");
            }
        }
    }
}
