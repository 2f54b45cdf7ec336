//! Which events end the record of past evictions ([`crate::event::Evicted`]): every change that was
//! not decided here.

use crate::event::{Event, OutcomeResult};
use crate::model::{Phase, Pod, PodGroup};
use crate::state::State;
use crate::state::cell::Status;
use std::sync::Arc;

/// True for events that are no consequence of our own decisions. Bindings and evictions
/// that are seen to have happened are; so are the pods that a controller makes in place of
/// those that were evicted, which come into a job that is known.
pub(super) fn is_from_outside(state: &State, event: &Event) -> bool {
    match event {
        Event::Tick(_)
        | Event::Sequence(_)
        | Event::Evicted(_)
        | Event::Rest(_)
        | Event::Life(_)
        | Event::Refused(_)
        | Event::Evicting(_)
        | Event::Assumed(_)
        | Event::Given(_)
        | Event::VolumeGone(_)
        | Event::Freed(_)
        | Event::Picked(_)
        | Event::Backoff(_)
        | Event::CardPause(_) => false,
        Event::Config(_)
        | Event::Node(_)
        | Event::NodeGone(_)
        | Event::Cards(_)
        | Event::AgentLost(_)
        | Event::Queue(_)
        | Event::QueueGone(_)
        | Event::GroupGone(_)
        | Event::Topology(_)
        | Event::TopologyGone(_)
        | Event::Devices(_)
        | Event::DevicesGone(_)
        | Event::Namespace(_)
        | Event::NamespaceGone(_)
        | Event::Refusal(_)
        | Event::EvictRequest(_) => true,
        // One that is kept for a claim may be so by a binding of ours.
        Event::Volume(volume) => volume.kept_for.is_none() && !state.volumes.is_known(&volume.name),
        // Ours, or another scheduler's.
        Event::Allocated(allocation) => !state.devices.has_picked(allocation),
        Event::Outcome(outcome) => outcome.result != OutcomeResult::Confirmed,
        Event::Group(group) => is_another(state, group),
        Event::Pod(pod) => is_new(state, pod),
        Event::PodGone(uid) => state
            .task_of(uid)
            .and_then(|key| state.tasks.get(key))
            .is_some_and(|row| row.rare.evicting.is_none()),
    }
}

/// Changes beyond the times and the condition that the shell writes for us, and beyond the creation
/// of its object if that was announced.
fn is_another(state: &State, group: &PodGroup) -> bool {
    let known = state
        .job_of(&group.name)
        .and_then(|key| state.jobs.get(key)?.group.as_ref());
    known.is_none_or(|known| {
        let mut same = known.to_group(group.name.clone());
        same.last_start = group.last_start;
        same.stale_since = group.stale_since;
        // As its condition says, which we wrote.
        same.parked.clone_from(&group.parked);
        if known.uid.is_empty() {
            same.uid = Arc::clone(&group.uid);
            same.created = group.created;
        }
        same != *group
    })
}

fn is_new(state: &State, pod: &Pod) -> bool {
    let known = state
        .task_of(&pod.uid)
        .and_then(|key| Some((key, state.tasks.get(key)?, state.task_cells.get(key)?)));
    let Some((key, row, cell)) = known else {
        let job = pod.group.as_ref();
        return job.is_none_or(|name| state.job_of(name).is_none());
    };
    let wants_the_same = state.specs.get(row.spec).is_some_and(|row| {
        let spec = &row.spec;
        spec.cpu == pod.cpu
            && spec.memory == pod.memory
            && spec.gpus == pod.gpus
            && spec.extended == pod.extended
            && spec.rules == pod.nodes
            && spec.claims == pod.claims
            && spec.attachments == pod.attachments
            && state.devices.of(key) == pod.devices
            && spec.ports == pod.ports
            && spec
                .others
                .as_ref()
                .map_or(pod.pods.is_empty(), |others| others.rules == pod.pods)
    });
    let ended = matches!(pod.phase, Phase::Succeeded | Phase::Failed);
    !wants_the_same
        || ended && cell.status != Status::Done
        || row.gated != pod.gated
        || row.facts.priority != pod.priority
        || row.facts.queue != pod.queue
        || !state.is_of_group(row, pod.group.as_ref())
}
