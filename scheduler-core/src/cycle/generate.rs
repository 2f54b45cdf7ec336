//! Generates the sets of victims that a search tries, and says what its pods want. See
//! [`super::scenario`].

use crate::cycle::Cycle;
use crate::cycle::scenario::{EvictionUnit, Generator, ProbeDemand, Scenario, TakenVictims};
use crate::cycle::search::VictimSearch;
use crate::fit;
use crate::state::keys::{NodeKey, SpecKey, TaskKey};
use crate::state::node_set::NodeSet;
use crate::state::rows::NodeRow;
use crate::state::spec_row::SpecRow;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
        let slots = self.slots_demand(tasks);
        ProbeDemand {
            all: tasks.iter().map(wants).sum(),
            least: tasks.iter().map(wants).min().unwrap_or(0),
            available_to: search.available_to
                + recorded.iter().map(|unit| self.held_by(unit)).sum::<u128>(),
            slots,
            first: self.first_without_place(tasks, slots.map(|_| search.slots)),
        }
    }

    /// Nodes whose own rules admit one of these pods, regardless of what runs there.
    pub(super) fn open_to(&mut self, tasks: &[TaskKey]) -> Arc<NodeSet> {
        let specs: BTreeSet<SpecKey> = tasks
            .iter()
            .filter_map(|task| Some(self.state.tasks.get(*task)?.spec))
            .collect();
        let specs: Vec<SpecKey> = specs.into_iter().collect();
        if let Some(open) = self.memos.open.get(&specs) {
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
        self.memos.open.insert(specs, Arc::clone(&open));
        open
    }

    /// What these nodes have free or leaving of GPUs, whole and in parts.
    pub(super) fn available_to(&self, nodes: &NodeSet) -> u128 {
        let rooms = &self.state.caches.rooms;
        rooms.nodes(nodes).map(|node| rooms.of(node).nano).sum()
    }

    /// What a unit holds, in the queues' count of GPUs.
    pub(super) fn held_by(&self, unit: &EvictionUnit) -> u128 {
        unit.tasks
            .iter()
            .map(|task| self.state.charge(*task, self.state.cell(*task).holds())[0])
            .sum()
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
        let rooms = &self.state.caches.rooms;
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
        let has = |node: &NodeKey| self.state.caches.rooms.of(*node).nano;
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
                .filter_map(|node| self.state.caches.rooms.rank(*node)),
        );
        let there: u128 = (self.state.caches.rooms)
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
                .flat_map(|index| needed_by(&whole.potential, index))
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
}

/// The unit, and those without which it must not leave: several pods leave together where a gang
/// falls below its minimum, and the pods beyond that minimum, which were taken before, go with them.
fn needed_by(units: &[EvictionUnit], index: usize) -> impl Iterator<Item = usize> {
    let unit = &units[index];
    let before = if unit.tasks.len() > 1 { index } else { 0 };
    (0..before)
        .filter(move |at| units[*at].job == unit.job)
        .chain([index])
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
