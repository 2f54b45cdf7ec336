//! Which devices of a node claims get: Kubernetes' structured parameters
//! (`k8s.io/dynamic-resource-allocation/structured`), with the answers of selectors as facts.
//!
//! In: the pools, the devices in use, a node, the claims' requests. Out: devices for each claim, or
//! why there are none. Changes nothing; decisions and explanations use the same functions.
//! - [`on_node`]: the devices of a node, and whether one will do for a request.
//! - [`find`]: with the devices that claims have already.
//! - [`amount`]: how much a request takes of a device that is shared.
//! - [`search`]: which of them together.
//! - [`reason`]: every "no" as a typed reason.

mod amount;
mod find;
mod on_node;
mod reason;
mod search;

pub(crate) use on_node::{by_card, gpus, lines};
pub(crate) use reason::{ClaimsReason, DeviceReason};
pub(crate) use search::{Wanted, allocate};
