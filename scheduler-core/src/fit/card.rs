//! One card: can it be used whole, can a share be put on it, and what would the share get.
use crate::ids::NodeName;
use crate::ledger::{self, CardMemory, Granted, Offer};
use crate::model::{Amount, Fence, Mode, Pool, Share};
use crate::reason::CardReason;
use crate::state::State;
use crate::state::card_use::{CardSums, CardUse};
use crate::state::keys::CardKey;
use crate::state::rows::CardRow;
use crate::units::{Mib, NanoGpu, Percent};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the card has, for the ledger's rules.
pub(crate) fn memory(row: &CardRow) -> CardMemory {
    row.card
        .as_ref()
        .map_or_else(CardMemory::default, |card| CardMemory {
            total: card.total,
            reserved: card.reserved,
            cap: card.grantable.min(card.total.less(card.reserved)),
            allowance: card.allowance,
        })
}

/// Whether the grants on a card are within its memory.
pub(crate) fn within(row: &CardRow, used: CardUse) -> bool {
    let sums = used.held;
    sums.modes[0] <= 1
        && (sums.modes[0] == 0 || sums.holds() == 1)
        && sums.limits <= u128::from(memory(row).cap.0)
}

/// Reasons that hold for whole and shared use alike.
pub(crate) fn usable(state: &State, row: &CardRow) -> Result<(), CardReason> {
    let Some(card) = &row.card else {
        return Err(CardReason::Unknown);
    };
    if let Some(owner) = elsewhere(state, row) {
        return Err(CardReason::Elsewhere(owner.clone()));
    }
    if card.mig {
        return Err(CardReason::Mig);
    }
    if let Some(why) = &card.unhealthy {
        return Err(CardReason::Unhealthy(Arc::clone(why)));
    }
    if card.cordoned {
        return Err(CardReason::Cordoned);
    }
    if card.pool == Pool::None {
        return Err(CardReason::PoolNone);
    }
    if state.devices.has_card(&row.uuid) {
        return Err(CardReason::Claimed);
    }
    if let Some(pause) = &row.pause
        && pause.until.is_none_or(|until| until > state.now)
    {
        return Err(CardReason::Paused {
            reason: Arc::clone(&pause.reason),
        });
    }
    Ok(())
}

/// The node that has the card, where that is another one than the row's. A machine that comes back
/// under another name, or a card that was moved, is named by two nodes for a while. Of nodes whose
/// agents are connected one has it, so that its memory is granted once: the one with holders, else
/// the first by name.
pub(crate) fn elsewhere<'a>(state: &'a State, row: &CardRow) -> Option<&'a NodeName> {
    if !row.is_named_twice {
        return None;
    }
    let claims = |key: CardKey| {
        let row = state.cards.get(key).filter(|row| row.card.is_some())?;
        let node = state.nodes.get(row.node)?;
        node.agent.as_ref()?;
        let idle = state
            .cells
            .cards
            .get(key)
            .is_none_or(|used| used.holders() == 0);
        Some((idle, &node.name, row.node))
    };
    let all = state.names.cards.everywhere(&row.uuid);
    let (_, owner, node) = all.filter_map(claims).min()?;
    (node != row.node).then_some(owner)
}

/// Whether a card may be used whole at all, regardless of what runs on it.
pub(crate) fn whole_usable(state: &State, row: &CardRow) -> Result<(), CardReason> {
    usable(state, row)?;
    beyond_shares(row)
}

/// What a card that shares may use lacks to be used whole.
pub(crate) fn beyond_shares(row: &CardRow) -> Result<(), CardReason> {
    let Some(card) = &row.card else {
        return Err(CardReason::Unknown);
    };
    if card.strangers > Mib(0) {
        return Err(CardReason::Strangers(card.strangers));
    }
    if !card.switchable.contains(&Mode::Exclusive) && card.mode != Some(Mode::Exclusive) {
        return Err(CardReason::NoMode(Mode::Exclusive));
    }
    if card.pool == Pool::Shared {
        return Err(CardReason::PoolShared);
    }
    Ok(())
}

/// Whether a card may be given whole, now or when the kubelet shows it whole again, some
/// time after its last share has left.
pub(crate) fn whole_in_time(state: &State, row: &CardRow) -> bool {
    in_time(whole_usable(state, row))
}

/// The same, by what it lacks to be used whole.
pub(crate) fn in_time(whole: Result<(), CardReason>) -> bool {
    matches!(whole, Ok(()) | Err(CardReason::PoolShared))
}

/// Why a card is not free for whole use: the pods that stay on it.
pub(crate) fn whole_taken(used: CardUse) -> Option<CardReason> {
    let after = used.after();
    if after.modes[0] > 0 {
        let elsewhere = after.elsewhere();
        return Some(CardReason::HeldWhole { elsewhere });
    }
    (after.holds() > 0).then_some(CardReason::Shared {
        shares: after.holds(),
    })
}

/// What a share would get of a card beside `beside`: all that is on it, or what will be.
pub(crate) fn share(
    state: &State,
    row: &CardRow,
    beside: CardSums,
    share: &Share,
    wanted: Mode,
) -> Result<Offer, CardReason> {
    usable(state, row)?;
    let Some(card) = &row.card else {
        return Err(CardReason::Unknown);
    };
    if card.slice {
        return Err(CardReason::Slice);
    }
    if beside.modes[0] > 0 {
        let elsewhere = beside.elsewhere();
        return Err(CardReason::HeldWhole { elsewhere });
    }
    let in_use = Mode::ALL
        .into_iter()
        .zip(beside.modes)
        .find(|(mode, holds)| *holds > 0 && *mode != wanted);
    if let Some((is, _)) = in_use {
        if is == Mode::Mps && share.devices > 1 {
            return Err(CardReason::SeveralOnMps);
        }
        return Err(CardReason::InMode { is, wanted });
    }
    if !card.switchable.contains(&wanted) && card.mode != Some(wanted) {
        return Err(CardReason::NoMode(wanted));
    }
    if beside.holds() > 0 && !card.ready {
        return Err(CardReason::NotReady);
    }
    let clients = matches!(wanted, Mode::Mps | Mode::MpsIsolated);
    if clients && card.client_slots > 0 && beside.holds() >= card.client_slots {
        return Err(CardReason::Slots {
            slots: card.client_slots,
        });
    }
    let memory = memory(row);
    let offer = memory
        .offer(granted(beside), share.amount)
        .map_err(|short| CardReason::Memory {
            short,
            cap: memory.cap,
        })?;
    let offer = Offer {
        burst: share.burst.and_then(|most| memory.burst(offer, most)),
        ..offer
    };
    let fence = fence(row, beside, offer.top(), wanted);
    match card.minimum_fence {
        Some(least) if fence < least => Err(CardReason::Fence {
            fence,
            least,
            mode: wanted,
        }),
        _ => Ok(offer),
    }
}

/// The weakest fence on the card once a share of this limit is on it beside `beside`. One
/// server has one limit of its own in mode `mps`: it fences all of them only where all of them
/// are of that size.
pub(crate) fn fence(row: &CardRow, beside: CardSums, limit: Mib, mode: Mode) -> Fence {
    match mode {
        _ if row.card.as_ref().is_some_and(|card| card.driver_limits) => Fence::DriverLimit,
        Mode::Exclusive | Mode::MpsIsolated => Fence::ServerLimit,
        Mode::Mps if beside.all_have(limit) => Fence::ServerLimit,
        Mode::Mps => Fence::ClientLimit,
        Mode::TimeSlicing => Fence::WatchdogOnly,
    }
}

fn granted(sums: CardSums) -> Granted {
    Granted {
        limits: Mib(u64::try_from(sums.limits).unwrap_or(u64::MAX)),
        nominal: Mib(u64::try_from(sums.nominal).unwrap_or(u64::MAX)),
    }
}

/// The modes in which a share may use a card, best first.
pub(crate) fn modes(share: &Share, row: &CardRow, default: Mode) -> Vec<Mode> {
    let several = share.devices > 1;
    match share.mode {
        Some(Mode::Mps) if several => vec![Mode::MpsIsolated],
        Some(mode) => vec![mode],
        None if several => match default {
            Mode::TimeSlicing => vec![Mode::TimeSlicing, Mode::MpsIsolated],
            _ => vec![Mode::MpsIsolated, Mode::TimeSlicing],
        },
        None => {
            let mut pinned = row
                .card
                .iter()
                .flat_map(|card| &card.switchable)
                .filter(|mode| **mode != Mode::Exclusive);
            // The admin pinned the card to one way of sharing: that wins over the default.
            match (pinned.next(), pinned.next()) {
                (Some(only), None) => vec![*only],
                _ => vec![default],
            }
        }
    }
}

/// The compute ceiling of a share: the user's, else its part under MPS, else none.
pub(crate) fn compute(share: &Share, mode: Mode) -> Percent {
    if let Some(percent) = share.compute {
        return percent;
    }
    match (share.amount, mode) {
        (Amount::Fraction(part), Mode::Mps | Mode::MpsIsolated) => {
            let percent = part.0.saturating_mul(100) / NanoGpu::ONE.0;
            Percent::new(u8::try_from(percent.clamp(1, 100)).unwrap_or(100))
                .unwrap_or(Percent::FULL)
        }
        _ => Percent::FULL,
    }
}

/// What queues count for an amount on this card.
pub(crate) fn nano(row: &CardRow, amount: Amount, bases: &Bases) -> u64 {
    let base = row.card.as_ref().map_or(Mib(0), |card| {
        bases
            .get(&*card.product)
            .map_or(card.total, |base| Mib(*base))
    });
    ledger::nano(amount, base).0
}

/// MiB that one GPU of a product counts for in queues, where the configuration says so.
pub(crate) type Bases = BTreeMap<String, u64>;
