//! What queues may have of single GPU products, beside their GPUs in all.
//!
//! Nothing of KAI's rules for a queue's GPUs changes; these rules are checked beside them, for the
//! queue and for every queue above it that names the product of the node, each in the unit in which
//! that queue counts it:
//! - limit: no pod is placed that would bring the queue above it, and no non-preemptible pod that
//!   would bring the non-preemptible ones above the quota;
//! - quota: reclaim takes GPUs of the product only from queues above it, whatever they hold in all;
//!   and a queue that stays within it gets them back from such queues, also from those that are
//!   within their quota in all;
//! - order: a pod that would bring a queue above its quota is placed after all that would not;
//! - moves: no search moves a pod to another product if a queue is above its quota of it then.

use crate::action::ReasonKind;
use crate::capacity::{gpus, name};
use crate::model::{Node, ProductQuota, ProductUnit};
use crate::reason::{ReasonKey, WaitReason};
use crate::state::State;
use crate::state::keys::{NodeKey, QueueKey, TaskKey};
use crate::state::products::{ProductAmount, ProductUse, ProductUses};
use crate::units::Bound;
use std::collections::BTreeMap;
use std::sync::Arc;

/// By product.
pub(crate) type ProductAmounts = BTreeMap<Arc<str>, ProductAmount>;

/// The quota and the limit of a queue that names the product, and what it holds by these sums.
fn row<'a>(
    state: &'a State,
    held: &ProductUses,
    queue: QueueKey,
    product: &str,
) -> Option<(&'a ProductQuota, ProductUse)> {
    let (at, _) = state.product_at(queue, product)?;
    let row = state.queues.get(queue)?.queue.as_ref()?.products.get(at)?;
    let held = held.get(queue).and_then(|all| all.get(at));
    Some((row, held.copied().unwrap_or_default()))
}

/// Billionths of the row's unit against one of its bounds.
fn exceeds(amount: u128, row: &ProductQuota, bound: Bound) -> bool {
    (row.unit.billionths(bound)).is_some_and(|most| amount > most)
}

/// A queue that says nothing of the product holds no more of it than it deserves.
fn exceeds_quota(amount: u128, row: &ProductQuota) -> bool {
    exceeds(amount, row, row.quota.unwrap_or(Bound::Unlimited))
}

/// Billionths of the unit as messages write them, with the unit.
fn amount(billionths: u128, unit: ProductUnit) -> String {
    match unit {
        ProductUnit::Gpus => format!("{} GPUs", gpus(billionths)),
        ProductUnit::Memory => format!("{} MiB", gpus(billionths)),
    }
}

/// The same with the product.
fn amount_of(billionths: u128, unit: ProductUnit, product: &str) -> String {
    match unit {
        ProductUnit::Gpus => format!("{} {product} GPUs", gpus(billionths)),
        ProductUnit::Memory => format!("{} MiB of {product} GPUs", gpus(billionths)),
    }
}

/// What the unit counts of the product, as messages call it.
fn counted(product: &str, unit: ProductUnit) -> String {
    match unit {
        ProductUnit::Gpus => format!("{product} GPUs"),
        ProductUnit::Memory => format!("{product} GPU memory"),
    }
}

/// Why a pod that takes so much of the node's GPUs may not be placed there. `None`: it may.
pub(crate) fn over(
    state: &State,
    held: &ProductUses,
    task: TaskKey,
    (node, nano): (NodeKey, u128),
) -> Option<Arc<WaitReason>> {
    let product = state.product_of(node).filter(|_| nano > 0)?;
    let wanted = state.product_amount(task, product, nano);
    let key = state.tasks.get(task)?.job?;
    let job = state.jobs.get(key)?;
    let chain = &state.queues.get(job.queue?)?.chain;
    let may_exceed_quota = state.may_exceed_quota(key);
    let rows = chain.iter().filter_map(|queue| {
        let (row, held) = row(state, held, *queue, &product.name)?;
        Some((*queue, row, held))
    });
    let why = |kind, queue, line: String| {
        Some(Arc::new(WaitReason {
            kind,
            line: Arc::from(line),
            about: ReasonKey::Product(queue, Arc::clone(&product.name)),
        }))
    };
    for (queue, row, held) in rows {
        let unit = row.unit;
        let limit = unit.billionths(row.limit);
        let quota = row.quota.and_then(|quota| unit.billionths(quota));
        let quota = quota.filter(|_| !may_exceed_quota);
        if unit == ProductUnit::Memory && product.memory.0 == 0 && (limit, quota) != (None, None) {
            let line = format!(
                "{} counts {} in MiB, and the memory of the GPUs of node {} is not known: it has neither an agent nor the label {}",
                name(state, queue),
                product.name,
                state.nodes.get(node)?.name,
                Node::GPU_MEMORY_LABEL,
            );
            return why(ReasonKind::OverLimit, queue, line);
        }
        let wanted = wanted.billionths(unit);
        if let Some(limit) = limit.filter(|limit| held.allocated + wanted > *limit) {
            let line = format!(
                "{} quota has reached the allowable limit of {}. Limit is {}, currently {} allocated and workload requested {}",
                name(state, queue),
                counted(&product.name, unit),
                amount(limit, unit),
                amount(held.allocated, unit),
                amount(wanted, unit),
            );
            return why(ReasonKind::OverLimit, queue, line);
        }
        if let Some(quota) = quota.filter(|quota| held.non_preemptible + wanted > *quota) {
            let line = format!(
                "Non-preemptible workload is over quota. Workload requested {}, but {} quota is {}, while {} are already allocated for non-preemptible pods. Use a preemptible workload to go over quota.{}",
                amount_of(wanted, unit, &product.name),
                name(state, queue),
                amount(quota, unit),
                amount(held.non_preemptible, unit),
                crate::capacity::WAYS_OUT,
            );
            return why(ReasonKind::NonPreemptibleOverQuota, queue, line);
        }
    }
    None
}

/// A pod that takes so much of the node's GPUs brings a queue above its quota of their product.
pub(crate) fn borrows(state: &State, task: TaskKey, node: NodeKey, nano: u128) -> bool {
    let Some(product) = state.product_of(node).filter(|_| nano > 0) else {
        return false;
    };
    let wanted = state.product_amount(task, product, nano);
    state.queues_of(task).iter().any(|queue| {
        let row = row(state, &state.cells.products.of, *queue, &product.name);
        row.is_some_and(|(row, held)| {
            let with = held.allocated + wanted.billionths(row.unit);
            exceeds_quota(with, row)
        })
    })
}

/// A queue of the pod holds more of the node's product than its quota.
pub(crate) fn is_above(state: &State, task: TaskKey, node: NodeKey) -> bool {
    let Some(product) = state.product_of(node) else {
        return false;
    };
    state.queues_of(task).iter().any(|queue| {
        let row = row(state, &state.cells.products.of, *queue, &product.name);
        row.is_some_and(|(row, held)| exceeds_quota(held.allocated, row))
    })
}

/// What a queue held of the node's product, for messages. `None`: it says nothing of it.
pub(crate) fn standing(
    state: &State,
    held: &ProductUses,
    queue: QueueKey,
    node: NodeKey,
) -> Option<String> {
    let product = &state.product_of(node)?.name;
    let (row, held) = row(state, held, queue, product)?;
    let quota = match row.unit.billionths(row.quota?) {
        None => "unlimited".to_owned(),
        Some(quota) => gpus(quota),
    };
    let held = amount_of(held.allocated, row.unit, product);
    Some(format!(
        "{} uses {held} with a quota of {quota}",
        name(state, queue)
    ))
}

/// The queue holds more of some product than its quota of it.
pub(crate) fn is_above_some(state: &State, queue: QueueKey) -> bool {
    let named = state.queues.get(queue).and_then(|row| row.queue.as_ref());
    let named = named.map_or(&[][..], |queue| &queue.products);
    let held = state.cells.products.of.get(queue).into_iter().flatten();
    (named.iter().zip(held)).any(|(row, held)| exceeds_quota(held.allocated, row))
}

/// Of some product, one queue holds less than its quota and the other more.
pub(crate) fn is_owed(state: &State, ours: QueueKey, theirs: QueueKey) -> bool {
    let named = state.queues.get(ours).and_then(|row| row.queue.as_ref());
    let named = named.map_or(&[][..], |queue| &queue.products);
    named.iter().any(|own| {
        let held = |queue| row(state, &state.cells.products.of, queue, &own.product);
        let (Some((own, has)), Some((their, have))) = (held(ours), held(theirs)) else {
            return false;
        };
        let is_below = own.quota.is_some_and(|quota| {
            let quota = own.unit.billionths(quota);
            quota.is_none_or(|quota| has.allocated < quota)
        });
        is_below && exceeds_quota(have.allocated, their)
    })
}

/// What queues hold while the victims of one reclaim leave one after another.
pub(crate) struct Reclaimed<'a> {
    state: &'a State,
    /// What they held before.
    before: &'a ProductUses,
    held: ProductUses,
    /// Of that, by pods that had their places before this decision.
    running: ProductUses,
    /// What the job gets of each product.
    gains: ProductAmounts,
}

impl<'a> Reclaimed<'a> {
    /// `new`: what queues hold of it by places of this decision.
    pub(crate) fn new(
        state: &'a State,
        before: &'a ProductUses,
        new: &BTreeMap<QueueKey, ProductAmounts>,
        gains: ProductAmounts,
    ) -> Self {
        let mut running = before.clone();
        for (queue, held) in new {
            lessen(state, &mut running, held, &[*queue]);
        }
        Self {
            state,
            before,
            held: before.clone(),
            running,
            gains,
        }
    }

    /// The quotas of products allow it by themselves that `theirs` loses all of this, `gpus` in all:
    /// it is above its quota of each product, of which the job gets some, and with that each of
    /// `chain` stays within its own, the last of which names it. `runs`: it is above by what runs.
    pub(crate) fn are_owed(
        &self,
        lost: &ProductAmounts,
        (gpus, runs): (u128, bool),
        chain: &[QueueKey],
        theirs: QueueKey,
    ) -> bool {
        let held = if runs { &self.running } else { &self.held };
        let within = |queue: &QueueKey, product: &str, gain: ProductAmount| {
            let row = row(self.state, self.before, *queue, product);
            row.map(|(row, held)| {
                let with = held.allocated + gain.billionths(row.unit);
                row.quota.map(|quota| !exceeds(with, row, quota))
            })
        };
        let is_owed = |product: &Arc<str>| {
            let gain = self.gains.get(product).copied().unwrap_or_default();
            let stays =
                (chain.iter()).all(|queue| within(queue, product, gain) != Some(Some(false)));
            let names = chain.last().and_then(|ours| within(ours, product, gain));
            let their = row(self.state, held, theirs, product);
            let above = their.is_some_and(|(row, held)| exceeds_quota(held.allocated, row));
            gain.nano > 0 && stays && names == Some(Some(true)) && above
        };
        let all: u128 = lost.values().map(|lost| lost.nano).sum();
        gpus > 0 && all == gpus && lost.keys().all(is_owed)
    }

    /// Each of the queues that names one of these products is above its quota of it by what runs.
    pub(crate) fn may_go(&self, lost: &ProductAmounts, chain: &[QueueKey]) -> bool {
        lost.keys().all(|product| {
            chain.iter().all(|queue| {
                let row = row(self.state, &self.running, *queue, product);
                row.is_none_or(|(row, held)| {
                    let is_above = |quota| exceeds(held.allocated, row, quota);
                    row.quota.is_none_or(is_above)
                })
            })
        })
    }

    /// The queues have lost it. `runs`: a pod that had its place before.
    pub(crate) fn take(&mut self, lost: &ProductAmounts, chain: &[QueueKey], runs: bool) {
        lessen(self.state, &mut self.held, lost, chain);
        if runs {
            lessen(self.state, &mut self.running, lost, chain);
        }
    }
}

/// The queues hold so much less.
fn lessen(state: &State, held: &mut ProductUses, lost: &ProductAmounts, chain: &[QueueKey]) {
    for (product, lost) in lost {
        for queue in chain {
            let Some((at, unit)) = state.product_at(*queue, product) else {
                continue;
            };
            let held = held.get_mut(*queue).and_then(|all| all.get_mut(at));
            if let Some(held) = held {
                held.allocated = held.allocated.saturating_sub(lost.billionths(unit));
            }
        }
    }
}
