//! Sets of victims worth simulating, cheapest first (KAI's scenario generators,
//! `plugins/nodelocalgreedy` and `plugins/multinodegang`).
//!
//! Input: the victims taken so far, unit by unit, in the order in which queues lose pods. Output:
//! subsets of them to try. Nothing is simulated here.
//! - [`Generator::NodeLocal`]: for each node of the newest victim's job, all victims taken there so
//!   far, each of their jobs whole.
//! - [`Generator::MultiNode`]: the smallest number of nodes that covers the demand, preferring those
//!   with the least to give; then one more, two more, four more, and so on up to all of them. All
//!   victims on the chosen nodes are taken, each unit whole and no gang in part.

use crate::state::keys::{JobKey, NodeKey, SpecKey, TaskKey};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// Pods of one job that leave together.
#[derive(Clone, Debug)]
pub(super) struct EvictionUnit {
    pub job: JobKey,
    pub tasks: Vec<TaskKey>,
}

/// A set of victims that is tried.
#[derive(Clone, Debug, Default)]
pub(super) struct Scenario {
    /// What a smaller part of the job already needed.
    pub recorded: Vec<EvictionUnit>,
    pub potential: Vec<EvictionUnit>,
}

impl Scenario {
    pub(super) fn units(&self) -> impl Iterator<Item = &EvictionUnit> {
        self.recorded.iter().chain(&self.potential)
    }

    /// Every victim once, in the order in which they were taken.
    pub(super) fn tasks(&self) -> Vec<TaskKey> {
        self.units()
            .flat_map(|unit| unit.tasks.iter().copied())
            .collect()
    }

    /// Victims by job, in the order in which they were taken.
    pub(super) fn by_job(&self) -> Vec<EvictionUnit> {
        by_job(self.units())
    }

    pub(super) fn with(&self, potential: Vec<EvictionUnit>) -> Self {
        Self {
            recorded: self.recorded.clone(),
            potential,
        }
    }
}

/// In the order in which KAI builds its table: what came first is first.
fn by_job<'a>(units: impl Iterator<Item = &'a EvictionUnit>) -> Vec<EvictionUnit> {
    let mut jobs: Vec<EvictionUnit> = Vec::new();
    let mut at: FxHashMap<JobKey, usize> = FxHashMap::default();
    for unit in units {
        match at.get(&unit.job).and_then(|at| jobs.get_mut(*at)) {
            Some(known) => known.tasks.extend(unit.tasks.iter().copied()),
            None => {
                at.insert(unit.job, jobs.len());
                jobs.push(unit.clone());
            }
        }
    }
    jobs
}

/// The victims taken so far in a probe.
#[derive(Debug, Default)]
pub(super) struct TakenVictims {
    pub all: Scenario,
    /// Which of the potential ones have a pod on a node, and which are of a job.
    on_node: FxHashMap<NodeKey, Vec<usize>>,
    of_job: FxHashMap<JobKey, Vec<usize>>,
}

impl TakenVictims {
    pub(super) fn new(recorded: &[EvictionUnit]) -> Self {
        Self {
            all: Scenario {
                recorded: recorded.to_vec(),
                potential: Vec::new(),
            },
            ..Self::default()
        }
    }

    /// One unit more, whose pods are on these nodes.
    pub(super) fn push(&mut self, unit: EvictionUnit, nodes: impl Iterator<Item = NodeKey>) {
        let index = self.all.potential.len();
        for node in nodes {
            let units = self.on_node.entry(node).or_default();
            if units.last() != Some(&index) {
                units.push(index);
            }
        }
        self.of_job.entry(unit.job).or_default().push(index);
        self.all.potential.push(unit);
    }

    /// Everything that was taken so far of the jobs that have a unit there.
    pub(super) fn of_jobs_on(&self, node: NodeKey) -> Vec<EvictionUnit> {
        let units = self.on_node.get(&node).into_iter().flatten();
        let jobs: BTreeSet<JobKey> = units
            .filter_map(|index| Some(self.all.potential.get(*index)?.job))
            .collect();
        let of_jobs: BTreeSet<usize> = jobs
            .iter()
            .filter_map(|job| self.of_job.get(job))
            .flatten()
            .copied()
            .collect();
        by_job(
            of_jobs
                .iter()
                .filter_map(|index| self.all.potential.get(*index)),
        )
    }
}

/// Which subsets are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generator {
    NodeLocal,
    MultiNode,
}

impl Generator {
    /// One after the other: the second where the first finds nothing for the whole job.
    pub(super) const ALL: [Self; 2] = [Self::NodeLocal, Self::MultiNode];
}

/// What a probe's generator considers: GPUs only, as in KAI, without those of claims, whose free
/// sum is not known. Nano-GPU.
#[derive(Debug)]
pub(super) struct ProbeDemand {
    /// Of all pods of this probe.
    pub all: u128,
    /// Of the pod that wants least.
    pub least: u128,
    /// What the nodes have that are tried in any case, and what victims that are recorded give.
    pub available_to: u128,
    /// For [`super::relax`]: whole GPUs, where every pod wants the same number of them.
    pub slots: Option<SlotsDemand>,
    /// The first pod's request, if it has no place beside the existing pods: it needs a node that a
    /// pod leaves.
    pub first: Option<SpecKey>,
}

/// Pods that each want the same number of whole GPUs and nothing else of cards.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct SlotsDemand {
    pub(super) pods: i64,
    pub(super) wanted: i64,
}
