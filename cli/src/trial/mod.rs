//! `aliquot fit` and `aliquot simulate`: what the scheduler would do with pods that do not exist
//! yet.
//!
//! - `intake`: manifests → what the API server would keep of them: defaults, the webhook's
//!   amendment or refusal, workloads taken apart into pods.
//! - `fit`: how often a request fits now, and where; `simulate`: manifests, evictions
//!   included.
//!
//! All on the shadow core; nothing is written anywhere.

mod fit;
mod intake;
mod simulate;

pub(crate) use fit::{Args as FitArgs, run as fit};
pub(crate) use simulate::{Args as SimulateArgs, run as simulate};
