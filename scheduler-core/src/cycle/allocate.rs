//! Allocate: jobs in order, each as far as it fits now, or with a promise of resources that are
//! being released (KAI, `actions/allocate/allocate.go`).

use crate::action::ReasonKind;
use crate::cycle::Cycle;
use crate::cycle::plan::Way;
use crate::cycle::waiting::{PodClass, PodClassJobs};
use crate::job_queue::JobQueue;
use crate::reason::{ReasonKey, WaitReason};
use crate::state::keys::{JobKey, SpecKey};
use crate::state::task_cell::{Status, TaskCell};
use crate::{capacity, fit};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Jobs that may still be placed.
#[derive(Default)]
struct Placeable {
    /// [`Changes::capacity`](crate::state::changes::Changes::capacity) at first.
    capacity_version: u64,
    /// What pods of their own ask for, where it may fit, and how many of them are left.
    of_pods: FxHashMap<SpecKey, u32>,
    /// Other jobs.
    of_groups: FxHashSet<JobKey>,
    /// Failures since the last check, and the number that triggers the next one.
    failed: u32,
    patience: u32,
}

/// What a request that fits nowhere lacks, and why in words, once for all kinds that ask.
struct Lacking {
    about: Option<ReasonKey>,
    why: Option<Arc<WaitReason>>,
}

impl Placeable {
    fn remove_one(&mut self, spec: SpecKey) {
        if let Some(left) = self.of_pods.get_mut(&spec) {
            *left = left.saturating_sub(1);
        }
    }
}

impl Cycle<'_> {
    pub(super) fn allocate(&mut self) {
        self.state.drop_verdicts();
        self.deferred.set(false);
        self.borrows = !self.state.has_product_quotas();
        self.place_all();
        self.borrows = true;
        if self.deferred.get() && !self.budget.goes_on {
            self.place_all();
        }
        self.report_pod_classes();
    }

    /// One round over all that wait.
    fn place_all(&mut self) {
        self.refresh_waiting();
        let mut placeable = self.placeable();
        let mut ended = self.ends(&mut placeable);
        if ended && !self.config.verify {
            return;
        }
        let mut queue = JobQueue::new(false);
        let line = self.line();
        queue.fill_with(self.state, &self.shares, &line);
        // Kinds of which one has found nothing since anything was placed.
        let mut stuck: FxHashSet<PodClass> = FxHashSet::default();
        while let Some(entry) = queue.pop(self.state, &self.shares) {
            let job = entry.job;
            let kind = self.kind(job);
            if let Some(kind) = kind {
                placeable.remove_one(kind.spec);
            }
            if self.is_out_of_turn(job) {
                placeable.of_groups.remove(&job);
                continue;
            }
            let infeasible = kind.is_some_and(|kind| self.is_infeasible(kind.spec));
            // Whatever came of the last one.
            if self.budget.are_placements_spent() {
                break;
            }
            let (grown, acted) = (self.budget.grown, self.plan.words());
            let turn = (job, self.borrows);
            let tried = self.turns.placed.get(&turn).copied();
            if tried == Some(false) {
                placeable.of_groups.remove(&job);
                continue;
            }
            let rearranged = self.rearranged;
            if infeasible || !self.try_to_allocate(job) {
                match kind {
                    Some(kind) if !infeasible => drop(stuck.insert(kind)),
                    Some(_) => {}
                    None => {
                        placeable.of_groups.remove(&job);
                        // Jobs whose try was cheap are tried again in each decision, before those
                        // behind them in the queue.
                        if self.budget.grown > grown {
                            self.turns.placed.insert(turn, false);
                        }
                    }
                }
                self.pass_alike(&mut queue, &stuck, &mut placeable);
                ended = ended || self.ends(&mut placeable);
                if ended && !self.config.verify {
                    break;
                }
                continue;
            }
            if ended {
                self.state
                    .contradicts("a job was placed after it was known that none can be");
            }
            stuck.clear();
            // A promise is searched in each decision, and counts once.
            if self.budget.grown > grown && self.plan.words() == acted {
                if tried.is_some() {
                    self.budget.grown = grown;
                }
                self.turns.placed.insert(turn, true);
            }
            if self.rearranged != rearranged {
                queue.arrange(self.state, &self.shares);
            }
            if self.has_none_left(job) {
                placeable.of_groups.remove(&job);
            } else {
                if self.is_enough(job) {
                    break;
                }
                let again = self.entry(job);
                queue.push(self.state, &self.shares, again);
            }
        }
    }

    /// The next pod of an elastic group is found by a pass over its sub-groups, and over the pods
    /// of one. A large group is continued in the next decision, so that it does not delay the
    /// others.
    fn is_enough(&mut self, job: JobKey) -> bool {
        /// The cost of a placement, and how many sub-groups and pods are passed at the cost of 1.
        const PLACED: usize = 100;
        const SETS: usize = 2;
        const PODS: usize = 64;
        let pods = self.state.jobs.get(job).map_or(0, |row| row.tasks.len());
        let sets = self.gang_of(job).sets.len();
        let cost = PLACED + sets / SETS + pods / PODS;
        self.budget.grown += u64::try_from(cost).unwrap_or(u64::MAX);
        self.budget.are_placements_spent()
    }

    /// Removes jobs behind one that found nothing, and that would find nothing either.
    fn pass_alike(
        &mut self,
        queue: &mut JobQueue,
        stuck: &FxHashSet<PodClass>,
        placeable: &mut Placeable,
    ) {
        let mut passed = Vec::new();
        queue.pass_alike(self.state, &self.shares, |queue, entry| {
            let Some(kind) = PodClass::of(Some(queue), entry) else {
                return false;
            };
            let passes = self.is_infeasible(kind.spec) || stuck.contains(&kind);
            if passes {
                placeable.remove_one(kind.spec);
                if self.config.verify {
                    passed.push((entry.job, kind));
                }
            }
            passes
        });
        self.compare_passed(&passed);
    }

    /// With `verify`, jobs that are skipped are tried all the same.
    fn compare_passed(&mut self, passed: &[(JobKey, PodClass)]) {
        let before = (self.budget.steps, self.budget.pondered, self.wake);
        for (job, kind) in passed {
            let why = |cycle: &mut Self| cycle.waiting.kinds.get_mut(kind)?.why.take();
            let said = why(self);
            if self.allocate_job(*job) {
                self.state
                    .contradicts("a job was passed over that finds a place");
            }
            if let Some(alike) = self.waiting.kinds.get_mut(kind) {
                alike.why = said;
            }
        }
        (self.budget.steps, self.budget.pondered, self.wake) = before;
    }

    /// It is known that the request fits nowhere now.
    pub(super) fn is_infeasible(&self, spec: SpecKey) -> bool {
        let spec = self.state.specs.get(spec);
        spec.is_some_and(|spec| self.state.is_known_infeasible(spec))
    }

    /// Why a request fits nowhere. `None`: that waits for the next decision.
    pub(super) fn no_fit(&mut self, spec: SpecKey) -> Option<Arc<WaitReason>> {
        Some(Arc::new(WaitReason {
            kind: ReasonKind::Unschedulable,
            about: self.state.lacks(spec, self.config)?,
            line: self.state.no_fit_line(spec, self.config)?,
        }))
    }

    /// What may still come of those that wait.
    fn placeable(&self) -> Placeable {
        let mut placeable = Placeable {
            capacity_version: self.state.changes.capacity,
            of_groups: self.waiting.others.iter().copied().collect(),
            ..Placeable::default()
        };
        for (kind, alike) in &self.waiting.kinds {
            let count = u32::try_from(alike.jobs.len()).unwrap_or(u32::MAX);
            let all = placeable.of_pods.entry(kind.spec).or_default();
            *all = all.saturating_add(count);
        }
        placeable
    }

    /// Nothing that is left can be placed: only single pods are left, and none of their requests
    /// fits anywhere. Checked after one failure, two more, four more.
    fn ends(&mut self, placeable: &mut Placeable) -> bool {
        // Something may fit that did not before.
        if placeable.capacity_version != self.state.changes.capacity
            || !placeable.of_groups.is_empty()
        {
            return false;
        }
        placeable.failed += 1;
        if placeable.failed < placeable.patience {
            return false;
        }
        placeable.failed = 0;
        placeable
            .of_pods
            .retain(|spec, left| *left > 0 && !self.fits_nowhere(*spec));
        placeable.patience = (2 * placeable.patience).max(1);
        placeable.of_pods.is_empty()
    }

    /// The request fits nowhere, and stays out. False where that may change as others come.
    fn fits_nowhere(&mut self, key: SpecKey) -> bool {
        let Some(spec) = self.state.specs.get(key).filter(|row| row.stays_out()) else {
            return false;
        };
        // Thousands of jobs that each depend on all others would be evaluated here at once.
        if spec.spec.others.is_some() {
            return self.is_infeasible(key);
        }
        !self.is_seen_to_fit(key) && !self.state.fits_somewhere(key, self.config)
    }

    /// One of the first nodes that the index shows would take it: a cheap test for a request
    /// whose verdicts of all nodes are not known yet.
    fn is_seen_to_fit(&mut self, key: SpecKey) -> bool {
        /// Largest number of nodes that are checked.
        const LOOK: usize = 8;
        self.state.refresh_rooms();
        let Some(spec) = self.state.specs.get(key) else {
            return false;
        };
        if spec.verdicts.is_some() || spec.wants_gpus() && (spec.shares || spec.whole == 0) {
            return false;
        }
        let rooms = &self.state.caches.rooms;
        let nodes: Vec<u32> = if spec.whole > 0 {
            let nodes = rooms.by_whole.range((i64::from(spec.whole), 0)..);
            nodes.take(LOOK).map(|(_, rank)| *rank).collect()
        } else {
            let least = (false, i128::from(spec.spec.cpu.0), 0);
            let nodes = rooms.by_cpu.range(least..).take(LOOK);
            nodes.map(|(_, _, rank)| *rank).collect()
        };
        nodes.iter().any(|rank| {
            let node = rooms.node(*rank);
            let why = node.and_then(|node| fit::why(self.state, spec, node, self.config));
            why.is_some_and(|why| why.is_ok())
        })
    }

    /// Sets the current reason of each waiting kind: its queue is at its limit, where placements
    /// after its turn count too; else the result of its last try, or that it is known to fit
    /// nowhere.
    fn report_pod_classes(&mut self) {
        self.refresh_waiting();
        let mut kinds = std::mem::take(&mut self.waiting.kinds);
        let mut of_specs = FxHashMap::default();
        for (kind, alike) in &mut kinds {
            let Some(spec) = self.state.specs.get(kind.spec) else {
                continue;
            };
            let wanted = self.shares.wanted_by(spec, self.shares.largest_card);
            let over = capacity::over_in(self.state, kind.queue, kind.preemptible, wanted);
            if over.is_some() {
                alike.why = over;
            } else if alike.why.is_none() {
                let lacking = of_specs.entry(kind.spec);
                let lacking = lacking.or_insert_with(|| self.lacking(kind.spec));
                alike.why = self.lacking_reason(kind.spec, alike, lacking);
            }
        }
        self.waiting.kinds = kinds;
    }

    /// What the nodes lack for a request that fits nowhere.
    fn lacking(&mut self, spec: SpecKey) -> Lacking {
        let nowhere = self.fits_nowhere(spec);
        let about = nowhere.then(|| self.state.lacks(spec, self.config));
        Lacking {
            about: about.flatten(),
            why: None,
        }
    }

    /// Why a kind fits nowhere. The last reason stays while the kind lacks the same and has no new
    /// job: a changed text would not be written.
    fn lacking_reason(
        &mut self,
        spec: SpecKey,
        alike: &PodClassJobs,
        lacking: &mut Lacking,
    ) -> Option<Arc<WaitReason>> {
        let about = lacking.about.as_ref()?;
        let told = alike.told.as_ref();
        let same = |told: &&Arc<WaitReason>| {
            told.kind == ReasonKind::Unschedulable && told.about.covers(about)
        };
        if alike.unreported_starts.is_empty()
            && let Some(told) = told.filter(same)
        {
            return Some(Arc::clone(told));
        }
        if lacking.why.is_none() {
            lacking.why = self.no_fit(spec);
        }
        lacking.why.clone()
    }

    /// Why a job was not placed: the reason of all jobs of its kind.
    fn fails(&mut self, job: JobKey, why: Option<Arc<WaitReason>>) {
        let Some(why) = why else {
            return;
        };
        let kind = self.kind(job);
        match kind.and_then(|kind| self.waiting.kinds.get_mut(&kind)) {
            Some(alike) => alike.why = Some(why),
            None => drop(self.failures.insert(job, why)),
        }
    }

    fn try_to_allocate(&mut self, job: JobKey) -> bool {
        let before = self.deferred.replace(false);
        let placed = self.allocate_job(job);
        self.deferred.set(before || self.deferred.get());
        self.tried(placed)
    }

    /// True when something of the job was placed or promised.
    fn allocate_job(&mut self, job: JobKey) -> bool {
        let gang = self.gang_of(job);
        let tasks = self.next_tasks(job);
        if tasks.is_empty() {
            return false;
        }
        let started = gang
            .tasks()
            .any(|(_, status)| status.is_allocated() && status != Status::Promised);
        let nodes = Arc::clone(&self.all);
        let mut mark = self.state.mark();
        let mut placed = self.place_job(job, &gang, &tasks, &nodes, Way::Real);
        if placed.is_ok()
            && let Some(keep) = self.opens_kept(&tasks)
        {
            // Elsewhere, then elsewhere by moving others, then there after all.
            self.state.rollback(mark);
            mark = self.state.mark();
            placed = self.place_job(job, &gang, &tasks, &keep.others, Way::Real);
            if placed.is_err() {
                self.state.rollback(mark);
                if self.may_move_others(job) && self.consolidate_for(job, keep.nodes) {
                    return true;
                }
                mark = self.state.mark();
                placed = self.place_job(job, &gang, &tasks, &nodes, Way::Real);
            }
        }
        if let Err(failure) = placed {
            self.state.rollback(mark);
            // The second round says why.
            if !self.deferred.get() {
                self.fails(job, failure.why);
            }
            return false;
        }
        self.state.keep(mark);
        // What is kept of a large gang is changed in its place, if nothing else holds it.
        drop(gang);
        let whole_waits = self.gang_of(job).must_wait_whole();
        for task in tasks.iter().copied() {
            let cell = self.state.cell(task);
            if whole_waits && cell.status == Status::Assumed {
                self.state.transition(
                    task,
                    TaskCell {
                        status: Status::Promised,
                        ..cell
                    },
                );
            }
            if self.state.cell(task).status == Status::Promised {
                self.promise(task);
            } else {
                self.bind(task);
            }
        }
        if !started && !whole_waits {
            self.started(job);
        }
        true
    }
}
