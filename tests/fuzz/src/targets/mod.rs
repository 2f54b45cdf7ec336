//! The targets, by whose text it is.
//!
//! - of a tenant: `request`, `quantity`, `pod`, `review`, `objects`, `selector`;
//! - of the scheduler, by way of the API server: `grant`; of its own snapshots: `snapshot`;
//! - of a node: `telemetry`, `cgroup`, `checkpoint`, `cdi`, `hook`, `limit`, `mps`.

mod cdi;
mod cgroup;
mod checkpoint;
mod grant;
mod hook;
mod limit;
mod mps;
mod objects;
mod pod;
mod quantity;
mod request;
mod review;
mod selector;
mod snapshot;
mod telemetry;
mod world;

use crate::Target;

/// All of them.
pub const TARGETS: &[Target] = &[
    request::TARGET,
    quantity::TARGET,
    review::TARGET,
    grant::TARGET,
    pod::TARGET,
    objects::TARGET,
    selector::TARGET,
    telemetry::TARGET,
    snapshot::TARGET,
    checkpoint::TARGET,
    cgroup::TARGET,
    cdi::JSON,
    cdi::YAML,
    cdi::NAME,
    hook::GUARD,
    hook::ARGUMENTS,
    hook::PROOF,
    limit::TARGET,
    mps::TARGET,
];
