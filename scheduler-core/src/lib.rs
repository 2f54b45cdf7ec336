//! Every decision of the scheduler: events in, actions out.
//!
//! ```text
//! shell:  watch ─► Event ─► Core::apply ─► (Problems)
//!                           Core::decide(now) ─► Decision { actions, reasons, wake_at }
//!         act on each Action ─► Event::Outcome ─► Core::apply ...
//! ```
//!
//! In the order of the data's way:
//! - [`event`]: everything that can happen; [`model`]: the plain data inside; [`ids`], [`units`]:
//!   names and quantities; [`problem`]: an error in one.
//! - `apply`: an event into `state` (rows of facts, journalled cells, one `transition`).
//! - `ledger`: what a share gets of a card; `fit`: can it go there, and every "no";
//!   `whole`: which n cards; `devices`: which devices claims get; `score`: where best, [`fragment`]: what would stay unused.
//! - [`fair_share`], `shares`, `capacity`: what queues may have; `queue_order`, `job_queue`: which
//!   job is next; `gang`: what is placed or evicted together.
//! - `cycle`: one decision, KAI's actions one after another; [`config`]: its settings.
//! - `reason`, [`explain`]: why something waits; [`queues`], [`groups`]: what each has, wants
//!   and may have.
//! - [`text`]: events and decisions as text that people read and write.
//! - `snapshot`: the state as the event list that rebuilds it; `invariant`: what holds
//!   after every event.
//! - [`action`]: everything that the core may request of the shell.
//!
//! The core knows no Kubernetes, no clock, no chance, no threads and no I/O, and nothing
//! in it can fail. The same events give the same actions, byte for byte; events about
//! different objects may come in any order.
//!
//! # What the caller owes
//!
//! 1. Apply every event of an object in the order in which the object changed. Events of
//!    different objects may come in any order, and each may come more than once.
//! 2. Call [`Core::decide`] when something has changed, at [`Decision::wake_at`], and at once after
//!    a decision that was [`Decision::cut_short`]. The frequency does not change the result, only
//!    its delay.
//! 3. Carry each [`Action`] out once, in any order, evictions for the same beneficiary together.
//!    Decisions count as carried out from then on.
//! 4. Apply one [`Event::Outcome`] for each action. *Unknown* is no outcome: read the pod until it
//!    is known whether it was bound or deleted. Until then the core keeps the place.
//! 5. After a crash build a new core from the objects as they are, with another
//!    [`Config::epoch`]: an answer to a decision of the old one is no answer to the new one's.
//!
//! ```
//! use scheduler_core::units::Time;
//! use scheduler_core::{Action, Config, Core, Event, Outcome, OutcomeResult, text};
//!
//! fn apply(core: &mut Core, events: &str) {
//!     for event in text::read(events).expect("events in plain text") {
//!         assert_eq!(core.apply(event), [], "nothing is wrong with it");
//!     }
//! }
//!
//! let mut core = Core::new(Config::default());
//! apply(&mut core, "node n1 cpu=8000 pods=110 gpus=1\nqueue team");
//! apply(&mut core, "pod a queue=team gpus.main=1\npod b queue=team gpus.main=1 created=1");
//!
//! let decision = core.decide(Time(1_000));
//! let [Action::Bind(bind)] = decision.actions.as_slice() else {
//!     panic!("one GPU, one binding: {decision:?}");
//! };
//! assert_eq!((bind.pod.as_str(), bind.node.as_str()), ("a", "n1"));
//! // The other pod is told why it waits; nothing is decided twice.
//! assert_eq!(decision.reasons.len(), 1);
//! assert_eq!(core.decide(Time(1_000)).actions.len(), 0);
//!
//! // The API server has refused: the GPU is free again, and a is left alone for a while.
//! core.apply(Event::Outcome(Outcome {
//!     decision: bind.decision,
//!     result: OutcomeResult::Refused {
//!         reason: "busy".into(),
//!         retryable: true,
//!     },
//! }));
//! let decision = core.decide(Time(1_000));
//! let [Action::Bind(bind)] = decision.actions.as_slice() else {
//!     panic!("the GPU is free: {decision:?}");
//! };
//! assert_eq!(bind.pod.as_str(), "b");
//! core.apply(Event::Outcome(Outcome {
//!     decision: bind.decision,
//!     result: OutcomeResult::Confirmed,
//! }));
//!
//! // The pod is seen bound, and ends; then it is a's turn.
//! apply(&mut core, "pod b queue=team gpus.main=1 created=1 on=n1");
//! apply(&mut core, "pod-gone b");
//! assert_eq!(core.decide(Time(60_000)).actions.len(), 1);
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod action;
mod apply;
mod capacity;
pub mod config;
mod core;
mod cycle;
mod devices;
pub mod event;
pub mod explain;
pub mod fair_share;
mod fit;
pub mod fragment;
mod gang;
pub mod groups;
pub mod ids;
mod invariant;
mod job_queue;
mod ledger;
pub mod mig_layout;
pub mod model;
pub mod problem;
mod product_quota;
mod queue_order;
pub mod queues;
mod reason;
pub mod scale_up;
mod score;
mod shares;
mod snapshot;
mod state;
pub mod text;
pub mod units;
mod whole;

pub use action::{
    Action, Bind, ClaimBinding, Decision, DeviceBinding, Evict, EvictCause, PodReason, Promise,
    ReasonKind, Received, Tally,
};
pub use capacity::Request;
pub use config::{Config, GpuJobOrder, Placement, Plugin, Resolve, ScaleDown, Step, Workers};
pub use core::Core;
pub use cycle::relax::relaxations;
pub use event::{
    Activity, Backoff, Event, EvictRequest, Evicted, Given, Life, Namespace, Outcome,
    OutcomeResult, Refusal, Rest,
};
pub use explain::Explanation;
pub use groups::{GroupChange, GroupView, OverQueue};
pub use problem::Problem;
pub use queues::{ProductView, QueueView};
pub use state::idle::IdlePod;
