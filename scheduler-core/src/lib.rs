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
//! - [`action`]: everything that may be asked of the shell.
//!
//! The core knows no Kubernetes, no clock, no chance, no threads and no I/O, and nothing
//! in it can fail. The same events give the same actions, byte for byte; events about
//! different objects may come in any order.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod action;
mod core;
pub mod event;
pub mod explain;
pub mod ids;
pub mod model;
pub mod problem;
pub mod units;

pub use action::{Action, Bind, Decision, Evict, EvictCause, PodReason, ReasonKind, Received};
pub use core::{Config, Core};
pub use event::{Backoff, Event, Outcome, OutcomeResult, Refusal};
pub use explain::Explanation;
pub use problem::Problem;
