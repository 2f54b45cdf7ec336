//! What may enter the ledger. The one place that compares limits with cards.

use super::{AllocId, Claim, HolderKey, Ledger, LimitScope, Share, SharePhase, at_once, slots};
use crate::fence;
use crate::gpu::GpuUuid;
use crate::inventory::{Card, Front, Inventory};
use api::grant::PodIdentity;
use api::units::Fence;
use api::{Mib, Mode};
use std::collections::BTreeSet;

/// Why a claim is not in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A container has one MPS pipe directory.
    #[error(
        "mode mps allows one card per container, not {0}: use mps-isolated or time-slicing for several"
    )]
    SeveralCards(usize),
    /// A grant without a card or a limit.
    #[error("the grant names {0}")]
    Empty(&'static str),
    /// Not on this node, or not seen yet.
    #[error("card {0} is not on this node")]
    UnknownCard(GpuUuid),
    /// By the card's health.
    #[error("card {card} is unhealthy: {reason}")]
    Unhealthy {
        /// Which card.
        card: GpuUuid,
        /// One line.
        reason: String,
    },
    /// By MIG or by the admin.
    #[error("card {card} is not offered in mode {mode}")]
    NotSwitchable {
        /// Which card.
        card: GpuUuid,
        /// The request.
        mode: Mode,
    },
    /// A card is in one mode at a time.
    #[error("card {card} is in mode {is}, held by {holder}")]
    Taken {
        /// Which card.
        card: GpuUuid,
        /// What it is in.
        is: Mode,
        /// One of those that hold it.
        holder: String,
    },
    /// By the admin.
    #[error("GpuNode.spec allows only the {only} front on card {card}")]
    OnlyFront {
        /// Which card.
        card: GpuUuid,
        /// The front that the admin set.
        only: &'static str,
    },
    /// A card has one front at a time.
    #[error("card {card} is granted by the {is} front, held by {holder}")]
    OtherFront {
        /// Which card.
        card: GpuUuid,
        /// By which it is granted.
        is: &'static str,
        /// One of those that hold it.
        holder: String,
    },
    /// A container has one CDI file, so one share.
    #[error("container {container} of pod {pod} holds another share already")]
    TwoShares {
        /// `namespace/name`.
        pod: String,
        /// Its name.
        container: String,
    },
    /// What is kept would sum to more than the card can grant.
    #[error(
        "card {card} has {free} left of {grantable} grantable, {wanted} are granted to this container"
    )]
    Memory {
        /// Which card.
        card: GpuUuid,
        /// What is kept for no share.
        free: Mib,
        /// G less what strangers hold.
        grantable: Mib,
        /// The request.
        wanted: Mib,
    },
    /// One server has one default: the smaller of two shares would only be held by its own
    /// environment.
    #[error(
        "card {card} takes shares of one size (minimum fence {minimum}): {holder} holds {is}, {wanted} are granted to this container"
    )]
    Unequal {
        /// Which card.
        card: GpuUuid,
        /// The admin's.
        minimum: Fence,
        /// The holder of its largest share.
        holder: String,
        /// How much that is.
        is: Mib,
        /// The request.
        wanted: Mib,
    },
    /// The MPS server takes no more clients.
    #[error("card {card} has all its {slots} client slots in use")]
    Slots {
        /// Which card.
        card: GpuUuid,
        /// All of them.
        slots: u32,
    },
}

impl Refused {
    /// Whether waiting can help: a predecessor leaves, a card recovers, NVML comes up.
    pub fn may_pass(&self) -> bool {
        !matches!(
            self,
            Self::SeveralCards(_) | Self::Empty(_) | Self::TwoShares { .. }
        )
    }
}

impl Ledger {
    /// Enters a claim as `Reserved`. One that is there already stays as it is, unless it
    /// was only reserved and the claim is another.
    ///
    /// # Errors
    /// When the cards cannot honour it; the ledger is as before then.
    pub fn reserve(&mut self, claim: &Claim, inventory: &Inventory) -> Result<(), Refused> {
        let key = claim.key();
        let there = self.shares.get(&key);
        if there.is_some_and(|share| share.alloc_id.is_some() || share.is_of(claim)) {
            return Ok(());
        }
        self.fits(claim, None, &claim.gpus, inventory)?;
        self.shares
            .insert(key, Share::reserved(claim, claim.gpus.clone()));
        Ok(())
    }

    /// Binds a claim to an allocation. `picked` are the whole cards that the kubelet chose,
    /// `None` for a share. Where it chose others than the grant names, and no one holds
    /// them, they are adopted; a reservation on them is dropped, and its pod will adopt
    /// what the kubelet picks for it in turn.
    ///
    /// # Errors
    /// When the cards cannot honour it; the ledger is as before then.
    pub fn bind(
        &mut self,
        claim: &Claim,
        alloc: AllocId,
        picked: Option<&BTreeSet<GpuUuid>>,
        inventory: &Inventory,
    ) -> Result<Share, Refused> {
        let key = claim.key();
        let gpus = match picked {
            Some(picked) if claim.mode == Mode::Exclusive => inventory
                .cards
                .iter()
                .map(|card| &card.uuid)
                .filter(|uuid| picked.contains(*uuid))
                .cloned()
                .collect(),
            _ => claim.gpus.clone(),
        };
        if let Some(missing) = picked.and_then(|p| p.iter().find(|uuid| !gpus.contains(*uuid))) {
            return Err(Refused::UnknownCard(missing.clone()));
        }
        // A whole card is granted with all that can be granted of it; an adopted one may
        // be smaller.
        let least = gpus
            .iter()
            .filter(|uuid| !claim.gpus.contains(*uuid))
            .filter_map(|uuid| inventory.card(uuid))
            .fold(claim.memory, |least, card| least.min(card.capacity()));
        let claim = &Claim {
            memory: least,
            kept: claim.kept.min(least),
            ..claim.clone()
        };
        let before = self.shares.get(&key);
        let by_claim = claim.front() == Front::Dra;
        if before.is_some_and(|share| {
            (by_claim || share.front() == Front::Dra)
                && share.alloc_id.is_some_and(|other| other != alloc)
        }) {
            return Err(Refused::TwoShares {
                pod: claim.pod.to_string(),
                container: claim.container.clone(),
            });
        }
        // A restarted container keeps what it holds: memory that a stranger took since then is a
        // condition, not its fault. A broken card is refused nevertheless.
        let again = before.is_some_and(|share| share.alloc_id == Some(alloc) && share.gpus == gpus);
        let mut dropped = Vec::new();
        if again {
            if !claim.wishes.observes {
                healthy(&gpus, inventory)?;
            }
        } else {
            for uuid in gpus.iter().filter(|uuid| !claim.gpus.contains(*uuid)) {
                dropped.extend(
                    self.on(uuid)
                        .filter(|other| other.alloc_id.is_none())
                        .filter(|other| other.mode == Mode::Exclusive && other.key() != key)
                        .map(Share::key),
                );
            }
            // On a race the claim wins: a grant of which nothing has started is taken back
            // when its pod asks for it, and placed again.
            for uuid in gpus.iter().filter(|_| by_claim && !claim.wishes.observes) {
                dropped.extend(
                    self.on(uuid)
                        .filter(|other| other.front() == Front::Plugin && other.alloc_id.is_none())
                        .map(Share::key),
                );
            }
            let mut without = self.clone();
            for reservation in &dropped {
                without.shares.remove(reservation);
            }
            without.fits(claim, Some(alloc), &gpus, inventory)?;
        }
        for reservation in &dropped {
            self.shares.remove(reservation);
        }
        let mut share = match self.shares.remove(&key) {
            Some(share) if again => share,
            _ => Share::reserved(claim, gpus),
        };
        share.alloc_id = Some(alloc);
        if share.phase == SharePhase::Reserved {
            share.phase = SharePhase::Prepared;
        }
        self.shares.insert(key, share.clone());
        Ok(share)
    }

    /// Enters a share that was bound before this agent started. It is not compared with
    /// the cards: its container may be running.
    pub fn restore(&mut self, share: Share) {
        self.shares.insert(share.key(), share);
    }

    /// Lets another container have what this hold is: nothing more is kept for it.
    pub fn join(&mut self, hold: &Share, pod: PodIdentity, container: String) -> Share {
        let share = Share {
            pod,
            container,
            phase: SharePhase::Prepared,
            fence: None,
            container_id: None,
            used: Mib(0),
            sm_percent: None,
            idle_minutes: None,
            ..hold.clone()
        };
        self.shares.insert(share.key(), share.clone());
        share
    }

    /// Frees what a container held.
    pub fn release(&mut self, key: &HolderKey) -> Option<Share> {
        self.shares.remove(key)
    }

    /// For facts about a share that are known later: its phase, its container, its use.
    pub fn update(&mut self, key: &HolderKey, change: impl FnOnce(&mut Share)) {
        if let Some(share) = self.shares.get_mut(key) {
            change(share);
        }
    }

    /// Whether `claim` may hold `gpus` beside all others.
    fn fits(
        &self,
        claim: &Claim,
        alloc: Option<AllocId>,
        gpus: &[GpuUuid],
        inventory: &Inventory,
    ) -> Result<(), Refused> {
        if claim.mode == Mode::Mps && gpus.len() > 1 {
            return Err(Refused::SeveralCards(gpus.len()));
        }
        if gpus.is_empty() {
            return Err(Refused::Empty("no card"));
        }
        if claim.wishes.observes {
            let unknown = gpus.iter().find(|uuid| inventory.card(uuid).is_none());
            return unknown.map_or(Ok(()), |uuid| Err(Refused::UnknownCard(uuid.clone())));
        }
        // A whole card whose memory is the machine's has none of its own.
        if claim.kept == Mib(0) && claim.mode != Mode::Exclusive {
            return Err(Refused::Empty("no memory"));
        }
        for uuid in gpus {
            let card = inventory
                .card(uuid)
                .ok_or_else(|| Refused::UnknownCard(uuid.clone()))?;
            let hold = claim.limit_scope(alloc);
            self.fits_card(claim, &hold, card)?;
        }
        healthy(gpus, inventory)
    }

    fn fits_card(&self, claim: &Claim, hold: &LimitScope, card: &Card) -> Result<(), Refused> {
        if !card.switchable.contains(&claim.mode) {
            return Err(Refused::NotSwitchable {
                card: card.uuid.clone(),
                mode: claim.mode,
            });
        }
        if let Some(only) = card.only_front.filter(|only| *only != claim.front()) {
            return Err(Refused::OnlyFront {
                card: card.uuid.clone(),
                only: only.as_str(),
            });
        }
        let own = Share::reserved(claim, vec![card.uuid.clone()]);
        let mut together = vec![&own];
        let mut largest: Option<&Share> = None;
        let mut minimum = card
            .minimum_fence
            .into_iter()
            .chain(claim.wishes.minimum_fence)
            .min();
        for other in self
            .holds_on(&card.uuid)
            .filter(|share| share.limit_scope() != *hold)
        {
            if other.front() != claim.front() {
                return Err(Refused::OtherFront {
                    card: card.uuid.clone(),
                    is: other.front().as_str(),
                    holder: other.pod.to_string(),
                });
            }
            // An init container and its pod's app container hold a whole card in turn.
            let in_turn = claim.claimed.is_none()
                && other.mode == Mode::Exclusive
                && other.pod.uid == claim.pod.uid;
            if other.mode != claim.mode || (claim.mode == Mode::Exclusive && !in_turn) {
                return Err(Refused::Taken {
                    card: card.uuid.clone(),
                    is: other.mode,
                    holder: other.pod.to_string(),
                });
            }
            if !in_turn {
                together.push(other);
                // Strongest first.
                minimum = minimum.into_iter().chain(other.wishes.minimum_fence).min();
                largest = largest
                    .filter(|largest| largest.memory >= other.memory)
                    .or(Some(other));
            }
        }
        if let Some((largest, minimum)) = largest.zip(minimum)
            && fence::needs_one_size(
                claim.mode,
                Some(minimum),
                card.driver_limits.backend().is_some(),
            )
            && largest.memory != claim.memory
        {
            return Err(Refused::Unequal {
                card: card.uuid.clone(),
                minimum,
                holder: largest.pod.to_string(),
                is: largest.memory,
                wanted: claim.memory,
            });
        }
        let wanted = claim.kept;
        let grantable = self.grantable_beside(card, claim.mode, hold);
        let together = || together.iter().copied();
        let beside = Mib(at_once(together(), |share| share.kept.0)).saturating_sub(wanted);
        let free = grantable.saturating_sub(beside);
        if wanted > free {
            return Err(Refused::Memory {
                card: card.uuid.clone(),
                free,
                grantable,
                wanted,
            });
        }
        if is_mps(claim.mode) && slots(together()) > card.client_slots {
            return Err(Refused::Slots {
                card: card.uuid.clone(),
                slots: card.client_slots,
            });
        }
        Ok(())
    }
}

/// Whether a share's processes are clients of an MPS server.
fn is_mps(mode: Mode) -> bool {
    matches!(mode, Mode::Mps | Mode::MpsIsolated)
}

fn healthy(gpus: &[GpuUuid], inventory: &Inventory) -> Result<(), Refused> {
    for uuid in gpus {
        let card = inventory
            .card(uuid)
            .ok_or_else(|| Refused::UnknownCard(uuid.clone()))?;
        if !card.health.is_healthy() {
            return Err(Refused::Unhealthy {
                card: uuid.clone(),
                reason: card.health.reason().to_owned(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
