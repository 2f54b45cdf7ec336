//! Why a pod is pending: what kept it from being tried, or why trying failed.

use crate::action::{MAX_LINE, PodReason, ReasonKind};
use crate::cycle::Cycle;
use crate::cycle::hindrance::{hindrance, not_ready_line, released_line};
use crate::gang::Pick;
use crate::reason::{self, WaitReason};
use crate::state::keys::{JobKey, TaskKey};
use crate::state::task_cell::Status;
use rustc_hash::FxHashMap;
use std::sync::Arc;

impl Cycle<'_> {
    /// Sets the reason of every pod that stays pending, if it may have changed: of jobs that have
    /// moved or were tried individually, and of a whole kind when its reason is another.
    pub(super) fn report_reasons(&mut self) {
        self.refresh_waiting();
        let mut jobs = std::mem::take(&mut self.waiting.fresh);
        jobs.extend(self.failures.keys());
        for alike in self.waiting.kinds.values_mut() {
            if alike.why.is_none() {
                // A new pod gets a reason once there is one.
                continue;
            }
            let unreported_starts = std::mem::take(&mut alike.unreported_starts);
            let same =
                |told: &Arc<WaitReason>| alike.why.as_ref().is_some_and(|why| told.covers(why));
            if alike.told.as_ref().is_some_and(same) {
                jobs.extend(unreported_starts);
            } else {
                jobs.extend(&alike.jobs);
                alike.told.clone_from(&alike.why);
            }
        }
        jobs.sort_unstable();
        jobs.dedup();
        let tasks: Vec<TaskKey> = jobs
            .into_iter()
            .filter_map(|job| self.state.jobs.get(job))
            .flat_map(|row| row.tasks.iter().copied())
            .chain(self.plan.promised())
            .collect();
        // Conditions of a gang are checked once, not for each of its pods.
        let mut of_gangs = FxHashMap::default();
        for task in tasks {
            if let Some(why) = self.why(task, &mut of_gangs) {
                self.report(task, why);
            }
        }
        self.decision
            .reasons
            .sort_by(|one, other| one.pod.cmp(&other.pod));
    }

    /// Why a pod stays pending. `None`: it does not, or it was not tried.
    fn why(
        &mut self,
        task: TaskKey,
        of_gangs: &mut FxHashMap<JobKey, Option<Arc<WaitReason>>>,
    ) -> Option<Arc<WaitReason>> {
        let row = self.state.tasks.get(task)?;
        let cell = self.state.cells.tasks.get(task)?;
        if cell.leaving.is_some() {
            return None;
        }
        if cell.status == Status::Promised {
            let node = self.state.nodes.get(cell.node?)?;
            return Some(WaitReason::of(
                ReasonKind::Promised,
                released_line(&node.name),
            ));
        }
        if cell.status != Status::Pending {
            return None;
        }
        if let Some(why) = hindrance(self.state, row) {
            return Some(why);
        }
        let job = row.job?;
        if let Some(why) = self.failures.get(&job) {
            return Some(Arc::clone(why));
        }
        if let Some(kind) = self.kind(job) {
            return self.waiting.kinds.get(&kind)?.why.clone();
        }
        if let Some(why) = of_gangs.get(&job) {
            return why.clone();
        }
        let why = self.why_gang(job);
        of_gangs.insert(job, why.clone());
        why
    }

    /// Why the pods of a group stay that are not hindered themselves, where none was tried.
    fn why_gang(&mut self, job: JobKey) -> Option<Arc<WaitReason>> {
        let row = self.state.jobs.get(job)?;
        if row.single {
            return None;
        }
        if self.known(job).entry.ready {
            return self.hindered_member(job);
        }
        let line = not_ready_line(&self.gang(job), &|task| self.is_gated(task));
        Some(WaitReason::of(ReasonKind::NotReady, line))
    }

    /// A gang waits whole while it needs one that is not even tried.
    fn hindered_member(&self, job: JobKey) -> Option<Arc<WaitReason>> {
        let gang = self.gang(job);
        let mut waiting = gang
            .tasks()
            .filter(|(_, status)| *status == Status::Pending);
        if !gang.next(Pick::Waiting, &|task| self.may(task)).is_empty() {
            return None;
        }
        waiting.find_map(|(task, _)| {
            let row = self.state.tasks.get(task)?;
            let why = &hindrance(self.state, row)?.line;
            let line = format!("Waits for pod {} of its group: {why}", self.pod_name(task));
            Some(WaitReason::of(
                ReasonKind::NotReady,
                reason::cut(line, MAX_LINE),
            ))
        })
    }

    fn report(&mut self, task: TaskKey, why: Arc<WaitReason>) {
        let Some(row) = self.state.tasks.get(task) else {
            return;
        };
        let said = self.state.outputs.said.get(&task);
        if said.is_some_and(|said| said.covers(&why)) {
            return;
        }
        let mark = self
            .state
            .group_of(row)
            .is_none_or(|group| group.spec.mark_unschedulable);
        self.decision.reasons.push(PodReason {
            pod: row.uid.of_pod(),
            namespace: Arc::clone(&row.facts.namespace),
            name: Arc::clone(&row.name),
            mark,
            kind: why.kind,
            line: Arc::clone(&why.line),
        });
        self.state.outputs.said.insert(task, why);
        self.state.pod_changed(task);
    }
}
