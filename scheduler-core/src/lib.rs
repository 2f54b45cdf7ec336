//! Every decision of the scheduler: events in, actions out.
//!
//! ```text
//! shell:  watch ─► Event ─► Core::apply ─► (Problems)
//!                           Core::decide(now) ─► Decision { actions, reasons, wake_at }
//!         act on each Action ─► Event::Outcome ─► Core::apply ...
//! ```
//!
//! In the order of the data's way:
//! - [`event`]: everything that can happen; [`model`]: the plain data inside;
//!   [`ids`], [`units`]: names and quantities; [`problem`]: what was wrong with one.
//! - `apply`: an event into `state` (rows of facts, journalled cells, one `transition`).
//! - `ledger`: what a share gets of a card; `fit`: can it go there, and every "no";
//!   `whole`: which n cards; `score`: where best, [`fragment`]: what would stay unused.
//! - [`fair_share`], `shares`, `capacity`: what queues may have; `queue_order`,
//!   `job_queue`: who goes next; `gang`: what goes together.
//! - `cycle`: one decision, KAI's actions one after another; [`config`]: its settings.
//! - `reason`, [`explain`]: why something waits; [`queues`], [`groups`]: what each has, wants
//!   and may have.
//! - [`text`]: events and decisions as text that people read and write.
//! - `snapshot`: the state as the event list that rebuilds it; `invariant`: what holds
//!   after every event.
//! - [`action`]: everything that may be asked of the shell.
//!
//! The core knows no Kubernetes, no clock, no chance, no threads and no I/O, and nothing
//! in it can fail. The same events give the same actions, byte for byte; events about
//! different objects may come in any order.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod action;
mod apply;
mod capacity;
pub mod config;
mod core;
mod cycle;
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
pub mod model;
pub mod problem;
mod queue_order;
pub mod queues;
mod reason;
mod score;
mod shares;
mod snapshot;
mod state;
pub mod text;
pub mod units;
mod whole;

pub use action::{
    Action, Bind, ClaimBinding, Decision, Evict, EvictCause, PodReason, Promise, ReasonKind,
    Received,
};
pub use config::{Config, Placement, Step};
pub use core::Core;
pub use event::{
    Backoff, Event, EvictRequest, Evicted, Given, Life, Outcome, OutcomeResult, Refusal, Rest,
};
pub use explain::Explanation;
pub use groups::GroupView;
pub use problem::Problem;
pub use queues::QueueView;
