//! What a person or a test does to the machine while it runs: `ctl-*`.
//! Owns the fault injection of cards. In: an administrator's request. Out: the
//! changed state, and its events.

use super::describe::find_card;
use super::nvml_faults::CallFault;
use super::state::State;
use crate::wire::{Message, WireError};

/// Answers one `ctl-*` request.
pub(super) fn handle(state: &mut State, request: &Message) -> Result<Message, WireError> {
    if request.verb == "ctl-status" {
        return Ok(status(state));
    }
    if request.verb == "ctl-call" {
        return call(state, request);
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

/// Sets or lifts the fault of a call of NVML, for one card or for any. Answers with the number of
/// calls that have yet to meet the fault, and with the names of all calls that were made.
fn call(state: &mut State, request: &Message) -> Result<Message, WireError> {
    let name = request.need("call")?;
    let card = find_card(state, request);
    let named = ["index", "gpu", "pci"]
        .iter()
        .any(|key| request.get(key).is_some());
    if named && card.is_none() {
        return Err(WireError::Field("gpu"));
    }
    let times = match request.get("times") {
        Some(_) => Some(request.parsed("times")?),
        None => None,
    };
    match request.need("does")?.as_str() {
        "answer" => state.calls.lift(card, &name),
        "ask" => {}
        "hang" => state.calls.set(card, &name, CallFault::Hangs, times),
        code => {
            let code = code.parse().map_err(|_| WireError::Field("does"))?;
            state.calls.set(card, &name, CallFault::Fails(code), times);
        }
    }
    let made: Vec<Vec<String>> = state
        .calls
        .made()
        .iter()
        .map(|call| vec![call.clone()])
        .collect();
    Ok(Message::ok()
        .with_some("left", state.calls.left(card, &name))
        .with_rows("made", &made))
}

/// Returns the calls for which a key of `ctl-set` sets a return code.
fn calls_of(key: &str) -> &'static [&'static str] {
    match key {
        "process-lists" => &[
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetMPSComputeRunningProcesses_v3",
            "nvmlDeviceGetGraphicsRunningProcesses_v3",
        ],
        "compute-list" => &["nvmlDeviceGetComputeRunningProcesses_v3"],
        "mps-list" => &["nvmlDeviceGetMPSComputeRunningProcesses_v3"],
        "graphics-list" => &["nvmlDeviceGetGraphicsRunningProcesses_v3"],
        "create-instance" => &["nvmlDeviceCreateGpuInstance"],
        "event-types" => &["nvmlDeviceGetSupportedEventTypes"],
        "attributes" => &["nvmlDeviceGetAttributes_v2"],
        "register-events" => &["nvmlDeviceRegisterEvents"],
        _ => &[],
    }
}

fn set(state: &mut State, card: usize, request: &Message) -> Result<(), WireError> {
    let key = request.need("key")?;
    let value: u64 = request.parsed("value")?;
    let small = u32::try_from(value).map_err(|_| WireError::Field("value"))?;
    let calls = calls_of(&key);
    if !calls.is_empty() {
        for call in calls {
            match small {
                0 => state.calls.lift(Some(card), call),
                code => state
                    .calls
                    .set(Some(card), call, CallFault::Fails(code), None),
            }
        }
        return Ok(());
    }
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
        "mig-device" => target.nvml.mig_device = small,
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
