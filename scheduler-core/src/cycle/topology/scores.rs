//! Domains for a part of a job, and how well their nodes suit it.

use crate::cycle::topology::room::DomainRoom;
use crate::cycle::topology::tree::{DomainId, Tree};
use crate::state::node_set::NodeSet;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Where a part of a job may be put.
pub(in crate::cycle) enum Domains {
    /// No rule says where.
    Anywhere,
    /// In one of these, best first.
    In(Arc<Tree>, Vec<DomainId>),
}

impl Domains {
    /// The nodes of one domain after the other, as far as they are among these.
    pub(crate) fn sets(self, among: &NodeSet) -> impl Iterator<Item = NodeSet> {
        let (tree, ids) = match self {
            Self::Anywhere => (None, Vec::new()),
            Self::In(tree, ids) => (Some(tree), ids),
        };
        let whole = tree.is_none().then(|| among.clone());
        let parts = ids.into_iter().filter_map(move |id| {
            let tree = tree.as_ref()?;
            Some(tree.nodes(id, among))
        });
        whole.into_iter().chain(parts)
    }
}

/// How well nodes suit a part that prefers to be close together, 0 to 10.
#[derive(Debug)]
pub(in crate::cycle) struct Scores {
    pub(super) tree: Arc<Tree>,
    /// The preferred one.
    pub(super) level: usize,
    of: FxHashMap<DomainId, u8>,
}

impl Scores {
    /// Later domains score higher: what KAI's sorting leaves last is preferred node by node.
    pub(super) fn new(tree: &Arc<Tree>, level: usize, order: &[DomainId]) -> Self {
        let count = order.len().max(1);
        let score = |index: usize| u8::try_from((index + 1) * 10 / count).unwrap_or(10);
        let of = (order.iter().enumerate()).map(|(index, id)| (*id, score(index)));
        Self {
            tree: Arc::clone(tree),
            level,
            of: of.collect(),
        }
    }

    pub(crate) fn of(&self, rank: u32) -> Option<u8> {
        let domain = self.tree.at(self.tree.leaf(rank)?, self.level)?;
        self.of.get(&domain).copied()
    }
}

/// What domains have for the demands of this decision.
#[derive(Debug, Default)]
pub(in crate::cycle) struct Topologies {
    pub(super) rooms: Vec<DomainRoom>,
}
