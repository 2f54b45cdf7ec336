//! Results that a decision has computed and asks for again. Each holds until the decision ends, or
//! until something changes on which it depends.

use crate::action::EvictCause;
use crate::cycle::budget::SearchOutcome;
use crate::cycle::fragments::Fragments;
use crate::cycle::refusals::Refusals;
use crate::cycle::relax::memory::Relaxations;
use crate::cycle::topology::scores::{Scores, Topologies};
use crate::model::Preemptibility;
use crate::state::keys::{JobKey, QueueKey, SpecKey};
use crate::state::node_set::NodeSet;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The memos of one decision.
#[derive(Debug, Default)]
pub(super) struct Memos {
    /// The score of leftovers. `None`: no placement asks for it.
    pub fragments: Option<Fragments>,
    /// By queue, the job for which no room was found last, while nothing has moved since: the next in
    /// line that is its like finds none either.
    pub infeasible: FxHashMap<QueueKey, (JobClass, SearchOutcome)>,
    /// The relaxations, which rule out searches for victims. They alone outlive the decision.
    pub relaxations: Relaxations,
    /// The jobs that may be moved, by [`Changes::settled`](crate::state::changes::Changes::settled) at that time.
    pub moves: Option<(u64, Vec<JobKey>)>,
    /// Nodes that refused requests for devices, by their generation.
    pub refusals: Refusals,
    /// By requests, the nodes whose own rules let one of them in. Rules do not change in a decision.
    pub open: FxHashMap<Vec<SpecKey>, Arc<NodeSet>>,
    /// Scores of the nodes for the job that is being placed, by the name of the set.
    pub scores: FxHashMap<String, Scores>,
    /// What domains have for the demands of jobs, by the generation of each node.
    pub topologies: Topologies,
}

/// What a search depends on, for a job without placed pods: two adjacent jobs of one queue that
/// agree in this find the same.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JobClass {
    pub(super) cause: EvictCause,
    pub(super) priority: i32,
    pub(super) preemptibility: Preemptibility,
    pub(super) min: u32,
    pub(super) specs: Vec<SpecKey>,
}
