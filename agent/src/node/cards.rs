//! The node's cards: every look at them, and the inventory that follows from the looks.
//!
//! In: NVML's observations, the policy, the ledger, what the MPS supervisor saw. Out: [`Inventory`],
//! and the processes on each card. Pure.

use super::event::Effect;
use super::mps_view::MpsView;
use super::note::Note;
use super::policy::Policy;
use crate::gpu::GpuUuid;
use crate::inventory::build::{InventoryBuilder, Settings};
use crate::inventory::{Card, Health, Inventory};
use crate::ledger::{Ledger, Share};
use crate::nvml::Process;
use crate::watchdog::is_of;
use api::{Mib, Mode};
use std::collections::BTreeSet;
use std::time::Instant;

/// The cards of the node.
#[derive(Debug)]
pub(super) struct Cards {
    /// The looks at the cards.
    pub(super) looks: InventoryBuilder,
    /// The inventory that followed from the looks when it was last taken.
    pub(super) inventory: Inventory,
}

/// Returns a test for whether a process belongs to the share's container. A process whose container is
/// not known may belong to any container of its pod.
fn is_own(share: &Share, container_id: Option<&str>) -> impl Fn(&Process) -> bool {
    move |process| {
        let origin = &process.origin;
        let container = origin.container_id.as_deref();
        origin.pod_uid.as_deref() == Some(share.pod.uid.as_str())
            && container_id.is_none_or(|id| container.is_none_or(|other| other == id))
    }
}

impl Cards {
    /// Creates the state of a node whose cards were not seen yet.
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            looks: InventoryBuilder::new(settings),
            inventory: Inventory::default(),
        }
    }

    /// Returns the card of that UUID, as the inventory has it.
    pub(super) fn card(&self, uuid: &GpuUuid) -> Option<&Card> {
        self.inventory.card(uuid)
    }

    /// Takes the inventory again, and reports what changed. `withdraw` closes the slices that are
    /// about to be destroyed.
    pub(super) fn take_stock(
        &mut self,
        policy: &Policy,
        ledger: &Ledger,
        mps: &MpsView,
        withdraw: impl FnOnce(&mut [Card]),
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let servers = mps.server_pids();
        let explained = |card: &GpuUuid, process: &Process| {
            let owner = process.origin.pod_uid.as_deref();
            let mut shares = ledger.on(card);
            servers.contains(&process.pid)
                || shares.any(|share| match share.mode {
                    // The whole card belongs to its pod.
                    Mode::Exclusive => owner == Some(share.pod.uid.as_str()),
                    _ => is_of(process, share, ledger),
                })
        };
        for lost in self.looks.probed(&mps.seen.limits) {
            effects.push(Effect::Tell(Note::LimitsLost {
                gpu: GpuUuid::from(lost.uuid.as_str()),
                missing: lost.missing.clone(),
            }));
        }
        let mut inventory = self.looks.inventory(&policy.spec, explained, now);
        withdraw(&mut inventory.cards);
        for card in &inventory.cards {
            let before = self.card(&card.uuid).map(|card| &card.health);
            if card.health != *before.unwrap_or(&Health::Healthy) {
                effects.push(Effect::Tell(Note::Health {
                    gpu: card.uuid.clone(),
                    health: card.health.clone(),
                }));
            }
        }
        self.inventory = inventory;
    }

    /// Returns all processes on the cards of a share, of any pod.
    pub(super) fn beside<'a>(&'a self, share: &'a Share) -> impl Iterator<Item = &'a Process> {
        let cards = share.gpus.iter();
        cards.flat_map(|card| self.looks.processes(card))
    }

    /// Returns the processes of a share's container on its cards.
    pub(super) fn processes<'a>(
        &'a self,
        share: &'a Share,
        container_id: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Process> {
        let is_own = is_own(share, container_id);
        self.beside(share).filter(move |process| is_own(process))
    }

    /// Returns true if a process of a share's pod is on its cards. A card that does not answer is left
    /// out: its processes are no longer known.
    pub(super) fn has_process_of(&self, share: &Share) -> bool {
        let mut cards = share.gpus.iter().filter(|card| self.looks.answers(card));
        cards.any(|card| {
            let mut processes = self.looks.processes(card).iter();
            processes.any(|process| process.origin.pod_uid.as_ref() == Some(&share.pod.uid))
        })
    }

    /// Returns the UIDs of the pods with a process on some card.
    pub(super) fn busy(&self) -> BTreeSet<String> {
        let cards = self.inventory.cards.iter();
        cards
            .flat_map(|card| self.looks.processes(&card.uuid))
            .filter_map(|process| process.origin.pod_uid.clone())
            .collect()
    }

    /// Returns whether a share has worked since the look before. `None`: one of its cards does not
    /// answer, or the driver does not tell. `servers` has the pids of MPS servers.
    pub(super) fn has_worked(
        &self,
        share: &Share,
        container_id: &str,
        servers: &BTreeSet<u32>,
    ) -> Option<bool> {
        let looks = share.gpus.iter().map(|card| {
            let reading = self.looks.reading(card)?;
            reading.has_worked(is_own(share, Some(container_id)), servers)
        });
        // Work on one card is enough. Otherwise every card must report that there was none.
        let either = |one: Option<bool>, other: Option<bool>| match (one, other) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (one, other) => one.and(other),
        };
        looks.reduce(either)?
    }

    /// Returns a card's memory beyond all that is kept on it.
    pub(super) fn beside_kept(&self, ledger: &Ledger, uuid: &GpuUuid) -> Option<Mib> {
        let card = self.card(uuid)?;
        Some(ledger.grantable(card).saturating_sub(ledger.granted(uuid)))
    }
}
