//! Which cards of a node a pod would get.
//!
//! Whole GPUs are only counted during a decision, and chosen when it is final
//! ([`super::choose_whole`]): until then all whole cards of a node are equivalent. Shares are assigned
//! to cards at once: the fullest card that still has room comes first, as in KAI's `gpupack`.

use crate::config::Config;
use crate::fit::free::whole_count;
use crate::fit::resources::Room;
use crate::fit::seating::{Assignment, Seating, Tentative, Wanted};
use crate::fit::{card, chosen};
use crate::ledger::CardMemory;
use crate::model::Ask;
use crate::model::Front;
use crate::model::Node;
use crate::reason::{CardLine, CardReason, NodeReason, NodeVerdict};
use crate::state::State;
use crate::state::card_use::CardUse;
use crate::state::keys::{CardKey, NodeKey};
use crate::state::room::WholeCount;
use crate::state::rows::{CardRow, NodeRow};
use crate::state::spec::Spec;
use crate::state::spec_row::SpecRow;
use std::cmp::Reverse;
use std::sync::Arc;

/// Whether the whole GPUs of a request without shares are there, now or later.
pub(crate) fn whole(
    state: &State,
    spec: &SpecRow,
    key: NodeKey,
    node: &Node,
    front: Front,
) -> Result<(), NodeReason> {
    let wanted = spec.gpus_by(front);
    if wanted == 0 {
        return Ok(());
    }
    let agent = state.nodes.get(key).and_then(|row| row.agent.as_ref());
    if node.managed && agent.is_none() {
        return Err(NodeReason::AgentSilent);
    }
    if whole_count(state, key).later < i64::from(wanted) {
        return Err(NodeReason::Gpus);
    }
    Ok(())
}

/// The cards, container by container: larger wishes first, so that a small one does not
/// take the only card that holds a large one.
pub(crate) fn cards(
    state: &State,
    spec: &SpecRow,
    key: NodeKey,
    config: &Config,
    front: Front,
    room: Room,
) -> Result<Assignment, NodeVerdict> {
    let mut assignment = Assignment {
        front,
        now: room.now,
        ..Assignment::default()
    };
    assignment.allocatable = assignment.now;
    let whole = i64::from(spec.gpus_by(front));
    if whole == 0 && !spec.shares {
        return Ok(assignment);
    }
    let no = |why, cards| NodeVerdict {
        why: vec![why],
        cards,
    };
    let Some((row, node)) = state
        .nodes
        .get(key)
        .and_then(|row| Some((row, row.node.as_ref()?)))
    else {
        return Err(no(NodeReason::NoGpus, Vec::new()));
    };
    if node.managed && row.agent.is_none() {
        return Err(no(NodeReason::AgentSilent, Vec::new()));
    }
    let count = whole_count(state, key);
    if whole > 0 {
        if count.later < whole {
            return Err(no(NodeReason::Gpus, whole_lines(state, row, count, whole)));
        }
        assignment.now &= count.now >= whole;
    }
    assignment.allocatable = assignment.now;
    if !spec.shares {
        return Ok(assignment);
    }
    let Some(agent) = row.agent.as_ref().filter(|_| node.managed) else {
        let why = if node.gpus == 0 {
            NodeReason::NoGpus
        } else {
            NodeReason::NotOffering(Arc::from("no agent is there"))
        };
        return Err(no(why, Vec::new()));
    };
    if let Some(why) = &agent.not_offering {
        return Err(no(NodeReason::NotOffering(Arc::clone(why)), Vec::new()));
    }
    let mut seating = Seating {
        state,
        config,
        default: agent.default_mode,
        count,
        promise: room.promise,
        tentative: Tentative::default(),
    };
    let aligned = chosen::aligned(state, spec, key, row);
    for wanted in shares_in_order(state, &spec.spec, row) {
        let mut seat = |cards: &[CardKey]| seating.assign(cards, wanted, &mut assignment);
        // The kubelet takes a token of these zones whether their cards have room or not.
        let seated = match &aligned {
            Some(aligned) => seat(aligned).or_else(|_| seat(&row.cards)),
            None => seat(&row.cards),
        };
        seated.map_err(|cards| {
            let why = if cards.is_empty() {
                NodeReason::NoGpus
            } else {
                NodeReason::GpuMemory
            };
            no(why, cards)
        })?;
    }
    let seated = seating.tentative.seated.into_iter();
    assignment.holds = seated.map(|one| one.hold).collect();
    Ok(assignment)
}

fn shares_in_order<'a>(state: &State, spec: &'a Spec, row: &NodeRow) -> Vec<Wanted<'a>> {
    let mut shares: Vec<_> = spec
        .gpus
        .iter()
        .enumerate()
        .filter_map(|(place, ask)| match &ask.ask {
            Ask::Share(share) => Some(Wanted { place, ask, share }),
            Ask::Whole(_) => None,
        })
        .collect();
    if shares.len() > 1 {
        let largest = row
            .cards
            .iter()
            .filter_map(|card| state.cards.get(*card)?.card.as_ref())
            .map(|card| card.total)
            .max()
            .unwrap_or_default();
        let yardstick = CardMemory {
            total: largest,
            ..CardMemory::default()
        };
        shares.sort_by_key(|Wanted { share, .. }| {
            Reverse((share.devices, yardstick.nominal(share.amount)))
        });
    }
    shares
}

/// A line for each card that is not free as a whole GPU.
fn whole_lines(state: &State, row: &NodeRow, count: WholeCount, wanted: i64) -> Vec<CardLine> {
    let mut lines: Vec<CardLine> = row
        .cards
        .iter()
        .filter_map(|key| {
            let card = state.cards.get(*key)?;
            let used = state.cells.cards.get(*key).copied().unwrap_or_default();
            Some(CardLine::Card(*key, not_whole(state, card, used)?))
        })
        .collect();
    if !row.cards.is_empty() {
        lines.push(CardLine::Whole {
            free: count.later.max(0),
            wanted,
        });
    }
    lines
}

/// Returns why a card is not free as a whole GPU. Resources that are being released count as free.
pub(super) fn not_whole(state: &State, card: &CardRow, used: CardUse) -> Option<CardReason> {
    let taken = card::whole_taken(used);
    match card::whole_usable(state, card) {
        // The pods on the card explain more than its pool, which results from them.
        Err(CardReason::PoolShared) => Some(taken.unwrap_or(CardReason::PoolShared)),
        Err(no) => Some(no),
        Ok(()) => taken,
    }
}
