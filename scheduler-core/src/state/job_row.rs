//! Jobs: pods that are placed together, and what is known of their groups.

use crate::ids::{GroupName, QueueName, SetName};
use crate::model::{Grace, PodGroup, Preemptibility, SubGroup};
use crate::state::keys::{QueueKey, TaskKey};
use crate::state::uid::Uid;
use crate::units::{Duration, Time};
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

/// A pod group: what is its own. What many groups have alike is its [`GroupSpec`]; its name is
/// the job's.
#[derive(Clone, Debug)]
pub(crate) struct GroupRow {
    pub spec: Arc<GroupSpec>,
    pub uid: Uid,
    pub created: Time,
    pub last_start: MaybeTime,
    /// `None` if the group has none of the rare facts.
    rare: Option<Box<RareFacts>>,
}

/// What few groups have.
#[derive(Clone, Debug, Default)]
struct RareFacts {
    parked: Option<Arc<str>>,
    pub(super) stale_since: Option<Time>,
    last_evicted: Option<Time>,
    succeeded: BTreeMap<SetName, u32>,
}

/// A time, or none, in 8 bytes: an `Option` would take 16. The last millisecond that there is
/// becomes the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MaybeTime(Option<NonZeroU64>);

impl MaybeTime {
    pub(crate) fn get(self) -> Option<Time> {
        self.0.map(|later| Time(later.get() - 1))
    }
}

impl From<Option<Time>> for MaybeTime {
    fn from(time: Option<Time>) -> Self {
        Self(time.and_then(|time| NonZeroU64::new(time.0.saturating_add(1))))
    }
}

impl From<Time> for MaybeTime {
    fn from(time: Time) -> Self {
        Self::from(Some(time))
    }
}

/// What many pod groups have alike. The fields are those of [`PodGroup`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupSpec {
    pub queue: QueueName,
    pub priority: i32,
    pub preemptibility: Preemptibility,
    pub root: Arc<SubGroup>,
    /// Of the sets below the root, sorted.
    sets: Arc<[SetName]>,
    pub mark_unschedulable: bool,
    pub staleness_grace: Option<Grace>,
    pub preemption_delay: Duration,
    pub never_preempts: bool,
}

impl GroupSpec {
    /// There is a set of that name.
    pub(crate) fn has_set(&self, name: &str) -> bool {
        let found = self.sets.binary_search_by(|set| set.as_str().cmp(name));
        found.is_ok()
    }

    /// No sub-groups, and one pod is enough.
    pub(crate) fn needs_one(&self) -> bool {
        self.root.is_plain() && self.root.sets.iter().all(|set| set.min <= 1)
    }
}

impl GroupRow {
    pub(crate) fn of(group: PodGroup) -> Self {
        let mut sets = Vec::new();
        group.root.sets_into(&mut sets);
        sets.sort_unstable();
        let spec = GroupSpec {
            sets: Arc::from(sets),
            queue: group.queue,
            priority: group.priority,
            preemptibility: group.preemptibility,
            root: Arc::new(group.root),
            mark_unschedulable: group.mark_unschedulable,
            staleness_grace: group.staleness_grace,
            preemption_delay: group.preemption_delay,
            never_preempts: group.never_preempts,
        };
        Self {
            spec: Arc::new(spec),
            uid: Uid::of(&group.uid),
            created: group.created,
            last_start: group.last_start.into(),
            rare: (group.parked.is_some()
                || group.stale_since.is_some()
                || group.last_evicted.is_some()
                || !group.succeeded.is_empty())
            .then(|| {
                Box::new(RareFacts {
                    parked: group.parked,
                    stale_since: group.stale_since,
                    last_evicted: group.last_evicted,
                    succeeded: group.succeeded,
                })
            }),
        }
    }

    pub(crate) fn parked(&self) -> Option<&Arc<str>> {
        self.rare.as_ref()?.parked.as_ref()
    }

    pub(crate) fn stale_since(&self) -> Option<Time> {
        self.rare.as_ref()?.stale_since
    }

    pub(crate) fn last_evicted(&self) -> Option<Time> {
        self.rare.as_ref()?.last_evicted
    }

    /// Returns what the group's object says of members that have succeeded and are gone.
    pub(crate) fn succeeded(&self) -> &BTreeMap<SetName, u32> {
        let rare = self.rare.as_ref();
        rare.map_or(&NO_MEMBERS, |rare| &rare.succeeded)
    }

    /// What decides between groups that are alike in all else. `name`: the group's.
    pub(crate) fn tie_breaker(&self, name: &GroupName) -> Uid {
        if self.uid.is_empty() {
            Uid::of(&name.shared())
        } else {
            self.uid.clone()
        }
    }

    /// The group as its event had it.
    pub(crate) fn to_group(&self, name: GroupName) -> PodGroup {
        let spec = &self.spec;
        PodGroup {
            name,
            uid: self.uid.shared(),
            queue: spec.queue.clone(),
            priority: spec.priority,
            preemptibility: spec.preemptibility,
            created: self.created,
            root: (*spec.root).clone(),
            mark_unschedulable: spec.mark_unschedulable,
            parked: self.parked().cloned(),
            last_start: self.last_start.get(),
            stale_since: self.stale_since(),
            succeeded: self.succeeded().clone(),
            staleness_grace: spec.staleness_grace,
            preemption_delay: spec.preemption_delay,
            last_evicted: self.last_evicted(),
            never_preempts: spec.never_preempts,
        }
    }
}

static NO_MEMBERS: BTreeMap<SetName, u32> = BTreeMap::new();

/// The history of a job; few jobs have one.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobPast {
    /// The time at which a pod of it was last evicted; only a job with a preemption delay has it.
    pub last_evicted: Option<Time>,
    /// The number of members, by pod set, that have succeeded and whose pods are gone.
    pub succeeded: BTreeMap<SetName, u32>,
}

/// A job: pods that are placed together.
#[derive(Clone, Debug)]
pub(crate) struct JobRow {
    /// Its group's.
    pub name: GroupName,
    /// `None` for a pod of its own, or while the group is not there.
    pub group: Option<GroupRow>,
    /// True for a pod of its own.
    pub single: bool,
    /// In their order.
    pub tasks: Vec<TaskKey>,
    /// Another one whenever a pod of it has moved: what was computed from it is void.
    pub stamp: u64,
    pub queue: Option<QueueKey>,
    /// When it last went from nothing to something.
    pub last_start: MaybeTime,
    /// Since when it runs below its minimum.
    pub stale_since: MaybeTime,
    /// `None` if the job has no history.
    pub(super) past: Option<Box<JobPast>>,
    /// It is in [`Changes::maybe_stale`](crate::state::changes::Changes::maybe_stale).
    pub maybe_stale: bool,
    /// It is in [`super::outputs::Outputs::changed_groups`].
    pub is_changed: bool,
    /// A digest of the view that was taken last of the group. `None`: it has none, or none was
    /// taken.
    pub taken: Option<NonZeroU64>,
}

impl JobRow {
    pub(crate) fn last_evicted(&self) -> Option<Time> {
        self.past.as_ref()?.last_evicted
    }

    pub(crate) fn succeeded(&self) -> &BTreeMap<SetName, u32> {
        let past = self.past.as_ref();
        past.map_or(&NO_MEMBERS, |past| &past.succeeded)
    }

    pub(crate) fn past_mut(&mut self) -> &mut JobPast {
        self.past.get_or_insert_default()
    }

    /// Returns the number of members of that set that have succeeded and are gone.
    pub(crate) fn gone_of(&self, set: &str) -> u32 {
        let mut gone = self.succeeded().iter();
        let gone = gone.find(|(name, _)| name.as_str() == set);
        gone.map_or(0, |(_, count)| *count)
    }

    /// Returns whether the group's object does not show the known number of succeeded members.
    pub(crate) fn owes_succeeded(&self) -> bool {
        let group = self.group.as_ref();
        group.is_some_and(|group| group.succeeded() != self.succeeded())
    }

    /// The group's tree, where it has sub-groups.
    pub(crate) fn tree(&self) -> Option<&Arc<SubGroup>> {
        let root = &self.group.as_ref()?.spec.root;
        Some(root).filter(|root| !root.is_plain())
    }
}
