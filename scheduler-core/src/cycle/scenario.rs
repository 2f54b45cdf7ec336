//! Sets of victims worth simulating, cheapest first (KAI's scenario generators,
//! `plugins/nodelocalgreedy` and `plugins/multinodegang`).
//!
//! Input: the victims taken so far, unit by unit, in the order in which queues lose pods. Output:
//! subsets of them to try. Nothing is simulated here.
//! - [`Generator::NodeLocal`]: for each node of the newest victim's job, all victims taken there so
//!   far, each of their jobs whole.
//! - [`Generator::MultiNode`]: the smallest number of nodes that covers the demand, preferring those
//!   with the least to give; then one more, two more, four more, and so on up to all of them. All
//!   victims on the chosen nodes are taken, each unit whole.

use super::solve::VictimSearch;
use super::{Cycle, repack};
use crate::fit;
use crate::state::node_set::NodeSet;
use crate::state::rows::{JobKey, NodeKey, NodeRow, SpecKey, SpecRow, TaskKey};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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

    fn with(&self, potential: Vec<EvictionUnit>) -> Self {
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
    fn of_jobs_on(&self, node: NodeKey) -> Vec<EvictionUnit> {
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
    /// Where every pod wants the same number of whole GPUs and nothing else of cards: how
    /// many pods there are, that number, and for how many the feasible nodes have them
    /// whose own rules let such pods in.
    whole: Option<(i64, i64, i64)>,
    /// The first pod's request, if it has no place beside the existing pods: it needs a node that a
    /// pod leaves.
    first: Option<SpecKey>,
}

impl Cycle<'_> {
    /// What these pods want of which nodes.
    pub(super) fn demand(
        &self,
        tasks: &[TaskKey],
        search: &VictimSearch,
        recorded: &[EvictionUnit],
    ) -> ProbeDemand {
        let wants = |task: &TaskKey| {
            self.state
                .tasks
                .get(*task)
                .and_then(|row| self.state.specs.get(row.spec))
                .map_or(0, |spec| spec.request()[0] - spec.device_nano)
        };
        let whole = self.same_whole(tasks).map(|wanted| {
            let pods = i64::try_from(tasks.len()).unwrap_or(i64::MAX);
            (pods, wanted, search.slots)
        });
        ProbeDemand {
            all: tasks.iter().map(wants).sum(),
            least: tasks.iter().map(wants).min().unwrap_or(0),
            available_to: search.available_to
                + recorded.iter().map(|unit| self.held_by(unit)).sum::<u128>(),
            whole,
            first: self.first_without_place(tasks, whole.map(|(_, _, slots)| slots)),
        }
    }

    /// What the first of these pods asks for, where it is whole GPUs or a share and no node
    /// takes it as it is. `slots`: for how many the nodes have whole GPUs, if it wants those.
    fn first_without_place(&self, tasks: &[TaskKey], slots: Option<i64>) -> Option<SpecKey> {
        let key = self.state.tasks.get(*tasks.first()?)?.spec;
        let row = self.state.specs.get(key)?;
        // A pod that leaves elsewhere may make its place: by a volume that other nodes can use, or
        // by anti-affinity.
        if row.depends_on_others() {
            return None;
        }
        let has_place = match (slots, repack::one_share(row)) {
            (Some(slots), _) => slots > 0,
            (None, Some(share)) => self.some_node_takes(row, share),
            (None, None) => true,
        };
        (!has_place).then_some(key)
    }

    /// False where the first pod has no place on any node that one of these leaves.
    fn first_could_fit(&self, first: SpecKey, scenario: &Scenario) -> bool {
        let Some(row) = self.state.specs.get(first) else {
            return true;
        };
        let leave: FxHashSet<TaskKey> = scenario.tasks().into_iter().collect();
        let nodes: BTreeSet<NodeKey> = leave
            .iter()
            .filter_map(|task| self.state.cell(*task).node)
            .collect();
        let leaves = |task: TaskKey| leave.contains(&task);
        let sits = |node: &NodeKey| fit::could_fit(self.state, row, *node, &leaves);
        nodes.iter().any(sits)
    }

    /// Nodes whose own rules admit one of these pods, regardless of what runs there.
    pub(super) fn open_to(&mut self, tasks: &[TaskKey]) -> Arc<NodeSet> {
        let specs: BTreeSet<SpecKey> = tasks
            .iter()
            .filter_map(|task| Some(self.state.tasks.get(*task)?.spec))
            .collect();
        let specs: Vec<SpecKey> = specs.into_iter().collect();
        if let Some(open) = self.open.get(&specs) {
            return Arc::clone(open);
        }
        let rows = specs.iter().filter_map(|spec| self.state.specs.get(*spec));
        let rows: Vec<&SpecRow> = rows.collect();
        let lets_in = |node: &NodeRow| {
            rows.iter()
                .any(|spec| fit::rules(node, &spec.spec, spec.is_gpu_work()).is_ok())
        };
        let open = (0..).zip(self.nodes.iter()).filter(|(_, key)| {
            let row = self.state.nodes.get(**key);
            row.is_some_and(lets_in)
        });
        let open: Arc<NodeSet> = Arc::new(open.map(|(rank, _)| rank).collect());
        self.open.insert(specs, Arc::clone(&open));
        open
    }

    /// What these nodes have free or leaving of GPUs, whole and in parts.
    pub(super) fn available_to(&self, nodes: &NodeSet) -> u128 {
        let rooms = &self.state.rooms;
        rooms.nodes(nodes).map(|node| rooms.of(node).nano).sum()
    }

    /// For how many pods like the first these nodes have whole GPUs; 0 where it wants none.
    pub(super) fn slots(&self, tasks: &[TaskKey], feasible: &NodeSet, open: &NodeSet) -> i64 {
        let first = tasks.get(..1).unwrap_or_default();
        let Some(wanted) = self.same_whole(first) else {
            return 0;
        };
        let rooms = &self.state.rooms;
        let both = feasible.iter().filter(|rank| open.contains(*rank));
        both.filter_map(|rank| rooms.node(rank))
            .map(|node| rooms.of(node).whole.max(0) / wanted)
            .sum()
    }

    /// What a unit holds, in the queues' count of GPUs.
    pub(super) fn held_by(&self, unit: &EvictionUnit) -> u128 {
        unit.tasks
            .iter()
            .map(|task| self.state.charge(*task, self.state.cell(*task).holds())[0])
            .sum()
    }

    fn same_whole(&self, tasks: &[TaskKey]) -> Option<i64> {
        let mut wanted = None;
        for task in tasks {
            let spec = self.state.specs.get(self.state.tasks.get(*task)?.spec)?;
            let same = wanted.is_none_or(|wanted| wanted == spec.whole);
            if spec.whole == 0 || spec.shares || spec.mig_nano > 0 || !same {
                return None;
            }
            wanted = Some(spec.whole);
        }
        wanted.map(i64::from)
    }

    /// False where the pods cannot all sit even if everything that the victims touch were
    /// free, on nodes whose own rules let them in: no simulation can show anything else.
    pub(super) fn may_fit(
        &self,
        search: &VictimSearch,
        demand: &ProbeDemand,
        scenario: &Scenario,
    ) -> bool {
        if let Some(first) = demand.first
            && !self.first_could_fit(first, scenario)
        {
            return false;
        }
        let Some((pods, wanted, slots)) = demand.whole else {
            return true;
        };
        let mut freed: BTreeMap<NodeKey, i64> = BTreeMap::new();
        for task in scenario.units().flat_map(|unit| &unit.tasks) {
            let cell = self.state.cell(*task);
            let Some(node) = cell.node.filter(|node| self.is_in(&search.open, *node)) else {
                continue;
            };
            // A share may be the last on its card.
            let cards = match cell.holds().len() {
                0 => self
                    .state
                    .tasks
                    .get(*task)
                    .and_then(|row| self.state.specs.get(row.spec))
                    .map_or(0, |spec| spec.gpus() as usize),
                holds => holds,
            };
            *freed.entry(node).or_default() += i64::try_from(cards).unwrap_or(i64::MAX);
        }
        let more: i64 = freed
            .iter()
            .map(|(node, freed)| {
                let has = self.state.rooms.of(*node).whole;
                let before = if self.is_in(&search.feasible, *node) {
                    has.max(0) / wanted
                } else {
                    0
                };
                (has + freed).max(0) / wanted - before
            })
            .sum();
        slots + more >= pods
    }

    /// The sets to try now that the newest unit was added.
    pub(super) fn scenarios(
        &self,
        generator: Generator,
        search: &VictimSearch,
        demand: &ProbeDemand,
        taken: &TakenVictims,
    ) -> Vec<Scenario> {
        if taken.all.potential.is_empty() {
            return vec![taken.all.clone()];
        }
        match generator {
            Generator::NodeLocal => self.node_local(taken),
            Generator::MultiNode => self.multi_node(search, demand, &taken.all),
        }
    }

    fn node_local(&self, taken: &TakenVictims) -> Vec<Scenario> {
        let Some(newest) = taken.all.potential.last() else {
            return Vec::new();
        };
        let rooms = &self.state.rooms;
        let gang = self.gang(newest.job);
        let nodes = gang
            .tasks()
            .filter_map(|(task, _)| self.state.cell(task).node);
        let nodes = rooms.set(nodes);
        let mut seen: BTreeSet<Vec<TaskKey>> = BTreeSet::new();
        let mut scenarios = Vec::new();
        for node in rooms.nodes(&nodes) {
            let units = taken.of_jobs_on(node);
            if !units.is_empty() && seen.insert(sorted(&units)) {
                scenarios.push(taken.all.with(units));
            }
        }
        scenarios
    }

    fn multi_node(
        &self,
        search: &VictimSearch,
        demand: &ProbeDemand,
        whole: &Scenario,
    ) -> Vec<Scenario> {
        let stands: BTreeSet<TaskKey> = whole.tasks().into_iter().collect();
        let freed = |tasks: &[TaskKey], into: &mut BTreeMap<NodeKey, u128>| {
            for task in tasks.iter().filter(|task| stands.contains(task)) {
                let cell = self.state.cell(*task);
                if let Some(node) = cell.node {
                    *into.entry(node).or_default() += self.state.charge(*task, cell.holds())[0];
                }
            }
        };
        // What a node has before any victim is removed, and what victims add.
        let has = |node: &NodeKey| self.state.rooms.of(*node).nano;
        let mut held_by: BTreeMap<NodeKey, u128> = BTreeMap::new();
        for unit in &whole.recorded {
            freed(&unit.tasks, &mut held_by);
        }
        // Units by the nodes of their pods, nodes in the order in which they came up.
        let mut bearing: Vec<(NodeKey, Vec<usize>)> = Vec::new();
        let mut bears_at: FxHashMap<NodeKey, usize> = FxHashMap::default();
        let recorded: BTreeMap<NodeKey, u128> = held_by.clone();
        for (index, unit) in whole.potential.iter().enumerate() {
            freed(&unit.tasks, &mut held_by);
            for task in &unit.tasks {
                let Some(node) = self.state.cell(*task).node else {
                    continue;
                };
                match bears_at.get(&node).and_then(|at| bearing.get_mut(*at)) {
                    Some((_, units)) if units.last() == Some(&index) => {}
                    Some((_, units)) => units.push(index),
                    None => {
                        bears_at.insert(node, bearing.len());
                        bearing.push((node, vec![index]));
                    }
                }
            }
        }
        let gives_of = |node: &NodeKey| has(node) + held_by.get(node).copied().unwrap_or(0);
        bearing.retain(|(node, _)| demand.least == 0 || gives_of(node) >= demand.least);
        // Stable: equals stay in the order in which they came up.
        bearing.sort_by_key(|(node, _)| gives_of(node));
        // Nodes that are tried in any case and need no victim.
        let mut tried = search.feasible.clone();
        tried.extend(
            recorded
                .keys()
                .filter_map(|node| self.state.rooms.rank(*node)),
        );
        let there: u128 = (self.state.rooms)
            .nodes(&tried)
            .filter(|node| !bears_at.contains_key(node))
            .map(|node| has(&node) + recorded.get(&node).copied().unwrap_or(0))
            .sum();
        let missing = demand.all.saturating_sub(there);
        let Some(mut count) = covering(&bearing, missing, gives_of) else {
            return Vec::new();
        };
        let mut step = 1;
        let mut scenarios = Vec::new();
        loop {
            let picked: BTreeSet<usize> = bearing[..count]
                .iter()
                .flat_map(|(_, units)| units.iter().copied())
                .collect();
            scenarios.push(
                whole.with(
                    picked
                        .into_iter()
                        .map(|index| whole.potential[index].clone())
                        .collect(),
                ),
            );
            if count == bearing.len() {
                return scenarios;
            }
            count = (count + step).min(bearing.len());
            step *= 2;
        }
    }

    fn is_in(&self, set: &NodeSet, node: NodeKey) -> bool {
        let rank = self.state.rooms.rank(node);
        rank.is_some_and(|rank| set.contains(rank))
    }
}

fn sorted(units: &[EvictionUnit]) -> Vec<TaskKey> {
    let mut tasks: Vec<TaskKey> = units
        .iter()
        .flat_map(|unit| unit.tasks.iter().copied())
        .collect();
    tasks.sort();
    tasks
}

/// How many of the nodes cover the missing amount; `None`: all of them together do not.
fn covering(
    bearing: &[(NodeKey, Vec<usize>)],
    missing: u128,
    held_by: impl Fn(&NodeKey) -> u128,
) -> Option<usize> {
    let mut sum = 0;
    if missing == 0 {
        return Some(0);
    }
    bearing.iter().enumerate().find_map(|(index, (node, _))| {
        sum += held_by(node);
        (sum >= missing).then_some(index + 1)
    })
}
