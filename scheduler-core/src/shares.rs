//! What each queue may have in this decision: quota, limit and fair share of the whole
//! tree, from the inputs, once.
//!
//! In: the queues with their allocations and requests, and the cluster's capacity. Out: one
//! [`Share`] per queue. Resources come in the order GPU (nano), CPU (milli), memory (bytes), as in
//! [`QueueUse`].

use crate::devices;
use crate::fair_share::{self, Claim};
use crate::model::{Node, Queue};
use crate::state::State;
use crate::state::cell::QueueUse;
use crate::state::rows::{NodeKey, NodeRow, QueueKey, SpecRow, TaskKey};
use crate::units::{Bound, NanoGpu, Time};
use rustc_hash::FxHashMap;
use slotmap::SecondaryMap;

/// GPU, CPU, memory.
pub(crate) type QueueAmounts = [u128; 3];

/// How many of a unit make one of KAI's, in which fair share rounds down.
const KAI_UNIT: [f64; 3] = [1e9, 1.0, 1.0];

/// What one queue may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub quota: [Bound; 3],
    pub limit: [Bound; 3],
    pub fair: QueueAmounts,
    pub priority: i32,
    pub created: Time,
}

impl Share {
    /// KAI's `GetAllocatableShare`: what it may hold before others may reclaim from it.
    pub(crate) fn allocatable(&self) -> [Bound; 3] {
        let mut all = [Bound::Unlimited; 3];
        for (index, bound) in all.iter_mut().enumerate() {
            *bound = match (self.quota[index], self.limit[index]) {
                (Bound::Unlimited, limit) => limit,
                (Bound::Exactly(quota), limit) => {
                    let most =
                        u64::try_from(u128::from(quota).max(self.fair[index])).unwrap_or(u64::MAX);
                    match limit {
                        Bound::Unlimited => Bound::Exactly(most),
                        Bound::Exactly(limit) => Bound::Exactly(most.min(limit)),
                    }
                }
            };
        }
        all
    }
}

/// True when every amount is within its bound.
pub(crate) fn within(amounts: QueueAmounts, bounds: [Bound; 3]) -> bool {
    amounts
        .into_iter()
        .zip(bounds)
        .all(|(amount, bound)| match bound {
            Bound::Unlimited => true,
            Bound::Exactly(most) => amount <= u128::from(most),
        })
}

/// One amount on top of another.
pub(crate) fn plus(one: QueueAmounts, other: QueueAmounts) -> QueueAmounts {
    [one[0] + other[0], one[1] + other[1], one[2] + other[2]]
}

/// One amount less another, not below zero.
pub(crate) fn less(one: QueueAmounts, other: QueueAmounts) -> QueueAmounts {
    [
        one[0].saturating_sub(other[0]),
        one[1].saturating_sub(other[1]),
        one[2].saturating_sub(other[2]),
    ]
}

/// What one node adds to what there is.
#[derive(Clone, Copy, Debug)]
struct NodeTotals {
    /// [`NodeRow::generation`] at that time.
    generation: u64,
    has: QueueAmounts,
    /// Its smallest and its largest card, MiB.
    smallest: u64,
    largest: u64,
}

impl NodeTotals {
    fn of(state: &State, key: NodeKey, row: &NodeRow) -> Self {
        let mut surveyed = Self {
            generation: row.generation,
            has: [0; 3],
            smallest: u64::MAX,
            largest: 0,
        };
        let Some(node) = &row.node else {
            return surveyed;
        };
        let mut cards: u128 = 0;
        for card in row
            .cards
            .iter()
            .filter_map(|card| state.cards.get(*card)?.card.as_ref())
        {
            if card.total.0 > 0 && !card.mig {
                surveyed.smallest = surveyed.smallest.min(card.total.0);
                surveyed.largest = surveyed.largest.max(card.total.0);
                cards += u128::from(card.unhealthy.is_none());
            }
        }
        // A node that no pod may go to is none (KAI's `filterUnmarkedNodes`).
        let closed = row.lacks.gpu.is_some() && row.lacks.cpu.is_some();
        if closed || !node.not_ready.is_empty() {
            return surveyed;
        }
        let mut has = has(state, node, cards);
        if row.lacks.gpu.is_some() {
            has[0] = 0;
        }
        let foreign = state.node_use.get(key).map(|used| used.foreign);
        surveyed.has = less(has, foreign.unwrap_or_default());
        surveyed
    }
}

/// Siblings, and the divided amount.
#[derive(Debug)]
struct Level {
    /// All that the division depends on of each sibling: which one it is, what it has and
    /// wants, and [`crate::state::rows::QueueRow::facts`].
    siblings: Vec<(QueueKey, QueueUse, u64)>,
    /// What there was, and the smallest card, by which GPU memory counts.
    total: [f64; 3],
    smallest_card: u128,
    /// What each got.
    fair: Vec<[f64; 3]>,
}

/// The whole tree's shares, and their inputs.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    pub of: SecondaryMap<QueueKey, Share>,
    /// What ready nodes have, less pods of other schedulers.
    pub total: QueueAmounts,
    /// The smallest and the largest card: what a GPU memory request counts for.
    pub smallest_card: u128,
    pub largest_card: u128,
    /// Among queues that stay within their quotas priority decides, whatever their shares.
    pub priority_in_quota: bool,
    nodes: SecondaryMap<NodeKey, NodeTotals>,
    /// The divisions, by parent.
    levels: FxHashMap<Option<QueueKey>, Level>,
    /// [`State::queue_trees`] and [`State::nodes_moved`] at the last time.
    trees: u64,
    nodes_moved: Option<u64>,
    /// Incremented whenever queues may lose more or less to others than before, by what they hold:
    /// by their quota, limit or priority, or since they are above their share, or no longer.
    pub version: u64,
    /// Queues whose fair share the last update changed.
    pub changed: Vec<QueueKey>,
}

impl Shares {
    /// From the state as it is now.
    pub(crate) fn compute(state: &State, k: f64) -> Self {
        let mut shares = Self::default();
        shares.update(state, k);
        shares
    }

    /// Brings them up to date: the same as [`Self::compute`], but what was divided among
    /// unchanged siblings is not divided again. `k`: always the same.
    pub(crate) fn update(&mut self, state: &State, k: f64) {
        self.changed.clear();
        if self.trees != state.queue_trees {
            let is_in_tree = |key: QueueKey| {
                let row = state.queues.get(key);
                row.is_some_and(|row| !row.chain.is_empty())
            };
            let before = self.of.len();
            self.of.retain(|key, _| is_in_tree(key));
            self.version += u64::from(self.of.len() < before);
            self.levels.retain(|key, _| key.is_none_or(is_in_tree));
            self.trees = state.queue_trees;
        }
        self.refresh_totals(state);
        let total = [0, 1, 2].map(|index| to_kai(self.total[index], index));
        self.divide(state, k, total, None);
    }

    /// The same shares, whatever they were computed from.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.total == other.total
            && (self.smallest_card, self.largest_card) == (other.smallest_card, other.largest_card)
            && self.of.len() == other.of.len()
            && self
                .of
                .iter()
                .all(|(key, share)| other.of.get(key) == Some(share))
    }

    /// What there is to divide: of nodes of which nothing has moved, as of the last time.
    fn refresh_totals(&mut self, state: &State) {
        if self.nodes_moved.replace(state.nodes_moved) == Some(state.nodes_moved) {
            return;
        }
        self.version += 1;
        self.nodes.retain(|key, _| state.nodes.contains_key(key));
        let mut smallest = u64::MAX;
        let mut largest = 0;
        self.total = [0; 3];
        for (key, row) in &state.nodes {
            let known = self.nodes.get(key).copied();
            let node = known.filter(|known| known.generation == row.generation);
            let node = node.unwrap_or_else(|| {
                let node = NodeTotals::of(state, key, row);
                self.nodes.insert(key, node);
                node
            });
            smallest = smallest.min(node.smallest);
            largest = largest.max(node.largest);
            self.total = plus(self.total, node.has);
        }
        self.smallest_card = if largest == 0 { 0 } else { smallest.into() };
        self.largest_card = largest.into();
    }

    /// Among the children of a queue, or those without a parent, and on below them.
    #[allow(clippy::float_cmp)] // What differs at all is divided again.
    fn divide(&mut self, state: &State, k: f64, total: [f64; 3], parent: Option<QueueKey>) {
        let children = match parent {
            None => Some(&state.top_queues),
            Some(parent) => state.queues.get(parent).map(|row| &row.children),
        };
        let siblings = children.into_iter().flatten().filter_map(|key| {
            let row = state.queues.get(*key)?;
            let used = state.queue_use.get(*key).copied().unwrap_or_default();
            row.queue.as_ref().map(|_| (*key, used, row.facts))
        });
        let known = self.levels.get(&parent).filter(|level| {
            level.total == total
                && level.smallest_card == self.smallest_card
                && level.siblings.iter().copied().eq(siblings.clone())
        });
        if known.is_none() {
            let level = Level {
                siblings: siblings.collect(),
                total,
                smallest_card: self.smallest_card,
                fair: Vec::new(),
            };
            let level = self.divide_level(state, k, level);
            self.levels.insert(parent, level);
        }
        let Some(level) = self.levels.get(&parent) else {
            return;
        };
        let has_children = |key: QueueKey| {
            let row = state.queues.get(key);
            row.is_some_and(|row| !row.children.is_empty())
        };
        let fair = level.siblings.iter().zip(&level.fair);
        let below: Vec<(QueueKey, [f64; 3])> = fair
            .filter(|((key, _, _), _)| has_children(*key))
            .map(|((key, _, _), fair)| (*key, *fair))
            .collect();
        for (key, fair) in below {
            self.divide(state, k, fair, Some(key));
        }
    }

    fn divide_level(&mut self, state: &State, k: f64, mut level: Level) -> Level {
        let rows: Vec<(QueueKey, &Queue, QueueUse)> = (level.siblings.iter())
            .filter_map(|(key, used, _)| {
                let queue = state.queues.get(*key)?.queue.as_ref()?;
                Some((*key, queue, *used))
            })
            .collect();
        level.fair = vec![[0.0; 3]; rows.len()];
        for resource in 0..3 {
            let claims: Vec<Claim> = rows
                .iter()
                .map(|(_, queue, used)| self.claim(queue, *used, resource))
                .collect();
            let parts = fair_share::divide(level.total[resource], k, &claims);
            for (all, part) in level.fair.iter_mut().zip(parts) {
                all[resource] = part;
            }
        }
        for ((key, queue, used), fair) in rows.into_iter().zip(&level.fair) {
            let share = Share {
                quota: queue.bound3(|resource| resource.quota),
                limit: queue.bound3(|resource| resource.limit),
                fair: [0, 1, 2].map(|index| from_kai(fair[index], index)),
                priority: queue.priority,
                created: queue.created,
            };
            if let Some(known) = self.of.get(key).filter(|known| **known != share) {
                let has = used.allocated;
                let loses = |share: &Share| !within(has, share.allocatable());
                let bounds = |share: &Share| (share.quota, share.limit, share.priority);
                let is_other = loses(known) != loses(&share) || bounds(known) != bounds(&share);
                self.version += u64::from(is_other);
                self.changed.push(key);
            }
            self.of.insert(key, share);
        }
        level
    }

    fn claim(&self, queue: &Queue, used: QueueUse, index: usize) -> Claim {
        let resource = queue.resource(index);
        let bound = |bound| match bound {
            Bound::Unlimited => None,
            Bound::Exactly(amount) => Some(to_kai(u128::from(amount), index)),
        };
        let mut request = used.allocated[index] + used.pending[index];
        if index == 0 {
            request += self.gpu_of_memory(used.pending_mib, self.smallest_card);
        }
        Claim {
            name: queue.name.shared(),
            priority: queue.priority,
            created: queue.created,
            quota: bound(resource.quota),
            limit: bound(resource.limit),
            weight: lossy(u128::from(resource.weight.0)) / 1e6,
            request: to_kai(request, index),
            usage: lossy(u128::from(resource.usage)) / 1e9,
        }
    }

    /// Nano-GPU that an amount of GPU memory counts for on cards of that size.
    #[allow(clippy::unused_self)]
    pub(crate) fn gpu_of_memory(&self, mib: u128, card: u128) -> u128 {
        if mib == 0 || card == 0 {
            return 0;
        }
        mib * u128::from(NanoGpu::ONE.0) / card
    }

    /// What pods request, as queues count it; GPU memory over cards of that size.
    pub(crate) fn wanted(&self, state: &State, tasks: &[TaskKey], card: u128) -> QueueAmounts {
        let mut sum = [0; 3];
        for task in tasks {
            if let Some(spec) = state
                .tasks
                .get(*task)
                .and_then(|row| state.specs.get(row.spec))
            {
                sum = plus(sum, self.wanted_by(spec, card));
            }
        }
        sum
    }

    /// The same for one pod that asks for this.
    pub(crate) fn wanted_by(&self, spec: &SpecRow, card: u128) -> QueueAmounts {
        let mut wanted = spec.request();
        wanted[0] += self.gpu_of_memory(spec.share_mib, card);
        wanted
    }

    /// KAI's dominant share: the largest ratio of its allocation to its allocatable share.
    pub(crate) fn dominant_share(&self, share: &Share, allocated: QueueAmounts) -> f64 {
        let allocatable = share.allocatable();
        let mut largest: f64 = 0.0;
        for index in 0..3 {
            let has = to_kai(allocated[index], index);
            let may = match allocatable[index] {
                Bound::Unlimited => to_kai(self.total[index], index),
                Bound::Exactly(amount) => to_kai(u128::from(amount), index),
            };
            // What may have nothing and has something weighs most.
            let part = if may == 0.0 { has * 1000.0 } else { has / may };
            largest = largest.max(part);
        }
        largest
    }
}

/// A node's capacity, with this number of cards if an agent manages them.
fn has(state: &State, node: &Node, cards: u128) -> QueueAmounts {
    let by_claim = devices::gpus(&state.devices, node);
    let gpus = if node.managed {
        cards
    } else {
        u128::from(node.gpus)
    };
    let slices = node.extended.iter().map(|(name, count)| {
        u128::from(crate::state::transition::mig_slices(name.as_str())) * u128::from(*count)
    });
    [
        (gpus + by_claim + slices.sum::<u128>()) * u128::from(NanoGpu::ONE.0),
        u128::from(node.cpu.0),
        u128::from(node.memory.0),
    ]
}

/// What all nodes have, whether they are ready and their cards healthy or not.
pub(crate) fn capacity(state: &State) -> QueueAmounts {
    let mut sum = [0; 3];
    for (_, row) in &state.nodes {
        let Some(node) = &row.node else {
            continue;
        };
        let cards = (row.cards.iter())
            .filter_map(|card| state.cards.get(*card)?.card.as_ref())
            .filter(|card| card.total.0 > 0 && !card.mig);
        sum = plus(sum, has(state, node, cards.count() as u128));
    }
    sum
}

#[allow(clippy::cast_precision_loss)]
fn lossy(amount: u128) -> f64 {
    amount as f64
}

fn to_kai(amount: u128, index: usize) -> f64 {
    lossy(amount) / KAI_UNIT[index]
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn from_kai(amount: f64, index: usize) -> u128 {
    (amount * KAI_UNIT[index]).round().max(0.0) as u128
}
