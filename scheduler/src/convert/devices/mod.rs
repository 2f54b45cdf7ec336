//! Dynamic resource allocation: what drivers publish, what claims want and have, and what pods
//! wait for of it.
//!
//! - [`pools`]: `ResourceSlice`s; [`wants`]: what a claim's spec means; [`claims`]: claims, and
//!   which of them a pod has; [`filters`]: which devices selectors select.
//! - [`stand_in`]: the claim that stands in for whole GPUs in a pod's resources; [`stand_in_terms`]: what
//!   it says of a pod.
//! - [`strays`]: claims that lose their devices because their pods were not bound.
//! - [`objects`]: what is known of all these, and the pods that have claims.

mod claims;
mod filters;
mod objects;
mod pools;
pub(crate) mod stand_in;
mod stand_in_terms;
mod strays;
mod wants;

pub use objects::ClaimTerms;
pub(super) use objects::DeviceObjects;
pub use pools::Terms;
pub use stand_in::StandIn;
pub use strays::Stray;

#[cfg(test)]
mod tests;
