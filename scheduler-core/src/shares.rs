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
use crate::state::keys::{NodeKey, QueueKey, TaskKey};
use crate::state::mig::{gpus_of_others, mig_slices};
use crate::state::queue_use::QueueUse;
use crate::state::rows::{NodeRow, QueueRow};
use crate::state::spec_row::SpecRow;
use crate::units::{Bound, NanoGpu, Time};
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
    has: QueueAmounts,
    /// Its smallest and its largest card, MiB.
    smallest: u64,
    largest: u64,
}

impl NodeTotals {
    fn of(state: &State, key: NodeKey, row: &NodeRow) -> Self {
        let mut totals = Self {
            has: [0; 3],
            smallest: u64::MAX,
            largest: 0,
        };
        let Some(node) = &row.node else {
            return totals;
        };
        let mut cards: u128 = 0;
        for card in row
            .cards
            .iter()
            .filter_map(|card| state.cards.get(*card)?.card.as_ref())
        {
            if card.total.0 > 0 && !card.mig {
                totals.smallest = totals.smallest.min(card.total.0);
                totals.largest = totals.largest.max(card.total.0);
                cards += u128::from(card.unhealthy.is_none());
            }
        }
        // A node that no pod may go to is none (KAI's `filterUnmarkedNodes`).
        let closed = row.lacks.gpu.is_some() && row.lacks.cpu.is_some();
        if closed || !node.not_ready.is_empty() {
            return totals;
        }
        let mut has = has(state, node, cards);
        if row.lacks.gpu.is_some() {
            has[0] = 0;
        }
        let foreign = state.cells.nodes.get(key).map(|used| used.foreign);
        totals.has = less(has, foreign.unwrap_or_default());
        totals
    }
}

/// The shares of all queues, and the capacity that was divided.
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
}

impl Shares {
    /// Computes the shares from the state as it is now. `k` is KAI's weight of past usage.
    pub(crate) fn compute(state: &State, k: f64) -> Self {
        let mut shares = Self::of_nodes(state);
        let total = [0, 1, 2].map(|index| to_kai(shares.total[index], index));
        shares.divide(state, k, total, &state.index.top_queues);
        shares
    }

    /// Sums what nodes have. No queue has a share yet.
    fn of_nodes(state: &State) -> Self {
        let mut shares = Self::default();
        let mut smallest = u64::MAX;
        let mut largest = 0;
        for (key, row) in &state.nodes {
            let node = NodeTotals::of(state, key, row);
            smallest = smallest.min(node.smallest);
            largest = largest.max(node.largest);
            shares.total = plus(shares.total, node.has);
        }
        shares.smallest_card = if largest == 0 { 0 } else { smallest.into() };
        shares.largest_card = largest.into();
        shares
    }

    /// Divides an amount among siblings, and what each of them gets among its children.
    fn divide(&mut self, state: &State, k: f64, total: [f64; 3], siblings: &[QueueKey]) {
        let rows: Vec<(QueueKey, &QueueRow, &Queue, QueueUse)> = (siblings.iter())
            .filter_map(|key| {
                let row = state.queues.get(*key)?;
                let used = state.cells.queues.get(*key).copied().unwrap_or_default();
                Some((*key, row, row.queue.as_ref()?, used))
            })
            .collect();
        let mut fair = vec![[0.0; 3]; rows.len()];
        for resource in 0..3 {
            let claims: Vec<Claim> = rows
                .iter()
                .map(|(_, _, queue, used)| self.claim(queue, *used, resource))
                .collect();
            let parts = fair_share::divide(total[resource], k, &claims);
            for (all, part) in fair.iter_mut().zip(parts) {
                all[resource] = part;
            }
        }
        for ((key, row, queue, _), fair) in rows.into_iter().zip(fair) {
            let share = Share {
                quota: queue.bound3(|resource| resource.quota),
                limit: queue.bound3(|resource| resource.limit),
                fair: [0, 1, 2].map(|index| from_kai(fair[index], index)),
                priority: queue.priority,
                created: queue.created,
            };
            self.of.insert(key, share);
            if !row.children.is_empty() {
                self.divide(state, k, fair, &row.children);
            }
        }
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
        let each = mig_slices(name.as_str()) + gpus_of_others(name.as_str());
        u128::from(each) * u128::from(*count)
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
