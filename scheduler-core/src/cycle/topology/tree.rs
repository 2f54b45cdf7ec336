//! The domains of a topology, from the labels of nodes alone.
//!
//! A node with a label for each level is in one domain of each level; a node that lacks one
//! is outside. The root, level 0, holds all that are inside.

use crate::state::State;
use crate::state::keys::NodeKey;
use crate::state::node_set::NodeSet;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A domain's place in [`Tree::domains`].
pub(super) type DomainId = u32;

/// The domain that holds all others.
pub(super) const ROOT: DomainId = 0;

/// Nodes with the same labels down to a level.
#[derive(Debug, Default)]
pub(super) struct Domain {
    parent: DomainId,
    /// 0 for the root, 1 for the widest level.
    pub level: usize,
    /// The labels' values from the widest level down, joined with dots: KAI's id of it.
    pub name: String,
    pub children: Vec<DomainId>,
    /// By rank, in order.
    pub nodes: Vec<u32>,
}

/// All domains of one topology.
#[derive(Debug)]
pub(in crate::cycle) struct Tree {
    /// Node labels, the widest level first.
    levels: Vec<Arc<str>>,
    pub(super) domains: Vec<Domain>,
    /// By rank, the domain of the lowest level. `None`: outside.
    leaves: Vec<Option<DomainId>>,
}

impl Tree {
    /// From the labels of these nodes, which come in order of rank.
    pub(super) fn new(state: &State, nodes: &[NodeKey], levels: &[Arc<str>]) -> Self {
        let mut tree = Self {
            levels: levels.to_vec(),
            domains: vec![Domain::default()],
            leaves: Vec::with_capacity(nodes.len()),
        };
        let mut known: FxHashMap<(DomainId, &str), DomainId> = FxHashMap::default();
        for (rank, node) in (0..).zip(nodes) {
            let row = state.nodes.get(*node).and_then(|row| row.node.as_ref());
            let path = row.and_then(|node| {
                let values = levels.iter().map(|level| node.labels.get(level));
                values.collect::<Option<Vec<_>>>()
            });
            let Some(path) = path else {
                tree.leaves.push(None);
                continue;
            };
            let mut at = ROOT;
            tree.domains[0].nodes.push(rank);
            for value in path {
                at = *known
                    .entry((at, &**value))
                    .or_insert_with(|| tree.add(at, value));
                if let Some(domain) = tree.domains.get_mut(at as usize) {
                    domain.nodes.push(rank);
                }
            }
            tree.leaves.push(Some(at));
        }
        tree
    }

    fn add(&mut self, parent: DomainId, value: &str) -> DomainId {
        let id = DomainId::try_from(self.domains.len()).unwrap_or(DomainId::MAX);
        let above = self.domain(parent);
        let (level, name) = match above.level {
            0 => (1, value.to_owned()),
            level => (level + 1, format!("{}.{value}", above.name)),
        };
        self.domains.push(Domain {
            parent,
            level,
            name,
            ..Domain::default()
        });
        if let Some(above) = self.domains.get_mut(parent as usize) {
            above.children.push(id);
        }
        id
    }

    /// It is of a topology with these levels.
    pub(super) fn has_levels(&self, levels: &[Arc<str>]) -> bool {
        self.levels == levels
    }

    pub(super) fn domain(&self, id: DomainId) -> &Domain {
        // Ids are made by `add` alone.
        self.domains.get(id as usize).unwrap_or(&self.domains[0])
    }

    /// The domain that a node is in at the lowest level. `None`: it is outside.
    pub(super) fn leaf(&self, rank: u32) -> Option<DomainId> {
        self.leaves.get(rank as usize).copied().flatten()
    }

    /// The domain, and those that hold it up to the root.
    pub(super) fn upwards(&self, id: DomainId) -> impl Iterator<Item = DomainId> {
        let above = |id: &DomainId| (*id != ROOT).then(|| self.domain(*id).parent);
        std::iter::successors(Some(id), above)
    }

    /// The domain at that level which holds this one, or is it. `None`: it is above the level.
    pub(super) fn at(&self, id: DomainId, level: usize) -> Option<DomainId> {
        self.upwards(id)
            .find(|id| self.domain(*id).level <= level)
            .filter(|id| self.domain(*id).level == level)
    }

    /// The deepest domain, not below that level, which holds all of these that are inside.
    pub(super) fn common(&self, nodes: &NodeSet, lowest: usize) -> DomainId {
        let mut leaves = nodes.iter().filter_map(|rank| self.leaf(rank));
        let first = leaves.next().and_then(|leaf| self.at(leaf, lowest));
        let mut common = first.unwrap_or(ROOT);
        for leaf in leaves {
            while self.at(leaf, self.domain(common).level) != Some(common) {
                common = self.domain(common).parent;
            }
            if common == ROOT {
                break;
            }
        }
        common
    }

    /// Those of the nodes that are in the domain.
    pub(super) fn nodes(&self, id: DomainId, among: &NodeSet) -> NodeSet {
        let nodes = self.domain(id).nodes.iter().copied();
        nodes.filter(|rank| among.contains(*rank)).collect()
    }
}
