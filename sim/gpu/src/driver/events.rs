//! XIDs: what NVML's event sets hear, and what a lost card does to those on it.

use super::state::{CardId, Event, State};
use crate::cuda::CudaError;

/// `nvmlEventTypeXidCriticalError`.
pub const EVENT_XID: u64 = 8;
const EVENTS_KEPT: usize = 1024;

impl State {
    /// A card falls off the bus: XID 79, and all its processes are lost.
    pub fn lose(&mut self, card: CardId) {
        self.cards[card].lost = true;
        let instances: Vec<CardId> = self.instances(card).chain([card]).collect();
        for process in self
            .processes
            .values_mut()
            .filter(|p| instances.iter().any(|card| p.contexts.contains_key(card)))
        {
            process.sticky.get_or_insert(CudaError::Unknown);
        }
        self.emit(card, 79);
    }

    /// An XID without a cause of its own. That of an instance is its card's, with its id.
    pub fn emit(&mut self, card: CardId, xid: u64) {
        self.last_event += 1;
        self.events.push_back(Event {
            seq: self.last_event,
            card: self.card_of(card),
            kind: EVENT_XID,
            data: xid,
            instance: self.cards[card].spec.instance.as_ref().map(|i| i.id),
        });
        if self.events.len() > EVENTS_KEPT {
            self.events.pop_front();
        }
    }
}
