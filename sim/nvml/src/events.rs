//! XIDs: event sets that block until the driver has news.
//!
//! Owns the event sets. A wait has a connection of its own, so that it blocks no other call.

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::{
    Device, EventData, INVALID_ARGUMENT, NO_INSTANCE, NOT_SUPPORTED, Out, Return, TIMEOUT, UNKNOWN,
    code,
};
use crate::enumerate::card;
use crate::link;

/// Single- and double-bit ECC errors, P-state, XID, clock.
const SUPPORTED: u64 = 0x1F;

/// `nvmlEventSet_t`: a number, never dereferenced.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct EventSet(usize);

#[derive(Default)]
struct Set {
    cards: BTreeMap<usize, u64>,
    after: u64,
}

struct Sets {
    next: usize,
    live: BTreeMap<usize, Set>,
}

static SETS: Mutex<Sets> = Mutex::new(Sets {
    next: 1,
    live: BTreeMap::new(),
});

fn sets() -> MutexGuard<'static, Sets> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetCreate(set: Out<EventSet>) -> Return {
    crate::link::enters("nvmlEventSetCreate");
    code(link::ask("machine").and_then(|_| {
        let mut sets = sets();
        // Spaced as pointers are, since some callers look at alignment.
        let id = sets.next * 16;
        sets.next += 1;
        set.put(EventSet(id))?;
        sets.live.insert(id, Set::default());
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(set: EventSet) -> Return {
    crate::link::enters("nvmlEventSetFree");
    let asked = link::ask("machine");
    let freed = sets().live.remove(&set.0).map(drop).ok_or(INVALID_ARGUMENT);
    code(asked.and(freed))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetSupportedEventTypes(device: Device, types: Out<u64>) -> Return {
    crate::link::enters("nvmlDeviceGetSupportedEventTypes");
    code(card(device).and_then(|_| types.put(SUPPORTED)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceRegisterEvents(device: Device, types: u64, set: EventSet) -> Return {
    crate::link::enters("nvmlDeviceRegisterEvents");
    code(register(device, types, set))
}

fn register(device: Device, types: u64, set: EventSet) -> Result<(), Return> {
    let index = device.index()?;
    if types & !SUPPORTED != 0 {
        return Err(NOT_SUPPORTED);
    }
    card(device)?;
    let last: u64 = link::ask("machine")?.number("last_event")?;
    let mut sets = sets();
    let set = sets.live.get_mut(&set.0).ok_or(INVALID_ARGUMENT)?;
    if set.cards.is_empty() {
        // Events before the first listener are dropped.
        set.after = last;
    }
    *set.cards.entry(index).or_default() |= types;
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait_v2(
    set: EventSet,
    data: Out<EventData>,
    timeout_ms: c_uint,
) -> Return {
    crate::link::enters("nvmlEventSetWait_v2");
    code(wait(
        set,
        &data,
        Duration::from_millis(u64::from(timeout_ms)),
    ))
}

fn wait(set: EventSet, data: &Out<EventData>, timeout: Duration) -> Result<(), Return> {
    // One request waits no longer than this, so that a freed set is noticed.
    const SLICE: Duration = Duration::from_mins(1);
    let deadline = Instant::now() + timeout;
    loop {
        let (cards, after) = {
            let sets = sets();
            let set = sets.live.get(&set.0).ok_or(INVALID_ARGUMENT)?;
            (set.cards.clone(), set.after)
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if cards.is_empty() {
            std::thread::sleep(left);
            return Err(TIMEOUT);
        }
        let slice = left.min(SLICE);
        let list: Vec<String> = cards.keys().map(usize::to_string).collect();
        let request = format!(
            "wait-event after={after} timeout_ms={} cards={}",
            slice.as_millis(),
            list.join(",")
        );
        let answer = link::ask_for(&request, slice + Duration::from_secs(10))?;
        let seq: u64 = answer.number("seq")?;
        if let Some(set) = sets().live.get_mut(&set.0) {
            set.after = set.after.max(seq);
        }
        if !answer.flag("none") {
            let index: usize = answer.number("index")?;
            let kind: u64 = answer.number("type")?;
            if cards.get(&index).is_some_and(|types| types & kind != 0) {
                return data.put(EventData {
                    device: Device::of(index).ok_or(UNKNOWN)?,
                    kind,
                    data: answer.number("data")?,
                    gpu_instance: answer.number("gpu_instance").unwrap_or(NO_INSTANCE),
                    compute_instance: if answer.text("gpu_instance").is_empty() {
                        NO_INSTANCE
                    } else {
                        0
                    },
                });
            }
        }
        if Instant::now() >= deadline {
            return Err(TIMEOUT);
        }
    }
}
