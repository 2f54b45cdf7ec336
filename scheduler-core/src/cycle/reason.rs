//! Why a pod is pending: what kept it from being tried, or why trying failed.

use super::Cycle;
use crate::action::MAX_LINE;
use crate::action::{PodReason, ReasonKind};
use crate::config::Config;
use crate::fit;
use crate::gang::{Gang, Pick};
use crate::ids::NodeName;
use crate::reason::{self, Line, NodeReason, ReasonKey, WaitReason};
use crate::state::State;
use crate::state::cell::Status;
use crate::state::job_row::GroupRow;
use crate::state::keys::{JobKey, NodeKey, TaskKey};
use crate::state::rows::{SpecRow, TaskRow};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Why a pod is not even tried.
pub(crate) fn hindrance(state: &State, row: &TaskRow) -> Option<Arc<WaitReason>> {
    let spec = state.specs.get(row.spec).map(|row| &row.spec)?;
    let said = |kind, line: String| Some(WaitReason::of(kind, reason::cut(line, MAX_LINE)));
    if row.gated {
        return said(
            ReasonKind::Gated,
            "Scheduling is blocked by the pod's scheduling gates".to_owned(),
        );
    }
    if let Some(bad) = &spec.bad {
        return said(ReasonKind::BadRequest, bad.to_string());
    }
    if !spec.unsupported.is_empty() {
        return said(
            ReasonKind::Unsupported,
            format!(
                "The pod uses rules that are not supported: {}",
                spec.unsupported.join(", ")
            ),
        );
    }
    if !spec.lacks.is_empty() {
        return said(
            ReasonKind::Unschedulable,
            format!(
                "Scheduling conditions were not met for pod {}/{}:\n{}.",
                row.facts.namespace,
                row.name,
                spec.lacks.join(".\n")
            ),
        );
    }
    let job = row.job.and_then(|job| state.jobs.get(job))?;
    let name = match &job.group {
        Some(group) => {
            let set = row
                .facts
                .set
                .as_ref()
                .map_or(crate::gang::DEFAULT_SET, |name| name.as_str());
            if !group.spec.has_set(set) {
                return said(
                    ReasonKind::GroupDoesNotExist,
                    format!(
                        "Pod references subgroup \"{set}\", which does not exist in PodGroup {}",
                        job.name
                    ),
                );
            }
            &group.spec.queue
        }
        None if job.single => &row.facts.queue,
        None => {
            return said(
                ReasonKind::GroupDoesNotExist,
                format!("Pod group '{}' does not exist", job.name),
            );
        }
    };
    // Chains are of the last refresh.
    let known = job
        .queue
        .filter(|_| !state.queues_dirty)
        .and_then(|queue| state.queues.get(queue));
    let (exists, is_leaf) = match known {
        Some(queue) => (!queue.chain.is_empty(), queue.children.is_empty()),
        None => (state.queue_exists(name), !state.has_children(name)),
    };
    if !exists || !is_leaf {
        let what = if exists {
            "is not a leaf queue"
        } else {
            "does not exist"
        };
        // A group keeps its queue when the label of its pods is corrected, as KAI's does.
        let of_group = if *name == row.facts.queue {
            String::new()
        } else {
            format!(", and PodGroup {} names it in spec.queue", job.name)
        };
        return said(
            ReasonKind::QueueDoesNotExist,
            format!("Queue '{name}' {what}{of_group}"),
        );
    }
    if let Some(parked) = job.group.as_ref().and_then(GroupRow::parked) {
        return said(ReasonKind::Parked, parked.to_string());
    }
    if let Some(pause) = &row.rare.pause
        && pause.until.is_none_or(|until| until > state.now)
    {
        return said(
            ReasonKind::Backoff,
            format!("Binding was refused: {}", pause.reason),
        );
    }
    None
}

/// Why a request fits on none of these nodes.
pub(crate) fn no_fit(
    state: &State,
    config: &Config,
    spec: &SpecRow,
    nodes: impl IntoIterator<Item = NodeKey>,
) -> WaitReason {
    let spec = &*state.with_domains(spec);
    let mut counts: BTreeMap<NodeReason, usize> = BTreeMap::new();
    let mut cards = Vec::new();
    for key in nodes {
        let Some(row) = state.nodes.get(key).filter(|row| row.node.is_some()) else {
            continue;
        };
        let Err(no) = fit::node(state, spec, key, config, false) else {
            continue;
        };
        for why in no.why {
            *counts.entry(why).or_default() += 1;
        }
        if !no.cards.is_empty() {
            cards.push((row.name.as_str(), no.cards));
        }
    }
    let mut line = Line::of(counts.iter().map(|(why, count)| (why, *count)));
    for (node, cards) in cards {
        line.add(state, node, &cards);
    }
    WaitReason {
        kind: ReasonKind::Unschedulable,
        line: line.end(),
        about: ReasonKey::nodes(counts.keys()),
    }
}

/// The reason of a pod that fits where another pod is terminating.
pub(crate) fn released_line(node: &NodeName) -> Arc<str> {
    Arc::from(format!(
        "Waits for resources that are being released on node {node}"
    ))
}

/// KAI's words for a gang that has too few pods yet.
pub(super) fn not_ready_line(gang: &Gang, gated: &dyn Fn(TaskKey) -> bool) -> Arc<str> {
    let needed: u64 = gang.sets.iter().map(|set| u64::from(set.min)).sum();
    let exist = gang
        .tasks()
        .filter(|(_, status)| status.is_allocated() || *status == Status::Pending)
        .count();
    let held = gang
        .tasks()
        .filter(|(task, status)| *status == Status::Pending && gated(*task))
        .count();
    Arc::from(format!(
        "Job is not ready for scheduling. Waiting for {needed} pods, currently {exist} exist, {held} are gated"
    ))
}

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
        let cell = self.state.task_cells.get(task)?;
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
        let said = self.state.said.get(&task);
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
        self.state.said.insert(task, why);
        self.state.pod_changed(task);
    }
}
