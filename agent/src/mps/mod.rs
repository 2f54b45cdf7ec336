//! MPS: what the node needs, and the supervisor that makes it so.
//!
//! The agent's side:
//! - [`plan()`]: pure: the node's state → the servers it needs.
//! - [`SupervisorClient`]: asks the supervisor, over a socket on this node.
//! - [`phase`]: a server's phase, between releases.
//!
//! The supervisor's side (`aliquot-agent mps`), in the order of a plan's way:
//! - [`service`]: the socket; [`serve`].
//! - [`supervisor`]: all daemons, and what the plan wants of each.
//! - [`daemon`]: one daemon: the task that owns its process.
//! - [`machine`]: pure: what happened → the one next thing to do.
//! - [`control`]: the control daemon's command language; [`answer`]: what it answers;
//!   [`audit`]: who else used it; [`log`]: what it and its servers write.
//! - [`place`]: directories, shared memory.
//! - [`card`]: one card that is used without a server.
//! - [`probe`]: whether the driver limits cgroups on a card.
//! - [`cgroup`]: why a daemon outlives the supervisor's container.
//! - [`process`], [`smi`]: processes of the node; compute mode and time slice.
//! - [`program`]: NVIDIA's programs, in the driver's own root.
//!
//! The two never share a process group, a container or a fate: an agent's upgrade must not
//! end a server, and with it every tenant of a card.

pub mod answer;
pub mod audit;
pub mod card;
pub mod cgroup;
pub mod client;
pub mod control;
pub mod daemon;
pub mod log;
pub mod machine;
pub mod phase;
pub mod place;
pub mod plan;
pub mod probe;
pub mod process;
pub mod program;
pub mod service;
pub mod smi;
pub mod supervisor;

use backon::ExponentialBuilder;
use std::time::Duration;

pub use client::{ClientError, SupervisorClient};
pub use plan::plan;
pub use service::{ServeError, serve};

/// Pauses that double with each failure, from the shortest to the longest, without jitter: one
/// supervisor drives one driver, which nothing else asks at the same time.
fn backoff((shortest, longest): (Duration, Duration)) -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(shortest)
        .with_max_delay(longest)
        .without_max_times()
}

/// Whether this process may mount, which the supervisor's directories take.
pub fn may_mount() -> bool {
    caps::has_cap(
        None,
        caps::CapSet::Effective,
        caps::Capability::CAP_SYS_ADMIN,
    )
    .unwrap_or(false)
}
