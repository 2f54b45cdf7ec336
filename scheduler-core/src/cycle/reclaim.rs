//! Reclaim: a queue below its share takes back what others hold beyond theirs (KAI,
//! `actions/reclaim` and `plugins/proportion/reclaimable`).
//!
//! Judged before each chunk (extra pods one by one, the core as one), at the level where the two
//! queues' ancestors first differ: the other queue is above what it may have in some resource, or
//! ours stays within its quota in all and the other is above its own in some, or, if the admin has
//! enabled it (`queuePriorityInQuotaReclaim`), is of lower priority. Then at every level no sibling
//! that lost something may end up less saturated than we are above our fair share.
//! For a pod that runs, the other queue counts without the places that this decision has given it
//! (KAI counts them): a later search may take these, and the pod had run within the quota.
//!
//! Queues that name GPU products are judged by these as well ([`crate::product_quota`]).

use crate::action::EvictCause;
use crate::cycle::Cycle;
use crate::cycle::losses::{NewPlaces, chunks, gains};
use crate::cycle::relax::victim_filter::VictimFilter;
use crate::cycle::runtime::RuntimeRule;
use crate::cycle::scenario::Scenario;
use crate::cycle::search::ActionRules;
use crate::job_queue::JobQueue;
use crate::product_quota::{self, Reclaimed};
use crate::shares::{QueueAmounts, Share, less, plus, within};
use crate::state::keys::{JobKey, QueueKey, TaskKey};
use crate::state::products::ProductUses;
use crate::state::queue_use::QueueUse;
use crate::units::Bound;
use slotmap::SecondaryMap;
use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Places that are summed up in about the time of a step.
const PLACES: u64 = 2;

struct Reclaim {
    queue: QueueKey,
    /// What the whole job still asks for.
    wanted: QueueAmounts,
    /// True if the non-preemptible pods of its queues must stay within their quotas. As in KAI, this
    /// holds for the surplus of a semi-preemptible job too, which exceeds quotas in free room only.
    within_quota: bool,
    /// What queues held before any simulation. Empty until the search begins.
    before: OnceCell<SecondaryMap<QueueKey, QueueUse>>,
    /// The same of single products.
    products: OnceCell<ProductUses>,
    /// Of that, places of this decision: no pod uses them yet.
    new: OnceCell<NewPlaces>,
}

impl ActionRules for Reclaim {
    fn cause(&self) -> EvictCause {
        EvictCause::Reclaim
    }

    fn filter(&self) -> VictimFilter {
        VictimFilter::LosersTo(self.queue, self.wanted)
    }

    fn begin(&self, cycle: &Cycle) {
        let _ = self.before.set(cycle.state.cells.queues.clone());
        let _ = self.products.set(cycle.state.cells.products.of.clone());
    }

    fn may_be_victim(&self, cycle: &mut Cycle, victim: JobKey) -> bool {
        !cycle.is_protected(RuntimeRule::Reclaim, Some(self.queue), victim)
            || cycle.gang(victim).is_elastic()
    }

    fn allows(
        &self,
        cycle: &mut Cycle,
        _job: JobKey,
        tasks: &[TaskKey],
        scenario: &Scenario,
    ) -> bool {
        // Once in a search: the decision may have given many places before.
        if self.new.get().is_none() {
            let (new, places) = cycle.new_places();
            let _ = self.new.set(new);
            if cycle.budget.charge(places / PLACES) {
                return false;
            }
        }
        self.is_reclaimable(cycle, tasks, scenario)
            && cycle.keeps_protected(RuntimeRule::Reclaim, Some(self.queue), scenario)
    }

    fn message(&self, cycle: &Cycle, job: JobKey, victim: TaskKey) -> String {
        let queue = cycle
            .state
            .tasks
            .get(victim)
            .and_then(|row| cycle.state.jobs.get(row.job?)?.queue);
        let (ours, theirs) = match queue {
            Some(queue) => cycle
                .where_they_part(self.queue, queue)
                .unwrap_or((self.queue, queue)),
            None => (self.queue, self.queue),
        };
        let node = cycle.state.cell(victim);
        let node = node
            .leaving
            .as_ref()
            .map(|leaving| leaving.node)
            .or(node.node);
        let product = node.and_then(|node| {
            let held = self.products.get()?;
            product_quota::standing(cycle.state, held, theirs, node)
        });
        format!(
            "Pod {} was preempted by workload {}. {}. {}.{}",
            cycle.pod_name(victim),
            cycle.job_name(job),
            self.standing(cycle, theirs),
            self.standing(cycle, ours),
            product.map_or_else(String::new, |product| format!(" {product}.")),
        )
    }
}

impl Reclaim {
    fn had(&self, queue: QueueKey) -> QueueUse {
        let before = self.before.get().and_then(|before| before.get(queue));
        before.copied().unwrap_or_default()
    }

    fn has(&self, queue: QueueKey) -> QueueAmounts {
        self.had(queue).allocated
    }

    /// The same by what runs alone.
    fn runs(&self, queue: QueueKey, new: &NewPlaces) -> QueueAmounts {
        let new = new.amounts.get(&queue).copied().unwrap_or_default();
        less(self.has(queue), new)
    }

    fn standing(&self, cycle: &Cycle, queue: QueueKey) -> String {
        let gpus = |nano: u128| {
            #[allow(clippy::cast_precision_loss)]
            let text = format!("{:.3}", nano as f64 / 1e9);
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        };
        let share = cycle.shares.of.get(queue);
        let quota = share.map_or(Bound::default(), |share| share.quota[0]);
        format!(
            "{} uses {} GPUs with a quota of {}, fair-share of {} and queue priority of {}",
            cycle.queue_name(Some(queue)),
            gpus(self.has(queue)[0]),
            match quota {
                Bound::Unlimited => "unlimited".to_owned(),
                Bound::Exactly(nano) => gpus(u128::from(nano)),
            },
            gpus(share.map_or(0, |share| share.fair[0])),
            share.map_or(0, |share| share.priority),
        )
    }

    fn is_reclaimable(&self, cycle: &Cycle, tasks: &[TaskKey], scenario: &Scenario) -> bool {
        let wanted = cycle
            .shares
            .wanted(cycle.state, tasks, cycle.shares.smallest_card);
        let chunks = chunks(cycle, scenario);
        let Some(new) = self.new.get() else {
            return false;
        };
        let mut left: BTreeMap<QueueKey, QueueAmounts> = BTreeMap::new();
        // The same without new places. A queue is above what it may have with the pods that run, or
        // none of them goes: a later search may take the new places.
        let mut runs: BTreeMap<QueueKey, QueueAmounts> = BTreeMap::new();
        let mut involved: BTreeMap<QueueKey, [bool; 3]> = BTreeMap::new();
        let none = ProductUses::default();
        let before = self.products.get().unwrap_or(&none);
        let gains = gains(cycle, tasks);
        let mut products = Reclaimed::new(cycle.state, before, &new.products, gains);
        for (queue, losses) in &chunks {
            let Some((ours, theirs)) = cycle.where_they_part(self.queue, *queue) else {
                return false;
            };
            let (our_chain, their_chain) = (
                up_to(cycle.chain_of(self.queue), ours),
                up_to(cycle.chain_of(*queue), theirs),
            );
            if !products.may_go(&losses.exchanged, their_chain) {
                return false;
            }
            products.take(&losses.exchanged, their_chain, true);
            let (Some(our_share), Some(their_share)) =
                (cycle.shares.of.get(ours), cycle.shares.of.get(theirs))
            else {
                return false;
            };
            let touched = resources(losses.chunks.iter().map(|chunk| chunk.lost));
            for chunk in &losses.chunks {
                let rest = if chunk.runs {
                    *runs.entry(theirs).or_insert_with(|| self.runs(theirs, new))
                } else {
                    *left.entry(theirs).or_insert_with(|| self.has(theirs))
                };
                let above_share = !within(rest, their_share.allocatable());
                let within_quota = within(plus(self.has(ours), wanted), our_share.quota);
                let above_quota = !within(rest, their_share.quota);
                let goes_first = cycle.goes_first(our_share, their_share);
                let by_sum = above_share || within_quota && (above_quota || goes_first);
                let lost = (chunk.lost[0], chunk.runs);
                let owed = || products.are_owed(&chunk.products, lost, our_chain, theirs);
                let may_go = !chunk.runs || products.may_go(&chunk.products, their_chain);
                if !(by_sum || owed()) || !may_go {
                    return false;
                }
                products.take(&chunk.products, their_chain, chunk.runs);
                for key in cycle.chain_of(*queue) {
                    let sum = left.entry(*key).or_insert_with(|| self.has(*key));
                    *sum = less(*sum, chunk.lost);
                    if chunk.runs {
                        let sum = runs.entry(*key).or_insert_with(|| self.runs(*key, new));
                        *sum = less(*sum, chunk.lost);
                    }
                    let all = involved.entry(*key).or_default();
                    *all = either(*all, touched);
                }
            }
        }
        self.stays_in_bounds(cycle, wanted, &left, &involved)
    }

    fn stays_in_bounds(
        &self,
        cycle: &Cycle,
        wanted: QueueAmounts,
        left: &BTreeMap<QueueKey, QueueAmounts>,
        involved: &BTreeMap<QueueKey, [bool; 3]>,
    ) -> bool {
        let chain = cycle.chain_of(self.queue);
        for (level, ours) in chain.iter().enumerate() {
            let parent = chain.get(level + 1);
            let Some(share) = cycle.shares.of.get(*ours) else {
                return false;
            };
            let has = plus(
                left.get(ours).copied().unwrap_or_else(|| self.has(*ours)),
                wanted,
            );
            for (sibling, rest) in left {
                let same_parent = cycle.chain_of(*sibling).get(1) == parent;
                if sibling == ours || !same_parent {
                    continue;
                }
                let Some(theirs) = cycle.shares.of.get(*sibling) else {
                    return false;
                };
                let all = either(
                    involved.get(sibling).copied().unwrap_or_default(),
                    resources([wanted]),
                );
                if !saturation_stays_lower(cycle, all, has, share, *rest, theirs) {
                    return false;
                }
            }
            let fixed = self.had(*ours).non_preemptible;
            if self.within_quota && !within(plus(fixed, wanted), share.quota) {
                return false;
            }
        }
        true
    }
}

#[allow(clippy::cast_precision_loss)]
fn saturation_stays_lower(
    cycle: &Cycle,
    involved: [bool; 3],
    ours: QueueAmounts,
    our_share: &Share,
    theirs: QueueAmounts,
    their_share: &Share,
) -> bool {
    let saturation = |has: u128, fair: u128| match (has, fair) {
        (0, 0) => 0.0,
        (_, 0) => f64::INFINITY,
        (has, fair) => has as f64 / fair as f64,
    };
    let multiplier = cycle.config.saturation_multiplier as f64 / 1e9;
    (0..3).filter(|index| involved[*index]).all(|index| {
        let own = saturation(ours[index], our_share.fair[index]);
        let other = saturation(theirs[index], their_share.fair[index]);
        !(own > 1.0 && their_share.fair[index] > 0 && own * multiplier >= other)
    })
}

/// A chain from its lowest queue up to this one.
fn up_to(chain: &[QueueKey], last: QueueKey) -> &[QueueKey] {
    let at = chain.iter().position(|queue| *queue == last);
    &chain[..at.map_or(chain.len(), |at| at + 1)]
}

fn resources(amounts: impl IntoIterator<Item = QueueAmounts>) -> [bool; 3] {
    let mut any = [false; 3];
    for amount in amounts {
        for (index, flag) in any.iter_mut().enumerate() {
            *flag |= amount[index] > 0;
        }
    }
    any
}

fn either(one: [bool; 3], other: [bool; 3]) -> [bool; 3] {
    [one[0] || other[0], one[1] || other[1], one[2] || other[2]]
}

impl Cycle<'_> {
    pub(super) fn reclaim(&mut self) {
        self.memos.infeasible.clear();
        self.passed_over.clear();
        // A failed search changes nothing.
        let may_find = self.any_may_find(|cycle, job| {
            let wanted = cycle.still_wanted(job);
            let rules = cycle.reclaimer(job, wanted);
            cycle.may_reclaim(job, wanted)
                && rules.is_some_and(|rules| cycle.may_find(job, rules.filter()))
                && !cycle.within_delay(job)
        });
        if !may_find && !self.config.verify {
            return;
        }
        let jobs = self.old_enough();
        let entries = jobs.into_iter().map(|job| self.entry(job)).collect();
        let mut queue = JobQueue::new(false);
        queue.fill(self.state, &self.shares, entries);
        while let Some(entry) = queue.pop(self.state, &self.shares) {
            let wanted = self.still_wanted(entry.job);
            if !self.may_reclaim(entry.job, wanted) {
                self.pass_over(entry.job);
                continue;
            }
            let Some(rules) = self.reclaimer(entry.job, wanted) else {
                continue;
            };
            if self.make_room(entry.job, &rules) {
                queue.arrange(self.state, &self.shares);
            }
        }
    }

    /// The rules for a job that wants so much. `None`: it is in no queue.
    fn reclaimer(&self, job: JobKey, wanted: QueueAmounts) -> Option<Reclaim> {
        Some(Reclaim {
            queue: self.state.jobs.get(job)?.queue?,
            wanted,
            within_quota: !self.state.jobs.get(job)?.is_preemptible(self.state),
            before: OnceCell::new(),
            products: OnceCell::new(),
            new: OnceCell::new(),
        })
    }

    /// Queues with standing jobs that may lose any at all to one that wants so much.
    pub(super) fn losers(
        &self,
        queue: QueueKey,
        wanted: QueueAmounts,
    ) -> impl Iterator<Item = QueueKey> + '_ {
        let queues = self.state.victim_queues();
        queues.filter(move |theirs| self.may_lose_to(queue, wanted, *theirs))
    }

    /// Returns whether a queue is another one and may lose anything at all to one that wants so much.
    pub(super) fn may_lose_to(
        &self,
        queue: QueueKey,
        wanted: QueueAmounts,
        theirs: QueueKey,
    ) -> bool {
        theirs != queue && self.may_lose(queue, wanted, theirs)
    }

    /// Can a queue lose anything at all to this job? (KAI's `FilterVictim`.) A queue that cannot is
    /// left out of the search; otherwise one such queue early in the order would spoil every
    /// scenario after it. Not inside a trial.
    fn may_lose(&self, queue: QueueKey, wanted: QueueAmounts, theirs: QueueKey) -> bool {
        let Some((ours, theirs)) = self.where_they_part(queue, theirs) else {
            return true;
        };
        let (Some(our_share), Some(their_share)) =
            (self.shares.of.get(ours), self.shares.of.get(theirs))
        else {
            return true;
        };
        if product_quota::is_owed(self.state, ours, theirs) {
            return true;
        }
        let has = self.held(theirs);
        if !within(plus(self.held(ours), wanted), our_share.quota) {
            return !within(has, their_share.allocatable());
        }
        if self.goes_first(our_share, their_share) {
            return true;
        }
        let mut below = false;
        for index in 0..3 {
            let Bound::Exactly(quota) = their_share.quota[index] else {
                continue;
            };
            if wanted[index] == 0 {
                continue;
            }
            match has[index].cmp(&u128::from(quota)) {
                Ordering::Greater => return true,
                Ordering::Less => below = true,
                Ordering::Equal => {}
            }
        }
        !below
    }

    /// Whether a first victim of theirs may really leave for one that wants so much; the
    /// next ones never may where this one may not, since less is left by then.
    pub(super) fn really_loses(
        &self,
        queue: QueueKey,
        wanted: QueueAmounts,
        theirs: QueueKey,
    ) -> bool {
        let Some((ours, theirs)) = self.where_they_part(queue, theirs) else {
            return false;
        };
        let (Some(our_share), Some(their_share)) =
            (self.shares.of.get(ours), self.shares.of.get(theirs))
        else {
            return false;
        };
        let has = self.held(theirs);
        !within(has, their_share.allocatable())
            || within(plus(self.held(ours), wanted), our_share.quota)
                && (!within(has, their_share.quota) || self.goes_first(our_share, their_share))
            || product_quota::is_owed(self.state, ours, theirs)
    }

    /// By priority, also within quotas.
    fn goes_first(&self, ours: &Share, theirs: &Share) -> bool {
        self.config.queue_priority_in_quota && ours.priority > theirs.priority
    }

    fn held(&self, queue: QueueKey) -> QueueAmounts {
        let used = self.state.cells.queues.get(queue);
        used.map(|used| used.allocated).unwrap_or_default()
    }

    fn still_wanted(&mut self, job: JobKey) -> QueueAmounts {
        self.known(job).entry.wanted
    }

    /// KAI's `CanReclaimResources`: at the leaf, within fair share, and work that cannot
    /// be preempted within quota.
    fn may_reclaim(&self, job: JobKey, wanted: QueueAmounts) -> bool {
        let Some((row, queue)) = self
            .state
            .jobs
            .get(job)
            .and_then(|row| Some((row, row.queue?)))
        else {
            return false;
        };
        let (Some(share), Some(used)) = (
            self.shares.of.get(queue),
            self.state.cells.queues.get(queue),
        ) else {
            return false;
        };
        let with = plus(used.allocated, wanted);
        let fair = with
            .into_iter()
            .zip(share.fair)
            .all(|(has, fair)| has <= fair);
        fair && (row.is_preemptible(self.state)
            || within(plus(used.non_preemptible, wanted), share.quota))
    }

    pub(super) fn chain_of(&self, queue: QueueKey) -> &[QueueKey] {
        self.state
            .queues
            .get(queue)
            .map_or(&[], |row| row.chain.as_slice())
    }

    /// The ancestors of two queues where they first differ; the last compared where they
    /// do not.
    fn where_they_part(&self, ours: QueueKey, theirs: QueueKey) -> Option<(QueueKey, QueueKey)> {
        let mut last = None;
        for (one, other) in self
            .chain_of(ours)
            .iter()
            .rev()
            .zip(self.chain_of(theirs).iter().rev())
        {
            last = Some((*one, *other));
            if one != other {
                break;
            }
        }
        last
    }
}
