//! Pod groups, their trees, and topologies.

use crate::ids::{GroupName, QueueName, SetName, TopologyName};
use crate::units::{Duration, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A gang, or any set of pods that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodGroup {
    /// `namespace/name`.
    pub name: GroupName,
    /// `metadata.uid`. Empty while the group is known and its object is not made yet.
    pub uid: Arc<str>,
    /// A leaf queue.
    pub queue: QueueName,
    /// Of the priority class; higher is placed first.
    pub priority: i32,
    /// Whether it may be a victim and may go over quota.
    pub preemptibility: Preemptibility,
    /// `metadata.creationTimestamp`.
    pub created: Time,
    /// Sets of sets of pods. A group without sub-groups has one pod set `default`.
    pub root: SubGroup,
    /// Whether the shell writes `PodScheduled=False` for its pods.
    pub mark_unschedulable: bool,
    /// KAI's `schedulingBackoff: 1`, and it was tried in this node pool without success: the reason
    /// of its pods. None of its pods is tried until its object changes that.
    pub parked: Option<Arc<str>>,
    /// When the group last went from nothing to something, for min-runtime.
    pub last_start: Option<Time>,
    /// When the group was first seen below its minimum with pods running.
    pub stale_since: Option<Time>,
    /// The number of members, by pod set, that have succeeded and whose pods are gone. They count
    /// towards the minimum, as do those whose pods still exist.
    pub succeeded: BTreeMap<SetName, u32>,
    /// Own grace before a stale gang is evicted; `None`: the configuration's.
    pub staleness_grace: Option<Grace>,
    /// The time that the group must be pending before pods may be evicted for it. It begins when
    /// the group is created, and again when one of its pods is evicted.
    pub preemption_delay: Duration,
    /// The time at which one of its pods was last evicted; only a group with a delay has it.
    pub last_evicted: Option<Time>,
    /// True if its priority class has `preemptionPolicy: Never`, so that no pod is evicted for it.
    pub never_preempts: bool,
}

/// The rule by which pods of a workload may be evicted for others, and count against quotas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Preemptibility {
    /// All of its pods may be evicted, and none counts against a quota.
    #[default]
    Preemptible,
    /// The pods that the group's minimum needs, its core, count as those of a non-preemptible group, and
    /// the pods beyond it as those of a preemptible one.
    SemiPreemptible,
    /// None of its pods may be evicted, and all count against quotas.
    NonPreemptible,
}

impl From<bool> for Preemptibility {
    /// `true`: preemptible; `false`: non-preemptible.
    fn from(preemptible: bool) -> Self {
        if preemptible {
            Self::Preemptible
        } else {
            Self::NonPreemptible
        }
    }
}

/// A limit on how long a state may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grace {
    /// The state may last for ever.
    Never,
    /// The state may last this long.
    For(Duration),
}

impl PodGroup {
    /// A group of `default-queue` without sub-groups that needs `min` pods at once.
    /// `name`: `namespace/name`.
    #[must_use]
    pub fn named(name: &str, min: u32) -> Self {
        Self {
            name: GroupName::new(name),
            uid: Arc::from(name),
            queue: QueueName::new("default-queue"),
            priority: 50,
            preemptibility: Preemptibility::Preemptible,
            created: Time(0),
            root: SubGroup {
                sets: vec![PodSet {
                    name: SetName::new("default"),
                    min,
                    topology: None,
                }],
                ..SubGroup::default()
            },
            mark_unschedulable: true,
            parked: None,
            last_start: None,
            stale_since: None,
            succeeded: BTreeMap::new(),
            staleness_grace: None,
            preemption_delay: Duration(0),
            last_evicted: None,
            never_preempts: false,
        }
    }
}

/// An inner node of a group's tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SubGroup {
    /// Unique in the group.
    pub name: Option<SetName>,
    /// How many of the children must be satisfied; `None`: all.
    pub min_children: Option<u32>,
    /// Where it must or should be together.
    pub topology: Option<TopologyRule>,
    /// Inner children.
    pub groups: Vec<SubGroup>,
    /// Leaf children.
    pub sets: Vec<PodSet>,
}

impl SubGroup {
    /// One set, needed, bound to no topology.
    pub(crate) fn is_plain(&self) -> bool {
        self.groups.is_empty()
            && self.min_children.is_none()
            && self.topology.is_none()
            && matches!(self.sets.as_slice(), [only] if only.topology.is_none())
    }

    /// Adds the names of the sets in it and below it.
    pub(crate) fn sets_into(&self, names: &mut Vec<SetName>) {
        names.extend(self.sets.iter().map(|set| set.name.clone()));
        for inner in &self.groups {
            inner.sets_into(names);
        }
    }
}

/// A leaf of a group's tree: pods of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodSet {
    /// Unique in the group; `default` in a group without sub-groups.
    pub name: SetName,
    /// How many pods must be placed at once.
    pub min: u32,
    /// Where it must or should be together.
    pub topology: Option<TopologyRule>,
}

/// Levels of a topology that a part of a group is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopologyRule {
    /// Which topology.
    pub topology: TopologyName,
    /// All in one domain of this level.
    pub required: Option<Arc<str>>,
    /// In one domain of this level, if possible.
    pub preferred: Option<Arc<str>>,
}

/// Levels of a data centre.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Its name.
    pub name: TopologyName,
    /// Node label keys, widest first.
    pub levels: Vec<Arc<str>>,
    /// Other names of levels, each with its node label key. A key goes before a name.
    pub aliases: BTreeMap<Arc<str>, Arc<str>>,
}
