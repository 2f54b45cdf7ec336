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
//!   `whole`: which n cards; `score`: where best.
//! - `decide`: the cycle; `reason`, [`explain`]: why something waits.
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
mod core;
mod decide;
pub mod event;
pub mod explain;
mod fit;
pub mod ids;
mod invariant;
mod ledger;
pub mod model;
pub mod problem;
mod reason;
mod score;
mod snapshot;
mod state;
pub mod text;
pub mod units;
mod whole;

pub use action::{Action, Bind, Decision, Evict, EvictCause, PodReason, ReasonKind, Received};
pub use core::{Config, Core};
pub use event::{Backoff, Event, Outcome, OutcomeResult, Refusal};
pub use explain::Explanation;
pub use problem::Problem;
