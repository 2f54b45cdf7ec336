//! The kubelet shows each card as whole, by its tokens, or not at all.

use crate::gpu::GpuUuid;
use crate::inventory::Inventory;
use std::collections::BTreeMap;

/// The resources in which the kubelet counts a card, by its own account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pool {
    /// The kubelet was not asked yet.
    #[default]
    Unknown,
    /// It counts the card as `nvidia.com/gpu`, and its tokens.
    Whole,
    /// It counts the card as `nvidia.com/gpu` only: a pod holds it, or held it a moment ago.
    WholeOnly,
    /// It counts the tokens alone.
    Shared,
    /// It does not count the card.
    None,
}

impl Pool {
    /// The name in telemetry.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "",
            Self::Whole => "whole",
            Self::WholeOnly => "whole-only",
            Self::Shared => "shared",
            Self::None => "none",
        }
    }
}

/// The cards by the kubelet's account.
#[derive(Clone, Debug, Default)]
pub(super) struct Pools {
    /// The cards as the kubelet showed them last.
    pub(super) shown: BTreeMap<GpuUuid, Pool>,
    /// True while the kubelet holds a stream for shares.
    pub(super) registered: bool,
    /// True if the agent stops soon.
    pub(super) leaving: bool,
}

impl Pools {
    /// Returns the kubelet's state of each card. A kubelet without our plugin, or one that is about to lose
    /// it, permanently rejects pods with the card, whatever it showed before.
    pub(super) fn of(&self, inventory: &Inventory) -> BTreeMap<GpuUuid, Pool> {
        if self.registered && !self.leaving {
            return self.shown.clone();
        }
        let cards = inventory.cards.iter();
        cards.map(|card| (card.uuid.clone(), Pool::None)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::offer::tests::card;

    #[test]
    fn a_kubelet_without_our_plugin_shows_no_card_whatever_it_showed() {
        let inventory = Inventory {
            cards: vec![card(0)],
            ..Inventory::default()
        };
        let uuid = &inventory.cards[0].uuid;
        for (registered, leaving, expected) in [
            (true, false, Pool::Whole),
            (true, true, Pool::None),
            (false, false, Pool::None),
        ] {
            let pools = Pools {
                shown: BTreeMap::from([(uuid.clone(), Pool::Whole)]),
                registered,
                leaving,
            };
            let expected = BTreeMap::from([(uuid.clone(), expected)]);
            assert_eq!(pools.of(&inventory), expected, "{registered} {leaving}");
        }
    }
}
