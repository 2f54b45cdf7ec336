//! The steps of a decision, judged independently of the core by KAI's rules for victims and
//! beneficiaries.
//!
//! A core that makes room for no job, for one job, for two and so on decides the same up to there.
//! The allocations before and after each of these steps show which job lost what to which,
//! including bindings and promises that were taken back before they became visible; the sums by
//! which a reclaim is judged are those before its step.

use super::{Case, Job, QUARTER, World};
use scheduler_core::ids::PodUid;
use scheduler_core::model::{Phase, Preemptibility};
use scheduler_core::units::{Bound, Time};
use scheduler_core::{Action, Config, Core, Decision, Event, Evict, EvictCause, QueueView, text};
use std::collections::{BTreeMap, BTreeSet};

/// More steps than a decision ever has here.
const MOST: u32 = 200;

/// Nano-GPU by name of queue.
type Sums = BTreeMap<String, u128>;

fn evictions(decision: &Decision) -> impl Iterator<Item = &Evict> {
    decision.actions.iter().filter_map(|action| match action {
        Action::Evict(evict) => Some(evict),
        Action::Bind(_) => None,
    })
}

/// Itself and the one above.
fn chain(case: &Case, leaf: usize) -> [String; 2] {
    [format!("q{leaf}"), format!("d{}", case.leaves[leaf].parent)]
}

impl World<'_> {
    /// Judges each step of a decision.
    pub(super) fn follow(&self, before: &[Event], decision: &Decision) {
        if evictions(decision).next().is_none() {
            return;
        }
        let rebuilt = |most| {
            let mut core = Core::new(Config {
                most_favoured: most,
                ..Config::verified()
            });
            for event in before {
                core.apply(event.clone());
            }
            core
        };
        let views = rebuilt(None).queues();
        let mut last: Option<Decision> = None;
        for most in 0..MOST {
            let next = rebuilt(Some(most)).decide(Time(self.now));
            if let Some(last) = &last {
                self.judge_step(&views, last, &next);
            }
            let over = !next.cut_short;
            last = Some(next);
            if over {
                break;
            }
        }
        let whole = last.map(|last| last.actions);
        assert_eq!(whole.as_ref(), Some(&decision.actions), "{}", self.log);
    }

    /// The jobs with an allocation after it. What is left of broken gangs is evicted at the end of
    /// every decision, after everything that is judged here.
    fn have(&self, decision: &Decision) -> BTreeSet<PodUid> {
        let goes = |uid: &PodUid| {
            let mut evictions = evictions(decision);
            evictions.any(|evict| evict.pod == *uid && evict.cause != EvictCause::StaleGang)
        };
        let run = self.pods.values().filter_map(|(_, pod)| {
            let runs = matches!(pod.phase, Phase::Running(_)) && !goes(&pod.uid);
            runs.then(|| pod.uid.clone())
        });
        let bound = decision.actions.iter().filter_map(|action| match action {
            Action::Bind(bind) => Some(bind.pod.clone()),
            Action::Evict(_) => None,
        });
        let promised = decision.promises.iter().map(|one| one.pod.clone());
        run.chain(bound).chain(promised).collect()
    }

    fn job_of(&self, uid: &PodUid) -> (usize, &Job) {
        let index = self.pods[uid].0;
        (index, &self.case.jobs[index])
    }

    /// What queues have, of the jobs of which that is true.
    fn sums(&self, have: &BTreeSet<PodUid>, of: impl Fn(&Job) -> bool) -> Sums {
        let mut sums = Sums::new();
        for uid in have {
            let (_, job) = self.job_of(uid);
            for queue in chain(self.case, job.leaf) {
                let amount = if of(job) { job.size * QUARTER } else { 0 };
                *sums.entry(queue).or_default() += u128::from(amount);
            }
        }
        sums
    }

    /// What queues have that counts as non-preemptible.
    fn firm_sums(&self, have: &BTreeSet<PodUid>) -> Sums {
        let mut pods: BTreeMap<usize, usize> = BTreeMap::new();
        for uid in have {
            *pods.entry(self.job_of(uid).0).or_default() += 1;
        }
        let mut sums = Sums::new();
        for (index, pods) in pods {
            let job = &self.case.jobs[index];
            let amount = u128::from(job.size * QUARTER) * job.firm(pods) as u128;
            for queue in chain(self.case, job.leaf) {
                *sums.entry(queue).or_default() += amount;
            }
        }
        sums
    }

    fn judge_step(&self, views: &[QueueView], last: &Decision, next: &Decision) {
        let (had, have) = (self.have(last), self.have(next));
        let told: BTreeSet<&PodUid> = evictions(last).map(|evict| &evict.pod).collect();
        let new: Vec<&Evict> = evictions(next)
            .filter(|evict| !told.contains(&evict.pod) && evict.cause != EvictCause::StaleGang)
            .collect();
        let lost: Vec<&PodUid> = had.difference(&have).collect();
        let gained: Vec<&PodUid> = have.difference(&had).collect();
        let what = || {
            let (last, next) = (text::decision(last), text::decision(next));
            format!("{}from\n{last}to\n{next}", self.log)
        };
        let causes: BTreeSet<EvictCause> = new.iter().map(|evict| evict.cause).collect();
        assert!(causes.len() < 2, "{}", what());
        if lost.is_empty() {
            return;
        }
        let cause = causes.first();
        assert_ne!(cause, Some(&EvictCause::Consolidation), "{}", what());
        // Without evictions, it is a job that gained and did not lose.
        let named: BTreeSet<_> = new
            .iter()
            .filter_map(|one| one.in_favour_of.as_ref())
            .collect();
        let losers: BTreeSet<usize> = lost.iter().map(|uid| self.job_of(uid).0).collect();
        let mut favoured: BTreeSet<usize> = gained.iter().map(|uid| self.job_of(uid).0).collect();
        favoured.retain(|job| match named.len() {
            0 => !losers.contains(job),
            _ => named.contains(&self.groups[*job].name),
        });
        let mut why = Vec::new();
        let allowed = favoured.iter().any(|job| {
            let leaf = self.case.jobs[*job].leaf;
            let inside = losers.iter().all(|one| self.case.jobs[*one].leaf == leaf);
            let verdict_cache = if inside && cause != Some(&EvictCause::Reclaim) {
                self.preempts(*job, &losers)
            } else {
                let wanted = gained
                    .iter()
                    .filter(|uid| self.job_of(uid).0 == *job)
                    .count();
                self.reclaims(views, *job, wanted, &had, &self.orders(&lost, &new))
            };
            verdict_cache.map_err(|words| why.push(words)).is_ok()
        });
        assert!(allowed, "{why:?} {favoured:?} {lost:?} {}", what());
    }

    fn preempts(&self, favoured: usize, losers: &BTreeSet<usize>) -> Result<(), String> {
        let job = &self.case.jobs[favoured];
        let below = |loser: &usize| self.case.jobs[*loser].priority < job.priority;
        if losers.iter().all(below) {
            return Ok(());
        }
        Err("a pod has the same priority, or a higher one".into())
    }

    /// Jobs with how many pods they lost, in the order in which they were taken. It is that
    /// of the evictions; where a binding or a promise was taken back, it may be any.
    fn orders(&self, lost: &[&PodUid], new: &[&Evict]) -> Vec<Vec<(usize, usize)>> {
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for uid in lost {
            *counts.entry(self.job_of(uid).0).or_default() += 1;
        }
        let mut order: Vec<usize> = Vec::new();
        for evict in new {
            let job = self.job_of(&evict.pod).0;
            if counts.contains_key(&job) && !order.contains(&job) {
                order.push(job);
            }
        }
        let known = |uid: &&&PodUid| new.iter().any(|evict| evict.pod == ***uid);
        let orders = if lost.iter().filter(known).count() == lost.len() {
            vec![order]
        } else {
            permutations(&counts.keys().copied().collect::<Vec<_>>())
        };
        let with_counts = |order: Vec<usize>| order.into_iter().map(|job| (job, counts[&job]));
        let orders = orders.into_iter();
        orders.map(|order| with_counts(order).collect()).collect()
    }

    /// KAI's `CanReclaimResources` and `Reclaimable`, for one of these orders.
    fn reclaims(
        &self,
        views: &[QueueView],
        favoured: usize,
        pods: usize,
        had: &BTreeSet<PodUid>,
        orders: &[Vec<(usize, usize)>],
    ) -> Result<(), String> {
        let job = &self.case.jobs[favoured];
        let reclaim = Reclaim {
            case: self.case,
            views: views
                .iter()
                .map(|view| (view.queue.as_str(), view))
                .collect(),
            job,
            wanted: u128::from(job.size * QUARTER) * pods as u128,
            before: self.sums(had, |_| true),
            firm: self.firm_sums(had),
        };
        reclaim.may_at_all()?;
        let mut why = Err("no pod lost anything".to_owned());
        for order in orders {
            why = reclaim.may_take(order);
            if why.is_ok() {
                break;
            }
        }
        why
    }
}

/// All orders of so many that they can be tried.
fn permutations(of: &[usize]) -> Vec<Vec<usize>> {
    assert!(of.len() < 8, "{of:?}");
    let Some((last, rest)) = of.split_last() else {
        return vec![Vec::new()];
    };
    let mut all = Vec::new();
    for order in permutations(rest) {
        for at in 0..=order.len() {
            let mut order = order.clone();
            order.insert(at, *last);
            all.push(order);
        }
    }
    all
}

struct Reclaim<'a> {
    case: &'a Case,
    views: BTreeMap<&'a str, &'a QueueView>,
    job: &'a Job,
    wanted: u128,
    before: Sums,
    /// Of it, what cannot be taken back.
    firm: Sums,
}

impl Reclaim<'_> {
    fn has(&self, queue: &str) -> u128 {
        self.before.get(queue).copied().unwrap_or_default()
    }

    fn fair(&self, queue: &str) -> u128 {
        self.views[queue].fair.unwrap()[0]
    }

    fn within(amount: u128, bound: Bound) -> bool {
        match bound {
            Bound::Unlimited => true,
            Bound::Exactly(most) => amount <= u128::from(most),
        }
    }

    fn within_quota(&self, queue: &str, amount: u128) -> bool {
        Self::within(amount, self.views[queue].quota[0])
    }

    /// KAI's `GetAllocatableShare`.
    fn within_share(&self, queue: &str, amount: u128) -> bool {
        let limit = Self::within(amount, self.views[queue].limit[0]);
        limit && (self.within_quota(queue, amount) || amount <= self.fair(queue))
    }

    fn may_at_all(&self) -> Result<(), String> {
        let [own, above] = chain(self.case, self.job.leaf);
        if self.has(&own) + self.wanted > self.fair(&own) {
            return Err(format!("{own} would be above its fair share"));
        }
        for queue in [own, above] {
            let firm = self.firm.get(&queue).copied().unwrap_or_default();
            // As in KAI, the surplus of a semi-preemptible job, too.
            let may_exceed = self.job.preemptibility == Preemptibility::Preemptible;
            if !may_exceed && !self.within_quota(&queue, firm + self.wanted) {
                return Err(format!(
                    "{queue} would have more than its quota permanently"
                ));
            }
        }
        Ok(())
    }

    /// These jobs lose so many pods, in this order.
    fn may_take(&self, order: &[(usize, usize)]) -> Result<(), String> {
        let ours = chain(self.case, self.job.leaf);
        let mut leaves: Vec<usize> = Vec::new();
        for (job, _) in order {
            let leaf = self.case.jobs[*job].leaf;
            if !leaves.contains(&leaf) {
                leaves.push(leaf);
            }
        }
        let mut left = Sums::new();
        for leaf in leaves {
            let theirs = chain(self.case, leaf);
            let at = usize::from(theirs[1] != ours[1]);
            if theirs[0] == ours[0] {
                return Err(format!("{} took from itself", ours[0]));
            }
            let of_leaf = order
                .iter()
                .filter(|(job, _)| self.case.jobs[*job].leaf == leaf);
            for chunk in of_leaf.flat_map(|(job, pods)| chunks(&self.case.jobs[*job], *pods)) {
                let rest = left.get(&theirs[at]).copied();
                let rest = rest.unwrap_or_else(|| self.has(&theirs[at]));
                let above_share = !self.within_share(&theirs[at], rest);
                let within_quota = self.within_quota(&ours[at], self.has(&ours[at]) + self.wanted);
                let above_quota = !self.within_quota(&theirs[at], rest);
                if !(above_share || within_quota && above_quota) {
                    return Err(format!("{} has {rest} left", theirs[at]));
                }
                for queue in &theirs {
                    let sum = left.entry(queue.clone()).or_insert_with(|| self.has(queue));
                    *sum -= chunk;
                }
            }
        }
        self.stays_less_saturated(&ours, &left)
    }

    /// At no level is a queue that lost something less saturated than we are above our fair share.
    #[allow(clippy::cast_precision_loss)]
    fn stays_less_saturated(&self, ours: &[String; 2], left: &Sums) -> Result<(), String> {
        let saturation = |has: u128, queue: &str| match (has, self.fair(queue)) {
            (0, 0) => 0.0,
            (_, 0) => f64::INFINITY,
            (has, fair) => has as f64 / fair as f64,
        };
        for own in ours {
            let has = left.get(own).copied().unwrap_or_else(|| self.has(own));
            let saturated = saturation(has + self.wanted, own);
            let parent = &self.views[own.as_str()].parent;
            for (other, rest) in left {
                let beside = self.views[other.as_str()].parent == *parent && other != own;
                let falls = saturated > 1.0 && self.fair(other) > 0;
                if beside && falls && saturated >= saturation(*rest, other) {
                    return Err(format!("{own} would be more saturated than {other}"));
                }
            }
        }
        Ok(())
    }
}

/// What a job loses, in the pieces in which it is judged: pods beyond its core one by one,
/// the core as one. Where some of those that were taken found another place, fewer may
/// have been left of the core: that is judged as if it had lost all of it.
fn chunks(job: &Job, pods: usize) -> Vec<u128> {
    let size = u128::from(job.size * QUARTER);
    let core = match job.preemptibility {
        // Its core stays.
        Preemptibility::SemiPreemptible => 0,
        _ => pods.min(job.min as usize),
    };
    let mut chunks = vec![size; pods - core];
    if core > 0 {
        chunks.push(size * core as u128);
    }
    chunks
}
