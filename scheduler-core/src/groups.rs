//! What each pod group holds, requests and waits for, for display.

use crate::action::ReasonKind;
use crate::gang::{self, Pick};
use crate::ids::{GroupName, QueueName};
use crate::reason::ReasonKey;
use crate::shares::plus;
use crate::state::State;
use crate::state::job_row::JobRow;
use crate::state::keys::{JobKey, TaskKey};
use crate::state::spec_row::SpecRow;
use crate::state::task_cell::Status;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZeroU64;
use std::sync::Arc;

/// One pod group. Amounts come as GPU (nano), CPU (milli), memory (bytes).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupView {
    /// Which: `namespace/name`.
    pub group: GroupName,
    /// Pods that run.
    pub running: u32,
    /// Pods that wait, or are bound and not yet running.
    pub pending: u32,
    /// What its pods hold.
    pub held: [u128; 3],
    /// Of it, the non-preemptible part.
    pub held_non_preemptible: [u128; 3],
    /// The requests of its pods that have not ended, placed ones included; for GPU memory the
    /// allocation.
    pub requested: [u128; 3],
    /// The names of the pods in the core of a semi-preemptible group, sorted. Another group has none.
    pub core: Box<[Arc<str>]>,
    /// The last reported reason of the first pending pod.
    pub reason: Option<(ReasonKind, Arc<str>)>,
    /// What the reason is about, if it is a limit or a quota of a queue.
    pub over: Option<OverQueue>,
}

/// A limit or quota of a queue that a pod group would exceed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OverQueue {
    /// The group's queue, or one above it.
    pub queue: QueueName,
    /// What the pods request that the group would place next.
    pub wanted: [u128; 3],
    /// The non-preemptible part of `wanted`.
    pub wanted_non_preemptible: [u128; 3],
}

/// What became of a pod group since its view was taken last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupChange {
    /// It has another view, or its first one.
    Changed(Box<GroupView>),
    /// It is gone. Another group may have its name since.
    Gone(GroupName),
}

/// Every pod group that is there, in order of name.
pub(crate) fn views(state: &State) -> Vec<GroupView> {
    let jobs = state.jobs.values();
    let mut views: Vec<GroupView> = jobs.filter_map(|job| view(state, job)).collect();
    views.sort_by(|a, b| a.group.cmp(&b.group));
    views
}

/// What changed since the views were taken. At most `most` changes, of as many groups.
pub(crate) fn take_changed(state: &mut State, most: usize) -> Vec<GroupChange> {
    let gone = state.outputs.changed_groups.take_gone(most).into_iter();
    let mut changes: Vec<GroupChange> = gone.map(GroupChange::Gone).collect();
    for _ in changes.len()..most {
        let Some(key) = state.next_changed_group() else {
            break;
        };
        let Some(job) = state.jobs.get(key) else {
            continue;
        };
        let (view, name) = (view(state, job), job.name.clone());
        let digest = view.as_ref().map(|view| digest(job, view));
        let Some(job) = state.jobs.get_mut(key) else {
            continue;
        };
        if std::mem::replace(&mut job.taken, digest) != digest {
            let change = view.map(|view| GroupChange::Changed(Box::new(view)));
            changes.push(change.unwrap_or(GroupChange::Gone(name)));
        }
    }
    changes
}

/// Every view that was taken counts as changed.
pub(crate) fn forget_taken(state: &mut State) {
    let keys: Vec<JobKey> = state.jobs.keys().collect();
    for key in keys {
        if let Some(job) = state.jobs.get_mut(key)
            && job.taken.is_some()
        {
            job.taken = Some(FORGOTTEN);
            state.group_changed(key);
        }
    }
}

/// In place of a view's digest: one was taken, which one is not known any more.
const FORGOTTEN: NonZeroU64 = NonZeroU64::MIN;

/// It only says whether a view is another one, or that of another object of the same name: what was
/// made of the view of the first is gone with it.
pub(crate) fn digest(job: &JobRow, view: &GroupView) -> NonZeroU64 {
    let mut hasher = DefaultHasher::new();
    job.group.as_ref().map(|group| &group.uid).hash(&mut hasher);
    view.hash(&mut hasher);
    NonZeroU64::new(hasher.finish()).unwrap_or(NonZeroU64::MAX)
}

/// Not of a pod of its own, nor of a group that was announced before its object was made.
pub(crate) fn is_there(job: &JobRow) -> bool {
    let group = job.group.as_ref();
    group.is_some_and(|group| !group.uid.is_empty())
}

/// `None`: it is not there.
pub(crate) fn view(state: &State, job: &JobRow) -> Option<GroupView> {
    if !is_there(job) {
        return None;
    }
    let mut view = GroupView {
        group: job.name.clone(),
        running: 0,
        pending: 0,
        held: [0; 3],
        held_non_preemptible: [0; 3],
        requested: [0; 3],
        core: core(state, job),
        reason: None,
        over: None,
    };
    for key in &job.tasks {
        add(state, *key, &mut view);
    }
    view.over = over(state, job);
    Some(view)
}

/// The queue that the reason of the first pending pod is about.
fn over(state: &State, job: &JobRow) -> Option<OverQueue> {
    let mut said = job
        .tasks
        .iter()
        .filter_map(|task| state.outputs.said.get(task));
    let ReasonKey::Limit(queue, _) = said.next()?.about else {
        return None;
    };
    let key = state.job_of(&job.name)?;
    let next = gang::of(state, key).next(Pick::Waiting, &|_| true);
    let specs = next.iter().filter_map(|task| {
        let row = state.tasks.get(*task)?;
        state.specs.get(row.spec)
    });
    let wanted = specs.map(SpecRow::request).fold([0; 3], plus);
    let may_exceed = state.may_exceed_quota(key);
    Some(OverQueue {
        queue: state.queues.get(queue)?.name.clone(),
        wanted,
        wanted_non_preemptible: if may_exceed { [0; 3] } else { wanted },
    })
}

/// The names of the pods in the core of a job, sorted.
fn core(state: &State, job: &JobRow) -> Box<[Arc<str>]> {
    let core = state
        .job_of(&job.name)
        .and_then(|key| state.cells.cores.get(key));
    let pods = core.into_iter().flat_map(|core| core.iter());
    let names = pods.filter_map(|pod| Some(Arc::clone(&state.tasks.get(pod.task)?.name)));
    let mut names: Vec<Arc<str>> = names.collect();
    names.sort_unstable();
    names.into()
}

/// One more pod.
fn add(state: &State, key: TaskKey, view: &mut GroupView) {
    let Some(row) = state.tasks.get(key) else {
        return;
    };
    let cell = state.cell(key);
    let add = |sum: &mut [u128; 3], amounts: [u128; 3]| {
        for (sum, amount) in sum.iter_mut().zip(amounts) {
            *sum = sum.saturating_add(amount);
        }
    };
    match cell.status {
        Status::Running | Status::Stuck => view.running += 1,
        Status::Pending | Status::Promised | Status::Assumed | Status::Bound => {
            view.pending += 1;
        }
        Status::Detached | Status::Releasing | Status::Victim | Status::Done => {}
    }
    match cell.status {
        Status::Running | Status::Assumed | Status::Bound => {
            let charge = state.charge(key, cell.holds());
            add(&mut view.held, charge);
            add(&mut view.requested, charge);
            if state.counts_as_fixed(key, row) {
                add(&mut view.held_non_preemptible, charge);
            }
        }
        Status::Pending | Status::Promised => {
            if let Some(spec) = state.specs.get(row.spec) {
                add(&mut view.requested, spec.request());
            }
            if view.reason.is_none() {
                let said = state.outputs.said.get(&key);
                view.reason = said.map(|why| (why.kind, Arc::clone(&why.line)));
            }
        }
        Status::Stuck | Status::Detached | Status::Releasing | Status::Victim | Status::Done => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Time;
    use crate::{Action, Config, Core, text};

    /// Its status is gone with the first object.
    #[test]
    fn a_group_that_was_made_again_has_changed_though_its_view_is_the_same() {
        let mut core = Core::new(Config::verified());
        for uid in ["first", "second"] {
            let events = format!("queue q\ngroup a/g queue=q uid={uid}\n");
            for event in text::read(&events).unwrap() {
                assert_eq!(core.apply(event), []);
            }
            assert_eq!(core.take_changed_groups(usize::MAX).len(), 1, "{uid}");
            assert!(core.take_changed_groups(usize::MAX).is_empty());
        }
    }

    #[test]
    fn a_group_that_loses_a_pod_to_another_has_changed_with_the_decision() {
        let mut core = Core::new(Config::verified());
        let events = "queue q\nnode n cpu=4000 pods=10 gpus=2\n\
            group a/low queue=q priority=50\ngroup a/high queue=q priority=75\n\
            pod low1 group=a/low gpus.main=1 on=n\npod low2 group=a/low gpus.main=1 on=n\n";
        for event in text::read(events).unwrap() {
            assert_eq!(core.apply(event), []);
        }
        assert_eq!(core.take_changed_groups(usize::MAX).len(), 2);
        for event in text::read("pod high group=a/high gpus.main=1\n").unwrap() {
            assert_eq!(core.apply(event), []);
        }
        let decision = core.decide(Time(1_000));
        assert!(
            matches!(decision.actions.as_slice(), [Action::Evict(_)]),
            "{decision:?}"
        );
        let changed = core.take_changed_groups(usize::MAX);
        let mut running: Vec<(String, u32)> = changed
            .into_iter()
            .filter_map(|change| match change {
                GroupChange::Changed(view) => Some((view.group.to_string(), view.running)),
                GroupChange::Gone(_) => None,
            })
            .collect();
        running.sort();
        assert_eq!(running, [("a/high".into(), 0), ("a/low".into(), 1)]);
        assert!(!core.has_changed_groups());
        assert_eq!(core.violations(), Vec::<String>::new());
    }
}
