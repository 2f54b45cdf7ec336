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
