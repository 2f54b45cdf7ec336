//! The agent as Kubernetes' DRA driver `aliquot.dev`: shares by `ResourceClaim`, under any
//! scheduler. The second front of the one ledger; off unless `--dra` is given.
//!
//! - [`mod@slice`]: pure: the node's state → what its `ResourceSlice` says.
//! - [`publish`]: keeps that object.
//! - [`registration`]: how the kubelet finds the driver.
//! - `authority`: what the kubelet's registration calls lack.
//! - [`request`]: pure: an allocated claim → the request to the ledger.
//! - [`reservations`]: which pods come to a prepared claim later.
//! - [`status`]: what claims say of their devices.
//! - [`health`]: what pods say of their cards.
//! - [`driver`]: the two calls of the kubelet's DRA service.
//! - [`service`]: which agent of a node answers them while one replaces another.
//!
//! The ledger owns the state of a share. A claim's share is an ordinary share, and the name of its
//! allocation follows from the claim's UID, so nothing else has to be stored.
//! [`crate::node::claims`] decides which pods may have it.

mod authority;
pub mod driver;
pub mod health;
pub mod publish;
pub mod registration;
pub mod request;
pub mod reservations;
pub mod service;
pub mod slice;
pub mod status;
