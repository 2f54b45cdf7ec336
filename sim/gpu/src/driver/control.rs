//! What a person or a test does to the machine while it runs: `ctl-*`.
//! Owns the fault injection of cards. In: an administrator's request. Out: the
//! changed state, and its events.

use super::requests::find_card;
use super::state::State;
use crate::wire::{Message, WireError};

/// Answers one `ctl-*` request.
pub(super) fn handle(state: &mut State, request: &Message) -> Result<Message, WireError> {
    if request.verb == "ctl-status" {
        return Ok(status(state));
    }
    let card = find_card(state, request).ok_or(WireError::Field("gpu"))?;
    match request.verb.as_str() {
        "ctl-lost" => state.lose(card),
        "ctl-restore" => {
            let card = &mut state.cards[card];
            card.lost = false;
            card.recovery_action = 0;
            card.ecc = (0, 0);
            card.remapped = (0, 0, false, false);
        }
        "ctl-xid" => {
            let xid = request.parsed("xid")?;
            state.emit(card, xid);
            if xid == 79 {
                state.cards[card].lost = true;
            }
        }
        "ctl-set" => set(state, card, request)?,
        _ => {
            return Err(WireError::NoValue(format!(
                "unknown request {}",
                request.verb
            )));
        }
    }
    Ok(Message::ok().with("gpu", &state.cards[card].spec.uuid))
}

fn set(state: &mut State, card: usize, request: &Message) -> Result<(), WireError> {
    let key = request.need("key")?;
    let value: u64 = request.parsed("value")?;
    let small = u32::try_from(value).map_err(|_| WireError::Field("value"))?;
    let used = state.used(card);
    let target = &mut state.cards[card];
    match key.as_str() {
        "ecc-uncorrected" => target.ecc.0 = value,
        "ecc-corrected" => target.ecc.1 = value,
        "remapped-corrected" => target.remapped.0 = value,
        "remapped-uncorrected" => target.remapped.1 = value,
        "remapped-pending" => target.remapped.2 = value != 0,
        "remapped-failed" => target.remapped.3 = value != 0,
        "recovery-action" => target.recovery_action = small,
        "temperature" => target.temperature = small,
        "mig" if target.spec.mig_capable => target.spec.mig = value != 0,
        // The reserve can grow only into free memory.
        "reserved-mib" if value + used <= target.spec.total_mib => target.spec.reserved_mib = value,
        "process-lists" => {
            let lists = &mut target.nvml;
            (lists.compute, lists.mps, lists.graphics) = (small, small, small);
        }
        "compute-list" => target.nvml.compute = small,
        "mps-list" => target.nvml.mps = small,
        "graphics-list" => target.nvml.graphics = small,
        "create-instance" => target.nvml.create_instance = small,
        "mig-device" => target.nvml.mig_device = small,
        "event-types" => target.nvml.event_types = small,
        "attributes" => target.nvml.attributes = small,
        "register-events" => target.nvml.register_events = small,
        "process-memory-unavailable" => target.nvml.memory_unavailable = value != 0,
        "answer-ms" => state.answer_ms = value,
        "mps-listed-late-ms" => state.hardware.mps.listed_late_ms = value,
        "sigkill-faults-server" => state.hardware.mps.sigkill_faults_server = value != 0,
        _ => return Err(WireError::Field("key")),
    }
    Ok(())
}

/// The processes: one row per process and card.
fn status(state: &State) -> Message {
    let mut rows = Vec::new();
    for process in state.processes.values() {
        for (card, context) in &process.contexts {
            rows.push(vec![
                process.pid.to_string(),
                process.uid.to_string(),
                state.cards[*card].spec.uuid.clone(),
                context.kind.name().to_owned(),
                context.taken().to_string(),
                process.cgroup.clone(),
                process.name.clone(),
            ]);
        }
    }
    Message::ok()
        .with("connections", state.processes.len())
        .with_rows("processes", &rows)
}
