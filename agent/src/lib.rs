//! The node agent: NVML → inventory → { kubelet, CDI, MPS } → telemetry.
//!
//! In the order of the data's way:
//! - [`config`]: every path and flag.
//! - [`nvml`]: one thread owns NVML; observations and XIDs come out.
//! - [`attribute`]: pid → cgroup → container; [`mod@line`]: others' text on one line.
//! - [`gpu`]: cards in the driver's own words; [`resource`]: the extended resources.
//! - [`inventory`]: pure: observations and the admin's policy → cards, health, what can be granted.
//! - [`pods`]: watches this node's pods, its Node and `GpuNode`, and what the cluster trusts.
//! - [`identity`]: pure: the kubelet's checkpoint and `PodResources` → which pod an allocation is for.
//! - [`ledger`]: pure: which container holds which part of which card.
//! - [`reconcile`]: pure: what lives and what died, and the rebuild at start.
//! - [`watchdog`]: pure: which container holds more than its share; [`termination`]: ends
//!   processes.
//! - [`node`]: the one task that owns all of this, and [`node::State`], what everyone else reads.
//! - [`kubelet`]: the device-plugin servers and their registration; [`numa`]: the node's zones.
//! - [`dra`]: the same as a DRA driver: shares by `ResourceClaim`.
//! - [`edit`]: pure: a share → the CDI file's content.
//! - [`fence`]: pure: mode and what was read back → fence and reach of a share.
//! - [`mps`]: the plan for the MPS supervisor, and the supervisor (`aliquot-agent mps`).
//! - [`telemetry`]: streams to schedulers, `GpuNode` status, metrics, health.
//! - [`run()`]: starts it all ([`install`], [`privilege`] before it); [`exit`] says how a process ends.
#![deny(unsafe_code)]

pub mod attribute;
pub mod cluster;
pub mod config;
pub mod dra;
pub mod edit;
pub mod exit;
pub mod fence;
pub mod gpu;
pub mod identity;
pub mod install;
pub mod inventory;
pub mod kubelet;
pub mod ledger;
pub mod line;
pub mod mps;
pub mod node;
pub mod numa;
pub mod nvml;
pub mod pods;
pub mod privilege;
pub mod reconcile;
pub mod resource;
mod run;
pub mod telemetry;
pub mod termination;
pub mod watchdog;

pub use config::Config;
pub use run::{RunError, run};
