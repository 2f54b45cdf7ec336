//! The kubelet: the calls to and from it.
//!
//! - [`session`]: serve, register, again when the kubelet returns.
//! - `plugin`: the five calls of the device-plugin service.
//! - [`prestart`]: from IDs to a CDI file.
//! - [`pod_resources`]: the second witness, and what the kubelet shows of the offer.
//! - [`numa`]: what pods have of the NUMA zones, by the kubelet's account.

pub mod numa;
mod plugin;
pub mod pod_resources;
pub mod prestart;
pub mod session;
