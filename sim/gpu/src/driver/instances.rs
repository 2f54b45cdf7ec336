//! MIG instances as the accounting has them: cards of their own, after all cards.

use super::state::{CardId, Process, Refusal, State};
use crate::cuda::CudaError;
use crate::hardware::mig;

impl State {
    /// How many of [`State::cards`] are cards.
    pub fn card_count(&self) -> usize {
        let cards = self.cards.iter();
        cards.take_while(|c| c.spec.instance.is_none()).count()
    }

    /// The card of an instance; a card itself.
    pub(super) fn card_of(&self, id: CardId) -> CardId {
        let instance = self.cards[id].spec.instance.as_ref();
        instance.map_or(id, |instance| instance.parent as CardId)
    }

    /// The instances of a card that are there.
    pub fn instances(&self, card: CardId) -> impl Iterator<Item = CardId> {
        let on = self.cards[card].spec.mig && self.cards[card].spec.instance.is_none();
        let of_card = move |id: &CardId| on && *id != card && self.card_of(*id) == card;
        (0..self.cards.len()).filter(of_card)
    }

    /// Whether a process was given this card: an instance by both capabilities, and a card in MIG
    /// mode by none of its own.
    pub(super) fn given(&self, process: &Process, card: CardId) -> Result<(), Refusal> {
        if let Some(instance) = &self.cards[card].spec.instance {
            let has = |compute| {
                let minor = mig::capability_minor(instance.parent, instance.id, compute);
                process.capabilities.contains(&minor)
            };
            if !has(None) || !has(Some(0)) {
                return Err((
                    CudaError::NoDevice,
                    "the instance's capability nodes were not opened".to_owned(),
                ));
            }
        } else if self.cards[card].spec.mig {
            return Err((
                CudaError::NoDevice,
                "MIG mode is on and no instance was given".to_owned(),
            ));
        }
        Ok(())
    }
}
