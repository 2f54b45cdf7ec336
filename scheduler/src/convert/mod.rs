//! Facts of the API server and words of agents → the core's events.
//!
//! - `pod_rules`: what of a pod is about other pods.
//! - `pod`, `node`, `queue`, `cards`, `namespaces`: one object each; `resources`, `rules`:
//!   parts of a pod.
//! - `classes`: values of priority classes.
//! - `volume`: where a pod's volumes let it go, and its claims; `supply`: volumes that a claim
//!   may still get; `storage`: what is remembered of them; `config_maps`: those that are missing;
//!   `recheck`: pods that are looked at again because one of these changed.
//! - `devices`: devices that claims get, and what claims want.
//! - `admin`: what an admin says of the shard.
//! - `csi`: what CSI drivers can do for which nodes.
//! - `scale_down`: what may be moved for an autoscaler; `settings`: what a world is to be like.
//! - `run_time`: how long a pod runs; `run_times`: all pods, and past runs.
//! - `agent`: what agents say; `isolation`, `idle`: the pod conditions that
//!   follow from it; `owed`: how these are written until they are seen.
//! - `world`: what must be remembered between facts, and which part takes which fact; `pods`, `node`,
//!   `gpu_nodes`, `agent`, `admin`: its parts for these. `whole`: whole cards that the kubelet chose;
//!   `wishes`: pods that agents want gone.
//!
//! Pure: no client, no clock.

mod admin;
mod agent;
mod aligned;
mod cards;
mod classes;
mod config_maps;
pub(crate) mod csi;
mod devices;
mod duration;
mod gpu_nodes;
mod hindrance;
mod idle;
mod idle_rule;
mod isolation;
mod listing;
pub(crate) mod mig;
mod namespaces;
mod node;
mod owed;
mod pod;
mod pod_rules;
mod pods;
pub(crate) mod queue;
mod recheck;
pub(crate) mod resources;
mod rules;
pub mod run_time;
mod run_times;
mod scale_down;
mod settings;
mod shown;
mod storage;
mod supply;
pub(crate) mod volume;
mod whole;
mod wishes;
mod world;

pub(crate) use devices::stand_in;
pub use devices::{ClaimTerms, StandIn, Stray, Terms};
pub(crate) use duration::duration;
pub(crate) use idle_rule::IdleRule;
pub use owed::{OwedCondition, PodCondition};
pub use shown::Shown;
pub use world::{QueueConditions, World};

#[cfg(test)]
mod fields;
#[cfg(test)]
pub(crate) mod tests;
