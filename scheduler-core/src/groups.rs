//! What each pod group holds, requests and waits for, for display.

use crate::action::ReasonKind;
use crate::ids::GroupName;
use crate::state::State;
use crate::state::cell::Status;
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
    /// The last reported reason of the first pending pod.
    pub reason: Option<(ReasonKind, Arc<str>)>,
}

/// Every pod group that is there, in order of name: not one that was announced before its
/// object was made.
pub(crate) fn views(state: &State) -> Vec<GroupView> {
    let mut views: Vec<GroupView> = state
        .jobs
        .values()
        .filter(|job| {
            job.group
                .as_ref()
                .is_some_and(|group| !group.uid.is_empty())
        })
        .map(|job| {
            let mut view = GroupView {
                group: job.group_name(),
                running: 0,
                pending: 0,
                held: [0; 3],
                held_non_preemptible: [0; 3],
                requested: [0; 3],
                reason: None,
            };
            for key in job.tasks.iter() {
                let Some(row) = state.tasks.get(*key) else {
                    continue;
                };
                let cell = state.cell(*key);
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
                        let charge = state.charge(*key, cell.holds());
                        add(&mut view.held, charge);
                        add(&mut view.requested, charge);
                        if !state.preemptible(row) {
                            add(&mut view.held_non_preemptible, charge);
                        }
                    }
                    Status::Pending | Status::Promised => {
                        if let Some(spec) = state.specs.get(row.spec) {
                            add(&mut view.requested, spec.request());
                        }
                        if view.reason.is_none() {
                            let said = state.said.get(key);
                            view.reason = said.map(|why| (why.kind, Arc::clone(&why.line)));
                        }
                    }
                    Status::Stuck
                    | Status::Detached
                    | Status::Releasing
                    | Status::Victim
                    | Status::Done => {}
                }
            }
            view
        })
        .collect();
    views.sort_by(|a, b| a.group.cmp(&b.group));
    views
}
