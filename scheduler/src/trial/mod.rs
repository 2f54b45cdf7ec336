//! What the core would decide, tried on a copy of it: nothing is carried out.
//!
//! - [`settle()`], [`decide_in_time`]: one decision after another, each with what came of the last.
//! - [`take_pod`]: a pod that does not exist, as the webhook would amend and the watch show it, with its
//!   claims.
//! - [`advice`]: changes that would let a waiting pod run; [`ClusterState`]: what they start from.
//! - [`Wanted`]: a request in words, as such a pod; [`WhatIf`]: its victims.
//!
//! The command line's `simulate`, `fit`, `explain` and `replay` and the status page ask here.

pub mod advice;
mod claims;
mod cluster_state;
mod pod;
mod settle;
mod wanted;

pub use claims::ClaimTemplates;
pub use cluster_state::{CardHolders, ClusterState};
pub use pod::{AdmittedPod, UID, take_pod};
pub use settle::{QUIET, RECREATED, TrialResult, decide_in_time, is_placed, seconds, settle};
pub(crate) use settle::{carry_out, free_claims};
pub use wanted::{Victim, Wanted, WhatIf, what_if};
