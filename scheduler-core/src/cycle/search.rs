//! A search for victims: the rules of the action that searches, and what it searches among.

use crate::action::EvictCause;
use crate::cycle::Cycle;
use crate::cycle::relax::victim_filter::VictimFilter;
use crate::cycle::scenario::{ProbeDemand, Scenario};
use crate::gang::Gang;
use crate::job_queue::Line;
use crate::state::keys::{JobKey, TaskKey};
use crate::state::node_set::NodeSet;
use std::cell::OnceCell;
use std::sync::Arc;

/// The rules of one action.
pub(super) trait ActionRules {
    fn cause(&self) -> EvictCause;
    /// Jobs with placed pods that this action may take from.
    fn filter(&self) -> VictimFilter;
    /// A search begins: nothing has moved yet.
    fn begin(&self, _cycle: &Cycle) {}
    /// Whether one of them may lose anything now.
    fn may_be_victim(&self, cycle: &mut Cycle, victim: JobKey) -> bool;
    /// Whether these victims are allowed after the simulation.
    fn allows(
        &self,
        cycle: &mut Cycle,
        job: JobKey,
        tasks: &[TaskKey],
        scenario: &Scenario,
    ) -> bool;
    /// Nodes on which no pod is to be put.
    fn barred(&self) -> Option<&NodeSet> {
        None
    }
    /// The words for a victim.
    fn message(&self, cycle: &Cycle, job: JobKey, victim: TaskKey) -> String;
}

/// A job for which room is made, and the scope of its search.
pub(super) struct VictimSearch<'a> {
    pub job: JobKey,
    pub gang: &'a Gang,
    /// Its pods, in the order in which they are added.
    pub tasks: &'a [TaskKey],
    pub rules: &'a dyn ActionRules,
    /// Jobs that may lose pods.
    pub victims: &'a [JobKey],
    pub feasible: NodeSet,
    /// Nodes whose own rules let one of them in.
    pub open: Arc<NodeSet>,
    /// What the feasible nodes have in all: nano-GPU.
    pub available_to: u128,
    /// How many of the first pod's whole GPUs the nodes have that are feasible and open.
    pub slots: i64,
    /// All jobs that wait: the others take their turn and get nothing. Made for the first
    /// set that is tried.
    pub line: OnceCell<Arc<Line>>,
}

/// A set of victims that is about to be simulated.
pub(super) struct VictimSet<'a> {
    pub search: &'a VictimSearch<'a>,
    pub demand: &'a ProbeDemand,
    pub scenario: &'a Scenario,
}
