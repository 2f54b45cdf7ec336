//! The one task that owns what the agent knows, and what everyone else reads of it.
//!
//! What everyone else reads and says:
//! - [`state`]: [`State`], the finished value on a watch; [`note`]: what happened once.
//! - [`event`]: what the core hears, and what it asks for; [`owner`]: the handle that tells it.
//!
//! The core and its parts, pure:
//! - [`core`]: events in, effects out; [`task`] is the task around it.
//! - [`policy`], `grants`, `cards`, `allocations`, [`mps_view`], [`pool`]: what is known of the admin's
//!   policy, the pods' grants, the cards, the kubelet's allocations, the MPS servers, and the kubelet.
//! - `guard`: what is done about violations; `broken_servers`: about servers that broke; `strangers`:
//!   about processes without a grant; [`complaint`]: what is said of containers for all that.
//! - `drain`: when clients of MPS servers are drained, before the kubelet kills them.
//! - `fences`: what really holds each share; `activity`: which shares do no work.
//! - `unproven`, `ungranted`: containers that the hook did not check, or that have no grant.
//! - [`layouts`]: when a card in MIG mode gets other instances.
//! - [`offer`]: which IDs the kubelet is offered, how healthy, which of them suit best.
//! - [`prepare`]: the decision of `PreStartContainer`; [`claims`]: the same for the DRA front.
//!
//! Other tasks:
//! - [`mps_sync`]: keeps the MPS supervisor at the plan.
//! - [`disk`]: reads the files on disk, removes those that the core names; `containers`: which
//!   containers still have a process.
//! - [`lists`]: writes the list of containers that may have the share of a claim.

mod activity;
mod allocations;
mod broken_servers;
mod cards;
pub mod claims;
pub mod complaint;
mod containers;
pub mod core;
pub mod disk;
mod drain;
pub mod event;
mod fences;
mod grants;
mod guard;
pub mod layouts;
pub mod lists;
pub mod mps_sync;
pub mod mps_view;
pub mod note;
pub mod offer;
pub mod owner;
pub mod policy;
pub mod pool;
pub mod prepare;
pub mod state;
mod strangers;
pub mod task;
mod ungranted;
mod unproven;

pub use complaint::Complaint;
pub use core::{Core, Terms};
pub use event::{Effect, Event, Obstacle};
pub use layouts::LayoutsView;
pub use mps_view::MpsView;
pub use note::{Note, RefusedGrant, Ungranted};
pub use owner::{Owner, Stopped};
pub use policy::Policy;
pub use pool::Pool;
pub use prepare::{Outcome, PrepareRequest, Source, Unready};
pub use state::{Readiness, State};
