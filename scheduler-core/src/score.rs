//! Where best: KAI's terms (`plugins/scores`), compared one after another in place of
//! summed, which is the same since each outweighs all that follow.

use crate::fit::{Seat, memory};
use crate::model::Ask;
use crate::state::State;
use crate::state::rows::{NodeKey, Spec};

/// Larger is better. The caller breaks ties by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Score {
    /// Another component named this node.
    nominated: bool,
    /// A share joins a card that is shared already.
    joins: bool,
    /// A pod without GPUs on a node without GPUs.
    plain: bool,
    /// `binpack`: the less is free, the better. Of the resource that the pod is about.
    packed: std::cmp::Reverse<u128>,
}

/// How good a seat is.
pub(crate) fn node(state: &State, spec: &Spec, key: NodeKey, seat: &Seat) -> Score {
    let row = state.nodes.get(key);
    let node = row.and_then(|row| row.node.as_ref());
    let wants_gpus = spec
        .gpus
        .iter()
        .any(|ask| !matches!(ask.ask, Ask::Whole(0)));
    let used = state.node_use.get(key).copied().unwrap_or_default().used;
    let gpus = |total: bool| -> u128 {
        match (row, node) {
            (Some(row), Some(node)) if node.managed => {
                let idle = |card: &&crate::state::rows::CardKey| {
                    total
                        || state
                            .card_use
                            .get(**card)
                            .is_none_or(|used| used.holders() == 0)
                };
                row.cards.iter().filter(idle).count() as u128
            }
            (_, Some(node)) if total => u128::from(node.gpus),
            (_, Some(node)) => u128::from(node.gpus).saturating_sub(used.gpus),
            _ => 0,
        }
    };
    let free = if wants_gpus {
        // MiB left on the seat's own cards would rank cards of different size by their
        // size; idle cards are what KAI counts.
        gpus(false)
    } else {
        node.map_or(0, |node| u128::from(node.cpu.0).saturating_sub(used.cpu))
    };
    let _ = memory;
    Score {
        nominated: node.is_some_and(|node| spec.rules.nominated.as_ref() == Some(&node.name)),
        joins: seat.joins,
        plain: !wants_gpus && gpus(true) == 0,
        packed: std::cmp::Reverse(free),
    }
}
