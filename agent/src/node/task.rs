//! The task that owns the [`Core`]: events in, state and offer out on watches.
//!
//! Must never wait for anything but its next message: slow work belongs to other tasks.

use super::core::Core;
use super::disk::DiskRequest;
use super::event::{Effect, Event};
use super::note::Note;
use super::offer::Offer;
use super::owner::Message;
use super::state::State;
use crate::nvml::{LayoutOrder, Watched};
use crate::termination;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Time passes at least so often: hysteresis and graces end without an event.
const TICK: Duration = Duration::from_secs(1);

/// The channels into which results go.
#[derive(Debug)]
pub struct OwnerChannels {
    /// The state that everyone reads.
    pub state: watch::Sender<Arc<State>>,
    /// The offer to the kubelet.
    pub offer: watch::Sender<Arc<Offer>>,
    /// To the disk's task.
    pub disk: channel::Sender<DiskRequest>,
    /// To telemetry.
    pub notes: channel::Sender<Note>,
    /// To the task that ends processes.
    pub ends: channel::Sender<termination::Order>,
    /// To NVML's thread: cards whose processes are watched.
    pub watched: watch::Sender<Watched>,
    /// To NVML's thread: the layouts of cards in MIG mode.
    pub layouts: std::sync::mpsc::Sender<LayoutOrder>,
}

/// Runs until `stop`, or until every receiver is gone.
pub async fn run(
    mut core: Core,
    mut inbox: channel::Receiver<Message>,
    outputs: OwnerChannels,
    stop: CancellationToken,
) {
    loop {
        let message = tokio::select! {
            message = inbox.recv() => match message {
                None => return,
                Some(message) => message,
            },
            () = tokio::time::sleep(TICK) => Message::Event(Event::Tick),
            () = stop.cancelled() => return,
        };
        let now = Instant::now();
        // The answer is sent after the state that it follows from: a reader that reads the state
        // because of the answer must not find an older one.
        let mut answer: Option<Box<dyn FnOnce() + Send>> = None;
        let mut quiet = false;
        let effects = match message {
            Message::Event(event) => {
                quiet = matches!(event, Event::Sampled(_));
                if matters_to_disk(&event) {
                    let _ = outputs.disk.send(DiskRequest::Look);
                }
                core.apply(event, now)
            }
            Message::Prepare(ask, to) => {
                let (outcomes, effects) = core.prepare(&ask, now);
                answer = Some(answers(to, outcomes));
                effects
            }
            Message::PrepareClaim(allocated, to) => {
                let (result, effects) = core.prepare_claim(&allocated, now);
                answer = Some(answers(to, result));
                effects
            }
            Message::Unprepare(uid, to) => {
                let (result, effects) = core.unprepare(&uid, now);
                if result.is_err() {
                    // The data behind the decision may be seconds old.
                    let _ = outputs.disk.send(DiskRequest::Look);
                }
                answer = Some(answers(to, result));
                effects
            }
            Message::Unbind(alloc) => core.unbind(alloc, now),
        };
        // A sample from which nothing follows changes nothing.
        if !quiet || !effects.is_empty() {
            publish(&mut core, &outputs);
        }
        watch_out(&core, &outputs, now);
        for effect in effects {
            // Receivers live as long as the agent.
            match effect {
                Effect::Forget(alloc) => {
                    let _ = outputs.disk.send(DiskRequest::Forget(alloc));
                }
                Effect::ForgetProof(name) => {
                    let _ = outputs.disk.send(DiskRequest::ForgetProof(name));
                }
                Effect::List(alloc) => {
                    let _ = outputs.disk.send(DiskRequest::List(alloc));
                }
                Effect::MakeLayout(order) => {
                    let _ = outputs.layouts.send(order);
                }
                Effect::End(termination) => {
                    let _ = outputs.ends.send(termination::Order::End(termination));
                }
                Effect::Drain(drain) => {
                    let _ = outputs.ends.send(termination::Order::Drain(drain));
                }
                Effect::Tell(note) => {
                    tracing::info!(?note, "noted");
                    let _ = outputs.notes.send(note);
                }
            }
        }
        if let Some(answer) = answer {
            answer();
        }
    }
}

fn answers<T: Send + 'static>(to: oneshot::Sender<T>, answer: T) -> Box<dyn FnOnce() + Send> {
    // The kubelet may have given up.
    Box::new(move || drop(to.send(answer)))
}

/// Events after which checkpoint or proofs are likely to be different.
fn matters_to_disk(event: &Event) -> bool {
    matches!(
        event,
        Event::Pod(_) | Event::PodGone(_) | Event::PodsListed(_) | Event::Minted { .. }
    )
}

/// The cards that are sampled, and how closely.
fn watch_out(core: &Core, outputs: &OwnerChannels, now: Instant) {
    let watched = core.watched(now);
    outputs.watched.send_if_modified(|old| {
        let changed = *old != watched;
        *old = watched;
        changed
    });
}

/// A node that stops or starts to offer its cards is worth a line, once per reason.
fn log_offering(before: Option<&str>, now: Option<&str>) {
    match now {
        Some(reason) if before != now => tracing::warn!(reason, "the node offers nothing"),
        None if before.is_some() => tracing::info!("the node offers its cards again"),
        _ => {}
    }
}

fn publish(core: &mut Core, outputs: &OwnerChannels) {
    let mut state = core.state();
    let needs = state.plan();
    state.mps.holding.clone_from(core.needs(&needs));
    outputs.state.send_if_modified(|old| {
        let changed = **old != state;
        if changed {
            log_offering(old.not_offering.as_deref(), state.not_offering.as_deref());
            *old = Arc::new(state);
        }
        changed
    });
    let offer = core.offer();
    outputs.offer.send_if_modified(|old| {
        let changed = **old != offer;
        if changed {
            *old = Arc::new(offer);
        }
        changed
    });
}
