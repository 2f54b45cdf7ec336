//! A test can make calls of NVML fail or not return.
//!
//! Every request of the simulated NVML names the call that it is made for. A fault is therefore set
//! by the name of the call, for one card or for any, and no request needs code of its own for it.

use super::ids::CardId;
use std::collections::BTreeSet;

/// The answers of NVML about one card that a test has changed, apart from calls that fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmlFaults {
    /// Processes are listed without the memory that they hold (`NVML_VALUE_NOT_AVAILABLE`).
    pub memory_unavailable: bool,
    /// The return code of `nvmlDeviceGetMigDeviceHandleByIndex` for the second device and later
    /// ones; with 0 the call returns the device.
    pub mig_device: u32,
}

/// The effect of a fault on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFault {
    /// The call returns this code.
    Fails(u32),
    /// The call does not return before the fault is lifted; then it is answered.
    Hangs,
}

/// A fault that was set.
#[derive(Clone, Debug)]
struct Entry {
    /// The card; `None` stands for any card, and for calls that name none.
    card: Option<CardId>,
    /// The symbol of the call, such as `nvmlDeviceGetCount_v2`; `*` stands for every call.
    call: String,
    fault: CallFault,
    /// The number of calls that have yet to meet the fault; `None` if all of them meet it.
    left: Option<u32>,
}

/// The faults that are set, and the names of the calls that were made, from which a test learns
/// which calls it can try.
#[derive(Clone, Debug, Default)]
pub struct CallFaults {
    set: Vec<Entry>,
    made: BTreeSet<String>,
}

impl CallFaults {
    /// Sets the fault for the next `times` calls of that name, or for all of them if `times` is
    /// `None`. It replaces the fault that was set for the same card and call.
    pub fn set(&mut self, card: Option<CardId>, call: &str, fault: CallFault, times: Option<u32>) {
        self.lift(card, call);
        self.set.push(Entry {
            card,
            call: call.to_owned(),
            fault,
            left: times,
        });
    }

    /// Lifts the fault of this card and call; calls that it makes hang go on.
    pub fn lift(&mut self, card: Option<CardId>, call: &str) {
        self.set
            .retain(|entry| entry.card != card || entry.call != call);
    }

    /// Notes that a call is made, and returns the fault that it meets, if any.
    pub fn meet(&mut self, card: Option<CardId>, call: &str) -> Option<CallFault> {
        self.made.insert(call.to_owned());
        let entry = self.set.iter_mut().find(|entry| {
            let named = entry.call == call || entry.call == "*";
            named && (entry.card.is_none() || entry.card == card) && entry.left != Some(0)
        })?;
        if let Some(left) = &mut entry.left {
            *left -= 1;
        }
        Some(entry.fault)
    }

    /// Returns whether a call that hangs has to go on hanging. A fault stays set after its last
    /// call has met it.
    pub fn hangs(&self, card: Option<CardId>, call: &str) -> bool {
        self.set.iter().any(|entry| {
            let named = entry.call == call || entry.call == "*";
            named && (entry.card.is_none() || entry.card == card) && entry.fault == CallFault::Hangs
        })
    }

    /// Returns the names of the calls that were made.
    pub fn made(&self) -> &BTreeSet<String> {
        &self.made
    }

    /// Returns the number of calls that have yet to meet the fault of this card and call, or `None`
    /// if no fault is set or all calls meet it.
    pub fn left(&self, card: Option<CardId>, call: &str) -> Option<u32> {
        let mut entries = self.set.iter();
        entries
            .find(|entry| entry.card == card && entry.call == call)
            .and_then(|entry| entry.left)
    }
}
