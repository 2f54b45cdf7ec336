//! The admin's strategy decides under which resource the slices of a card are offered.
//!
//! Pure. In: the admin's strategy, all cards. Out: of each slice its resource. The rules are those of
//! NVIDIA's device plugin.

use super::{Card, Health};
use crate::gpu::{GpuUuid, MigLayout, MigStrategy};
use crate::resource::Resource;

/// The layout of a card. `None`: one of its slices has a profile without a name.
pub fn layout_of(cards: &[Card], parent: &GpuUuid) -> Option<MigLayout> {
    let slices = cards.iter().filter_map(|card| card.slice.as_ref());
    let mut layout = MigLayout::new();
    for slice in slices.filter(|slice| slice.parent == *parent) {
        *layout.entry(slice.profile?).or_default() += 1;
    }
    Some(layout)
}

/// Says under which resource each slice is offered, by the strategy. One that is offered under
/// none is unhealthy, with the reason.
pub(super) fn offer(cards: &mut [Card], strategy: MigStrategy) {
    let slices = || cards.iter().filter_map(|card| card.slice.as_ref());
    let first = slices().next().and_then(|slice| slice.profile);
    let uniform = cards.iter().all(|card| card.mig || card.slice.is_some())
        && slices().all(|slice| slice.profile == first);
    for card in cards {
        let Some(slice) = &card.slice else { continue };
        let resource = match (strategy, slice.profile) {
            (MigStrategy::Mixed, Some(profile)) => Ok(Resource::Slice(profile)),
            (MigStrategy::Single, Some(_)) if uniform => Ok(Resource::Whole),
            (MigStrategy::Single, Some(_)) => {
                Err("migStrategy single needs all cards in MIG mode and all slices of one profile")
            }
            (_, None) => Err("its compute instance is smaller than its GPU instance"),
            (MigStrategy::None, _) => Err("migStrategy is none"),
        };
        match resource {
            Ok(resource) => card.resource = resource,
            Err(reason) => {
                card.switchable.clear();
                if card.health.is_healthy() {
                    card.health = Health::Unhealthy {
                        reason: reason.to_owned(),
                        lasting: false,
                    };
                }
            }
        }
    }
}
