//! The kubelet: the offer to it, and the calls to and from it.
//!
//! - [`offer`]: pure: which IDs, how healthy, which of them suit best.
//! - [`session`]: serve, register, again when the kubelet returns.
//! - `plugin`: the five calls of the device-plugin service.
//! - [`prestart`]: from IDs to a CDI file.
//! - [`pod_resources`]: the second witness, and what the kubelet shows of the offer.

pub mod offer;
mod plugin;
pub mod pod_resources;
pub mod prestart;
pub mod session;
