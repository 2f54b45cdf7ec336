//! Which of two sibling queues goes next: KAI's rules, the first decisive one wins
//! (`plugins/proportion/queue_order`).
//! 1. A queue above its fair share in every resource is last.
//! 2. A queue that stays within its quota with its job is first.
//! 3. Higher priority.
//! 4. A queue that would use a resource of which it may have nothing is last.
//! 5. Smaller dominant share, with its job or without its victims.
//! 6. Smaller dominant share as it is.
//! 7. Smaller allocatable share.
//! 8. Older, then by name.
//!
//! Where queues take from others by priority within quotas (`queuePriorityInQuotaReclaim`), one
//! that stays within its quota with its job is never behind by rule 1. In KAI only another such
//! one is not before it by that rule, so that three queues can be before each other in a ring.

use crate::shares::{QueueAmounts, Share, Shares, less, plus, within};
use crate::state::State;
use crate::state::keys::QueueKey;
use crate::units::Bound;
use std::cmp::{Ordering, Reverse};

/// A queue with the job that it would go with, or the victims it would lose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub queue: QueueKey,
    /// What its best job wants; nothing in a queue of victims.
    pub wanted: QueueAmounts,
    /// What its victims so far, and the next, hold.
    pub lost: QueueAmounts,
}

/// What decides of a candidate before what its share alone says, in the order of the rules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Key {
    over_utilised: bool,
    beyond_quota: bool,
    priority: Reverse<i32>,
    uses_nothing_left: bool,
    dominant_after: f64,
    dominant_share: f64,
}

impl Key {
    /// Holds while neither the candidate nor what its queue has changes.
    pub(crate) fn of(state: &State, shares: &Shares, candidate: &Candidate) -> Option<Self> {
        let share = shares.of.get(candidate.queue)?;
        let has = state
            .cells
            .queues
            .get(candidate.queue)
            .map(|used| used.allocated)
            .unwrap_or_default();
        let with = plus(has, candidate.wanted);
        let beyond_quota = !within(with, share.quota);
        Some(Self {
            over_utilised: over_utilised(share, has) && (beyond_quota || !shares.priority_in_quota),
            beyond_quota,
            priority: Reverse(share.priority),
            uses_nothing_left: uses_nothing_left(share, with),
            dominant_after: shares.dominant_share(share, less(with, candidate.lost)),
            dominant_share: shares.dominant_share(share, has),
        })
    }

    /// `Less`: the first goes first.
    pub(crate) fn cmp(&self, other: &Self) -> Ordering {
        self.over_utilised
            .cmp(&other.over_utilised)
            .then_with(|| self.beyond_quota.cmp(&other.beyond_quota))
            .then_with(|| self.priority.cmp(&other.priority))
            .then_with(|| self.uses_nothing_left.cmp(&other.uses_nothing_left))
            .then_with(|| self.dominant_after.total_cmp(&other.dominant_after))
            .then_with(|| self.dominant_share.total_cmp(&other.dominant_share))
    }
}

/// `Less`: the first goes first. By what decides of each.
pub(crate) fn compare(
    state: &State,
    shares: &Shares,
    one: (QueueKey, Option<Key>),
    other: (QueueKey, Option<Key>),
) -> Ordering {
    let ((one, Some(own)), (other, Some(their))) = (one, other) else {
        return Ordering::Equal;
    };
    own.cmp(&their)
        .then_with(|| match (shares.of.get(one), shares.of.get(other)) {
            (Some(a), Some(b)) => smaller(a, b).then_with(|| a.created.cmp(&b.created)),
            _ => Ordering::Equal,
        })
        .then_with(|| {
            let place = |key| state.queues.get(key).map(|row| row.place);
            place(one).cmp(&place(other))
        })
}

fn over_utilised(share: &Share, has: QueueAmounts) -> bool {
    share
        .fair
        .into_iter()
        .zip(has)
        .all(|(fair, has)| fair < has)
}

fn uses_nothing_left(share: &Share, with: QueueAmounts) -> bool {
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
    let has = |wanted| {
        a.iter()
            .zip(b)
            .any(|(left, right)| order(*left, right) == wanted)
    };
    match (has(Ordering::Less), has(Ordering::Greater)) {
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        _ => Ordering::Equal,
    }
}
