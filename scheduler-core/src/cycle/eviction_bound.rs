//! An upper bound for every search for victims: could the pod fit anywhere if every permitted victim
//! were evicted? If not, no set of victims helps and the search is skipped.
//!
//! Each search starts with the first pod of its job alone. That pod must fit on some node beside the
//! pods that stay, so [`crate::fit::could_fit`] of that pod and node bounds the search. The set of
//! permitted victims is taken too wide on purpose: it includes pods that are protected for a while,
//! that are being bound, or whose eviction has failed. A "no" therefore stays valid until a node
//! changes.
//!
//! Answers are kept between decisions, by request and set of permitted victims: either one node that
//! would do, or that there is none. In the second case only changed nodes are checked again. The
//! result is the same as checking every node, so caching does not change decisions.

use super::Cycle;
use crate::fit;
use crate::state::State;
use crate::state::rows::{NodeKey, QueueKey, SpecKey, TaskKey};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Above this number of cached answers, those that were not used in the last decision are dropped.
const MOST: usize = 4096;

/// Permitted victims.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum VictimFilter {
    /// Every possible victim.
    All,
    /// Jobs of these queues.
    Of(Arc<[QueueKey]>),
    /// Jobs of the queue below that priority.
    Below(QueueKey, i32),
}

impl VictimFilter {
    fn takes(&self, state: &State, task: TaskKey) -> bool {
        let Some((key, job)) = state
            .tasks
            .get(task)
            .and_then(|row| Some((row.job?, state.jobs.get(row.job?)?)))
        else {
            return false;
        };
        // What pods without their group are follows from where the others of them are.
        if job.group.is_none() && !job.single {
            return true;
        }
        let Some(standing) = state.placed_at.get(key) else {
            return false;
        };
        match self {
            Self::All => true,
            Self::Of(queues) => queues.contains(&standing.queue),
            Self::Below(queue, priority) => {
                standing.queue == *queue && standing.priority < *priority
            }
        }
    }
}

/// One answer.
#[derive(Clone, Copy, Debug)]
struct Answer {
    /// [`State::touched`] and [`State::settled`] at that time.
    at: u64,
    settled: u64,
    /// A node that would do.
    node: Option<NodeKey>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct EvictionBounds {
    of: FxHashMap<(SpecKey, VictimFilter), Answer>,
}

impl EvictionBounds {
    /// The work left for the next decision, of one that began at `since`.
    pub(super) fn keep(mut self, since: u64) -> Self {
        if self.of.len() > MOST {
            self.of.retain(|_, answer| answer.at >= since);
        }
        self
    }
}

impl Cycle<'_> {
    /// False: it could sit nowhere even without those.
    pub(super) fn could_fit(&mut self, spec: SpecKey, filter: VictimFilter) -> bool {
        let (at, settled) = (self.state.touched, self.state.settled);
        let key = (spec, filter);
        let known = self.eviction_bounds.of.get(&key).copied();
        if let Some(known) = known.filter(|known| known.settled == settled) {
            return known.node.is_some();
        }
        let state = &*self.state;
        let Some(row) = state.specs.get(spec) else {
            return true;
        };
        let would_do =
            |node: NodeKey| fit::could_fit(state, row, node, &|task| key.1.takes(state, task));
        let changed = |node: &NodeKey, since: u64| {
            state
                .nodes
                .get(*node)
                .is_none_or(|row| row.generation > since)
        };
        let all = || self.nodes.iter().copied().find(|node| would_do(*node));
        let node = match known {
            None => all(),
            Some(Answer { at, node: None, .. }) => self
                .nodes
                .iter()
                .copied()
                .find(|node| changed(node, at) && would_do(*node)),
            Some(Answer {
                at,
                node: Some(node),
                ..
            }) => {
                if !changed(&node, at) || would_do(node) {
                    Some(node)
                } else {
                    all()
                }
            }
        };
        if self.config.verify && node.is_some() != all().is_some() {
            self.state
                .contradicts("what is remembered of a ceiling holds no more");
        }
        self.eviction_bounds
            .of
            .insert(key, Answer { at, settled, node });
        node.is_some()
    }
}
