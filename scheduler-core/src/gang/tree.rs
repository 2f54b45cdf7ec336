//! A gang's tree of sub-groups, and where the sets of each are among those of the gang.

use crate::ids::SetName;
use crate::model::{SubGroup, TopologyRule};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Deeper trees are rejected when their events are applied.
pub(super) const DEEPEST: u32 = 64;

/// Where the sets of a group, and of the groups in it, are among the sets of the gang. Found once:
/// to look up thousands of names for each pod was most of a decision.
#[derive(Debug, Default, PartialEq)]
struct Places {
    sets: Vec<usize>,
    groups: Vec<Places>,
}

impl Places {
    fn of(group: &SubGroup, by_name: &FxHashMap<SetName, usize>, depth: u32) -> Self {
        if depth > DEEPEST {
            return Self::default();
        }
        let place = |name: &SetName| by_name.get(name).copied().unwrap_or(usize::MAX);
        let inner = group.groups.iter();
        Self {
            sets: group.sets.iter().map(|set| place(&set.name)).collect(),
            groups: inner
                .map(|inner| Self::of(inner, by_name, depth + 1))
                .collect(),
        }
    }
}

/// The tree of a job with sub-groups.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tree {
    root: Arc<SubGroup>,
    places: Arc<Places>,
}

impl Tree {
    /// `by_name`: where each set is among the gang's.
    pub(super) fn of(root: &Arc<SubGroup>, by_name: &FxHashMap<SetName, usize>) -> Self {
        Self {
            root: Arc::clone(root),
            places: Arc::new(Places::of(root, by_name, 0)),
        }
    }

    pub(crate) fn root(&self) -> Branch<'_> {
        Branch {
            group: &self.root,
            places: &self.places,
        }
    }
}

/// A group of the tree.
#[derive(Clone, Copy)]
pub(crate) struct Branch<'a> {
    pub group: &'a SubGroup,
    places: &'a Places,
}

impl<'a> Branch<'a> {
    /// Inner groups, then sets.
    pub(super) fn members(self) -> impl Iterator<Item = Member<'a>> {
        let groups = self.group.groups.iter().zip(&self.places.groups);
        let groups = groups.map(|(group, places)| Member::Group(Branch { group, places }));
        let sets = self.group.sets.iter().zip(&self.places.sets);
        let sets = sets.map(|(set, at)| Member::Set(*at, set.topology.as_ref()));
        groups.chain(sets)
    }

    /// How many of its members it needs.
    pub(super) fn needed(self) -> u32 {
        let all = self.group.groups.len() + self.group.sets.len();
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        self.group.min_children.unwrap_or(all)
    }

    /// The sets in it and below it, by their places among the gang's.
    pub(crate) fn sets_into(self, into: &mut Vec<usize>) {
        for member in self.members() {
            match member {
                Member::Group(inner) => inner.sets_into(into),
                Member::Set(at, _) => into.push(at),
            }
        }
    }
}

/// A member of a group: a set by its place among the gang's, with the topology that it requires.
#[derive(Clone, Copy)]
pub(crate) enum Member<'a> {
    Group(Branch<'a>),
    Set(usize, Option<&'a TopologyRule>),
}
