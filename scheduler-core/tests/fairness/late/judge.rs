//! What holds after every step, in the API server's truth.

use super::*;

impl World<'_> {
    /// No pod is bound twice or evicted twice, and no gang is placed or evicted in part.
    pub(super) fn judge(&self, decision: &Decision) {
        let (mut binds, mut evicts) = (BTreeSet::new(), BTreeSet::new());
        // Evictions that agents ask for are applied before the core looks at the other pods.
        let mut forced: BTreeSet<&PodUid> = BTreeSet::new();
        let mut touched: BTreeSet<usize> = BTreeSet::new();
        let mut torn: BTreeSet<usize> = BTreeSet::new();
        for action in &decision.actions {
            match action {
                Action::Bind(Bind { pod, .. }) => {
                    let waits = self.seen.get(pod).map(|pod| &pod.phase) == Some(&Phase::Pending);
                    let idle = !self.bound.contains_key(pod) && !self.leaving.contains_key(pod);
                    assert!(waits && idle && binds.insert(pod), "{pod} {}", self.log);
                    touched.insert(self.of[pod].0);
                }
                Action::Evict(evict) => {
                    let pod = &evict.pod;
                    // An agent may ask for a pod that was already evicted to make room.
                    let again = self.leaving.contains_key(pod) && evict.cause.makes_room();
                    assert!(!again && evicts.insert(pod), "{pod} {}", self.log);
                    if !evict.cause.makes_room() {
                        forced.insert(pod);
                    } else if evict.cause != EvictCause::StaleGang {
                        let job = self.of[pod].0;
                        assert!(self.case.jobs[job].preemptible, "{pod} {}", self.log);
                        torn.insert(job);
                    }
                }
            }
        }
        let promised: BTreeSet<&PodUid> = decision.promises.iter().map(|one| &one.pod).collect();
        let before = |uid: &PodUid| self.has_place(uid) && !forced.contains(uid);
        let after = |uid: &PodUid| {
            promised.contains(uid)
                || binds.contains(uid)
                || self.has_place(uid) && !evicts.contains(uid)
        };
        // The minimum of a gang whose group was deleted is not known.
        let has_group =
            |job: &usize| self.groups[*job].is_some() || self.case.jobs[*job].shape == Shape::Alone;
        for job in touched.into_iter().chain(torn).filter(has_group) {
            let tree = self.case.jobs[job].tree();
            let (had, has) = (self.sets(job, before), self.sets(job, after));
            let begun = binds.iter().any(|pod| self.of[*pod].0 == job);
            // Members that have succeeded count towards the minimum.
            let counts = |uid: &PodUid| after(uid) || self.succeeded.contains(uid);
            let whole = is_whole(&tree, &self.sets(job, counts));
            let was_broken = !begun && !is_whole(&tree, &had);
            assert!(
                whole || was_broken || !begun && has.is_empty(),
                "j{job} had {had:?}, has {has:?} {}",
                self.log
            );
        }
    }

    /// In the API server's truth: no card and no queue has more than it may.
    pub(super) fn check(&self) {
        let mut shared: BTreeMap<&GpuUuid, u64> = BTreeMap::new();
        let mut whole: BTreeMap<&GpuUuid, u32> = BTreeMap::new();
        let mut held: BTreeMap<String, u64> = BTreeMap::new();
        let mut firm: BTreeMap<String, u64> = BTreeMap::new();
        for (uid, (job, _, pod)) in &self.pods {
            let Some(at) = placement(pod) else { continue };
            if self.refused.contains(uid) {
                continue;
            }
            for grant in &at.grants {
                for card in &grant.cards {
                    if grant.mode == Mode::Exclusive {
                        *whole.entry(card).or_default() += 1;
                    } else {
                        *shared.entry(card).or_default() += grant.memory.0;
                    }
                }
            }
            if stands(pod) && !self.leaving.contains_key(uid) {
                let job = &self.case.jobs[*job];
                for queue in self.case.chain(job) {
                    *held.entry(queue.clone()).or_default() += job.size;
                    *firm.entry(queue).or_default() += if job.preemptible { 0 } else { job.size };
                }
            }
        }
        for (card, sum) in &shared {
            assert!(
                *sum <= CARD && !whole.contains_key(card),
                "{card} {}",
                self.log
            );
        }
        assert!(whole.values().all(|pods| *pods == 1), "{}", self.log);
        if self.case.rude || self.spared {
            return;
        }
        for (name, _, quota, place) in self.case.queues() {
            let sum = |of: &BTreeMap<String, u64>| of.get(&name).copied().unwrap_or_default();
            let limit = place.over.map_or(u64::MAX, |over| quota + over);
            assert!(sum(&held) <= limit, "{name} {}", self.log);
            assert!(sum(&firm) <= quota, "{name} {}", self.log);
        }
    }
}
