//! Each card of a node is checked by itself for a pod that fits on the node.
//!
//! A node that has room for a pod may have full cards beside the one that the pod would get. The
//! assignment stops at the first card that will do. Explanations show every card, so they alone use
//! this module.

use crate::devices::{self, DeviceReason};
use crate::fit::check::announced;
use crate::fit::{assignment, card};
use crate::model::{Ask, Front, Mode, Pool, Share};
use crate::reason::{CardLine, CardReason};
use crate::state::State;
use crate::state::card_use::CardUse;
use crate::state::keys::NodeKey;
use crate::state::rows::CardRow;
use crate::state::spec_row::SpecRow;

/// Returns a line for each card that can serve no part of the pod's request. If `now`, the pod fits
/// on the node now, so a card must be free now; otherwise it may be one that is being released.
/// `front`: how the node would give the pod its whole GPUs.
pub(crate) fn refusals(
    state: &State,
    spec: &SpecRow,
    key: NodeKey,
    front: Front,
    now: bool,
) -> Vec<CardLine> {
    let Some((row, _)) = announced(state, key) else {
        return Vec::new();
    };
    let default = row
        .agent
        .as_ref()
        .map_or(Mode::Mps, |agent| agent.default_mode);
    let by_plugin = front == Front::Plugin || !spec.spec.stands_in();
    let claimable = devices::by_card(state, key, &spec.spec, front);
    let refusal = |card: &CardRow, used: CardUse| {
        let asked = spec.spec.gpus.iter().filter_map(|ask| match &ask.ask {
            Ask::Share(share) => Some(for_share(state, card, used, share, default, now)),
            Ask::Whole(_) if by_plugin => Some(for_whole(state, card, used, now)),
            Ask::Whole(_) => None,
        });
        let mut answers: Vec<Result<(), CardReason>> = asked.collect();
        if !claimable.is_empty() {
            let answer = claimable.get(&card.uuid).cloned();
            let answer = answer.unwrap_or(Err(DeviceReason::NotSelected));
            answers.push(answer.map_err(CardReason::Device));
        }
        if spec.mig_nano > 0 {
            let is_mig = card.card.as_ref().is_some_and(|card| card.mig);
            answers.push(is_mig.then_some(()).ok_or(CardReason::NotMig));
        }
        if answers.iter().any(Result::is_ok) {
            return None;
        }
        answers.into_iter().find_map(Result::err)
    };
    let refused = row.cards.iter().filter_map(|key| {
        let used = state.cells.cards.get(*key).copied().unwrap_or_default();
        Some(CardLine::Card(*key, refusal(state.cards.get(*key)?, used)?))
    });
    refused.collect()
}

/// Checks whether the card can be given whole.
fn for_whole(state: &State, card: &CardRow, used: CardUse, now: bool) -> Result<(), CardReason> {
    if let Some(no) = assignment::not_whole(state, card, used) {
        return Err(no);
    }
    match used.held {
        _ if !now => Ok(()),
        held if held.modes[0] > 0 => Err(CardReason::HeldWhole { elsewhere: 0 }),
        held if held.holds() > 0 => Err(CardReason::Shared {
            shares: held.holds(),
        }),
        _ => Ok(()),
    }
}

/// Checks whether the card takes the share in one of the modes in which the share may use it.
fn for_share(
    state: &State,
    card: &CardRow,
    used: CardUse,
    share: &Share,
    default: Mode,
    now: bool,
) -> Result<(), CardReason> {
    // The kubelet does not show tokens of such a card yet.
    let whole_only = |card: &crate::model::Card| card.pool == Pool::WholeOnly;
    if now && card.card.as_ref().is_some_and(whole_only) {
        return Err(CardReason::PoolWhole);
    }
    let mut first = None;
    for mode in card::modes(share, card, default) {
        let takes = |beside| card::share(state, card, beside, share, mode).map(drop);
        let answer = takes(used.after()).and_then(|()| if now { takes(used.held) } else { Ok(()) });
        match answer {
            Ok(()) => return Ok(()),
            Err(no) => drop(first.get_or_insert(no)),
        }
    }
    first.map_or(Ok(()), Err)
}
