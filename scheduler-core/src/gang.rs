//! Gangs: which pods of a job go together, which go next, and which leave first.
//!
//! Rules (KAI, `api/podgroup_info`): a set below its minimum is filled at once, all sets
//! that the group's tree needs together; above the minimum one pod at a time. In the
//! other direction the last pod of a set above its minimum goes first, one at a time,
//! then the least member of a group that has more than it needs; else the whole gang
//! goes.

use crate::ids::SetName;
use crate::model::SubGroup;
use crate::state::State;
use crate::state::cell::Status;
use crate::state::job_row::JobRow;
use crate::state::rows::{JobKey, TaskKey};
use rustc_hash::FxHashMap;
use std::cmp::Ordering;
use std::sync::{Arc, LazyLock};

/// One pod set of a job with the pods that belong to it.
#[derive(Clone, Debug)]
pub(crate) struct Set {
    pub name: SetName,
    pub min: u32,
    /// In task order.
    pub tasks: Vec<(TaskKey, Status)>,
    allocated: u32,
    active: u32,
    promised: u32,
}

impl Set {
    fn new(name: SetName, min: u32) -> Self {
        Self {
            name,
            min,
            tasks: Vec::new(),
            allocated: 0,
            active: 0,
            promised: 0,
        }
    }

    fn add(&mut self, task: TaskKey, status: Status) {
        self.tasks.push((task, status));
        self.allocated += u32::from(status.is_allocated());
        self.active += u32::from(status.is_active());
        self.promised += u32::from(status == Status::Promised);
    }

    /// KAI's `numActiveAllocatedTasks`.
    pub(crate) fn allocated(&self) -> u32 {
        self.allocated
    }

    /// KAI's `numActiveUsedTasks`.
    pub(crate) fn active(&self) -> u32 {
        self.active
    }
}

/// A job's sets and how they hang together.
#[derive(Clone, Debug)]
pub(crate) struct Gang {
    /// In order of name.
    pub sets: Vec<Set>,
    /// `None`: one set, needed.
    pub root: Option<Arc<SubGroup>>,
}

/// The progress of a job, which `JobOrder` compares after priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AvailabilityTier {
    Below,
    Exactly,
    Above,
}

/// Which pods may be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pick {
    /// Those that wait and are not hindered.
    Waiting,
    /// Victims of this trial as well.
    WaitingAndVictims,
}

impl Pick {
    fn takes(self, status: Status) -> bool {
        status == Status::Pending || self == Self::WaitingAndVictims && status == Status::Victim
    }
}

/// The name of the one set of a job without sub-groups.
pub(crate) const DEFAULT_SET: &str = "default";

/// [`DEFAULT_SET`], of which there is one text.
pub(crate) fn default_set() -> SetName {
    static NAME: LazyLock<SetName> = LazyLock::new(|| SetName::new(DEFAULT_SET));
    NAME.clone()
}

/// The sets of a job with the state of their pods. Pods that are not to be placed yet
/// (gates, pauses) are left out of what may be picked, not of what counts.
pub(crate) fn of(state: &State, key: JobKey) -> Gang {
    let Some(job) = state.jobs.get(key) else {
        return Gang {
            sets: Vec::new(),
            root: None,
        };
    };
    let mut sets = Vec::new();
    match &job.group {
        Some(group) => collect(&group.spec.root, &mut sets, 0),
        None => sets.push(Set::new(default_set(), 1)),
    }
    let tasks = job.tasks.iter().filter_map(|task| {
        let row = state.tasks.get(*task)?;
        let name = row.facts.set.as_ref();
        let name = name.map_or(DEFAULT_SET, |name| name.as_str());
        Some((name, *task, state.task_cells.get(*task)?.status))
    });
    if let [set] = sets.as_mut_slice() {
        for (name, task, status) in tasks {
            if name == set.name.as_str() {
                set.add(task, status);
            }
        }
    } else {
        sets.sort_by(|one, other| one.name.cmp(&other.name));
        // By hash: to compare names, for each of thousands of pods, was most of a decision.
        let names: Vec<SetName> = sets.iter().map(|set| set.name.clone()).collect();
        let places = names.iter().enumerate();
        let places: FxHashMap<&str, usize> = places.map(|(at, name)| (name.as_str(), at)).collect();
        for (name, task, status) in tasks {
            if let Some(at) = places.get(name) {
                sets[*at].add(task, status);
            }
        }
    }
    Gang {
        sets,
        root: job.tree().cloned(),
    }
}

fn collect(group: &SubGroup, into: &mut Vec<Set>, depth: u32) {
    // The same depth as in the check of events.
    if depth > 64 {
        return;
    }
    for set in &group.sets {
        into.push(Set::new(set.name.clone(), set.min));
    }
    for inner in &group.groups {
        collect(inner, into, depth + 1);
    }
}

/// A member of a group's tree.
#[derive(Clone, Copy)]
enum Member<'a> {
    Group(&'a SubGroup),
    Set(&'a Set),
}

impl Gang {
    fn set(&self, name: &SetName) -> Option<&Set> {
        let at = self.sets.binary_search_by(|set| set.name.cmp(name)).ok()?;
        self.sets.get(at)
    }

    fn members<'a>(&'a self, group: &'a SubGroup) -> Vec<Member<'a>> {
        let groups = group.groups.iter().map(Member::Group);
        let sets = group
            .sets
            .iter()
            .filter_map(|set| Some(Member::Set(self.set(&set.name)?)));
        groups.chain(sets).collect()
    }

    fn name(member: Member<'_>) -> &str {
        match member {
            Member::Group(group) => group.name.as_ref().map_or("", |name| name.as_str()),
            Member::Set(set) => set.name.as_str(),
        }
    }

    /// How many of its parts a member has, and how many it needs.
    fn progress(&self, member: Member) -> (u32, u32) {
        match member {
            Member::Set(set) => (set.allocated(), set.min),
            Member::Group(group) => (self.satisfied(group), needed(group)),
        }
    }

    fn satisfied(&self, group: &SubGroup) -> u32 {
        let done = self
            .members(group)
            .into_iter()
            .filter(|member| {
                let (has, needs) = self.progress(*member);
                has >= needs
            })
            .count();
        u32::try_from(done).unwrap_or(u32::MAX)
    }

    /// Groups of a group, in their order.
    pub(crate) fn ordered_groups<'a>(&'a self, group: &'a SubGroup) -> Vec<&'a SubGroup> {
        self.ordered(group)
            .into_iter()
            .filter_map(|member| match member {
                Member::Group(group) => Some(group),
                Member::Set(_) => None,
            })
            .collect()
    }

    /// Sets of a group, in their order.
    pub(crate) fn ordered_sets<'a>(&'a self, group: &'a SubGroup) -> Vec<&'a Set> {
        self.ordered(group)
            .into_iter()
            .filter_map(|member| match member {
                Member::Set(set) => Some(set),
                Member::Group(_) => None,
            })
            .collect()
    }

    /// KAI's order of sub-groups: below the minimum first; then those that must be there
    /// before those that need not, the relatively emptier first; then by name.
    fn ordered<'a>(&'a self, group: &'a SubGroup) -> Vec<Member<'a>> {
        let mut members = self.members(group);
        members.sort_by(|one, other| {
            let ((a, a_min), (b, b_min)) = (self.progress(*one), self.progress(*other));
            let by_fill = if a < a_min && b < b_min {
                Ordering::Equal
            } else {
                // a / a_min against b / b_min without dividing.
                let left = u64::from(a) * u64::from(b_min.max(1));
                let right = u64::from(b) * u64::from(a_min.max(1));
                (a >= a_min, a_min == 0, left).cmp(&(b >= b_min, b_min == 0, right))
            };
            by_fill.then_with(|| Self::name(*one).cmp(Self::name(*other)))
        });
        members
    }

    /// Enough pods exist, gates aside, for the group's minimum.
    pub(crate) fn is_ready(&self, is_gated: &dyn Fn(TaskKey) -> bool) -> bool {
        let ready = |set: &Set| {
            let alive = set
                .tasks
                .iter()
                .filter(|(task, status)| {
                    status.is_allocated() || *status == Status::Pending && !is_gated(*task)
                })
                .count();
            alive >= set.min as usize
        };
        match &self.root {
            None => self.sets.iter().all(ready),
            Some(root) => self.is_group_ready(root, &ready),
        }
    }

    fn is_group_ready(&self, group: &SubGroup, ready: &dyn Fn(&Set) -> bool) -> bool {
        let count = self
            .members(group)
            .into_iter()
            .filter(|member| match member {
                Member::Set(set) => ready(set),
                Member::Group(group) => self.is_group_ready(group, ready),
            })
            .count();
        count >= needed(group) as usize
    }

    /// All pods that the minimum needs are placed, leaving ones included.
    pub(crate) fn is_satisfied(&self) -> bool {
        let formed = |set: &Set| set.active() >= set.min;
        match &self.root {
            None => self.sets.iter().all(formed),
            Some(root) => self.is_group_ready(root, &formed),
        }
    }

    /// KAI's staleness: some pod is placed, the gang is below its minimum, and no pod has
    /// succeeded.
    pub(crate) fn is_stale(&self) -> bool {
        let active: u32 = self.sets.iter().map(Set::active).sum();
        active > 0 && !self.is_satisfied()
    }

    pub(crate) fn availability_tier(&self) -> AvailabilityTier {
        let mut availability_tier = AvailabilityTier::Exactly;
        for set in &self.sets {
            match set.allocated().cmp(&set.min) {
                Ordering::Less => return AvailabilityTier::Below,
                Ordering::Equal => {}
                Ordering::Greater => availability_tier = AvailabilityTier::Above,
            }
        }
        availability_tier
    }

    /// True when the job has more pods than its minimum in some set.
    pub(crate) fn is_elastic(&self) -> bool {
        self.sets
            .iter()
            .any(|set| set.tasks.len() > set.min as usize)
    }

    /// The pods to place next, together.
    pub(crate) fn next(&self, pick: Pick, may: &dyn Fn(TaskKey) -> bool) -> Vec<TaskKey> {
        match &self.root {
            None => self
                .sets
                .first()
                .map(|set| next_of_set(set, pick, may))
                .unwrap_or_default(),
            Some(root) => self.next_of_group(root, pick, may),
        }
    }

    fn next_of_group(
        &self,
        group: &SubGroup,
        pick: Pick,
        may: &dyn Fn(TaskKey) -> bool,
    ) -> Vec<TaskKey> {
        let members = self.ordered(group);
        let (has, needs) = (self.satisfied(group), needed(group));
        if has >= needs {
            return members
                .into_iter()
                .map(|member| self.next_of(member, pick, may))
                .find(|tasks| !tasks.is_empty())
                .unwrap_or_default();
        }
        let mut missing = needs - has;
        let mut tasks = Vec::new();
        for member in members {
            if missing == 0 {
                break;
            }
            let (has, needs) = self.progress(member);
            if has >= needs {
                continue;
            }
            let more = self.next_of(member, pick, may);
            if more.is_empty() {
                continue;
            }
            tasks.extend(more);
            missing -= 1;
        }
        if missing > 0 {
            tasks.clear();
        }
        tasks
    }

    fn next_of(&self, member: Member, pick: Pick, may: &dyn Fn(TaskKey) -> bool) -> Vec<TaskKey> {
        match member {
            Member::Group(group) => self.next_of_group(group, pick, may),
            Member::Set(set) => next_of_set(set, pick, may),
        }
    }

    /// The pods that leave first, together, last first; and whether more would follow.
    pub(crate) fn leave(&self) -> (Vec<TaskKey>, bool) {
        let mut leaving = match &self.root {
            None => self.sets.first().map(last_of_surplus).unwrap_or_default(),
            Some(root) => self.surplus(root),
        };
        if leaving.is_empty() {
            let mut sets: Vec<&Set> = self.sets.iter().collect();
            sets.sort_by(|one, other| other.name.cmp(&one.name));
            leaving = sets.into_iter().flat_map(all_of_set).collect();
        }
        let all: u32 = self.sets.iter().map(Set::allocated).sum();
        let more = leaving.len() < all as usize;
        (leaving, more)
    }

    /// What a group can lose and still meet its minimum
    fn surplus(&self, group: &SubGroup) -> Vec<TaskKey> {
        let has = self.satisfied(group);
        if has == 0 {
            return Vec::new();
        }
        let mut members = self.ordered(group);
        members.reverse();
        let pods = members.iter().map(|member| match member {
            Member::Group(inner) => self.surplus(inner),
            Member::Set(set) => last_of_surplus(set),
        });
        if let Some(pods) = pods.into_iter().find(|pods| !pods.is_empty()) {
            return pods;
        }
        if has <= needed(group) {
            return Vec::new();
        }
        members
            .iter()
            .map(|member| self.all_of(*member))
            .find(|pods| !pods.is_empty())
            .unwrap_or_default()
    }

    fn all_of(&self, member: Member<'_>) -> Vec<TaskKey> {
        match member {
            Member::Set(set) => all_of_set(set),
            Member::Group(group) => self
                .members(group)
                .into_iter()
                .flat_map(|inner| self.all_of(inner))
                .collect(),
        }
    }

    /// The same job with some of its pods only.
    #[must_use]
    pub(crate) fn with(&self, keep: &dyn Fn(TaskKey) -> bool) -> Self {
        let kept = |set: &Set| {
            let mut kept = Set::new(set.name.clone(), set.min);
            for (task, status) in set.tasks.iter().filter(|(task, _)| keep(*task)) {
                kept.add(*task, *status);
            }
            kept
        };
        Self {
            sets: self.sets.iter().map(kept).collect(),
            root: self.root.clone(),
        }
    }

    /// The whole gang waits: part of it was only promised, and the placed part is below the
    /// minimum.
    pub(crate) fn must_wait_whole(&self) -> bool {
        self.sets
            .iter()
            .any(|set| set.promised > 0 && set.allocated - set.promised < set.min)
    }

    /// All pods in it.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = (TaskKey, Status)> + '_ {
        self.sets.iter().flat_map(|set| set.tasks.iter().copied())
    }
}

fn needed(group: &SubGroup) -> u32 {
    let all = u32::try_from(group.groups.len() + group.sets.len()).unwrap_or(u32::MAX);
    group.min_children.unwrap_or(all)
}

/// The pods of a set that are placed or have a promise, last first.
fn all_of_set(set: &Set) -> Vec<TaskKey> {
    set.tasks
        .iter()
        .rev()
        .filter(|(_, status)| status.is_allocated())
        .map(|(task, _)| *task)
        .collect()
}

/// The last pod of a set that has more than its minimum.
fn last_of_surplus(set: &Set) -> Vec<TaskKey> {
    let mut pods = all_of_set(set);
    let keep = usize::from(pods.len() > set.min as usize);
    pods.truncate(keep);
    pods
}

/// As many as the set lacks, and none if it has not that many; one if it lacks none.
fn next_of_set(set: &Set, pick: Pick, may: &dyn Fn(TaskKey) -> bool) -> Vec<TaskKey> {
    let lacks = set.min.saturating_sub(set.allocated()) as usize;
    let mut tasks: Vec<TaskKey> = set
        .tasks
        .iter()
        .filter(|(task, status)| pick.takes(*status) && (*status == Status::Victim || may(*task)))
        .map(|(task, _)| *task)
        .take(lacks.max(1))
        .collect();
    if tasks.len() < lacks {
        tasks.clear();
    }
    tasks
}

impl JobRow {
    /// One pod that does not differ from a single pod in anything that affects placement.
    pub(crate) fn is_like_alone(&self) -> bool {
        let Some(group) = &self.group else {
            return self.single;
        };
        self.tasks.len() == 1 && group.spec.needs_one() && group.spec.preemption_delay.0 == 0
    }

    /// One pod is all that it needs, and it is not marked.
    pub(crate) fn is_never_stale(&self) -> bool {
        let needs_one = match &self.group {
            Some(group) => group.spec.needs_one(),
            None => true,
        };
        needs_one && self.stale_since.get().is_none()
    }

    /// What orders jobs of one queue, growth aside.
    pub(crate) fn priority(&self, state: &State) -> i32 {
        match &self.group {
            Some(group) => group.spec.priority,
            None => self.only(state).map_or(0, |row| row.facts.priority),
        }
    }

    pub(crate) fn only<'a>(&self, state: &'a State) -> Option<&'a crate::state::rows::TaskRow> {
        let first = self.tasks.first()?;
        state.tasks.get(*first)
    }

    pub(crate) fn is_preemptible(&self, state: &State) -> bool {
        match &self.group {
            Some(group) => group.spec.preemptible,
            None => self.only(state).is_some_and(|row| row.facts.preemptible),
        }
    }
}
