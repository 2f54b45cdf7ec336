//! The rules for each decision: which pods are evicted, for which job, and how many.

use super::*;

impl World<'_> {
    /// Reclaim takes the product from no queue that is within its quota of it, with the pods that
    /// were placed before. One of these may be moved by the search, to a place that is promised.
    fn judge_product(&self, decision: &Decision, victim: &Job, favoured: &Job) {
        let new = |of: &dyn Fn(&Job) -> bool| {
            let waits = |pod: &PodUid| self.pods[pod].1.phase == Phase::Pending;
            let jobs = placed(decision)
                .filter(|(pod, node)| waits(pod) && is_of_product(node))
                .map(|(pod, _)| &self.case.jobs[self.pods[pod].0]);
            jobs.filter(|job| of(job)).map(|job| job.size).sum::<u64>()
        };
        let held = |of: &dyn Fn(&Job) -> bool| self.held_of_product(of) + new(of);
        // It loses nothing if pods are moved, or change places.
        let loses = |of: &dyn Fn(&Job) -> bool| {
            let evicted = decision.actions.iter().filter_map(|action| match action {
                Action::Evict(evict) => Some(&self.pods[&evict.pod]),
                Action::Bind(_) => None,
            });
            let gone = evicted.filter(|(_, pod)| has_product(pod));
            let gone = gone.map(|(job, _)| &self.case.jobs[*job]);
            let there = placed(decision).filter(|(_, node)| is_of_product(node));
            let there = there.map(|(pod, _)| &self.case.jobs[self.pods[pod].0]);
            let size = |job: &Job| job.size;
            gone.filter(|job| of(job)).map(size).sum::<u64>()
                > there.filter(|job| of(job)).map(size).sum::<u64>()
        };
        let department = |job: &Job| self.case.leaves[job.leaf].parent;
        let leaf = self.case.leaves[victim.leaf].product.0;
        let held_by_leaf = held(&|job| job.leaf == victim.leaf);
        assert!(
            leaf.is_none_or(|quota| held_by_leaf > quota) || !loses(&|job| job.leaf == victim.leaf),
            "{}",
            self.log
        );
        let above = self.case.products[department(victim)].0;
        let held = held(&|job| department(job) == department(victim));
        let is_other = department(victim) != department(favoured);
        assert!(
            !is_other
                || above.is_none_or(|quota| held > quota)
                || !loses(&|job| department(job) == department(victim)),
            "{}",
            self.log
        );
    }

    /// Reclaim takes from no queue that is within its quota with the pods that were placed before.
    fn judge_quota(&self, victim: &Job, favoured: &Job) {
        let department = |job: &Job| self.case.leaves[job.leaf].parent;
        let (held, quota) = if department(victim) == department(favoured) {
            let quota = self.case.leaves[victim.leaf].quota;
            (self.held(|job| job.leaf == victim.leaf), quota)
        } else {
            let quota = self.case.quota(department(victim));
            (
                self.held(|job| department(job) == department(victim)),
                quota,
            )
        };
        assert!(held > quota, "{held} of {quota} {}", self.log);
    }

    /// No queue is above its limit of the product, nor its non-preemptible pods above its quota.
    pub(super) fn check_product(&self) {
        let check = |product: Product, of: &dyn Fn(&Job) -> bool| {
            let held = self.held_of_product(of);
            assert!(
                limit(product).is_none_or(|limit| held <= limit),
                "{}",
                self.log
            );
            let firm = self.firm().into_iter().filter(|(_, pod)| has_product(pod));
            let firm = firm.map(|(job, _)| &self.case.jobs[*job]);
            let firm: u64 = firm.filter(|job| of(job)).map(|job| job.size).sum();
            assert!(product.0.is_none_or(|quota| firm <= quota), "{}", self.log);
        };
        for (index, leaf) in self.case.leaves.iter().enumerate() {
            check(leaf.product, &|job| job.leaf == index);
        }
        for (parent, product) in self.case.products.iter().enumerate() {
            check(*product, &|job| self.case.leaves[job.leaf].parent == parent);
        }
    }

    /// The last victim, by KAI's order, was needed: without its eviction, the beneficiary would
    /// have got less. Promises to other jobs are not checked: only decisions that favour one job,
    /// by victims that get nothing else.
    pub(super) fn weigh(&self, before: &[Event], decision: &Decision) {
        let mut victims = Vec::new();
        let mut favoured = BTreeSet::new();
        for action in &decision.actions {
            if let Action::Evict(evict) = action {
                let moved = decision.promises.iter().any(|one| one.pod == evict.pod);
                if moved || !matches!(evict.cause, EvictCause::Preempt | EvictCause::Reclaim) {
                    return;
                }
                favoured.extend(evict.in_favour_of.clone());
                victims.push(evict.pod.clone());
            }
        }
        let (1, Some(favoured), Some(last)) =
            (favoured.len(), favoured.into_iter().next(), victims.last())
        else {
            return;
        };
        let is_its = |pod: &PodUid| self.groups[self.pods[pod].0].name == favoured;
        if decision.promises.is_empty() || !decision.promises.iter().all(|one| is_its(&one.pod)) {
            return;
        }
        // What the job's own department holds counts against what the job may take from others:
        // a victim there may be owed, though its place is not used.
        let department = |job: usize| self.case.leaves[self.case.jobs[job].leaf].parent;
        let its = self.groups.iter().position(|group| group.name == favoured);
        let of_victims: BTreeSet<usize> = victims
            .iter()
            .map(|pod| department(self.pods[pod].0))
            .collect();
        if of_victims.len() > 1 && its.is_some_and(|job| of_victims.contains(&department(job))) {
            return;
        }
        // A job that would bring a queue above its quota of a product is placed after its victims
        // got their places back: with such a quota, a search may pass over the smaller set.
        let names = |job: usize| {
            let leaf = &self.case.leaves[self.case.jobs[job].leaf];
            [leaf.product, self.case.products[leaf.parent]] != [(None, None); 2]
        };
        let jobs = victims.iter().map(|pod| self.pods[pod].0);
        if jobs.chain(its).any(names) {
            return;
        }
        // A gang that cannot do without it goes as a whole.
        let job = self.pods[last].0;
        let gone = victims
            .iter()
            .filter(|pod| self.pods[*pod].0 == job)
            .count();
        let stays = self.runs().filter(|one| *one == job).count() - gone;
        let unit: BTreeSet<&PodUid> = if stays == 0 {
            let of_job = victims.iter().filter(|pod| self.pods[*pod].0 == job);
            of_job.collect()
        } else {
            BTreeSet::from([last])
        };
        let mut core = Core::new(Config::verified());
        for event in before {
            core.apply(event.clone());
        }
        core.apply(Event::Config(Box::new(Config {
            actions: vec![Step::Allocate],
            ..core.config().clone()
        })));
        // A later search may take the place of a pod that this decision allocated. No pod is evicted
        // for that, but it favours another job, and the room beside it was not there before.
        let stays: BTreeSet<&PodUid> = placed(decision).map(|(pod, _)| pod).collect();
        let mut alone = core.fork();
        let allocated = alone.decide(Time(self.now));
        if placed(&allocated).any(|(pod, _)| !stays.contains(pod)) {
            return;
        }
        // A bound pod has its place before the order of queues changes.
        for action in &decision.actions {
            if let Action::Bind(bind) = action
                && !is_its(&bind.pod)
            {
                let pod = running(&self.pods[&bind.pod].1, bind);
                core.apply(Event::Pod(Box::new(pod)));
            }
        }
        for pod in victims.iter().filter(|pod| !unit.contains(pod)) {
            core.apply(Event::PodGone(pod.clone()));
        }
        let given_back = core.decide(Time(self.now));
        let got = |decision: &Decision| {
            let all: BTreeSet<&PodUid> = placed(decision).map(|(pod, _)| pod).collect();
            all.into_iter().filter(|pod| is_its(pod)).count()
        };
        assert!(
            got(&given_back) < got(decision),
            "{unit:?} could have stayed: {} {}",
            text::decision(&given_back),
            self.log
        );
    }

    /// The rules for victims and beneficiaries.
    pub(super) fn judge(&self, decision: &Decision) {
        let promised: BTreeSet<&PodUid> = decision.promises.iter().map(|one| &one.pod).collect();
        let firm: Vec<&PodUid> = self.firm().into_iter().map(|(_, pod)| &pod.uid).collect();
        for action in &decision.actions {
            let Action::Evict(evict) = action else {
                continue;
            };
            let (index, pod) = &self.pods[&evict.pod];
            let victim = &self.case.jobs[*index];
            assert!(matches!(pod.phase, Phase::Running(_)), "{}", self.log);
            // Of a semi-preemptible job not a pod of its core, not even to another place.
            let is_firm = firm.contains(&&evict.pod);
            assert!(!is_firm, "{} {}", evict.pod, self.log);
            assert_ne!(evict.cause, EvictCause::GrantRefused, "{}", self.log);
            let favoured = evict.in_favour_of.as_ref().map(|name| {
                let index = self.groups.iter().position(|group| group.name == *name);
                &self.case.jobs[index.unwrap()]
            });
            match (evict.cause, favoured) {
                (EvictCause::Preempt, Some(favoured)) => {
                    assert_eq!(favoured.leaf, victim.leaf, "{}", self.log);
                    assert!(favoured.priority > victim.priority, "{}", self.log);
                }
                (EvictCause::Reclaim, Some(favoured)) => {
                    assert_ne!(favoured.leaf, victim.leaf, "{}", self.log);
                    if has_product(pod) {
                        self.judge_product(decision, victim, favoured);
                    } else if !promised.contains(&evict.pod) {
                        // One that is moved is not taken.
                        self.judge_quota(victim, favoured);
                    }
                }
                (EvictCause::Consolidation, _) => {
                    assert!(promised.contains(&evict.pod), "{}", self.log);
                }
                (EvictCause::StaleGang, None) => {
                    assert!(self.moving.contains(index), "{}", self.log);
                }
                (cause, favoured) => panic!("{cause:?} for {favoured:?} {}", self.log),
            }
        }
    }
}
