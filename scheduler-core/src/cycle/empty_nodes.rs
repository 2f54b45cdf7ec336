//! Keeps the last N empty nodes free for pods that need a whole node (ours, `keepEmptyNodes: N`).
//!
//! Determines, for the pods that a trial has placed, whether they opened one of those nodes, and
//! which nodes to avoid instead. A node is empty while no pod with GPUs runs there or has a promise
//! there; terminating pods do not count. The last empty nodes are the last by name. KAI opens an
//! empty node before it moves any pod.

use crate::config::Step;
use crate::cycle::Cycle;
use crate::state::keys::{NodeKey, TaskKey};
use crate::state::node_set::NodeSet;
use crate::state::spec_row::SpecRow;
use crate::state::task_cell::Status;

/// Nodes that are to stay empty, and all others.
pub(super) struct EmptyNodes {
    pub nodes: NodeSet,
    pub others: NodeSet,
}

impl Cycle<'_> {
    /// `Some`: these pods, as they are placed now, leave fewer nodes empty than should be,
    /// and have opened one.
    pub(super) fn opens_kept(&self, tasks: &[TaskKey]) -> Option<EmptyNodes> {
        let keep = self.config.keep_empty_nodes as usize;
        if keep == 0 || !self.consolidates() || !self.config.actions.contains(&Step::Consolidation)
        {
            return None;
        }
        let stays = |task: &TaskKey| {
            let status = self.state.cells.tasks.get(*task).map(|cell| cell.status);
            status.is_some_and(|status| status != Status::Releasing)
                && self
                    .state
                    .tasks
                    .get(*task)
                    .and_then(|row| self.state.specs.get(row.spec))
                    .is_some_and(SpecRow::wants_gpus)
        };
        let on = |node: &NodeKey| self.state.index.on_node.get(*node).into_iter().flatten();
        // Opened: only these pods are there.
        let opened =
            tasks.iter().any(|task| {
                stays(task)
                    && self.state.cell(*task).node.is_some_and(|node| {
                        !on(&node).any(|one| stays(one) && !tasks.contains(one))
                    })
            });
        if !opened {
            return None;
        }
        let could_be_empty = |node: &NodeKey| {
            self.state.nodes.get(*node).is_some_and(|row| {
                !row.is_plain()
                    && row.lacks.gpu.is_none()
                    && row
                        .node
                        .as_ref()
                        .is_some_and(|node| node.not_ready.is_empty())
            })
        };
        let stay_empty = self
            .nodes
            .iter()
            .filter(|node| could_be_empty(node) && !on(node).any(stays))
            .count();
        if stay_empty >= keep {
            return None;
        }
        let empty: Vec<NodeKey> = self
            .nodes
            .iter()
            .filter(|node| could_be_empty(node))
            .filter(|node| !on(node).any(|one| stays(one) && !tasks.contains(one)))
            .copied()
            .collect();
        let last = empty[empty.len().saturating_sub(keep)..].iter();
        let nodes = self.state.caches.rooms.set(last.copied());
        let mut others = NodeSet::clone(&self.all);
        others.remove_all(&nodes);
        Some(EmptyNodes { nodes, others })
    }
}
