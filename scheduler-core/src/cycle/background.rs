//! Background pods: maintenance work that gives way to all other work (KAI 0.18, plugin
//! `backgroundpods`).
//!
//! 1. [`hide`]: before anything is decided, the pods leave their places, as victims of a search do.
//!    What they hold counts as being released, and their queues hold nothing.
//! 2. The actions decide about all other jobs. One that needs what a background pod holds is promised
//!    it; a node where a job fits now is preferred, as for any other victim.
//! 3. `Cycle::restore_background`: each pod goes back to where it was if there is still room for it,
//!    and is evicted otherwise.
//! 4. Then background pods that wait are placed where there is room. Nothing is evicted for them. (In
//!    KAI, one that waits displaces another.)
//!
//! A pod with claims on devices is not hidden, as in KAI.

use crate::state::State;
use crate::state::keys::TaskKey;
use crate::state::task_cell::Status;

/// KAI's words.
pub(super) const MESSAGE: &str = "Evicted to make room for a workload on this node";

/// Takes background pods from their places, if other pods wait. Returns them, in order of namespace
/// and name.
pub(super) fn hide(state: &mut State) -> Vec<TaskKey> {
    let waits = |task: &TaskKey| !state.index.background.contains(task);
    if state.index.background.is_empty() || !state.index.pending.iter().any(waits) {
        return Vec::new();
    }
    let is_hidden = |task: &TaskKey| {
        let stands = matches!(state.cell(*task).status, Status::Bound | Status::Running);
        let row = state.tasks.get(*task);
        let spec = row.and_then(|row| state.specs.get(row.spec));
        let has_claims = spec.is_none_or(|spec| !spec.spec.devices.is_empty());
        stands && !has_claims && !state.is_eviction_postponed(*task)
    };
    let pods = state.index.background.iter().copied().filter(is_hidden);
    let mut pods: Vec<TaskKey> = pods.collect();
    pods.sort_by_key(|task| {
        let row = state.tasks.get(*task);
        row.map(|row| (&row.facts.namespace, &row.name))
    });
    for task in &pods {
        let hidden = state.cell(*task).victim();
        state.transition(*task, hidden);
    }
    pods
}
