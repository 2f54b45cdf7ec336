//! Why a pod is not even tried, and why it fits on none of the nodes: from the state alone.

use crate::action::{MAX_LINE, ReasonKind};
use crate::config::Config;
use crate::fit;
use crate::gang::Gang;
use crate::ids::NodeName;
use crate::reason::{self, Line, NodeReason, ReasonKey, WaitReason};
use crate::state::State;
use crate::state::job_row::GroupRow;
use crate::state::keys::{NodeKey, TaskKey};
use crate::state::rows::TaskRow;
use crate::state::spec_row::SpecRow;
use crate::state::task_cell::Status;
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
        .filter(|_| !state.changes.queues)
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
        line.add(node, &cards, &state.cards);
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
