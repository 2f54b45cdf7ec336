//! The cards on which pods with a whole GPU would fit as shares.

use super::holders::Holder;
use std::collections::BTreeMap;

/// The shares of one card: the agent's default for `--client-slots`.
const SLOTS: usize = 48;
/// The part of a card that is not granted: the driver keeps some hundred MiB for itself.
const RESERVE_MIB: u64 = 1024;

/// The result, by the memory of GPUs alone: the CPU and memory of nodes are not looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packing {
    /// Pods that would have a share.
    pub(super) shares: u64,
    /// The cards that these shares need.
    pub(super) cards: u64,
    /// Pods of which the use, or the card, is unknown.
    pub(super) unknown: u64,
}

impl Packing {
    /// Packs each product's shares by itself, the largest first, each on the first card with room.
    pub(super) fn of(holders: &[Holder], headroom: u64) -> Self {
        let mut packing = Self::default();
        let mut shares: BTreeMap<(Option<&str>, u64), Vec<u64>> = BTreeMap::new();
        for holder in holders {
            let (Some(card), Some(_)) = (holder.card_mib, holder.used_mib) else {
                packing.unknown += 1;
                continue;
            };
            if let Some(share) = holder.share(headroom) {
                let of = shares.entry((holder.product.as_deref(), card)).or_default();
                of.push(share);
                packing.shares += 1;
            }
        }
        for ((_, card), mut shares) in shares {
            shares.sort_unstable_by(|a, b| b.cmp(a));
            // The memory that each card has left, and the number of its shares.
            let mut cards: Vec<(u64, usize)> = Vec::new();
            for share in shares {
                let mut known = cards.iter_mut();
                match known.find(|(free, count)| *free >= share && *count < SLOTS) {
                    Some((free, count)) => (*free, *count) = (*free - share, *count + 1),
                    None => cards.push((card.saturating_sub(RESERVE_MIB + share), 1)),
                }
            }
            packing.cards += cards.len() as u64;
        }
        packing
    }
}
