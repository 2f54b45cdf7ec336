//! What of a node's GPUs is free or leaving, whole and in parts.
//!
//! [`CardsFree`] is what the cards and extended resources of a node contribute. It changes less
//! often than the node's own sums: while a gang is placed, whole GPUs are only counted, and no
//! card changes.

use crate::fit::card;
use crate::state::State;
use crate::state::card_use::CardUse;
use crate::state::keys::NodeKey;
use crate::state::mig::mig_slices;
use crate::state::room::{CardsFree, WholeCount};
use crate::state::rows::{CardRow, NodeRow};
use crate::units::{Mib, NanoGpu};

impl CardsFree {
    pub(crate) fn of(state: &State, key: NodeKey, row: &NodeRow) -> Self {
        let mut all = Self::default();
        for key in &row.cards {
            if let (Some(card), Some(used)) = (state.cards.get(*key), state.cells.cards.get(*key)) {
                all.add(state, card, used);
            }
        }
        let extended = row.node.as_ref().map(|node| &node.extended);
        for (name, count) in extended.into_iter().flatten() {
            let slices = u128::from(mig_slices(name.as_str()));
            if slices == 0 {
                continue;
            }
            let used = state.cells.extra.get(&(key, name.clone())).copied();
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
        let used = state.cells.nodes.get(key).copied().unwrap_or_default();
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
}

/// How many whole GPUs a node has to give: as the index knows it, where nothing of the node has
/// moved since.
pub(crate) fn whole_count(state: &State, key: NodeKey) -> WholeCount {
    let Some(row) = state.nodes.get(key) else {
        return WholeCount::default();
    };
    match state.caches.rooms.as_of(key, row.generation) {
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
