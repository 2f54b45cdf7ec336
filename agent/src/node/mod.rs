//! The one task that owns what the agent knows, and what everyone else reads of it.
//!
//! - [`state`]: [`State`], the finished value on a watch, and [`Note`], what happened once.
//! - [`core`]: pure: events in, effects out ([`event`]).
//! - `activity`: pure: which shares do no work.
//! - `guard`: pure: what the core does about violations, broken servers and strangers.
//! - `drain`: pure: when clients of MPS servers are drained, before the kubelet kills them.
//! - `layouts`: pure: when a card in MIG mode gets other instances.
//! - [`prepare`]: pure: the decision of `PreStartContainer`.
//! - [`claims`]: pure: the same for the DRA front.
//! - [`owner`]: the task around it.
//! - [`mps_sync`]: keeps the MPS supervisor at the plan.
//! - `containers`: which containers still have a process.
//! - [`disk`]: reads the files on disk, removes those that the core names.
//! - [`lists`]: writes the list of containers that may have the share of a claim.

mod activity;
pub mod claims;
mod containers;
pub mod core;
pub mod disk;
mod drain;
pub mod event;
mod guard;
mod layouts;
pub mod lists;
pub mod mps_sync;
pub mod offer;
pub mod owner;
pub mod prepare;
pub mod state;

pub use core::{Core, Terms};
pub use event::{Effect, Event, Obstacle};
pub use layouts::LayoutsView;
pub use owner::{Owner, Stopped};
pub use prepare::{Outcome, PrepareRequest, Source, Unready};
pub use state::{
    Complaint, MpsView, Note, Policy, Pool, Readiness, RefusedGrant, State, Ungranted,
};
