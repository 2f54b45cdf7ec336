//! Which nodes a part of a job may be put on together: domains of a topology, tightest
//! first (KAI, `plugins/topology`).
//!
//! A topology's levels are node labels, widest first; nodes that lack one are outside. A
//! domain will do when it can hold all of the part's pods: counted by a representative
//! pod where they all want the same kinds of resources, else by sums. Candidates are
//! domains from the preferred level up to the required one, or to the top; lower levels
//! first, within a level the one that the pods would fill most.

use super::Cycle;
use crate::fit::card;
use crate::fit::seat::whole_count;
use crate::gang::Set;
use crate::ids::ResourceName;
use crate::model::{SubGroup, Topology, TopologyRule};
use crate::state::rows::{NodeKey, TaskKey};
use crate::units::NanoGpu;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// GPU, CPU, memory, pods, then whatever else is asked for.
type Amounts = BTreeMap<Resource, i128>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Resource {
    Gpu,
    Cpu,
    Memory,
    Pods,
    Extended(ResourceName),
}

/// A domain: the values of the labels from the top down to its level. Empty: the root.
type Id = Vec<Arc<str>>;

struct Domain {
    nodes: Vec<NodeKey>,
    children: Vec<Id>,
    free: Amounts,
    /// How many representative pods it holds, where that is counted.
    pods: Option<u64>,
}

impl Cycle<'_> {
    /// Node sets for a part of a job, best first. `Err`: why there is none.
    pub(super) fn domains(
        &mut self,
        name: &str,
        rule: &TopologyRule,
        sets: &[&Set],
        tasks: &[TaskKey],
        nodes: &[NodeKey],
    ) -> Result<Vec<Vec<NodeKey>>, String> {
        let Some(topology) = self.state.topologies.get(&rule.topology) else {
            return Err(format!(
                "Requested topology {} does not exist",
                rule.topology
            ));
        };
        let levels = topology.levels.clone();
        let (required, preferred) = (
            level_of(topology, rule.required.as_ref(), "required", rule)?,
            level_of(topology, rule.preferred.as_ref(), "preferred", rule)?,
        );
        let Some(lowest) = preferred.into_iter().chain(required).max() else {
            return Ok(vec![nodes.to_vec()]);
        };
        if let (Some(preferred), Some(required)) = (preferred, required)
            && preferred < required
        {
            // KAI walks from the preferred level up and never meets a wider one.
            return Err(no_such_level(
                rule,
                "preferred",
                rule.preferred.as_deref().unwrap_or_default(),
            ));
        }
        let homogeneous = self.is_homogeneous(tasks);
        let wanted: Vec<Amounts> = tasks.iter().map(|task| self.wants(*task)).collect();
        let inside: Vec<(NodeKey, Id)> = nodes
            .iter()
            .filter_map(|node| Some((*node, self.path(*node, &levels)?)))
            .collect();
        let common = common_id(&inside, preferred);
        // A domain counts whole, also where not all of its nodes are candidates.
        let all: Vec<(NodeKey, Id)> = self
            .nodes
            .iter()
            .filter_map(|node| Some((*node, self.path(*node, &levels)?)))
            .filter(|(_, path)| path.starts_with(&common))
            .collect();
        let mut tree = self.tree(&all, homogeneous, &wanted);
        let candidates: BTreeSet<NodeKey> = inside.iter().map(|(node, _)| *node).collect();
        let mut sum = Amounts::new();
        for wants in &wanted {
            for (resource, amount) in wants {
                *sum.entry(resource.clone()).or_default() += amount;
            }
        }
        let failed = |why: &str| {
            Err(format!(
                "topology {}, requirement {} couldn't be satisfied for {name}: {why}",
                rule.topology,
                rule.required.as_deref().unwrap_or_default()
            ))
        };
        let holds = |tree: &BTreeMap<Id, Domain>, id: &Id| {
            tree.get(id).is_some_and(|domain| match domain.pods {
                Some(pods) => pods >= tasks.len() as u64,
                None => ratio(&sum, domain) <= 1.0,
            })
        };
        if !holds(&tree, &common) {
            return failed(&if common.is_empty() {
                "not enough resources in the cluster to allocate the job".to_owned()
            } else {
                format!(
                    "not enough resources in {} to allocate the job",
                    common.join(".")
                )
            });
        }
        sort_tree(
            &mut tree,
            &common,
            &sum,
            preferred.or(required).unwrap_or(lowest),
        );
        if let Some(level) = preferred {
            let scores = node_scores(&tree, &common, level);
            self.scores.insert(name.to_owned(), scores);
        }
        let standing = self.standing_domains(sets, required, &levels);
        let top = required.unwrap_or(0);
        let mut found = Vec::new();
        // A level is how many labels deep a domain is; the root is 0.
        for level in (top..=lowest).rev() {
            for id in level_order(&tree, &common, level) {
                let allowed = standing
                    .as_ref()
                    .is_none_or(|standing| standing.iter().any(|one| id.starts_with(one)));
                if allowed
                    && holds(&tree, &id)
                    && let Some(domain) = tree.get(&id)
                {
                    found.push(
                        domain
                            .nodes
                            .iter()
                            .copied()
                            .filter(|node| candidates.contains(node))
                            .collect(),
                    );
                }
            }
        }
        if found.is_empty() {
            return failed("no domain has enough resources");
        }
        Ok(found)
    }

    /// Scores of the part's own rule, or of the nearest part above it.
    pub(super) fn topology_scores(
        &self,
        task: TaskKey,
        set: &str,
    ) -> Option<&BTreeMap<NodeKey, u8>> {
        if self.scores.is_empty() {
            return None;
        }
        if let Some(scores) = self.scores.get(set) {
            return Some(scores);
        }
        let job = self.state.tasks.get(task)?.job?;
        let root = &self.state.jobs.get(job)?.group.as_ref()?.spec.root;
        let mut path = Vec::new();
        path_to(root, set, &mut path);
        path.iter().find_map(|name| self.scores.get(*name))
    }

    /// Domains of the required level in which pods of the part stand already.
    fn standing_domains(
        &self,
        sets: &[&Set],
        required: Option<usize>,
        levels: &[Arc<str>],
    ) -> Option<BTreeSet<Id>> {
        let level = required?;
        let standing: BTreeSet<Id> = sets
            .iter()
            .flat_map(|set| &set.tasks)
            .filter(|(_, status)| status.is_allocated())
            .filter_map(|(task, _)| {
                let mut id = self.path(self.state.cell(*task).node?, levels)?;
                id.truncate(level);
                Some(id)
            })
            .collect();
        let any = sets
            .iter()
            .flat_map(|set| &set.tasks)
            .any(|(_, status)| status.is_allocated());
        any.then_some(standing)
    }

    /// A node's labels from the top down; `None`: it is outside.
    fn path(&self, node: NodeKey, levels: &[Arc<str>]) -> Option<Id> {
        let labels = &self.state.nodes.get(node)?.node.as_ref()?.labels;
        levels
            .iter()
            .map(|level| labels.get(level).cloned())
            .collect()
    }

    fn wants(&self, task: TaskKey) -> Amounts {
        let mut amounts = Amounts::new();
        let Some(spec) = self
            .state
            .tasks
            .get(task)
            .and_then(|row| self.state.specs.get(row.spec))
        else {
            return amounts;
        };
        let [gpu, cpu, memory] = spec.request();
        let signed = |amount: u128| i128::try_from(amount).unwrap_or(i128::MAX);
        // MIG profiles are resources of their own here.
        amounts.insert(Resource::Gpu, signed(gpu - spec.mig_nano));
        amounts.insert(Resource::Cpu, signed(cpu));
        amounts.insert(Resource::Memory, signed(memory));
        amounts.insert(Resource::Pods, 1);
        for (name, count) in &spec.spec.extended {
            amounts.insert(Resource::Extended(name.clone()), i128::from(*count));
        }
        amounts.retain(|_, amount| *amount > 0);
        amounts
    }

    fn free(&self, key: NodeKey, kinds: &BTreeSet<Resource>) -> Amounts {
        let mut amounts = Amounts::new();
        let Some(node) = self.state.nodes.get(key).and_then(|row| row.node.as_ref()) else {
            return amounts;
        };
        let used = self.state.node_use.get(key).copied().unwrap_or_default();
        let left = |has: u64, taken: u128, leaving: u128, promised: u128| {
            i128::from(has) + i128::try_from(leaving).unwrap_or(0)
                - i128::try_from(taken + promised).unwrap_or(i128::MAX)
        };
        for kind in kinds {
            let free = match kind {
                Resource::Gpu => {
                    i128::from(whole_count(self.state, key).later) * i128::from(NanoGpu::ONE.0)
                }
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
                    let extra = self
                        .state
                        .extra_use
                        .get(&(key, name.clone()))
                        .copied()
                        .unwrap_or_default();
                    let has = node.extended.get(name).copied().unwrap_or(0);
                    left(has, extra.used, extra.releasing, extra.promised)
                }
            };
            amounts.insert(kind.clone(), free);
        }
        amounts
    }

    /// Parts of cards that are shared already.
    fn free_parts(&self, key: NodeKey) -> i128 {
        let Some(row) = self.state.nodes.get(key) else {
            return 0;
        };
        row.cards
            .iter()
            .filter_map(|card| {
                Some((
                    self.state.cards.get(*card)?,
                    self.state.card_use.get(*card)?,
                ))
            })
            .filter(|(_, used)| used.after().holds() > 0 && used.after().modes[0] == 0)
            .map(|(row, used)| {
                let cap = u128::from(card::memory(row).cap.0).max(1);
                let free = cap.saturating_sub(used.after().limits);
                i128::try_from(free * u128::from(NanoGpu::ONE.0) / cap).unwrap_or(0)
            })
            .sum()
    }

    /// All pods want the same kinds of resources.
    fn is_homogeneous(&self, tasks: &[TaskKey]) -> bool {
        let mut counts: BTreeMap<Resource, usize> = BTreeMap::new();
        for task in tasks {
            for kind in self.wants(*task).into_keys() {
                if !matches!(kind, Resource::Cpu | Resource::Memory) {
                    *counts.entry(kind).or_default() += 1;
                }
            }
        }
        counts.values().all(|count| *count == tasks.len())
    }

    fn tree(
        &self,
        inside: &[(NodeKey, Id)],
        homogeneous: bool,
        wanted: &[Amounts],
    ) -> BTreeMap<Id, Domain> {
        let mut largest = Amounts::new();
        for wants in wanted {
            for (kind, amount) in wants {
                let most = largest.entry(kind.clone()).or_default();
                *most = (*most).max(*amount);
            }
        }
        let kinds: BTreeSet<Resource> = largest.keys().cloned().collect();
        let mut tree: BTreeMap<Id, Domain> = BTreeMap::new();
        for (node, path) in inside {
            let free = self.free(*node, &kinds);
            let pods = homogeneous.then(|| self.accommodates(*node, &free, &largest, wanted.len()));
            for depth in 0..=path.len() {
                let id = path[..depth].to_vec();
                let domain = tree.entry(id).or_insert_with(|| Domain {
                    nodes: Vec::new(),
                    children: Vec::new(),
                    free: Amounts::new(),
                    pods: homogeneous.then_some(0),
                });
                domain.nodes.push(*node);
                if let Some(child) = path.get(..=depth).map(<[_]>::to_vec)
                    && !domain.children.contains(&child)
                {
                    domain.children.push(child);
                }
                for (kind, amount) in &free {
                    *domain.free.entry(kind.clone()).or_default() += amount;
                }
                domain.pods = domain
                    .pods
                    .zip(pods)
                    .map(|(sum, more)| sum.saturating_add(more));
            }
        }
        tree
    }

    /// How many of the largest pod a node holds.
    fn accommodates(&self, node: NodeKey, free: &Amounts, largest: &Amounts, count: usize) -> u64 {
        if largest.keys().all(|kind| *kind == Resource::Pods) {
            return count as u64;
        }
        let mut most = u64::MAX;
        for (kind, amount) in largest {
            let mut has = free.get(kind).copied().unwrap_or(0);
            if *kind == Resource::Gpu && *amount < i128::from(NanoGpu::ONE.0) {
                has += self.free_parts(node);
            }
            most = most.min(u64::try_from(has.max(0) / amount).unwrap_or(u64::MAX));
        }
        most
    }
}

/// How deep a level is, 1 for the widest. `None`: no such rule.
fn level_of(
    topology: &Topology,
    wanted: Option<&Arc<str>>,
    what: &str,
    rule: &TopologyRule,
) -> Result<Option<usize>, String> {
    let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else {
        return Ok(None);
    };
    let at = |label: &Arc<str>| topology.levels.iter().position(|level| level == label);
    let by_alias = || topology.aliases.get(wanted).and_then(at);
    match at(wanted).or_else(by_alias) {
        Some(index) => Ok(Some(index + 1)),
        None => Err(no_such_level(rule, what, wanted)),
    }
}

fn no_such_level(rule: &TopologyRule, what: &str, wanted: &str) -> String {
    format!(
        "topology constraint error: workload specified '{wanted}' as the {what} topology constraint level, but the topology tree '{}' does not contain a level with this name",
        rule.topology
    )
}

/// The deepest domain that holds all nodes, not deeper than the preferred level.
fn common_id(inside: &[(NodeKey, Id)], preferred: Option<usize>) -> Id {
    let Some((_, first)) = inside.first() else {
        return Id::new();
    };
    let mut depth = 0;
    while depth < first.len()
        && Some(depth) != preferred
        && inside.iter().all(|(_, path)| path[depth] == first[depth])
    {
        depth += 1;
    }
    first[..depth].to_vec()
}

/// The largest part that the pods would take of what the domain has free.
#[allow(clippy::cast_precision_loss)]
fn ratio(sum: &Amounts, domain: &Domain) -> f64 {
    sum.iter()
        .filter(|(kind, _)| **kind != Resource::Pods)
        .map(|(kind, amount)| {
            let free = domain.free.get(kind).copied().unwrap_or(0);
            if free <= 0 {
                1000.0
            } else {
                *amount as f64 / free as f64
            }
        })
        .fold(0.0, f64::max)
}

/// Children that the pods would fill most first.
fn sort_tree(tree: &mut BTreeMap<Id, Domain>, root: &Id, sum: &Amounts, deepest: usize) {
    let Some(domain) = tree.get(root) else {
        return;
    };
    let mut children: Vec<(f64, Id)> = domain
        .children
        .iter()
        .map(|child| {
            (
                tree.get(child).map_or(0.0, |child| ratio(sum, child)),
                child.clone(),
            )
        })
        .collect();
    children.sort_by(|one, other| match other.0.total_cmp(&one.0) {
        Ordering::Equal => one.1.join(".").cmp(&other.1.join(".")),
        order => order,
    });
    let children: Vec<Id> = children.into_iter().map(|(_, id)| id).collect();
    if let Some(domain) = tree.get_mut(root) {
        domain.children.clone_from(&children);
    }
    if root.len() == deepest {
        return;
    }
    for child in children {
        sort_tree(tree, &child, sum, deepest);
    }
}

/// Domains of one level below a root, in the order of the sorted tree.
fn level_order(tree: &BTreeMap<Id, Domain>, root: &Id, level: usize) -> Vec<Id> {
    if root.len() == level {
        return vec![root.clone()];
    }
    let children = tree
        .get(root)
        .map_or(&[][..], |domain| domain.children.as_slice());
    children
        .iter()
        .flat_map(|child| level_order(tree, child, level))
        .collect()
}

/// Later domains score higher: what KAI's sorting leaves last is preferred node by node.
fn node_scores(tree: &BTreeMap<Id, Domain>, root: &Id, level: usize) -> BTreeMap<NodeKey, u8> {
    let order = level_order(tree, root, level);
    let count = order.len();
    let mut scores = BTreeMap::new();
    for (index, id) in order.iter().enumerate() {
        let score = u8::try_from((index + 1) * 10 / count.max(1)).unwrap_or(10);
        for node in tree
            .get(id)
            .map_or(&[][..], |domain| domain.nodes.as_slice())
        {
            scores.insert(*node, score);
        }
    }
    scores
}

/// Names of the groups around a set, innermost first. True when it is below this group.
fn path_to<'a>(group: &'a SubGroup, set: &str, path: &mut Vec<&'a str>) -> bool {
    let here = group.sets.iter().any(|one| one.name.as_str() == set)
        || group.groups.iter().any(|inner| path_to(inner, set, path));
    if here {
        path.push(group.name.as_ref().map_or("", |name| name.as_str()));
    }
    here
}
