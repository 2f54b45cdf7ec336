//! MPS: what the node needs, and the supervisor that makes it so.
//!
//! The agent's side:
//! - [`plan`]: pure: the node's shares → the servers it needs.
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
mod backoff;
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
mod sequence;
pub mod service;
pub mod smi;
pub mod supervisor;

pub use client::{ClientError, SupervisorClient};
pub use service::{ServeError, serve};

/// Whether this process may mount, which the supervisor's directories take.
pub fn may_mount() -> bool {
    caps::has_cap(
        None,
        caps::CapSet::Effective,
        caps::Capability::CAP_SYS_ADMIN,
    )
    .unwrap_or(false)
}
