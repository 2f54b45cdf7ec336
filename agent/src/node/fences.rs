//! What holds a share to its limit is determined from what was read back: the compute modes of its
//! cards, and the limits with which its processes connected to MPS servers. Pure.

use super::cards::Cards;
use super::event::Effect;
use super::mps_view::MpsView;
use super::note::Note;
use crate::fence::{self, ActiveFence, Ceilings, ComputeModeWatch, Evidence};
use crate::gpu::GpuUuid;
use crate::inventory::Inventory;
use crate::ledger::{Ledger, Share};
use crate::mps::plan::server_name;
use api::{Mib, Mode};
use cdi::hook::Limited;
use std::collections::BTreeMap;
use std::time::Instant;

/// The state that is read back of cards with shares.
#[derive(Debug, Default)]
pub(super) struct Fences {
    /// Says of each card whether its compute mode is what its shares need.
    compute_modes: BTreeMap<GpuUuid, ComputeModeWatch>,
    /// The number of times that a card with shares was seen in another compute mode.
    pub(super) mode_faults: BTreeMap<GpuUuid, u32>,
    /// The ceilings of cards in mode `mps`.
    ceilings: BTreeMap<GpuUuid, Ceilings>,
}

impl Fences {
    /// Compares the cards' compute modes with those that their shares need, and the limits with which
    /// processes came to the servers of cards in mode `mps` with the granted ones.
    pub(super) fn compare(
        &mut self,
        cards: &Cards,
        ledger: &Ledger,
        mps: &MpsView,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let mut watches = BTreeMap::new();
        let mut ceilings = BTreeMap::new();
        for card in &cards.inventory.cards {
            let mode = ledger.mode_of(&card.uuid);
            if let Some((mode, needed)) = mode.and_then(|m| Some((m, fence::compute_mode(m)?))) {
                let known = self.compute_modes.get(&card.uuid).copied();
                let known = known.filter(|watch| watch.mode() == mode);
                let mut watch = known.unwrap_or(ComputeModeWatch::new(mode));
                if watch.observe(card.compute_mode, now) {
                    let faults = self.mode_faults.entry(card.uuid.clone()).or_default();
                    *faults = faults.saturating_add(1);
                    effects.push(Effect::Tell(Note::ComputeMode {
                        gpu: card.uuid.clone(),
                        is: card.compute_mode,
                        needed,
                    }));
                }
                watches.insert(card.uuid.clone(), watch);
            }
            if mode != Some(Mode::Mps) {
                continue;
            }
            let mut known = self.ceilings.remove(&card.uuid).unwrap_or_default();
            let mut servers = mps.seen.servers.iter();
            if let Some(server) = servers.find(|s| s.name == card.uuid.as_str()) {
                let pids = cards.looks.processes(&card.uuid).iter().map(|p| p.pid);
                match server.observed_default_memory_mib {
                    // A process that starts before it is restored may get any limit.
                    0 if !server.tampered.is_empty() => known.observe(card.total, pids, now),
                    0 => {}
                    default => known.observe(Mib(default), pids, now),
                }
            }
            ceilings.insert(card.uuid.clone(), known);
        }
        self.compute_modes = watches;
        self.ceilings = ceilings;
    }

    /// Returns the fault of a card's compute mode in one sentence.
    pub(super) fn wrong_mode_of(&self, inventory: &Inventory, uuid: &GpuUuid) -> Option<String> {
        let (watch, card) = (self.compute_modes.get(uuid)?, inventory.card(uuid)?);
        let needed = fence::compute_mode(watch.mode())?;
        (watch.is_told() && card.compute_mode != needed).then(|| {
            format!(
                "card {uuid} is in compute mode {}, mode {} needs {}",
                card.compute_mode.as_str(),
                watch.mode(),
                needed.as_str()
            )
        })
    }

    /// Returns what really holds a container that the hook let start. `limited` is the result of the
    /// driver's own limit for it. The answer is also `None` while the card was not read, while its
    /// compute mode was just set and not read yet, and before the supervisor was asked.
    pub(super) fn active(
        &self,
        share: &Share,
        cards: &Cards,
        ledger: &Ledger,
        mps: &MpsView,
        limited: Option<&Limited>,
        now: Instant,
    ) -> Option<ActiveFence> {
        let name = server_name(share);
        let right = share.gpus.iter().map(|card| {
            cards.card(card)?;
            let Some(watch) = self.compute_modes.get(card) else {
                return Some(true);
            };
            // The last answer of a card that is silent says nothing about now.
            let answers = cards.looks.answers(card);
            watch.is_right(now).map(|right| right && answers)
        });
        let right = right.reduce(|one, other| one.and_then(|one| Some(one && other?)));
        let right = right.unwrap_or(Some(true));
        let known = right.is_some() && mps.asked;
        if !known && name.is_some() && share.fence.is_none() {
            return None;
        }
        let servers = &mps.seen.servers;
        let server = (name.as_ref()).and_then(|name| servers.iter().find(|s| s.name == *name));
        let planned = mps.applied.servers.iter();
        let planned = planned.filter(|planned| name.as_ref() == Some(&planned.name));
        let planned = planned.map(|planned| Mib(planned.default_memory_mib)).max();
        // Without a supervisor nothing is read back.
        let server = server.filter(|_| mps.unreachable.is_empty());
        let server = server.map_or(0, |server| server.observed_default_memory_mib);
        let totals = (share.gpus.iter()).filter_map(|card| Some(cards.card(card)?.total));
        let pids = || {
            let container = share.container_id.as_deref();
            cards.processes(share, container).map(|process| process.pid)
        };
        let ceilings = share.gpus.first().and_then(|card| self.ceilings.get(card));
        // The driver limits each container: of several it does not hold the sum.
        let alone = ledger.holders(&share.limit_scope()).nth(1).is_none();
        let limited = limited.filter(|_| alone);
        let evidence = Evidence {
            // The driver's answer and the kernel's file: the hook names the backend for both.
            driver: limited.and_then(|limited| Some((Mib(limited.mib?), limited.backend?))),
            server: (server > 0).then_some(Mib(server)),
            // A daemon that reads back whole GiB may grant as much as it was last set to.
            ceiling: ceilings
                .and_then(|ceilings| ceilings.highest(pids()))
                .max(planned),
            compute_mode: right == Some(true),
            total: totals.max().unwrap_or_default(),
        };
        fence::active(share.mode, share.memory, &evidence)
    }
}
