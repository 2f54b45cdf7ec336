//! What the core would decide, tried on a copy of it: nothing is carried out.
//!
//! - [`settle`], [`decide_in_time`]: one decision after another, each with what came of the last.
//! - [`take_pod`]: a pod that does not exist, as the webhook would amend and the watch show it, with its
//!   claims.
//! - [`Wanted`]: a request in words, as such a pod; [`WhatIf`]: its victims.
//!
//! The command line's `simulate`, `fit`, `explain` and `replay` and the status page ask here.

mod claims;
mod pod;
mod settle;
mod wanted;

pub use claims::ClaimTemplates;
pub use pod::{AdmittedPod, UID, take_pod};
pub use settle::{QUIET, RECREATED, TrialResult, decide_in_time, is_placed, seconds, settle};
pub(crate) use settle::{carry_out, free_claims};
pub use wanted::{Victim, Wanted, WhatIf, what_if};
