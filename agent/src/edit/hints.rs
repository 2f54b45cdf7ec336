//! Hints for frameworks under a limit: environment variables that they read by themselves. CUDA
//! reports a card's total as total in every mode, and a framework that sizes its pool by it runs
//! into the limit: JAX 0.11 tried to take three quarters of an H200 in a share of 20,000 MiB.
//!
//! Pure. In: a share and its cards. Out: environment. Only variables that a framework's own
//! documentation names are here, each with its source; a framework without one is left out
//! (`PyTorch` limits itself by a call in the program alone). A tenant may ignore all of it.

use crate::inventory::Inventory;
use crate::ledger::Share;
use api::Mib;

/// `NAME=value` for a share.
pub fn of(share: &Share, inventory: &Inventory) -> Vec<String> {
    let cards = || share.gpus.iter().filter_map(|uuid| inventory.card(uuid));
    // Frameworks count their own allocations, the limit counts the context too.
    let context = cards().map(|card| card.context_allowance).max();
    let room = share.memory.saturating_sub(context.unwrap_or_default());
    let room = if room == Mib(0) { share.memory } else { room };
    let mut hints = vec![
        // `CuPy`, from v6 on, bytes for each device: docs.cupy.dev, reference/environment.
        format!("CUPY_GPU_MEMORY_LIMIT={}", room.bytes().unwrap_or(u64::MAX)),
        // TensorFlow 2: does not take all at once: tensorflow.org/guide/gpu.
        "TF_FORCE_GPU_ALLOW_GROWTH=true".to_owned(),
    ];
    // JAX takes a part of the card's total at its start: docs.jax.dev, GPU memory
    // allocation. The second name is the one before it was renamed.
    if let Some(total) = cards().map(|card| card.total.0).max().filter(|t| *t > 0) {
        let part = room.0.saturating_mul(10_000) / total;
        if part > 0 {
            let part = format!("0.{:04}", part.min(9_999));
            hints.push(format!("XLA_CLIENT_MEM_FRACTION={part}"));
            hints.push(format!("XLA_PYTHON_CLIENT_MEM_FRACTION={part}"));
        }
    }
    hints
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{GpuUuid, MigStrategy};
    use crate::inventory::build::{InventoryBuilder, Settings};
    use crate::ledger::AllocId;
    use crate::nvml::{Device, Driver, Identity, Observation, Reading};
    use std::time::Instant;

    fn node() -> Inventory {
        let mut builder = InventoryBuilder::new(Settings {
            mps_reserve: Mib(64),
            client_slots: 48,
            context_allowance: Mib(500),
            mig_strategy: MigStrategy::None,
        });
        let now = Instant::now();
        let observation = Observation {
            driver: Driver::Up {
                version: "570".into(),
            },
            devices: vec![Device {
                identity: Identity {
                    uuid: GpuUuid::from("GPU-0"),
                    index: 0,
                    minor: 0,
                    product: String::new(),
                    pci: String::new(),
                    compute_capability: String::new(),
                    numa: None,
                    nvlink_peers: Vec::new(),
                    slice: None,
                },
                reading: Ok(Reading {
                    total: Mib(10_000),
                    ..Reading::default()
                }),
            }],
        };
        builder.observe(&observation, now);
        builder.inventory(&api::GpuNodeSpec::default(), |_, _| true, now)
    }

    fn hints(mib: u64) -> String {
        let record = format!(
            r#"{{"version":1,"pod":{{"uid":"u","namespace":"n","name":"p"}},"container":"c",
               "gpus":["GPU-0"],"memoryMib":{mib},"computePercent":100,"mode":"time-slicing","decision":"d"}}"#
        );
        let share = Share::from_record(AllocId::new(1), &record).unwrap();
        of(&share, &node()).join(" ")
    }

    #[test]
    fn frameworks_are_told_what_is_left_beside_their_context() {
        assert_eq!(
            hints(2500),
            "CUPY_GPU_MEMORY_LIMIT=2097152000 TF_FORCE_GPU_ALLOW_GROWTH=true \
             XLA_CLIENT_MEM_FRACTION=0.2000 XLA_PYTHON_CLIENT_MEM_FRACTION=0.2000"
        );
        // Smaller than a context is believed to be: the whole of it.
        assert!(hints(400).contains("XLA_CLIENT_MEM_FRACTION=0.0400"));
        assert!(hints(10_500).contains("XLA_CLIENT_MEM_FRACTION=0.9999"));
    }
}
