//! Estimates when a waiting pod starts.
//!
//! - [`forecast`]: plays the ends of running pods forward on a fork of the core, with the same rules
//!   that decide, and notes when each waiting pod starts. Pure.
//! - `way`: the pods that are in a pod's way, so that an estimate says on how many known run times it
//!   rests.
//! - `task`: a forecast of each cycle, at most once in 30 s, apart from decisions.
//! - [`Estimate`]: what one pod is told; [`Forecast`]: of all that wait.
//!
//! No decision rests on a forecast. Pods that come later are not foreseen, and a pod without a known
//! run time counts as one that never ends.

mod estimate;
mod play;
mod task;
mod way;

pub use estimate::{EndedPod, Estimate, Forecast, in_words};
pub use play::{Budget, forecast};
pub(crate) use task::{AGAIN, Fork, Line, PACE, run};
