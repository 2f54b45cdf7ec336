//! Which of two sibling queues goes next: KAI's rules, the first decisive one wins
//! (`plugins/proportion/queue_order`).
//! 1. A queue above its fair share in every resource is last.
//! 2. A queue that stays within its quota with its job is first.
//! 3. Higher priority.
//! 4. A queue that would use what it may have nothing of is last.
//! 5. Smaller dominant share, with its job or without its victims.
//! 6. Smaller dominant share as it is.
//! 7. Smaller allocatable share.
//! 8. Older, then by name.

use crate::shares::{Share, Shares, Three, less, plus, within};
use crate::state::State;
use crate::state::rows::QueueKey;
use crate::units::Bound;
use std::cmp::Ordering;

/// A queue with the job that it would go with, or the victims it would lose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub queue: QueueKey,
    /// What its best job wants; nothing in a queue of victims.
    pub wanted: Three,
    /// What its victims so far, and the next, hold.
    pub lost: Three,
}

/// `Less`: the first goes first.
pub(crate) fn compare(
    state: &State,
    shares: &Shares,
    one: &Candidate,
    other: &Candidate,
) -> Ordering {
    let (Some(a), Some(b)) = (shares.of.get(one.queue), shares.of.get(other.queue)) else {
        return Ordering::Equal;
    };
    let has = |key| {
        state
            .queue_use
            .get(key)
            .map(|used| used.allocated)
            .unwrap_or_default()
    };
    let (a_has, b_has) = (has(one.queue), has(other.queue));
    let (a_with, b_with) = (plus(a_has, one.wanted), plus(b_has, other.wanted));
    over_utilised(a, a_has)
        .cmp(&over_utilised(b, b_has))
        .then_with(|| within(b_with, b.quota).cmp(&within(a_with, a.quota)))
        .then_with(|| b.priority.cmp(&a.priority))
        .then_with(|| uses_nothing_left(a, a_with).cmp(&uses_nothing_left(b, b_with)))
        .then_with(|| {
            let left = shares.dominant(a, less(a_with, one.lost));
            left.total_cmp(&shares.dominant(b, less(b_with, other.lost)))
        })
        .then_with(|| {
            shares
                .dominant(a, a_has)
                .total_cmp(&shares.dominant(b, b_has))
        })
        .then_with(|| smaller(a, b))
        .then_with(|| a.created.cmp(&b.created))
        .then_with(|| {
            let name = |key| state.queues.get(key).map(|row| &row.name);
            name(one.queue).cmp(&name(other.queue))
        })
}

fn over_utilised(share: &Share, has: Three) -> bool {
    share
        .fair
        .into_iter()
        .zip(has)
        .all(|(fair, has)| fair < has)
}

fn uses_nothing_left(share: &Share, with: Three) -> bool {
    share
        .allocatable()
        .into_iter()
        .zip(with)
        .any(|(may, has)| may == Bound::Exactly(0) && has > 0)
}

fn smaller(one: &Share, other: &Share) -> Ordering {
    let (a, b) = (one.allocatable(), other.allocatable());
    let order = |left: Bound, right: Bound| match (left, right) {
        (Bound::Unlimited, Bound::Unlimited) => Ordering::Equal,
        (Bound::Unlimited, Bound::Exactly(_)) => Ordering::Greater,
        (Bound::Exactly(_), Bound::Unlimited) => Ordering::Less,
        (Bound::Exactly(left), Bound::Exactly(right)) => left.cmp(&right),
    };
    let orders: Vec<Ordering> = a
        .into_iter()
        .zip(b)
        .map(|(left, right)| order(left, right))
        .collect();
    let has = |wanted| orders.contains(&wanted);
    match (has(Ordering::Less), has(Ordering::Greater)) {
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        _ => Ordering::Equal,
    }
}
