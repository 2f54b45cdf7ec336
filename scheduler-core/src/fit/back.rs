//! Whether a victim that was given other cards of its node fits on its own ones.
//!
//! Input: the state in which the victim holds nothing, and what it held. Output: yes or no. Changes
//! nothing.

use crate::fit::card;
use crate::fit::check::{announced, before_cards};
use crate::fit::free::whole_count;
use crate::fit::resources::Room;
use crate::model::{Ask, Mode, Share};
use crate::state::card_use::{CardUse, mode_index};
use crate::state::hold::Hold;
use crate::state::keys::CardKey;
use crate::state::spec_row::SpecRow;
use crate::state::task_cell::Leaving;
use crate::state::{State, footprint};
use std::collections::BTreeSet;

/// Whether the place that the pod is leaving has room for it beside all that stay and all promises.
pub(crate) fn fits_back(state: &State, spec: &SpecRow, leaving: &Leaving) -> bool {
    let Some((_, node)) = announced(state, leaving.node) else {
        return false;
    };
    let mut room = Room {
        now: true,
        promise: true,
    };
    if before_cards(state, spec, leaving.node, node, &mut room) != Ok(leaving.front) {
        return false;
    }
    let mut opened: BTreeSet<CardKey> = BTreeSet::new();
    let shares = leaving.holds().iter().filter(|hold| is_share(hold));
    for hold in shares {
        let (Some(row), Some(share)) = (state.cards.get(hold.card), share_of(spec, hold)) else {
            return false;
        };
        let used = state
            .cells
            .cards
            .get(hold.card)
            .copied()
            .unwrap_or_default();
        let beside = used.after();
        let offer = card::share(state, row, beside, share, hold.mode);
        if !offer.is_ok_and(|offer| offer.limit >= hold.limit) {
            return false;
        }
        if beside.holds() == 0 && card::whole_in_time(state, row) {
            opened.insert(hold.card);
        }
    }
    let fit_together = footprint::of_pod(leaving.holds()).all(|(key, takes)| {
        let used = state.cells.cards.get(key).copied().unwrap_or_default();
        let held = used.after().plus(takes.sums);
        let all = CardUse {
            held,
            ..CardUse::default()
        };
        takes.sums.modes[mode_index(Mode::Exclusive)] > 0
            || state
                .cards
                .get(key)
                .is_some_and(|row| card::within(row, all))
    });
    if !fit_together {
        return false;
    }
    let whole = i64::from(spec.gpus_by(leaving.front));
    let opened = i64::try_from(opened.len()).unwrap_or(i64::MAX);
    whole_count(state, leaving.node).later >= whole.saturating_add(opened)
}

fn is_share(hold: &Hold) -> bool {
    hold.mode != Mode::Exclusive
}

/// What the container asks for whose hold this is.
fn share_of<'a>(spec: &'a SpecRow, hold: &Hold) -> Option<&'a Share> {
    let asks = spec.spec.gpus.iter();
    let mut own = asks.filter(|ask| ask.container == hold.container);
    own.find_map(|ask| match &ask.ask {
        Ask::Share(share) => Some(share),
        Ask::Whole(_) => None,
    })
}
