//! The scheduler in a simulated world: its real shell and its real core, some replicas of
//! them, against an API server, machines, agents and people that are all of this process, on
//! one thread and on virtual time. One seed is one run, byte for byte.
//!
//! - [`mod@run`]: a seed → what came of it; the shortest run that fails.
//! - [`world`]: the state of a run; [`event`]: what happens; [`time`]: when; [`trace`]: what happened.
//! - [`replica`]: a process of the scheduler, let run from moment to moment.
//! - [`server`], [`store`]: the API server; [`in_flight`]: the network before it; [`request`]: what is
//!   on it.
//! - [`node`], [`kubelet`]: machines, agents, and what controllers do by themselves.
//! - [`autoscaler`]: creates and removes machines ([`machines`]: those it made); [`demand`]: the demand on it.
//! - [`user`]: actions of users; [`chaos`]: faults; [`check`]: conditions that must hold.
#![forbid(unsafe_code)]

pub mod autoscaler;
pub mod chaos;
pub mod check;
pub mod demand;
pub mod event;
pub mod in_flight;
pub mod kubelet;
pub mod machines;
pub mod node;
pub mod replica;
pub mod request;
pub mod run;
pub mod server;
pub mod store;
pub mod time;
pub mod trace;
pub mod user;
pub mod world;

pub use run::{Report, Shape, run, shortest};
