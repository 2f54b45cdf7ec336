//! The cluster as [`crate::fragment`] sees it: its pods by shape, and what a node would have left
//! after one more pod.
//!
//! Input: the state. Output: the score of an assignment. Results are kept for one decision, by a
//! node's free amounts and not by its name: identical nodes are computed once.

use crate::config::{Config, Placement};
use crate::fit::{self, Assignment, card, free};
use crate::fragment::{self, Demand, Shape, WHOLE};
use crate::model::{Amount, Ask, Mode};
use crate::state::keys::{NodeKey, SpecKey};
use crate::state::spec::Spec;
use crate::state::spec_row::SpecRow;
use crate::state::task_cell::Status;
use crate::state::{State, footprint};
use crate::units::NanoGpu;
use rustc_hash::FxHashMap;
use slotmap::SecondaryMap;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What distinguishes pods: their shape, and the nodes that they may use.
type PodClass<'a> = (Shape, Option<&'a Arc<Spec>>);

/// Which shapes a node is open to; `None`: all.
type OpenTo = Option<Arc<[bool]>>;

/// Millicores, parts of cards, shapes.
type Leftover = (u64, Vec<u16>, OpenTo);

/// One decision's view of fragments.
#[derive(Debug, Default)]
pub(crate) struct Fragments {
    demand: Demand,
    /// Of each shape one that has it.
    kinds: Vec<(Shape, Arc<Spec>)>,
    open: RefCell<SecondaryMap<NodeKey, OpenTo>>,
    waste: RefCell<FxHashMap<Leftover, u64>>,
}

impl Fragments {
    /// Returns `None` if no placement asks for it.
    pub(super) fn of(state: &State, config: &Config, smallest_card: u128) -> Option<Self> {
        let wanted = [config.gpu_placement, config.cpu_placement];
        if !wanted.contains(&Placement::Fragmentation) {
            return None;
        }
        let mut pods: FxHashMap<SpecKey, u64> = FxHashMap::default();
        for (key, row) in &state.tasks {
            let done = state
                .cells
                .tasks
                .get(key)
                .is_none_or(|cell| matches!(cell.status, Status::Done | Status::Detached));
            if row.facts.ours && !done {
                *pods.entry(row.spec).or_default() += 1;
            }
        }
        // Pods without node restrictions differ only by their shape.
        let mut kinds: BTreeMap<PodClass, (u64, &Arc<Spec>)> = BTreeMap::new();
        for (spec, key) in &state.names.specs {
            let (Some(row), Some(count)) = (state.specs.get(*key), pods.get(key)) else {
                continue;
            };
            let rules = &spec.rules;
            let picky = !rules.selector.is_empty() || rules.terms.is_some();
            let picks = (picky || !spec.tolerations.is_empty()).then_some(spec);
            let kind = kinds
                .entry((shape(row, smallest_card), picks))
                .or_insert((0, spec));
            kind.0 += count;
        }
        let shapes: Vec<(Shape, u64)> = kinds
            .iter()
            .map(|((shape, _), (count, _))| (*shape, *count))
            .collect();
        let demand = Demand::of(&shapes);
        let kinds: Vec<(Shape, Arc<Spec>)> = kinds
            .into_iter()
            .map(|((shape, _), (_, spec))| (shape, Arc::clone(spec)))
            .collect();
        Some(Self {
            demand,
            kinds,
            open: RefCell::default(),
            waste: RefCell::default(),
        })
    }

    /// How good it is for the node to have the pod on this seat; larger is better.
    pub(crate) fn rank(
        &self,
        state: &State,
        spec: &SpecRow,
        key: NodeKey,
        assignment: &Assignment,
    ) -> i64 {
        let (cpu, cards) = left(state, key);
        let mut after = cards.clone();
        // Whole cards come last.
        after.truncate(
            after
                .len()
                .saturating_sub(spec.gpus_by(assignment.front) as usize),
        );
        for (key, takes) in footprint::of_pod(&assignment.holds) {
            let Some(row) = state.cards.get(key) else {
                continue;
            };
            let used = state.cells.cards.get(key).copied().unwrap_or_default();
            let total = card::memory(row).total.0;
            let was = free(total, used.after().nominal);
            if let Some(at) = after.iter().position(|free| *free == was) {
                after[at] = free(total, used.after().nominal + takes.sums.nominal);
                after.sort_unstable();
            }
        }
        let cpu_after = cpu.saturating_sub(spec.spec.cpu.0);
        let open = self.open_to(state, key);
        let before = self.waste(cpu, cards, &open);
        let after = self.waste(cpu_after, after, &open);
        fragment::rank(before, after)
    }

    fn waste(&self, cpu: u64, cards: Vec<u16>, open: &OpenTo) -> u64 {
        let left = (cpu, cards, open.clone());
        if let Some(waste) = self.waste.borrow().get(&left) {
            return *waste;
        }
        let takes = |index: usize| {
            open.as_ref()
                .is_none_or(|open| open.get(index).copied().unwrap_or(false))
        };
        let waste = self.demand.waste(cpu, &left.1, takes);
        self.waste.borrow_mut().insert(left, waste);
        waste
    }

    /// Which shapes the node's rules let in.
    fn open_to(&self, state: &State, key: NodeKey) -> OpenTo {
        if let Some(open) = self.open.borrow().get(key) {
            return open.clone();
        }
        let row = state.nodes.get(key);
        let lets_in = |(shape, spec): &(Shape, Arc<Spec>)| {
            row.is_some_and(|row| {
                let shares = shape.part < WHOLE && shape.cards > 0;
                let managed = row.node.as_ref().is_some_and(|node| node.managed);
                (managed || !shares) && fit::rules(row, spec, shape.cards > 0).is_ok()
            })
        };
        let all: Arc<[bool]> = self.kinds.iter().map(lets_in).collect();
        let open = (!all.iter().all(|one| *one)).then_some(all);
        self.open.borrow_mut().insert(key, open.clone());
        open
    }
}

/// What a pod asks for. GPU memory counts as its part of the smallest card; cards of
/// different parts as the largest of them each.
fn shape(row: &SpecRow, smallest_card: u128) -> Shape {
    let part = |amount: Amount| {
        let part = match amount {
            Amount::Fraction(part) => {
                u128::from(part.0) * u128::from(WHOLE) / u128::from(NanoGpu::ONE.0)
            }
            Amount::Memory(mib) => {
                (u128::from(mib.0) * u128::from(WHOLE)).div_ceil(smallest_card.max(1))
            }
        };
        u16::try_from(part).map_or(WHOLE, |part| part.clamp(1, WHOLE))
    };
    let mut shape = Shape {
        cpu: row.spec.cpu.0,
        cards: row.gpus(),
        part: if row.gpus() > 0 { WHOLE } else { 0 },
    };
    for ask in &row.spec.gpus {
        if let Ask::Share(share) = &ask.ask {
            shape.cards = shape.cards.saturating_add(share.devices);
            shape.part = shape.part.max(part(share.amount));
        }
    }
    shape
}

/// Thousandths of a card that are free, rounded up: parts that sum to 1 fit.
fn free(total: u64, nominal: u128) -> u16 {
    let total = u128::from(total);
    let free = total.saturating_sub(nominal) * u128::from(WHOLE);
    u16::try_from(free.div_ceil(total.max(1))).unwrap_or(WHOLE)
}

/// What a node has free or leaving, less promises: millicores, and parts of cards, the
/// largest last.
fn left(state: &State, key: NodeKey) -> (u64, Vec<u16>) {
    let Some(row) = state.nodes.get(key) else {
        return (0, Vec::new());
    };
    let used = state.cells.nodes.get(key).copied().unwrap_or_default();
    let has = row.node.as_ref().map_or(0, |node| u128::from(node.cpu.0));
    let cpu = (has + used.releasing.cpu).saturating_sub(used.used.cpu + used.promised.cpu);
    let whole = usize::try_from(free::whole_count(state, key).later).unwrap_or(0);
    let mut cards: Vec<u16> = row
        .cards
        .iter()
        .filter_map(|key| {
            let card = state.cards.get(*key)?;
            let after = state.cells.cards.get(*key)?.after();
            let shared = after.holds() > 0 && after.modes[Mode::Exclusive as usize] == 0;
            let free = free(card::memory(card).total.0, after.nominal);
            (shared && free > 0).then_some(free)
        })
        .collect();
    cards.resize(cards.len() + whole, WHOLE);
    cards.sort_unstable();
    (u64::try_from(cpu).unwrap_or(u64::MAX), cards)
}
