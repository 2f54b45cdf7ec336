//! The one task that owns what the agent knows, and what everyone else reads of it.
//!
//! - [`state`]: [`State`], the finished value on a watch, and [`Note`], what happened once.
//! - [`core`]: pure: events in, effects out.
//! - [`prepare`]: pure: the decision of `PreStartContainer`.

pub mod core;
pub mod prepare;
pub mod state;

pub use core::{Core, Effect, Event, Obstacle, Terms};
pub use prepare::{Ask, Outcome, Source, Unready};
pub use state::{MpsView, Node, Note, Policy, Pool, Readiness, Refusal, State};
