//! Chooses the domains for a part of a job. See [`super`].

use crate::cycle::Cycle;
use crate::cycle::topology::room::{Amounts, DomainRoom, PartDemand};
use crate::cycle::topology::scores::{Domains, Scores};
use crate::cycle::topology::tree::{self, DomainId, Tree};
use crate::gang::Set;
use crate::model::{SubGroup, Topology, TopologyRule};
use crate::state::keys::{NodeKey, TaskKey};
use crate::state::node_set::NodeSet;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Cycle<'_> {
    /// Node sets for a part of a job, best first. `Err`: why there is none.
    pub(in crate::cycle) fn domains(
        &mut self,
        name: &str,
        rule: &TopologyRule,
        sets: &[&Set],
        tasks: &[TaskKey],
        nodes: &NodeSet,
    ) -> Result<Domains, String> {
        let Some(topology) = self.state.topologies.get(&rule.topology) else {
            return Err(format!(
                "Requested topology {} does not exist",
                rule.topology
            ));
        };
        let (required, preferred) = (
            level_of(topology, rule.required.as_ref(), "required", rule)?,
            level_of(topology, rule.preferred.as_ref(), "preferred", rule)?,
        );
        let Some(lowest) = preferred.into_iter().chain(required).max() else {
            return Ok(Domains::Anywhere);
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
        let (demand, sum) = PartDemand::of(self.state, tasks);
        let levels = topology.levels.clone();
        let at = self.room_of(&levels, demand);
        let room = &self.memos.topologies.rooms[at];
        let tree = Arc::clone(&room.tree);
        let common = tree.common(nodes, lowest);
        let failed = |why: &str| {
            Err(format!(
                "topology {}, requirement {} couldn't be satisfied for {name}: {why}",
                rule.topology,
                rule.required.as_deref().unwrap_or_default()
            ))
        };
        if !room.holds(common, tasks.len(), &sum) {
            return failed(&if common == tree::ROOT {
                "not enough resources in the cluster to allocate the job".to_owned()
            } else {
                let name = &tree.domain(common).name;
                format!("not enough resources in {name} to allocate the job")
            });
        }
        let levels = in_order(room, common, lowest, &sum);
        let of_level = |level: usize| {
            let below = level.checked_sub(tree.domain(common).level);
            below.and_then(|below| levels.get(below))
        };
        let standing = self.standing_domains(&tree, sets, required);
        let allowed = |id: &DomainId| {
            let above = || tree.at(*id, required.unwrap_or(0));
            (standing.as_ref())
                .is_none_or(|standing| above().is_some_and(|above| standing.contains(&above)))
        };
        // From the lowest level up, as far as the rule lets it.
        let found: Vec<DomainId> = (required.unwrap_or(0)..=lowest)
            .rev()
            .filter_map(of_level)
            .flatten()
            .copied()
            .filter(|id| allowed(id) && room.holds(*id, tasks.len(), &sum))
            .collect();
        if let Some(level) = preferred {
            let order = of_level(level).map_or(&[][..], Vec::as_slice);
            let scores = Scores::new(&tree, level, order);
            self.memos.scores.insert(name.to_owned(), scores);
        }
        if found.is_empty() {
            return failed("no domain has enough resources");
        }
        Ok(Domains::In(tree, found))
    }

    /// The room that the domains of a topology have for a demand, as it is now.
    fn room_of(&mut self, levels: &[Arc<str>], demand: PartDemand) -> usize {
        let rooms = &mut self.memos.topologies.rooms;
        let known = |room: &DomainRoom| room.tree.has_levels(levels) && room.demand == demand;
        let at = rooms.iter().position(known).unwrap_or_else(|| {
            let mut trees = rooms.iter().map(|room| &room.tree);
            let tree = trees.find(|tree| tree.has_levels(levels)).cloned();
            let new = || Arc::new(Tree::new(self.state, &self.nodes, levels));
            rooms.push(DomainRoom::new(tree.unwrap_or_else(new), demand));
            rooms.len() - 1
        });
        rooms[at].refresh(self.state, &self.nodes);
        at
    }

    /// Scores of the part's own rule, or of the nearest part above it.
    pub(in crate::cycle) fn topology_scores(&self, task: TaskKey, set: &str) -> Option<&Scores> {
        if self.memos.scores.is_empty() {
            return None;
        }
        if let Some(scores) = self.memos.scores.get(set) {
            return Some(scores);
        }
        let job = self.state.tasks.get(task)?.job?;
        let root = &self.state.jobs.get(job)?.group.as_ref()?.spec.root;
        let mut path = Vec::new();
        path_to(root, set, &mut path);
        path.iter().find_map(|name| self.memos.scores.get(*name))
    }

    /// Domains of the required level that already have pods of the part. `None`: there are no such
    /// pods, or any level will do.
    fn standing_domains(
        &self,
        tree: &Tree,
        sets: &[&Set],
        required: Option<usize>,
    ) -> Option<BTreeSet<DomainId>> {
        let level = required?;
        let stand = || {
            let tasks = sets.iter().flat_map(|set| &set.tasks);
            tasks.filter(|(_, status)| status.is_allocated())
        };
        stand().next()?;
        let domain =
            |node: NodeKey| tree.at(tree.leaf(self.state.caches.rooms.rank(node)?)?, level);
        let domains = stand().filter_map(|(task, _)| domain(self.state.cell(*task).node?));
        Some(domains.collect())
    }
}

/// The domains below this one, level by level down to the lowest, in each those first that
/// the pods would fill most.
fn in_order(room: &DomainRoom, from: DomainId, lowest: usize, sum: &Amounts) -> Vec<Vec<DomainId>> {
    let mut levels = vec![vec![from]];
    for _ in room.tree.domain(from).level..lowest {
        let mut next = Vec::new();
        for id in levels.last().into_iter().flatten() {
            let children = room.tree.domain(*id).children.iter();
            let mut children: Vec<(f64, DomainId)> = children
                .map(|child| (room.ratio(*child, sum), *child))
                .collect();
            children.sort_by(|one, other| match other.0.total_cmp(&one.0) {
                Ordering::Equal => {
                    let name = |id: DomainId| &room.tree.domain(id).name;
                    name(one.1).cmp(name(other.1))
                }
                order => order,
            });
            next.extend(children.into_iter().map(|(_, id)| id));
        }
        levels.push(next);
    }
    levels
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

/// Names of the groups around a set, innermost first. True when it is below this group.
fn path_to<'a>(group: &'a SubGroup, set: &str, path: &mut Vec<&'a str>) -> bool {
    let here = group.sets.iter().any(|one| one.name.as_str() == set)
        || group.groups.iter().any(|inner| path_to(inner, set, path));
    if here {
        path.push(group.name.as_ref().map_or("", |name| name.as_str()));
    }
    here
}
