//! What relaxations remember: within a decision while nothing changes, and [`Emptied`] from one to the
//! next.

use crate::cycle::relax::victim_filter::{PermittedVictims, VictimFilter};
use crate::ledger::CardMemory;
use crate::model::Amount;
use crate::state::State;
use crate::state::card_use::CardSums;
use crate::state::keys::{NodeKey, QueueKey, SpecKey};
use crate::units::Mib;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is asked before a search.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Query {
    pub filter: VictimFilter,
    /// What the first pod asks for: it must be placed before others are tried.
    pub first: SpecKey,
    /// A pod of the job has a place: consolidation does not move it for itself.
    pub is_placed: bool,
}

/// A value, and [`Changes::settled`](crate::state::changes::Changes::settled) when it was computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cached<T> {
    pub value: T,
    pub settled: u64,
}

impl<T> Cached<T> {
    pub(super) fn of(state: &State, value: T) -> Self {
        Self {
            value,
            settled: state.changes.settled,
        }
    }

    /// Returns true if nothing has changed since.
    pub(super) fn is_current(&self, state: &State) -> bool {
        self.settled == state.changes.settled
    }
}

/// The relaxation that rules a query out.
pub(super) type Answers = FxHashMap<Query, Option<&'static str>>;

/// What each relaxation of the list remembers, and the answers of all of them while nothing changes.
#[derive(Debug, Default)]
pub(in crate::cycle) struct Relaxations {
    pub(super) losable: Losable,
    pub(super) some_victim: SomeVictim,
    pub(super) emptied: Emptied,
    pub(super) slots: Slots,
    pub(super) packing: Packing,
    pub(super) answers: Option<Cached<Answers>>,
    /// How often each has said no in this decision.
    pub(super) ruled_out: BTreeMap<&'static str, u64>,
}

impl Relaxations {
    pub(super) fn keep(&mut self, state: &State, query: Query, answer: Option<&'static str>) {
        if !self
            .answers
            .as_ref()
            .is_some_and(|known| known.is_current(state))
        {
            self.answers = Some(Cached::of(state, Answers::default()));
        }
        if let Some(known) = &mut self.answers {
            known.value.insert(query, answer);
        }
    }

    /// Ends the decision that began at that [`Changes::touched`](crate::state::changes::Changes::touched). Returns how often each relaxation has
    /// said no in it. Those that never did are left out.
    pub(in crate::cycle) fn end_decision(&mut self, began: u64) -> BTreeMap<&'static str, u64> {
        let Self {
            mut emptied,
            ruled_out,
            ..
        } = std::mem::take(self);
        if emptied.answers.len() > MOST {
            let answers = &mut emptied.answers;
            answers.retain(|_, answer| answer.touched >= began);
        }
        self.emptied = emptied;
        ruled_out
    }
}

#[derive(Debug, Default)]
pub(super) struct Losable {
    /// By parent, what all of its children may lose. `None`: moving may free whole GPUs, or jobs are
    /// in queues that have no place of their own.
    pub below: Option<Cached<Option<LosableBelow>>>,
}

pub(super) type LosableBelow = FxHashMap<Option<QueueKey>, Reclaimable>;

/// Nano-GPU held by siblings from which may be reclaimed: by queues within their quota, and
/// by any queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reclaimable {
    pub to_deserving: u128,
    pub to_all: u128,
}

/// The number of kept answers above which those that were not used in the last decision are dropped.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Emptied {
    pub answers: FxHashMap<(SpecKey, PermittedVictims), Answer>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// A node that would do. `None`: no node would.
    pub node: Option<NodeKey>,
    /// [`Changes::settled`](crate::state::changes::Changes::settled) at that time.
    pub settled: u64,
    /// [`Changes::touched`](crate::state::changes::Changes::touched) at that time.
    pub touched: u64,
}

impl Answer {
    /// Returns true if the node has not changed since.
    pub(super) fn holds_for(self, state: &State, node: NodeKey) -> bool {
        let row = state.nodes.get(node);
        row.is_some_and(|row| row.generation <= self.touched)
    }
}

/// Requests that some node takes as it is, and that none does.
pub(super) type Places = FxHashMap<SpecKey, bool>;

/// The pods that may be moved, and their cards.
#[derive(Debug, Default)]
pub(super) struct Movable {
    /// Too many, or not to be understood: no answer.
    pub perhaps: bool,
    /// Some have whole GPUs that are only counted: others may get them.
    pub counted: bool,
    pub items: Vec<(SpecKey, Item)>,
    pub nodes: BTreeSet<NodeKey>,
    pub bins: Vec<Bin>,
}

/// What is known while nothing changes.
#[derive(Debug, Default)]
pub(super) struct PackingCache {
    /// The pods of all jobs that consolidation may move.
    pub movable: Option<Arc<Movable>>,
    /// By what the first pod asks for.
    pub answers: FxHashMap<(SpecKey, VictimFilter), bool>,
    pub places: Places,
}

#[derive(Debug, Default)]
pub(super) struct Packing {
    pub known: Option<Cached<PackingCache>>,
}

/// What a pod needs of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Whole,
    /// At most this much: what it has now.
    Part(Amount, Mib),
}

/// The rest of a card beside the pods that stay on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Bin {
    pub total: u64,
    /// MiB that limits may take, and that shares may be nominally worth where the last of
    /// them gets the remainder.
    pub limits: u64,
    pub nominal: u64,
    /// It is idle.
    pub empty: bool,
}

impl Bin {
    pub(super) fn new(memory: CardMemory, stays: CardSums) -> Self {
        let small = |amount: u128| Mib(u64::try_from(amount).unwrap_or(u64::MAX));
        let most = Mib(memory.cap.0.saturating_add(memory.reserved.0));
        let whole = stays.modes[0] > 0;
        let of = |all: Mib, taken: u128| if whole { 0 } else { all.less(small(taken)).0 };
        Self {
            total: memory.total.0,
            limits: of(memory.cap, stays.limits),
            nominal: of(most, stays.nominal),
            empty: stays.holds() == 0,
        }
    }

    /// With one more on it. `fractions`: some of them may be the last on a card.
    pub(super) fn with(self, item: Item, fractions: bool) -> Option<Self> {
        let Item::Part(amount, most) = item else {
            return self.empty.then_some(Self {
                limits: 0,
                nominal: 0,
                empty: false,
                ..self
            });
        };
        let memory = CardMemory {
            total: Mib(self.total),
            ..CardMemory::default()
        };
        let worth = memory.nominal(amount).min(most).0;
        let fits = worth <= self.limits || fractions && worth <= self.nominal;
        fits.then_some(Self {
            limits: self.limits.saturating_sub(worth),
            nominal: self.nominal.saturating_sub(worth),
            empty: false,
            ..self
        })
    }
}

#[derive(Debug, Default)]
pub(super) struct SomeVictim;

#[derive(Debug, Default)]
pub(super) struct Slots;
