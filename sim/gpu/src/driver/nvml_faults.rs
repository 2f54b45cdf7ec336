//! Calls of NVML that fail or do not return, as a test sets them.
//!
//! Every request of the simulated NVML names the call that it is made for, so a fault is set by the
//! name of the call alone, of one card or of any, and no answer has a place of its own for it.

use super::state::CardId;
use std::collections::BTreeSet;

/// What NVML tells otherwise of one card, beside calls that fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmlFaults {
    /// Processes are listed without the memory that they hold (`NVML_VALUE_NOT_AVAILABLE`).
    pub memory_unavailable: bool,
    /// Return code of `nvmlDeviceGetMigDeviceHandleByIndex` for the second device and later ones;
    /// 0: the device.
    pub mig_device: u32,
}

/// What a call does in place of answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFault {
    /// It answers this return code.
    Fails(u32),
    /// It does not return before the fault is lifted, and answers then.
    Hangs,
}

/// One fault that was set.
#[derive(Clone, Debug)]
struct Entry {
    /// `None`: of any card, and of the calls that name none.
    card: Option<CardId>,
    /// The call's symbol, `nvmlDeviceGetCount_v2`; `*` is every call.
    call: String,
    fault: CallFault,
    /// How many calls still meet it; `None`: all of them.
    left: Option<u32>,
}

/// The faults of calls that are set, and the names of the calls that were made: a test that tries
/// all of them reads them here.
#[derive(Clone, Debug, Default)]
pub struct CallFaults {
    set: Vec<Entry>,
    made: BTreeSet<String>,
}

impl CallFaults {
    /// Sets what the next `times` calls of that name do, all of them without a number. It replaces
    /// the fault that was set for the same card and call.
    pub fn set(&mut self, card: Option<CardId>, call: &str, fault: CallFault, times: Option<u32>) {
        self.lift(card, call);
        self.set.push(Entry {
            card,
            call: call.to_owned(),
            fault,
            left: times,
        });
    }

    /// Lifts it; calls that hang by it go on.
    pub fn lift(&mut self, card: Option<CardId>, call: &str) {
        self.set
            .retain(|entry| entry.card != card || entry.call != call);
    }

    /// A call is made: what it does in place of answering, if anything.
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

    /// Whether a call that hangs does so still. One that met its fault last keeps it set.
    pub fn hangs(&self, card: Option<CardId>, call: &str) -> bool {
        self.set.iter().any(|entry| {
            let named = entry.call == call || entry.call == "*";
            named && (entry.card.is_none() || entry.card == card) && entry.fault == CallFault::Hangs
        })
    }

    /// The calls that were made.
    pub fn made(&self) -> &BTreeSet<String> {
        &self.made
    }

    /// How many calls have yet to meet the fault of this card and call; `None`: it is not set, or
    /// all of them do.
    pub fn left(&self, card: Option<CardId>, call: &str) -> Option<u32> {
        let mut entries = self.set.iter();
        entries
            .find(|entry| entry.card == card && entry.call == call)
            .and_then(|entry| entry.left)
    }
}
