//! The data for NVML: the machine and one card, flat. Owns the field names of the `machine` and
//! `card` answers, which the NVML stand-in and `nvidia-smi` read.

use super::state::{CardId, ComputeMode, ContextKind, State};
use crate::wire::Message;

/// Versions and the number of cards.
pub(super) fn describe_machine(state: &State) -> Message {
    Message::ok()
        .with("driver", &state.hardware.driver_version)
        .with("cuda", state.hardware.cuda_version())
        .with("count", state.card_count())
        .with("last_event", state.last_event)
        .with_some(
            "memory_limits",
            state.hardware.memory_limits().then_some("yes"),
        )
}

/// Everything about one card.
pub(super) fn describe_card(state: &State, id: CardId) -> Message {
    let card = &state.cards[id];
    let spec = &card.spec;
    let mut busy = 0;
    let mut processes: Vec<Vec<String>> = Vec::new();
    // One row per process and kind, whatever number of handles it has open.
    let here: Vec<CardId> = state.instances(id).chain([id]).collect();
    let contexts = state.processes.values().flat_map(|process| {
        let contexts = here.iter().filter_map(|id| process.contexts.get(id));
        contexts.map(move |context| (process, context))
    });
    for (process, context) in contexts {
        busy += context.busy;
        let late = u128::from(state.hardware.mps.listed_late_ms);
        let kind = match context.kind {
            ContextKind::Direct | ContextKind::Server => "C",
            ContextKind::Client { .. }
                if state.now.saturating_sub(context.made).as_millis() < late =>
            {
                "C"
            }
            ContextKind::Client { .. } => "M+C",
            ContextKind::Graphics => "G",
            ContextKind::Unlisted => continue,
        };
        let pid = process.pid.to_string();
        let held = context.taken();
        match processes
            .iter_mut()
            .find(|row| row[0] == pid && row[1] == kind)
        {
            Some(row) => row[2] = (row[2].parse::<u64>().unwrap_or(0) + held).to_string(),
            None => processes.push(vec![
                pid,
                kind.to_owned(),
                held.to_string(),
                context.busy.to_string(),
                process.name.clone(),
            ]),
        }
    }
    let used = state.used(id);
    let instances = state.instances(id).map(|id| instance(state, id));
    let instances: Vec<Vec<String>> = instances.collect();
    let of = spec.instance.as_ref();
    let memory_busy = if busy == 0 {
        0
    } else {
        (busy.min(100) / 2).max(1)
    };
    let links: Vec<Vec<String>> = spec
        .links
        .iter()
        .map(|(pci, kind)| vec![pci.clone(), kind.to_string()])
        .collect();
    let power = 20_000 + u64::from(spec.power_limit_mw - 20_000) * u64::from(busy.min(100)) / 100;
    Message::ok()
        .with("index", spec.index)
        .with("minor", state.card_of(id))
        .with("gpu", &spec.uuid)
        .with("name", &spec.name)
        .with("serial", &spec.serial)
        .with("pci", &spec.pci_bus_id)
        .with("pci_device", spec.pci_device_id)
        .with("pci_subsystem", spec.pci_subsystem_id)
        .with("brand", spec.brand)
        .with("arch", spec.architecture)
        .with("cc_major", spec.compute_capability.0)
        .with("cc_minor", spec.compute_capability.1)
        .with("sms", spec.sm_count)
        .with("cores", spec.cores)
        .with_some("numa", spec.numa_node)
        .with("total_mib", spec.total_mib)
        .with("reserved_mib", spec.reserved_mib)
        .with("used_mib", used)
        .with("free_mib", state.free(id))
        .with("mode", mode_number(card.mode))
        .with("slice", card.timeslice)
        .with("mig_capable", u8::from(spec.mig_capable))
        .with("mig", u8::from(spec.mig))
        .with_rows("instances", &instances)
        .with_some("parent", of.map(|instance| instance.parent))
        .with_some("gpu_instance", of.map(|instance| instance.id))
        .with_some("slices", of.map(|instance| instance.slices))
        .with("ecc", u8::from(spec.ecc))
        .with("ecc_uncorrected", card.ecc.0)
        .with("ecc_corrected", card.ecc.1)
        .with("remapped_corrected", card.remapped.0)
        .with("remapped_uncorrected", card.remapped.1)
        .with("remapped_pending", u8::from(card.remapped.2))
        .with("remapped_failed", u8::from(card.remapped.3))
        .with("recovery_action", card.recovery_action)
        .with("temperature", card.temperature)
        .with("power_mw", power)
        .with("power_limit_mw", spec.power_limit_mw)
        .with("busy", busy.min(100))
        .with("memory_busy", memory_busy)
        .with_rows("links", &links)
        .with_rows("topology", &topology(state, id))
        .with("mig_device", card.nvml.mig_device)
        .with("process_memory", u8::from(!card.nvml.memory_unavailable))
        .with_rows("processes", &processes)
}

/// An instance as its card lists it: index, UUID, profile, GPU instance id.
fn instance(state: &State, id: CardId) -> Vec<String> {
    let spec = &state.cards[id].spec;
    let (profile, number) = spec
        .instance
        .as_ref()
        .map_or(("", 0), |i| (i.profile, i.id));
    vec![
        id.to_string(),
        spec.uuid.clone(),
        profile.to_owned(),
        number.to_string(),
    ]
}

/// `nvmlComputeMode_t`.
pub(super) fn mode_number(mode: ComputeMode) -> u32 {
    match mode {
        ComputeMode::Default => 0,
        ComputeMode::Prohibited => 2,
        ComputeMode::ExclusiveProcess => 3,
    }
}

/// `nvmlGpuTopologyLevel_t` to every card: neighbours share a `PCIe` switch
/// (MULTIPLE, 20), cards of one NUMA node its host bridges (NODE, 40).
fn topology(state: &State, id: CardId) -> Vec<Vec<String>> {
    let mine = &state.cards[id].spec;
    let cards = state.cards.iter().take(state.card_count());
    cards
        .enumerate()
        .map(|(other, card)| {
            let level = match () {
                () if other == id => 0,
                () if other / 2 == id / 2 && card.spec.numa_node == mine.numa_node => 20,
                () if card.spec.numa_node == mine.numa_node => 40,
                () => 50,
            };
            vec![level.to_string()]
        })
        .collect()
}

/// The card that a request names in `index`, `gpu` or `pci`.
pub(super) fn find_card(state: &State, request: &Message) -> Option<CardId> {
    if let Ok(index) = request.parsed::<usize>("index") {
        return (index < state.cards.len()).then_some(index);
    }
    if let Some(uuid) = request.get("gpu") {
        return state.card_by_uuid(&uuid);
    }
    let pci = request.get("pci")?.to_ascii_uppercase();
    state.cards.iter().position(|c| {
        // NVML takes the long form and the one with a 16-bit domain.
        let long = c.spec.pci_bus_id.as_str();
        long == pci || long.get(4..) == Some(pci.as_str())
    })
}
