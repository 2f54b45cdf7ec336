//! Gangs: which pods of a job go together, which go next, and which leave first.
//!
//! Rules (KAI, `api/podgroup_info`): a set below its minimum is filled at once, all sets
//! that the group's tree needs together; above the minimum one pod at a time. In the
//! other direction the last pod of a set above its minimum goes first, one at a time,
//! then the least member of a group that has more than it needs; else the whole gang
//! goes.

mod order;
mod tree;

pub(crate) use crate::gang::tree::{Branch, Member, Tree};
use crate::ids::SetName;
use crate::model::{Preemptibility, SubGroup};
use crate::state::State;
use crate::state::job_row::JobRow;
use crate::state::keys::{JobKey, TaskKey};
use crate::state::rows::{Seen, TaskRow};
use crate::state::task_cell::Status;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Ordering;
use std::sync::LazyLock;

/// One pod set of a job with the pods that belong to it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Set {
    pub name: SetName,
    /// The number of pods that must be placed: the set's minimum less its members that have
    /// succeeded.
    pub min: u32,
    /// In task order.
    pub tasks: Vec<(TaskKey, Status)>,
    allocated: u32,
    active: u32,
    promised: u32,
    /// Placed, or waiting without a gate.
    alive: u32,
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
            alive: 0,
        }
    }

    /// Subtracts this many succeeded members from the minimum; their pods may be gone.
    fn succeeded(&mut self, count: u32) {
        self.min = self.min.saturating_sub(count);
    }

    fn add(&mut self, task: TaskKey, status: Status, gated: bool) {
        self.tasks.push((task, status));
        self.count(status, gated, |sum, one| *sum += one);
    }

    /// A pod of that status comes or goes.
    fn count(&mut self, status: Status, gated: bool, change: impl Fn(&mut u32, u32)) {
        let waits = status == Status::Pending && !gated;
        change(&mut self.allocated, u32::from(status.is_allocated()));
        change(&mut self.active, u32::from(status.is_active()));
        change(&mut self.promised, u32::from(status == Status::Promised));
        change(&mut self.alive, u32::from(waits || status.is_allocated()));
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
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Gang {
    /// In order of name.
    pub sets: Vec<Set>,
    /// `None`: one set, needed.
    pub tree: Option<Tree>,
    /// Pods with a gate.
    gated: FxHashSet<TaskKey>,
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
    let mut gang = Gang {
        sets: Vec::new(),
        tree: None,
        gated: FxHashSet::default(),
    };
    let Some(job) = state.jobs.get(key) else {
        return gang;
    };
    match &job.group {
        Some(group) => collect(&group.spec.root, &mut gang.sets, 0),
        None => gang.sets.push(Set::new(default_set(), 1)),
    }
    if !job.succeeded().is_empty() {
        for set in &mut gang.sets {
            set.succeeded(job.gone_of(set.name.as_str()));
        }
    }
    let tasks = job.tasks.iter().filter_map(|task| {
        let row = state.tasks.get(*task)?;
        if row.gated {
            gang.gated.insert(*task);
        }
        let status = state.cells.tasks.get(*task)?.status;
        Some((set_name(row), *task, status, row))
    });
    let add = |set: &mut Set, task, status, row: &TaskRow| {
        set.add(task, status, row.gated);
        set.succeeded(u32::from(row.seen == Seen::Succeeded));
    };
    if let ([set], None) = (gang.sets.as_mut_slice(), job.tree()) {
        for (name, task, status, row) in tasks {
            if name == set.name.as_str() {
                add(set, task, status, row);
            }
        }
        return gang;
    }
    gang.sets.sort_by(|one, other| one.name.cmp(&other.name));
    // By hash: to compare names, for each of thousands of pods, was most of a decision.
    let places = gang.sets.iter().enumerate();
    let places: FxHashMap<SetName, usize> =
        places.map(|(at, set)| (set.name.clone(), at)).collect();
    for (name, task, status, row) in tasks {
        if let Some(set) = places.get(name).and_then(|at| gang.sets.get_mut(*at)) {
            add(set, task, status, row);
        }
    }
    gang.tree = job.tree().map(|root| Tree::of(root, &places));
    gang
}

/// The name of a pod's set.
fn set_name(row: &TaskRow) -> &str {
    let name = row.facts.set.as_ref();
    name.map_or(DEFAULT_SET, |name| name.as_str())
}

fn collect(group: &SubGroup, into: &mut Vec<Set>, depth: u32) {
    if depth > tree::DEEPEST {
        return;
    }
    for set in &group.sets {
        into.push(Set::new(set.name.clone(), set.min));
    }
    for inner in &group.groups {
        collect(inner, into, depth + 1);
    }
}

impl Gang {
    /// The place of a pod's set among the sets.
    pub(crate) fn place_of(&self, row: &TaskRow) -> Option<usize> {
        let name = set_name(row);
        match self.sets.as_slice() {
            [set] => (set.name.as_str() == name).then_some(0),
            sets => {
                let found = sets.binary_search_by(|set| set.name.as_str().cmp(name));
                found.ok()
            }
        }
    }

    /// A pod of the job has another status than before. `Some`: the one that it had here, where it
    /// is in a set. The job's pods, and what their rows say, are the same as before.
    pub(crate) fn follow(&mut self, state: &State, task: TaskKey) -> Option<Status> {
        let row = state.tasks.get(task)?;
        let status = state.cells.tasks.get(task)?.status;
        let at = self.place_of(row)?;
        let gated = self.gated.contains(&task);
        let set = self.sets.get_mut(at)?;
        let at = set.tasks.partition_point(|(other, _)| {
            let other = state.tasks.get(*other);
            other.is_some_and(|other| other.in_job() < row.in_job())
        });
        let (_, known) = set.tasks.get_mut(at).filter(|(known, _)| *known == task)?;
        let old = std::mem::replace(known, status);
        set.count(old, gated, |sum, one| *sum -= one);
        set.count(status, gated, |sum, one| *sum += one);
        Some(old)
    }

    /// All of its needed sets, by what `ready` says of a set.
    fn is_met(&self, ready: &dyn Fn(&Set) -> bool) -> bool {
        match &self.tree {
            None => self.sets.iter().all(ready),
            Some(tree) => self.is_branch_ready(tree.root(), ready),
        }
    }

    /// Enough pods exist, gates aside, for the group's minimum.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_met(&|set| set.alive >= set.min)
    }

    /// All pods that the minimum needs are placed, leaving ones included.
    pub(crate) fn is_satisfied(&self) -> bool {
        self.is_met(&|set| set.active() >= set.min)
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
        match &self.tree {
            None => self
                .sets
                .first()
                .map(|set| next_of_set(set, pick, may))
                .unwrap_or_default(),
            Some(tree) => self.next_of_branch(tree.root(), pick, may),
        }
    }

    fn next_of_branch(
        &self,
        branch: Branch,
        pick: Pick,
        may: &dyn Fn(TaskKey) -> bool,
    ) -> Vec<TaskKey> {
        let (has, needs) = (self.satisfied(branch), branch.needed());
        if has >= needs {
            return self.first_of(branch, |member| self.next_of(member, pick, may));
        }
        let mut missing = needs - has;
        let mut tasks = Vec::new();
        for member in self.ordered(branch, |_| true) {
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
            Member::Group(inner) => self.next_of_branch(inner, pick, may),
            Member::Set(at, _) => self
                .set_at(at)
                .map(|set| next_of_set(set, pick, may))
                .unwrap_or_default(),
        }
    }

    /// Returns whether all pods that the minimum needs have a place, leaving ones not included. The
    /// next pods of such a job are beyond its minimum.
    pub(crate) fn has_minimum(&self) -> bool {
        self.is_met(&|set| set.allocated() >= set.min)
    }

    /// Returns the core of a semi-preemptible job (KAI's core pods). Each group in the tree contributes
    /// as many members as it needs: members that have their own minimum come first, then the order is
    /// by name. Each set contributes its first placed pods, up to its minimum.
    pub(crate) fn core_pods(&self) -> Vec<TaskKey> {
        let mut core = Vec::new();
        match &self.tree {
            None => core.extend(self.sets.first().into_iter().flat_map(core_of_set)),
            Some(tree) => self.core_of_branch(tree.root(), &mut core),
        }
        core
    }

    fn core_of_branch(&self, branch: Branch, core: &mut Vec<TaskKey>) {
        let (members, _) = self.core_members(branch);
        for member in members {
            match member {
                Member::Group(inner) => self.core_of_branch(inner, core),
                Member::Set(at, _) => {
                    core.extend(self.set_at(at).into_iter().flat_map(core_of_set));
                }
            }
        }
    }

    /// Returns the pods of a semi-preemptible job that leave first, together, the last one first, and
    /// whether more would follow. The core never leaves. Pods of a member that is neither in the core nor has its
    /// own minimum go before the surplus: they do nothing for the job.
    pub(crate) fn leave_beyond_core(&self) -> (Vec<TaskKey>, bool) {
        let mut leaving = match &self.tree {
            None => self.sets.first().map(last_of_surplus).unwrap_or_default(),
            Some(tree) => {
                let idle = self.idle_beside_core(tree.root());
                if idle.is_empty() {
                    self.surplus(tree.root())
                } else {
                    idle
                }
            }
        };
        let core: FxHashSet<TaskKey> = self.core_pods().into_iter().collect();
        leaving.retain(|task| !core.contains(task));
        let all: u32 = self.sets.iter().map(Set::allocated).sum();
        let more = !leaving.is_empty() && leaving.len() < all as usize;
        (leaving, more)
    }

    /// Returns the pods of the first member outside the core that lacks its own minimum. While the group
    /// itself lacks its minimum, they may be the next to fill it.
    fn idle_beside_core(&self, branch: Branch) -> Vec<TaskKey> {
        if self.satisfied(branch) < branch.needed() {
            return Vec::new();
        }
        let (core, others) = self.core_members(branch);
        let lacks = |member: &Member| {
            let (has, needs) = self.progress(*member);
            has < needs
        };
        let idle = others.into_iter().filter(lacks);
        let idle = idle.map(|member| self.all_of(member));
        let below = core.into_iter().map(|member| match member {
            Member::Group(inner) => self.idle_beside_core(inner),
            Member::Set(..) => Vec::new(),
        });
        idle.chain(below)
            .find(|pods| !pods.is_empty())
            .unwrap_or_default()
    }

    /// The pods that leave first, together, last first; and whether more would follow.
    pub(crate) fn leave(&self) -> (Vec<TaskKey>, bool) {
        let mut leaving = match &self.tree {
            None => self.sets.first().map(last_of_surplus).unwrap_or_default(),
            Some(tree) => self.surplus(tree.root()),
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
    fn surplus(&self, branch: Branch) -> Vec<TaskKey> {
        let has = self.satisfied(branch);
        if has == 0 {
            return Vec::new();
        }
        let mut members = self.ordered(branch, |_| true);
        members.reverse();
        let pods = members.iter().map(|member| match member {
            Member::Group(inner) => self.surplus(*inner),
            Member::Set(at, _) => self.set_at(*at).map(last_of_surplus).unwrap_or_default(),
        });
        if let Some(pods) = pods.into_iter().find(|pods| !pods.is_empty()) {
            return pods;
        }
        if has <= branch.needed() {
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
            Member::Set(at, _) => self.set_at(at).map(all_of_set).unwrap_or_default(),
            Member::Group(inner) => inner
                .members()
                .flat_map(|member| self.all_of(member))
                .collect(),
        }
    }

    /// The same job with some of its pods only.
    #[must_use]
    pub(crate) fn with(&self, keep: &dyn Fn(TaskKey, Status) -> bool) -> Self {
        let kept = |set: &Set| {
            let mut kept = Set::new(set.name.clone(), set.min);
            for (task, status) in set
                .tasks
                .iter()
                .filter(|(task, status)| keep(*task, *status))
            {
                kept.add(*task, *status, self.gated.contains(task));
            }
            kept
        };
        Self {
            sets: self.sets.iter().map(kept).collect(),
            tree: self.tree.clone(),
            gated: self.gated.clone(),
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

/// The pods of a set that are placed or have a promise, last first.
fn all_of_set(set: &Set) -> Vec<TaskKey> {
    set.tasks
        .iter()
        .rev()
        .filter(|(_, status)| status.is_allocated())
        .map(|(task, _)| *task)
        .collect()
}

/// Returns the first pods of a set that are placed or have a promise, up to the set's minimum.
fn core_of_set(set: &Set) -> impl Iterator<Item = TaskKey> + '_ {
    let placed = set.tasks.iter().filter(|(_, status)| status.is_allocated());
    placed.take(set.min as usize).map(|(task, _)| *task)
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
        let spec = &group.spec;
        // Whether its next pod counts against quotas depends on where its pods are.
        self.tasks.len() == 1
            && spec.needs_one()
            && spec.preemptibility != Preemptibility::SemiPreemptible
            && spec.preemption_delay.0 == 0
            && !spec.never_preempts
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

    /// Returns the preemptibility of the job. While the group of a semi-preemptible pod is not there, the
    /// minimum is not known, and each pod may be needed.
    pub(crate) fn preemptibility(&self, state: &State) -> Preemptibility {
        match &self.group {
            Some(group) => group.spec.preemptibility,
            None => (self.only(state)).map_or(Preemptibility::NonPreemptible, TaskRow::alone),
        }
    }

    /// Returns true if all pods of the job may be evicted.
    pub(crate) fn is_preemptible(&self, state: &State) -> bool {
        self.preemptibility(state) == Preemptibility::Preemptible
    }
}

impl TaskRow {
    /// Returns the preemptibility of the pod without a group.
    pub(crate) fn alone(&self) -> Preemptibility {
        match self.facts.preemptibility {
            Preemptibility::SemiPreemptible => Preemptibility::NonPreemptible,
            other => other,
        }
    }
}

impl State {
    /// Returns the core of a job. A job that is not semi-preemptible has none.
    pub(crate) fn core_of(&self, job: JobKey) -> Vec<TaskKey> {
        let row = self.jobs.get(job);
        if row.is_none_or(|row| row.preemptibility(self) != Preemptibility::SemiPreemptible) {
            return Vec::new();
        }
        of(self, job).core_pods()
    }

    /// Returns whether the next pods of a job may bring its queues above their quotas.
    pub(crate) fn may_exceed_quota(&self, job: JobKey) -> bool {
        match self.jobs.get(job).map(|row| row.preemptibility(self)) {
            Some(Preemptibility::Preemptible) => true,
            Some(Preemptibility::SemiPreemptible) => of(self, job).has_minimum(),
            Some(Preemptibility::NonPreemptible) | None => false,
        }
    }
}
