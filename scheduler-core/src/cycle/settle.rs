//! Applies a set of victims that lets a job in.
//!
//! Victims that found a place are moved, or stay where they are. The others are evicted; if this same
//! decision had bound a victim, its binding is dropped instead.

use crate::action::EvictCause;
use crate::cycle::Cycle;
use crate::cycle::plan::{Way, is_new};
use crate::cycle::scenario::Scenario;
use crate::cycle::search::ActionRules;
use crate::state::keys::{JobKey, NodeKey, TaskKey};
use crate::state::task_cell::{Status, TaskCell};
use rustc_hash::FxHashMap;

impl Cycle<'_> {
    /// Returns the message of an eviction of an idle victim. `None`: the victim works.
    fn gave_way(&self, job: JobKey, victim: TaskKey, cause: EvictCause) -> Option<String> {
        let theirs = self.state.tasks.get(victim)?.job?;
        let leaves = cause.takes_idle_jobs() && self.state.gives_way(theirs);
        leaves.then(|| {
            format!(
                "Pod {} was idle and gave way to workload {}",
                self.pod_name(victim),
                self.job_name(job)
            )
        })
    }

    pub(super) fn keep_solution(
        &mut self,
        job: JobKey,
        tasks: &[TaskKey],
        scenario: &Scenario,
        rules: &dyn ActionRules,
    ) {
        self.rearranged += 1;
        let mut promised = tasks.to_vec();
        let displaced = self.plan.displaced();
        let mut leaves = false;
        for task in scenario.tasks() {
            let status = self.state.cell(task).status;
            if matches!(status, Status::Victim | Status::Promised) {
                let idle = self.gave_way(job, task, rules.cause());
                let message = idle.unwrap_or_else(|| rules.message(self, job, task));
                leaves |= self.evict(task, Some(job), rules.cause(), &message);
            } else {
                self.stays(task);
            }
        }
        // Victims that found a place, and what waits with them in their jobs and was
        // promised a place on the way.
        for unit in scenario.by_job() {
            promised.extend(
                self.gang(unit.job)
                    .tasks()
                    .filter(|(_, status)| *status == Status::Promised)
                    .map(|(task, _)| task),
            );
        }
        self.failures.remove(&job);
        // Where bindings were dropped and no other pod has to leave, there is nothing to wait for.
        // To promise it all would give the next decision the same state to find the same in,
        // without end.
        let free = !leaves && self.plan.displaced() > displaced;
        if free && self.bind_promised(&promised) {
            return;
        }
        for task in promised {
            self.promise(task);
        }
        if self.plan.displaced() > displaced {
            for unit in scenario.by_job() {
                self.hold_back_gang(unit.job);
            }
        }
    }

    /// A gang of which a part was bound by this decision, and of which another part has to
    /// wait now, waits whole, as it would have if it had been placed so at first.
    fn hold_back_gang(&mut self, job: JobKey) {
        let gang = self.gang(job);
        if !gang.must_wait_whole() {
            return;
        }
        for (task, _) in gang.tasks() {
            let cell = self.state.cell(task);
            if cell.status != Status::Assumed || !is_new(&cell) {
                continue;
            }
            self.displace(task, TaskCell::of(Status::Pending));
            if let Some(node) = cell.node
                && self.place_on(task, node, Way::Promise)
            {
                self.promise(task);
            }
        }
    }

    /// One search may have evicted a pod and dropped bindings for that, and a later one may have
    /// found that no pod needs to leave: then all promises wait for nothing, and the next decision
    /// would find the same state again, without end.
    pub(super) fn bind_where_nobody_leaves(&mut self) {
        if self.plan.evicts() {
            return;
        }
        // One that stays where it is, after all, has its eviction taken back and its promise
        // with it.
        let mut promised = self.plan.promised();
        promised.retain(|task| {
            let stands = self.state.cell(*task).status == Status::Promised;
            if !stands {
                self.plan.breaks_promise(*task);
            }
            stands
        });
        for (_, tasks) in self.by_job(&promised) {
            self.bind_promised(&tasks);
        }
    }

    fn job_of(&self, task: TaskKey) -> Option<JobKey> {
        self.state.tasks.get(task)?.job
    }

    /// Puts the pod on that node, if it fits there.
    fn place_on(&mut self, task: TaskKey, node: NodeKey, way: Way) -> bool {
        let nodes = self.state.caches.rooms.set([node]);
        self.place_task(task, &nodes, way).is_ok()
    }

    /// The pods of each job, in their order.
    fn by_job(&self, tasks: &[TaskKey]) -> Vec<(JobKey, Vec<TaskKey>)> {
        let mut jobs: Vec<(JobKey, Vec<TaskKey>)> = Vec::new();
        let mut at: FxHashMap<JobKey, usize> = FxHashMap::default();
        for task in tasks {
            let Some(job) = self.job_of(*task) else {
                continue;
            };
            let at = *at.entry(job).or_insert(jobs.len());
            match jobs.get_mut(at) {
                Some((_, known)) => known.push(*task),
                None => jobs.push((job, vec![*task])),
            }
        }
        jobs
    }

    /// Binds pods to the places that they were promised. False, and nothing is changed,
    /// when one of them is not free now.
    fn bind_promised(&mut self, tasks: &[TaskKey]) -> bool {
        let mark = self.state.mark();
        let places: Vec<(TaskKey, Option<NodeKey>)> = tasks
            .iter()
            .map(|task| (*task, self.state.cell(*task).node))
            .collect();
        for (task, _) in &places {
            self.state.transition(*task, TaskCell::of(Status::Pending));
        }
        for (task, node) in &places {
            let placed = node.is_some_and(|node| self.place_on(*task, node, Way::Real));
            if !placed || self.state.cell(*task).status != Status::Assumed {
                self.state.rollback(mark);
                return false;
            }
        }
        let jobs = self.by_job(tasks);
        // Others of the gang were promised their places by an earlier search: it waits whole.
        if jobs
            .iter()
            .any(|(job, _)| self.gang(*job).must_wait_whole())
        {
            self.state.rollback(mark);
            return false;
        }
        self.state.keep(mark);
        for task in tasks {
            self.bind(*task);
        }
        for task in tasks {
            self.plan.breaks_promise(*task);
        }
        for (job, tasks) in jobs {
            let stood = self.gang(job).tasks().any(|(task, status)| {
                status.is_allocated() && status != Status::Promised && !tasks.contains(&task)
            });
            if !stood {
                self.started(job);
            }
        }
        true
    }
}
