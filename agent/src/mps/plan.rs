//! What the node holds → which MPS servers it needs.
//!
//! Pure. In: the node's state. Out: the whole plan. A server's defaults are the largest of
//! what its card's shares may have: the smallest ceiling that holds for a tenant who takes
//! its own, lower limit out of its environment.

use crate::inventory::GpuUuid;
use crate::node::State;
use api::{Mib, Mode};
use proto::mps::{Plan, Server};
use std::collections::BTreeMap;

/// One multiuser server per card that has a share in mode `mps` or is about to have one.
pub fn plan(state: &State) -> Plan {
    let mut largest: BTreeMap<&GpuUuid, (Mib, u8)> = BTreeMap::new();
    for share in state.ledger.shares() {
        if share.mode != Mode::Mps {
            continue;
        }
        for card in &share.gpus {
            let (memory, percent) = largest.entry(card).or_default();
            *memory = share.memory.max(*memory);
            *percent = share.compute_percent.max(*percent);
        }
    }
    let servers = largest
        .into_iter()
        .map(|(card, (memory, percent))| Server {
            name: card.to_string(),
            gpu_uuids: vec![card.to_string()],
            multiuser: true,
            default_memory_mib: memory.0,
            default_thread_percent: percent.clamp(1, 100).into(),
        })
        .collect();
    Plan { servers }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Share, SharePhase};
    use api::grant::PodIdentity;

    fn share(pod: &str, card: &str, mode: Mode, memory: u64, percent: u8) -> Share {
        Share {
            pod: PodIdentity {
                uid: pod.into(),
                namespace: "ns".into(),
                name: pod.into(),
            },
            container: "main".into(),
            gpus: vec![GpuUuid::from(card)],
            memory: Mib(memory),
            compute_percent: percent,
            mode,
            decision: String::new(),
            phase: SharePhase::Reserved,
            alloc_id: None,
            fence: None,
            observed_limit: None,
            container_id: None,
            used: Mib(0),
        }
    }

    #[test]
    fn each_card_with_shares_under_mps_gets_one_server_with_the_largest_of_their_limits() {
        let mut state = State::default();
        for share in [
            share("a", "GPU-1", Mode::Mps, 2000, 100),
            share("b", "GPU-1", Mode::Mps, 9000, 25),
            share("c", "GPU-0", Mode::Mps, 500, 10),
            share("d", "GPU-2", Mode::Exclusive, 40_000, 100),
            share("e", "GPU-3", Mode::TimeSlicing, 4000, 100),
        ] {
            state.ledger.restore(share);
        }
        let server = |card: &str, memory, percent| Server {
            name: card.into(),
            gpu_uuids: vec![card.into()],
            multiuser: true,
            default_memory_mib: memory,
            default_thread_percent: percent,
        };
        let servers = vec![server("GPU-0", 500, 10), server("GPU-1", 9000, 100)];
        assert_eq!(plan(&state), Plan { servers });
        assert_eq!(plan(&State::default()), Plan::default());
    }
}
