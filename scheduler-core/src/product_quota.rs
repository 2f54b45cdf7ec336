//! What queues may have of single GPU products, beside their GPUs in all.
//!
//! Nothing of KAI's rules for a queue's GPUs changes; these rules are checked beside them, for the
//! queue and for every queue above it that names the product of the node:
//! - limit: no pod is placed that would bring the queue above it, and no non-preemptible pod that
//!   would bring the non-preemptible ones above the quota;
//! - quota: reclaim takes GPUs of the product only from queues above it, whatever they hold in all;
//!   and a queue that stays within it gets them back from such queues, also from those that are
//!   within their quota in all;
//! - order: a pod that would bring a queue above its quota is placed after all that would not.

use crate::action::ReasonKind;
use crate::capacity::{gpus, name};
use crate::reason::{ReasonKey, WaitReason};
use crate::state::State;
use crate::state::products::{ProductUse, ProductUses};
use crate::state::rows::{JobKey, NodeKey, QueueKey};
use crate::units::Bound;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Nano-GPU by product.
pub(crate) type ProductAmounts = BTreeMap<Arc<str>, u128>;

/// The quota and the limit of a queue that names the product, and what it holds by these sums.
fn row<'a>(
    state: &'a State,
    held: &ProductUses,
    queue: QueueKey,
    product: &str,
) -> Option<(&'a crate::model::ProductQuota, ProductUse)> {
    let at = state.product_at(queue, product)?;
    let row = state.queues.get(queue)?.queue.as_ref()?.products.get(at)?;
    let held = held.get(queue).and_then(|all| all.get(at));
    Some((row, held.copied().unwrap_or_default()))
}

fn exceeds(amount: u128, bound: Bound) -> bool {
    match bound {
        Bound::Unlimited => false,
        Bound::Exactly(most) => amount > u128::from(most),
    }
}

/// Why a pod of the job that takes so much of the node's GPUs may not be placed there. `None`: it
/// may.
pub(crate) fn over(
    state: &State,
    held: &ProductUses,
    job: JobKey,
    (node, nano): (NodeKey, u128),
) -> Option<Arc<WaitReason>> {
    let product = state.product_of(node).filter(|_| nano > 0)?;
    let job = state.jobs.get(job)?;
    let chain = &state.queues.get(job.queue?)?.chain;
    let preemptible = job.is_preemptible(state);
    let rows = chain.iter().filter_map(|queue| {
        let (row, held) = row(state, held, *queue, product)?;
        Some((*queue, row, held))
    });
    let why = |kind, queue, line: String| {
        Some(Arc::new(WaitReason {
            kind,
            line: Arc::from(line),
            about: ReasonKey::Product(queue, Arc::clone(product)),
        }))
    };
    for (queue, row, held) in rows {
        if let Bound::Exactly(limit) = row.limit
            && exceeds(held.allocated + nano, row.limit)
        {
            let line = format!(
                "{} quota has reached the allowable limit of {product} GPUs. Limit is {} GPUs, currently {} GPUs allocated and workload requested {} GPUs",
                name(state, queue),
                gpus(u128::from(limit)),
                gpus(held.allocated),
                gpus(nano),
            );
            return why(ReasonKind::OverLimit, queue, line);
        }
        if let Some(Bound::Exactly(quota)) = row.quota
            && !preemptible
            && exceeds(held.non_preemptible + nano, Bound::Exactly(quota))
        {
            let line = format!(
                "Non-preemptible workload is over quota. Workload requested {} {product} GPUs, but {} quota is {} GPUs, while {} GPUs are already allocated for non-preemptible pods. Use a preemptible workload to go over quota.",
                gpus(nano),
                name(state, queue),
                gpus(u128::from(quota)),
                gpus(held.non_preemptible),
            );
            return why(ReasonKind::NonPreemptibleOverQuota, queue, line);
        }
    }
    None
}

/// A pod of the job that takes so much of the node's GPUs brings a queue above its quota of their
/// product.
pub(crate) fn borrows(state: &State, job: JobKey, node: NodeKey, nano: u128) -> bool {
    let Some(product) = state.product_of(node).filter(|_| nano > 0) else {
        return false;
    };
    let queue = state.jobs.get(job).and_then(|job| job.queue);
    let chain = queue.and_then(|queue| Some(&state.queues.get(queue)?.chain));
    chain.into_iter().flatten().any(|queue| {
        let row = row(state, &state.products.of, *queue, product);
        row.is_some_and(|(row, held)| {
            let quota = row.quota.unwrap_or(Bound::Unlimited);
            exceeds(held.allocated + nano, quota)
        })
    })
}

/// What a queue held of the node's product, for messages. `None`: it says nothing of it.
pub(crate) fn standing(
    state: &State,
    held: &ProductUses,
    queue: QueueKey,
    node: NodeKey,
) -> Option<String> {
    let product = state.product_of(node)?;
    let (row, held) = row(state, held, queue, product)?;
    let quota = match row.quota? {
        Bound::Unlimited => "unlimited".to_owned(),
        Bound::Exactly(quota) => gpus(u128::from(quota)),
    };
    let (name, held) = (name(state, queue), gpus(held.allocated));
    Some(format!(
        "{name} uses {held} {product} GPUs with a quota of {quota}"
    ))
}

/// The queue holds more of some product than its quota of it.
pub(crate) fn is_above_some(state: &State, queue: QueueKey) -> bool {
    let named = state.queues.get(queue).and_then(|row| row.queue.as_ref());
    let named = named.map_or(&[][..], |queue| &queue.products);
    let held = state.products.of.get(queue).into_iter().flatten();
    (named.iter().zip(held)).any(|(row, held)| {
        let quota = row.quota.unwrap_or(Bound::Unlimited);
        exceeds(held.allocated, quota)
    })
}

/// Of some product, one queue holds less than its quota and the other more.
pub(crate) fn is_owed(state: &State, ours: QueueKey, theirs: QueueKey) -> bool {
    let named = state.queues.get(ours).and_then(|row| row.queue.as_ref());
    let named = named.map_or(&[][..], |queue| &queue.products);
    named.iter().any(|own| {
        let held = |queue| row(state, &state.products.of, queue, &own.product);
        let (Some((own, has)), Some((their, have))) = (held(ours), held(theirs)) else {
            return false;
        };
        let is_below = own.quota.is_some_and(|quota| match quota {
            Bound::Unlimited => true,
            Bound::Exactly(quota) => has.allocated < u128::from(quota),
        });
        is_below && exceeds(have.allocated, their.quota.unwrap_or(Bound::Unlimited))
    })
}

/// What queues hold while the victims of one reclaim leave one after another.
pub(crate) struct Reclaimed<'a> {
    state: &'a State,
    /// What they held before.
    before: &'a ProductUses,
    held: ProductUses,
    /// What the job gets of each product.
    gains: ProductAmounts,
}

impl<'a> Reclaimed<'a> {
    pub(crate) fn new(state: &'a State, before: &'a ProductUses, gains: ProductAmounts) -> Self {
        Self {
            state,
            before,
            held: before.clone(),
            gains,
        }
    }

    /// The quotas of products allow it by themselves that `theirs` loses all of this, `gpus` in all:
    /// it is above its quota of each product, of which the job gets some, and with that each of
    /// `chain` stays within its own, the last of which names it.
    pub(crate) fn are_owed(
        &self,
        lost: &ProductAmounts,
        gpus: u128,
        chain: &[QueueKey],
        theirs: QueueKey,
    ) -> bool {
        let within = |queue: &QueueKey, product: &str, gain: u128| {
            let row = row(self.state, self.before, *queue, product);
            row.map(|(row, held)| {
                let with = held.allocated + gain;
                row.quota.map(|quota| !exceeds(with, quota))
            })
        };
        let is_owed = |product: &Arc<str>| {
            let gain = self.gains.get(product).copied().unwrap_or(0);
            let stays =
                (chain.iter()).all(|queue| within(queue, product, gain) != Some(Some(false)));
            let names = chain.last().and_then(|ours| within(ours, product, gain));
            let their = row(self.state, &self.held, theirs, product);
            let above = their.is_some_and(|(row, held)| {
                exceeds(held.allocated, row.quota.unwrap_or(Bound::Unlimited))
            });
            gain > 0 && stays && names == Some(Some(true)) && above
        };
        gpus > 0 && lost.values().sum::<u128>() == gpus && lost.keys().all(is_owed)
    }

    /// Each of the queues that names one of these products is above its quota of it.
    pub(crate) fn may_go(&self, lost: &ProductAmounts, chain: &[QueueKey]) -> bool {
        lost.keys().all(|product| {
            chain.iter().all(|queue| {
                let row = row(self.state, &self.held, *queue, product);
                row.is_none_or(|(row, held)| {
                    let is_above = |quota| exceeds(held.allocated, quota);
                    row.quota.is_none_or(is_above)
                })
            })
        })
    }

    /// The queues have lost it.
    pub(crate) fn take(&mut self, lost: &ProductAmounts, chain: &[QueueKey]) {
        for (product, nano) in lost {
            for queue in chain {
                let Some(at) = self.state.product_at(*queue, product) else {
                    continue;
                };
                let held = self.held.get_mut(*queue).and_then(|all| all.get_mut(at));
                if let Some(held) = held {
                    held.allocated = held.allocated.saturating_sub(*nano);
                }
            }
        }
    }
}
