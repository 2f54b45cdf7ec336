//! What of a node's GPUs is free or leaving, whole and in parts.
//!
//! [`CardsFree`] is what the cards and extended resources of a node contribute. It changes less
//! often than the node's own sums: while a gang is placed, whole GPUs are only counted, and no
//! card changes.

use super::card;
use crate::state::State;
use crate::state::cell::CardUse;
use crate::state::keys::NodeKey;
use crate::state::rows::{CardRow, NodeRow};
use crate::state::transition::mig_slices;
use crate::units::{Mib, NanoGpu};

/// Whole GPUs of a node, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WholeCount {
    /// Idle ones, less those that this trial has taken.
    pub now: i64,
    /// The same including leaving pods' resources, less promises.
    pub later: i64,
}

/// The part that a node's cards and extended resources have in what it has free. It depends on
/// [`NodeRow::facts`] and [`NodeRow::parts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CardsFree {
    /// Whole GPUs that are idle, and those that will be.
    idle: i64,
    open: i64,
    /// Of shared cards and MIG slices: nano-GPU, and MiB of the cards.
    nano: u128,
    mib: u128,
    /// The most that a card can grant, MiB.
    largest: u128,
    /// See [`crate::state::room::Room`].
    pub shared: Option<u64>,
    pub most: u64,
    pub smallest: Option<u64>,
    pub odd: bool,
}

impl CardsFree {
    pub(crate) fn of(state: &State, key: NodeKey, row: &NodeRow) -> Self {
        let mut all = Self::default();
        for key in &row.cards {
            if let (Some(card), Some(used)) = (state.cards.get(*key), state.card_use.get(*key)) {
                all.add(state, card, used);
            }
        }
        let extended = row.node.as_ref().map(|node| &node.extended);
        for (name, count) in extended.into_iter().flatten() {
            let slices = u128::from(mig_slices(name.as_str()));
            if slices == 0 {
                continue;
            }
            let used = state.extra_use.get(&(key, name.clone())).copied();
            let used = used.unwrap_or_default();
            let free =
                (u128::from(*count) + used.releasing).saturating_sub(used.used + used.promised);
            all.nano += slices * free * u128::from(NanoGpu::ONE.0);
        }
        all
    }

    fn add(&mut self, state: &State, row: &CardRow, used: &CardUse) {
        let (memory, after) = (card::memory(row), used.after());
        let usable = card::usable(state, row).is_ok();
        let beyond = card::beyond_shares(row);
        let whole_usable = usable && beyond.is_ok();
        self.idle -= i64::from(used.held.elsewhere());
        self.open -= i64::from(after.elsewhere());
        if used.is_leaving() && usable && card::in_time(beyond) {
            self.idle += i64::from(used.holders() == 0 && whole_usable);
            self.open += i64::from(used.promised.holds() == 0);
        }
        let cap = u128::from(memory.cap.0);
        self.largest = self.largest.max(cap);
        if after.holds() > 0 && after.modes[0] == 0 {
            let small = |amount: u128| Mib(u64::try_from(amount).unwrap_or(u64::MAX));
            let free = memory.cap.less(small(after.limits));
            let last =
                Mib(memory.cap.0.saturating_add(memory.reserved.0)).less(small(after.nominal));
            let most = if free.0 > 0 { free.max(last) } else { free };
            self.shared = self.shared.max(Some(most.0));
            if usable {
                self.most = self.most.max(most.0);
            }
            if cap > 0 {
                let free = cap.saturating_sub(after.limits);
                self.mib += free;
                self.nano += free * u128::from(NanoGpu::ONE.0) / cap;
            }
        } else if after.holds() == 0 && usable {
            self.most = self.most.max(memory.total.0);
        }
        let smallest = self.smallest.unwrap_or(u64::MAX);
        self.smallest = Some(smallest.min(memory.total.0));
        self.odd |= !whole_usable;
    }

    /// Whole GPUs, with what is only counted of the node.
    pub(crate) fn whole(&self, state: &State, key: NodeKey, row: &NodeRow) -> WholeCount {
        let used = state.node_use.get(key).copied().unwrap_or_default();
        let signed = |count: u128| i64::try_from(count).unwrap_or(i64::MAX);
        // The kubelet rejects a pod permanently when its node does not list the count (yet).
        let listed = row.node.as_ref().map_or(0, |node| i64::from(node.gpus));
        let managed = row.node.as_ref().is_some_and(|node| node.managed);
        if managed && row.agent.is_none() {
            return WholeCount::default();
        }
        let (idle, open) = if managed {
            (self.idle, self.open)
        } else {
            (listed, listed)
        };
        let taken = signed(used.used.gpus);
        WholeCount {
            now: idle.min(listed) - taken,
            later: open - taken + signed(used.releasing.gpus) - signed(used.promised.gpus),
        }
    }

    /// GPUs, whole and in parts: nano-GPU and MiB.
    pub(crate) fn gpus(&self, whole: WholeCount) -> (u128, u128) {
        let whole = u128::try_from(whole.later).unwrap_or(0);
        let nano = whole * u128::from(NanoGpu::ONE.0);
        (nano + self.nano, whole * self.largest + self.mib)
    }
}

/// How many whole GPUs a node has to give: as the index knows it, where nothing of the node has
/// moved since.
pub(crate) fn whole_count(state: &State, key: NodeKey) -> WholeCount {
    let Some(row) = state.nodes.get(key) else {
        return WholeCount::default();
    };
    match state.rooms.as_of(key, row.generation) {
        Some(room) => WholeCount {
            now: room.whole_now,
            later: room.whole,
        },
        None => CardsFree::of(state, key, row).whole(state, key, row),
    }
}

/// What of a node's GPUs is free or leaving, whole and in parts, in nano-GPU.
pub(crate) fn nano(state: &State, key: NodeKey) -> u128 {
    state.nodes.get(key).map_or(0, |row| {
        let cards = CardsFree::of(state, key, row);
        cards.gpus(cards.whole(state, key, row)).0
    })
}
