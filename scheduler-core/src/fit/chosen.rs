//! Which whole GPUs of a node a pod gets, once it is decided that it gets them on that node.

use crate::fit::card;
use crate::model::{Ask, Mode};
use crate::state::State;
use crate::state::hold::Hold;
use crate::state::keys::{CardKey, NodeKey, TaskKey};
use crate::state::spec_row::SpecRow;
use crate::units::{NanoGpu, Percent};
use crate::whole;

/// Chooses the cards for a pod whose whole GPUs were counted so far, and says what its
/// containers hold. Empty on a node without an agent, whose plugin chooses.
/// Not for a pod that has them by claim.
pub(crate) fn choose_whole(
    state: &State,
    spec: &SpecRow,
    key: NodeKey,
    task: TaskKey,
) -> Vec<Hold> {
    let Some(node) = state.nodes.get(key) else {
        return Vec::new();
    };
    let wanted = spec.gpus() as usize;
    if wanted == 0 || !node.node.as_ref().is_some_and(|node| node.managed) {
        return Vec::new();
    }
    let free: Vec<CardKey> = node
        .cards
        .iter()
        .copied()
        .filter(|key| {
            state.cards.get(*key).is_some_and(|row| {
                card::whole_usable(state, row).is_ok()
                    && state
                        .cells
                        .cards
                        .get(*key)
                        .is_some_and(|used| used.holders() == 0)
            })
        })
        .collect();
    // Cards with a promise last: their promise is made again next time.
    let (mut clear, promised): (Vec<CardKey>, Vec<CardKey>) = free.into_iter().partition(|key| {
        state
            .cells
            .cards
            .get(*key)
            .is_none_or(|used| used.promised.holds() == 0)
    });
    if clear.len() < wanted {
        clear.extend(promised);
    }
    // Of the zones that the kubelet will take, where it aligns: it takes other cards otherwise.
    if let Some(zones) = super::numa::zones_of_cards(state, &spec.spec, key, Some(task)) {
        let aligned: Vec<CardKey> = clear
            .iter()
            .copied()
            .filter(|card| is_in(state, *card, &zones))
            .collect();
        if aligned.len() >= wanted {
            clear = aligned;
        }
    }
    let chosen = whole::choose(state, &clear, wanted);
    let mut holds: Vec<Hold> = Vec::new();
    let mut next = 0;
    for ask in &spec.spec.gpus {
        let Ask::Whole(count) = ask.ask else {
            continue;
        };
        let count = count as usize;
        // An init container uses the same cards as the containers after it, in turn.
        for key in chosen.iter().skip(next).take(count) {
            let Some(row) = state.cards.get(*key) else {
                continue;
            };
            let memory = card::memory(row);
            holds.push(Hold {
                container: ask.container.clone(),
                init: ask.init,
                card: *key,
                limit: memory.cap,
                burst: None,
                nominal: memory.total,
                nano: NanoGpu::ONE.0,
                compute: Percent::FULL,
                mode: Mode::Exclusive,
                note: None,
                asked: None,
            });
        }
        if !ask.init {
            next += count;
        }
    }
    holds
}

/// Of the zones that the kubelet will take. `None`: it does not align, or all are alike.
pub(super) fn aligned(
    state: &State,
    spec: &SpecRow,
    key: NodeKey,
    row: &crate::state::rows::NodeRow,
) -> Option<Vec<CardKey>> {
    let zones = super::numa::zones_of_cards(state, &spec.spec, key, None)?;
    let cards = row.cards.iter().copied();
    Some(cards.filter(|card| is_in(state, *card, &zones)).collect())
}

/// Whether the card is of one of these zones, or of none.
fn is_in(state: &State, key: CardKey, zones: &[u32]) -> bool {
    let card = state.cards.get(key).and_then(|row| row.card.as_ref());
    let numa = card.and_then(|card| card.numa);
    numa.is_none_or(|numa| zones.contains(&numa))
}
