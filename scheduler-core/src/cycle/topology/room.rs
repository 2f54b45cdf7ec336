//! The free room of a topology's domains for pods of one kind, cached between queries: only changed
//! nodes are checked again.

use super::tree::{DomainId, Tree};
use crate::fit::card;
use crate::fit::free::whole_count;
use crate::ids::ResourceName;
use crate::state::State;
use crate::state::keys::{NodeKey, TaskKey};
use crate::units::NanoGpu;
use std::collections::BTreeMap;
use std::sync::Arc;

/// GPU, CPU, memory, pods, then other requested resources.
pub(super) type Amounts = BTreeMap<Resource, i128>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Resource {
    Gpu,
    Cpu,
    Memory,
    Pods,
    Extended(ResourceName),
}

/// What a part of a job asks domains for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartDemand {
    /// The most that one of the pods wants, resource by resource; none is 0.
    largest: Amounts,
    /// The number of pods, if that decides because they request nothing but a place.
    pods: usize,
    /// All pods want the same kinds of resources: domains are judged by how many of the
    /// largest pod they hold. Else by sums.
    homogeneous: bool,
}

impl PartDemand {
    /// Of these pods, and what all of them want together.
    pub(super) fn of(state: &State, tasks: &[TaskKey]) -> (Self, Amounts) {
        let mut largest = Amounts::new();
        let mut sum = Amounts::new();
        let mut kinds: BTreeMap<Resource, usize> = BTreeMap::new();
        for task in tasks {
            for (resource, amount) in wants(state, *task) {
                let most = largest.entry(resource.clone()).or_default();
                *most = amount.max(*most);
                if !matches!(resource, Resource::Cpu | Resource::Memory) {
                    *kinds.entry(resource.clone()).or_default() += 1;
                }
                *sum.entry(resource).or_default() += amount;
            }
        }
        let demand = Self {
            pods: if largest.keys().all(|kind| *kind == Resource::Pods) {
                tasks.len()
            } else {
                0
            },
            homogeneous: kinds.values().all(|count| *count == tasks.len()),
            largest,
        };
        (demand, sum)
    }

    /// How many of the largest pod a node holds.
    fn accommodates(&self, state: &State, node: NodeKey, free: &[i128]) -> u64 {
        if self.pods > 0 {
            return self.pods as u64;
        }
        let mut most = u64::MAX;
        for ((kind, amount), free) in self.largest.iter().zip(free) {
            let mut has = *free;
            if *kind == Resource::Gpu && *amount < i128::from(NanoGpu::ONE.0) {
                has += free_parts(state, node);
            }
            most = most.min(u64::try_from(has.max(0) / amount).unwrap_or(u64::MAX));
        }
        most
    }
}

/// What one pod wants.
fn wants(state: &State, task: TaskKey) -> Amounts {
    let mut amounts = Amounts::new();
    let row = state.tasks.get(task);
    let Some(spec) = row.and_then(|row| state.specs.get(row.spec)) else {
        return amounts;
    };
    let [gpu, cpu, memory] = spec.request();
    let signed = |amount: u128| i128::try_from(amount).unwrap_or(i128::MAX);
    // MIG profiles are resources of their own here, and there is no sum of free devices for claims.
    let gpu = gpu.saturating_sub(spec.mig_nano + spec.device_nano);
    amounts.insert(Resource::Gpu, signed(gpu));
    amounts.insert(Resource::Cpu, signed(cpu));
    amounts.insert(Resource::Memory, signed(memory));
    amounts.insert(Resource::Pods, 1);
    for (name, count) in &spec.spec.extended {
        amounts.insert(Resource::Extended(name.clone()), i128::from(*count));
    }
    amounts.retain(|_, amount| *amount > 0);
    amounts
}

/// What a node, or a domain, has free or leaving.
#[derive(Debug, Default)]
struct Available {
    /// In the order of the demand's resources.
    free: Vec<i128>,
    /// How many of the largest pod.
    pods: u128,
    /// [`crate::state::rows::NodeRow::generation`] at that time. `None`: not checked yet.
    seen: Option<u64>,
}

/// The room that the domains of one tree have for one demand.
#[derive(Debug)]
pub(super) struct DomainRoom {
    pub tree: Arc<Tree>,
    pub demand: PartDemand,
    nodes: Vec<Available>,
    domains: Vec<Available>,
}

impl DomainRoom {
    pub(super) fn new(tree: Arc<Tree>, demand: PartDemand) -> Self {
        let none = || Available {
            free: vec![0; demand.largest.len()],
            ..Available::default()
        };
        let inside = tree.domain(super::tree::ROOT).nodes.last();
        let ranks = inside.map_or(0, |last| *last as usize + 1);
        Self {
            nodes: (0..ranks).map(|_| none()).collect(),
            domains: tree.domains.iter().map(|_| none()).collect(),
            tree,
            demand,
        }
    }

    /// Checks every changed node again. `nodes`: all, by rank.
    pub(super) fn refresh(&mut self, state: &State, nodes: &[NodeKey]) {
        let tree = Arc::clone(&self.tree);
        for rank in &tree.domain(super::tree::ROOT).nodes {
            let Some((node, row)) = nodes
                .get(*rank as usize)
                .and_then(|node| Some((*node, state.nodes.get(*node)?)))
            else {
                continue;
            };
            if let Some(known) = self.nodes.get_mut(*rank as usize)
                && known.seen != Some(row.generation)
            {
                let has = look(state, node, &self.demand, row.generation);
                let had = std::mem::replace(known, has);
                let has = &self.nodes[*rank as usize];
                let leaf = tree.leaf(*rank);
                for id in leaf.into_iter().flat_map(|leaf| tree.upwards(leaf)) {
                    if let Some(domain) = self.domains.get_mut(id as usize) {
                        for (sum, (had, has)) in
                            domain.free.iter_mut().zip(had.free.iter().zip(&has.free))
                        {
                            *sum += has - had;
                        }
                        domain.pods = domain.pods + has.pods - had.pods;
                    }
                }
            }
        }
    }

    /// The domain has room for this many pods with this total request.
    pub(super) fn holds(&self, id: DomainId, pods: usize, sum: &Amounts) -> bool {
        if self.demand.homogeneous {
            let has = self.domains.get(id as usize);
            return has.is_some_and(|has| has.pods >= pods as u128);
        }
        self.ratio(id, sum) <= 1.0
    }

    /// The largest part that the pods would take of what the domain has free.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn ratio(&self, id: DomainId, sum: &Amounts) -> f64 {
        let free = self.domains.get(id as usize).map(|has| &has.free);
        let parts = sum.iter().zip(free.into_iter().flatten());
        parts
            .filter(|((kind, _), _)| **kind != Resource::Pods)
            .map(|((_, amount), free)| {
                if *free <= 0 {
                    1000.0
                } else {
                    *amount as f64 / *free as f64
                }
            })
            .fold(0.0, f64::max)
    }
}

fn look(state: &State, node: NodeKey, demand: &PartDemand, generation: u64) -> Available {
    let free: Vec<i128> = demand
        .largest
        .keys()
        .map(|kind| free(state, node, kind))
        .collect();
    let pods = if demand.homogeneous {
        demand.accommodates(state, node, &free)
    } else {
        0
    };
    Available {
        free,
        pods: u128::from(pods),
        seen: Some(generation),
    }
}

/// What a node has free or leaving of one resource, less promises.
fn free(state: &State, key: NodeKey, kind: &Resource) -> i128 {
    let Some(node) = state.nodes.get(key).and_then(|row| row.node.as_ref()) else {
        return 0;
    };
    let used = state.cells.nodes.get(key).copied().unwrap_or_default();
    let left = |has: u64, taken: u128, leaving: u128, promised: u128| {
        i128::from(has) + i128::try_from(leaving).unwrap_or(0)
            - i128::try_from(taken + promised).unwrap_or(i128::MAX)
    };
    match kind {
        Resource::Gpu => i128::from(whole_count(state, key).later) * i128::from(NanoGpu::ONE.0),
        Resource::Cpu => left(
            node.cpu.0,
            used.used.cpu,
            used.releasing.cpu,
            used.promised.cpu,
        ),
        Resource::Memory => left(
            node.memory.0,
            used.used.memory,
            used.releasing.memory,
            used.promised.memory,
        ),
        Resource::Pods => left(
            node.pods,
            used.used.pods,
            used.releasing.pods,
            used.promised.pods,
        ),
        Resource::Extended(name) => {
            let extra = state.cells.extra.get(&(key, name.clone()));
            let extra = extra.copied().unwrap_or_default();
            let has = node.extended.get(name).copied().unwrap_or(0);
            left(has, extra.used, extra.releasing, extra.promised)
        }
    }
}

/// Parts of cards that are shared already.
fn free_parts(state: &State, key: NodeKey) -> i128 {
    let Some(row) = state.nodes.get(key) else {
        return 0;
    };
    row.cards
        .iter()
        .filter_map(|card| Some((state.cards.get(*card)?, state.cells.cards.get(*card)?)))
        .filter(|(_, used)| used.after().holds() > 0 && used.after().modes[0] == 0)
        .map(|(row, used)| {
            let cap = u128::from(card::memory(row).cap.0).max(1);
            let free = cap.saturating_sub(used.after().limits);
            i128::try_from(free * u128::from(NanoGpu::ONE.0) / cap).unwrap_or(0)
        })
        .sum()
}
