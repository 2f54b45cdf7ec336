//! Why a pod waits: from what hinders it to be tried at all, and from what came out when
//! it was.

use super::Cycle;
use crate::action::{PodReason, ReasonKind};
use crate::config::Config;
use crate::explain::MAX_LINE;
use crate::fit;
use crate::gang::Gang;
use crate::ids::NodeName;
use crate::reason::{self, NodeVerdict};
use crate::state::State;
use crate::state::cell::Status;
use crate::state::rows::{NodeKey, SpecRow, TaskKey, TaskRow};
use std::sync::Arc;

/// Why a pod is not even tried.
pub(crate) fn hindrance(state: &State, row: &TaskRow) -> Option<(ReasonKind, Arc<str>)> {
    let spec = state.specs.get(row.spec).map(|row| &row.spec)?;
    let said = |kind, line: String| Some((kind, Arc::from(reason::cut(line, MAX_LINE))));
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
    let job = row.job.and_then(|job| state.jobs.get(job))?;
    let name = match &job.group {
        Some(group) => {
            let set = row
                .set
                .as_ref()
                .map_or(crate::gang::DEFAULT_SET, |name| name.as_str());
            if !group.root.has_set(set) {
                return said(
                    ReasonKind::GroupDoesNotExist,
                    format!(
                        "Pod references subgroup \"{set}\", which does not exist in PodGroup {}",
                        job.name
                    ),
                );
            }
            &group.queue
        }
        None if job.single => &row.queue,
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
    if !exists {
        return said(
            ReasonKind::QueueDoesNotExist,
            format!("Queue '{name}' does not exist"),
        );
    }
    if !is_leaf {
        return said(
            ReasonKind::QueueDoesNotExist,
            format!("Queue '{name}' is not a leaf queue"),
        );
    }
    if let Some(pause) = &row.pause
        && pause.until.is_none_or(|until| until > state.now)
    {
        return said(
            ReasonKind::Backoff,
            format!("Binding was refused: {}", pause.reason),
        );
    }
    None
}

/// Why a request fits on none of these nodes, in one line.
pub(crate) fn no_fit_line(
    state: &State,
    config: &Config,
    spec: &SpecRow,
    nodes: &[NodeKey],
) -> Arc<str> {
    let verdicts: Vec<(&str, NodeVerdict)> = nodes
        .iter()
        .filter_map(|key| {
            let row = state.nodes.get(*key)?;
            row.node.as_ref()?;
            let no = fit::node(state, spec, *key, config, false).err()?;
            Some((row.name.as_str(), no))
        })
        .collect();
    Arc::from(reason::join(state, &verdicts, MAX_LINE))
}

/// What is said of a pod that fits where somebody is on the way out.
pub(crate) fn released_line(node: &NodeName) -> Arc<str> {
    Arc::from(format!(
        "Waits for resources that are being released on node {node}"
    ))
}

/// KAI's words for a gang that has too few pods yet.
pub(super) fn not_ready_line(gang: &Gang, gated: &dyn Fn(TaskKey) -> bool) -> Arc<str> {
    let needed: u32 = gang.sets.iter().map(|set| set.min).sum();
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
    /// Says to every pod that stays why, where that is not what was said last.
    pub(super) fn say_why(&mut self) {
        let waiting: Vec<TaskKey> = self
            .state
            .pending
            .iter()
            .map(|(_, task)| *task)
            .chain(self.promised.iter().copied())
            .collect();
        for task in waiting {
            let Some(row) = self.state.tasks.get(task) else {
                continue;
            };
            let cell = self.state.cell(task);
            if cell.leaving.is_some() {
                continue;
            }
            let promised = (cell.status == Status::Promised)
                .then(|| self.state.nodes.get(cell.node?))
                .flatten();
            let said = if let Some(node) = promised {
                (ReasonKind::Promised, released_line(&node.name))
            } else if let Some(said) = hindrance(self.state, row) {
                said
            } else if let Some(said) = row.job.and_then(|job| self.failures.get(&job)) {
                said.clone()
            } else {
                continue;
            };
            self.say(task, said);
        }
        self.decision
            .reasons
            .sort_by(|one, other| one.pod.cmp(&other.pod));
    }

    fn say(&mut self, task: TaskKey, said: (ReasonKind, Arc<str>)) {
        let Some(row) = self.state.tasks.get(task) else {
            return;
        };
        if row.said.as_ref() == Some(&said) {
            return;
        }
        let mark = self
            .state
            .group_of(row)
            .is_none_or(|group| group.mark_unschedulable);
        self.decision.reasons.push(PodReason {
            pod: row.uid.clone(),
            namespace: Arc::clone(&row.namespace),
            name: Arc::clone(&row.name),
            mark,
            kind: said.0,
            line: Arc::clone(&said.1),
        });
        if let Some(row) = self.state.tasks.get_mut(task) {
            row.said = Some(said);
        }
    }
}
